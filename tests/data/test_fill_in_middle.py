"""Fill in the middle: the parts of a cut line are the whole line, and a cut is a function of the key of a line."""

from collections import Counter
from itertools import islice
from random import Random

import numpy as np
import pytest
from support.small_texts import PAIRS
from support.toy_task import write_lines

from transduce.config.schema import DataConfig
from transduce.data.batches import Batches, DataPosition, Share
from transduce.data.corpora import Corpus
from transduce.data.fill_in_middle import Marks, MiddleLast, check_marks, cut
from transduce.data.token_store import TokenStore, open_store
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import EOS, MIDDLE_MARKS, TokenizerLike
from transduce.errors import UserError

LINES = [src for src, _ in PAIRS if src]
TEXTS = ["a", "Zürich, 8 km!", "der  Hund  ", "x" * 100, "Häuser\u0301 </s> <fim_middle> \U0001f600 日本 é"]
CONFIG = DataConfig(batch_tokens=300, max_tokens=60, fill_middle=0.6)
MARKS = Marks(prefix=900, suffix=901, middle=902, end=903)


def learned(kind: str = "bpe", *, normalizes: bool = False) -> Tokenizer:
    size = 400 if kind == "bpe" else 700
    return Tokenizer.learn(LINES, kind=kind, vocab_size=size, tags=MIDDLE_MARKS, normalizes=normalizes)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return learned()


@pytest.fixture(scope="module")
def store(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    folder = tmp_path_factory.mktemp("data")
    text = write_lines(folder / "text", LINES)
    return open_store(folder / "train", [Corpus(text, text)], tokenizer)


def test_the_orders_are_those_of_the_paper() -> None:
    assert MARKS.prompt([1, 2], [3]) == [900, 1, 2, 901, 3, 902]
    assert MARKS.prompt([1, 2], [3], suffix_first=True) == [900, 901, 3, 902, 1, 2]


def test_all_cuts_are_drawn() -> None:
    random, cuts = Random(1), Counter[int]()
    for _ in range(4_000):
        prefix, middle, suffix = cut("abc", random)
        assert prefix + middle + suffix == "abc"
        cuts[len(middle)] += 1
    assert [round(16 * cuts[n] / 4_000) for n in range(4)] == [4, 6, 4, 2]  # of 4 x 4 pairs of cuts


# ---- rows --------------------------------------------------------------------------------------------------------


def parts_of(ids: list[int], tokenizer: TokenizerLike) -> tuple[list[int], list[int], list[int]] | None:
    """Return prefix, middle and suffix of a row; None for a line that is whole."""
    prefix, suffix, middle = (tokenizer.vocabulary.index(mark) for mark in MIDDLE_MARKS)
    if prefix not in ids:
        assert suffix not in ids and middle not in ids
        return None
    assert ids[0] == prefix and ids.count(suffix) == ids.count(middle) == 1
    second, third = ids.index(suffix), ids.index(middle)
    return ids[1:second], ids[third + 1 :], ids[second + 1 : third]


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
@pytest.mark.parametrize("normalizes", [False, True])
@pytest.mark.parametrize("text", TEXTS)
def test_the_parts_of_a_line_are_the_line(kind: str, normalizes: bool, text: str) -> None:
    tokenizer = learned(kind, normalizes=normalizes)
    row = np.array(tokenizer.encode(text))
    keys = np.arange(60, dtype=np.uint64)
    rows, others = MiddleLast(tokenizer, 0.99).rows(([row] * 60, [row] * 60), keys)
    assert rows == others
    texts = list[tuple[str, ...]]()
    for ids in rows:
        parts = parts_of(ids.tolist(), tokenizer)
        if parts:
            assert tokenizer.decode([i for part in parts for i in part]) == tokenizer.decode(row)
            texts.append(tuple(tokenizer.decode(part) for part in parts))
    assert len(texts) > 50 and len({*texts}) > min(len(text), 20)


def test_only_the_first_part_begins_with_the_space_of_the_tokenizer(tokenizer: Tokenizer) -> None:
    row = np.array(tokenizer.encode("Hund Katze"))
    for ids in MiddleLast(tokenizer, 0.99).rows(([row] * 40, [row] * 40), np.arange(40, dtype=np.uint64))[0]:
        if parts := parts_of(ids.tolist(), tokenizer):
            prefix, middle, suffix = ("".join(tokenizer.pieces(part)).replace("▁", " ") for part in parts)
            assert prefix + middle + suffix == (" Hund Katze" if prefix else "Hund Katze")


def test_no_text_has_the_marks(tokenizer: Tokenizer) -> None:
    marks = {tokenizer.vocabulary.index(mark) for mark in MIDDLE_MARKS}
    for mark in MIDDLE_MARKS:
        ids = tokenizer.encode(f"{mark} Hund {mark}")
        assert not marks & {*ids} and tokenizer.decode(ids) == f"{mark} Hund {mark}"
    assert tokenizer.tags == [] and Tokenizer(tokenizer.to_json()).tags == []


def test_a_tokenizer_without_the_marks_is_refused() -> None:
    with pytest.raises(UserError, match="data.fill_middle: expected a tokenizer with the tokens <fim_prefix>"):
        check_marks(Tokenizer.learn(LINES, vocab_size=300))


# ---- batches -----------------------------------------------------------------------------------------------------


def rows_of(batches: Batches, position: DataPosition, count: int) -> list[list[int]]:
    steps = islice(batches.stream(position), count)
    return [
        ids[mask].tolist() for (batch,), _ in steps for ids, mask in zip(batch.tgt_out, batch.tgt_mask, strict=True)
    ]


def test_a_resumed_stream_has_the_same_cuts_and_each_epoch_others(store: TokenStore, tokenizer: Tokenizer) -> None:
    batches = Batches(store, tokenizer, CONFIG, seed=3)
    size = len(batches.plan(0))
    whole = rows_of(batches, DataPosition(), size)
    middle = next(islice(batches.stream(DataPosition()), size // 2, None))[1]
    rest = rows_of(Batches(store, tokenizer, CONFIG, seed=3), middle, size - middle.index)
    assert rest and whole[-len(rest) :] == rest
    share = sum(parts_of(row, tokenizer) is not None for row in whole) / len(whole)
    assert 0.45 < share < 0.65  # some stay whole, where a batch has no room
    cuts = [
        {tuple(row) for row in rows if parts_of(row, tokenizer)}
        for rows in (whole, rows_of(batches, DataPosition(1), size))
    ]
    assert len(cuts[0] & cuts[1]) < 0.1 * len(cuts[0])


def test_ranks_do_not_change_the_cuts(store: TokenStore, tokenizer: Tokenizer) -> None:
    """In batches with room for all: the plan leaves room for long lines."""
    config = DataConfig(batch_tokens=2_000, max_tokens=60, fill_middle=0.3)
    alone = rows_of(Batches(store, tokenizer, config, seed=3), DataPosition(), 1)
    ranks = [Batches(store, tokenizer, config, seed=3, share=Share(rank, 2)) for rank in range(2)]
    together = [rows_of(batches, DataPosition(), 1) for batches in ranks]
    assert alone[::2] == together[0] and alone[1::2] == together[1]


@pytest.mark.parametrize("batch_tokens", [61, 150, 600])
def test_cuts_stay_within_both_limits(store: TokenStore, tokenizer: Tokenizer, batch_tokens: int) -> None:
    config = DataConfig(batch_tokens=batch_tokens, max_tokens=60, fill_middle=0.9)
    batches = Batches(store, tokenizer, config, seed=3)
    for (batch,), _ in islice(batches.stream(DataPosition()), len(batches.plan(0))):
        assert batch.tgt_mask.sum() <= batch_tokens and batch.tgt_mask.sum(1).max() <= 60


def test_without_cuts_the_batches_are_the_lines_of_the_plan(store: TokenStore, tokenizer: Tokenizer) -> None:
    config = DataConfig(batch_tokens=300, max_tokens=60)
    assert config.fill_middle == 0
    batches = Batches(store, tokenizer, config, seed=3)
    for i, ((batch,), _) in enumerate(islice(batches.stream(DataPosition()), len(batches.plan(0)))):
        lines, _ = store.read(batches.plan(0)[i])
        for ids, mask, line in zip(batch.tgt_out, batch.tgt_mask, lines, strict=True):
            assert ids[mask].tolist() == [*line.tolist(), EOS]
