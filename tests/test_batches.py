"""Batches: the store gives back what was encoded, and the order is a function of (seed, epoch) that loses no pair."""

import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from transduce.batches import (
    Batch,
    Batches,
    State,
    TokenStore,
    collate,
    open_store,
    pad,
    plan,
    usable,
)
from transduce.config import DataConfig
from transduce.errors import UserError
from transduce.text import read_pairs
from transduce.tokens import BOS, EOS, PAD, Tokenizer

WORDS = "der die das ein Hund Katze läuft springt über unter Straße Häuser schnell langsam und".split()


def write_corpus(folder: Path, pairs: list[tuple[str, str]], end: str = "\n") -> tuple[Path, Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "train.en", folder / "train.de"
    for side, path in enumerate(paths):
        path.write_bytes("".join(pair[side] + end for pair in pairs).encode())
    return paths


def sentences(count: int, seed: int = 1) -> list[tuple[str, str]]:
    chance = np.random.default_rng(seed)

    def sentence() -> str:
        return " ".join(chance.choice(WORDS, chance.integers(1, 15)))

    return [(sentence(), sentence()) for _ in range(count)]


PAIRS = [*sentences(300), ("", "leer"), ("leer", ""), ("", ""), ("Hund " * 100, "Hund"), ("Hund", "Katze " * 100)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.learn((side for pair in PAIRS for side in pair), vocab_size=350)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_corpus(tmp_path_factory.mktemp("corpus"), PAIRS)


@pytest.fixture(scope="module")
def store(corpus: tuple[Path, Path], tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> TokenStore:
    return open_store(tmp_path_factory.mktemp("data") / "train", *corpus, tokenizer)


# ---- the store ---------------------------------------------------------------------------------------------------


def contents(store: TokenStore) -> list[tuple[list[int], list[int]]]:
    return [(store.ids(0, i).tolist(), store.ids(1, i).tolist()) for i in range(len(store))]


def test_the_store_holds_what_the_tokenizer_gives(store: TokenStore, tokenizer: Tokenizer) -> None:
    assert contents(store) == [(tokenizer.encode(src), tokenizer.encode(tgt)) for src, tgt in PAIRS]
    for side in (0, 1):
        assert store.lengths(side).tolist() == [len(tokenizer.encode(pair[side])) + 1 for pair in PAIRS]
        assert store.lengths(side).dtype == np.int64


def test_a_corpus_of_more_than_one_piece(tmp_path: Path, tokenizer: Tokenizer) -> None:
    pairs = [(f"Hund {i}", f"{i} Katze" if i % 7 else "") for i in range(20_003)]
    store = open_store(tmp_path / "data", *write_corpus(tmp_path, pairs), tokenizer)
    assert len(store) == len(pairs)
    for i in (0, 1, 9_998, 9_999, 10_000, 10_001, 19_999, 20_000, 20_002):
        assert tuple(tokenizer.decode(store.ids(side, i).tolist()) for side in (0, 1)) == pairs[i]


def test_a_corpus_without_a_token(tmp_path: Path, tokenizer: Tokenizer) -> None:
    store = open_store(tmp_path / "data", *write_corpus(tmp_path, [("", ""), ("", "")]), tokenizer)
    assert contents(store) == [([], []), ([], [])]
    assert len(usable(store, 100)) == 0


def files_of(folder: Path) -> dict[Path, tuple[int, int]]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in found}


@pytest.fixture
def own(tmp_path: Path) -> tuple[Path, Path]:
    return write_corpus(tmp_path / "text", PAIRS[:40])


def test_a_second_opening_maps_and_does_not_build(tmp_path: Path, own: tuple[Path, Path], tokenizer: Tokenizer) -> None:
    first = open_store(tmp_path / "data", *own, tokenizer)
    before = files_of(tmp_path / "data")
    second = open_store(tmp_path / "data", *own, tokenizer)
    assert files_of(tmp_path / "data") == before
    assert contents(first) == contents(second) and first.key == second.key
    assert not second.tokens[0].flags.writeable and not second.tokens[0].flags.owndata


def test_the_key_is_text_and_tokenizer_not_names(tmp_path: Path, own: tuple[Path, Path], tokenizer: Tokenizer) -> None:
    first = open_store(tmp_path / "a", *own, tokenizer)
    src, tgt = (path.rename(path.with_name("moved-" + path.name)) for path in own)
    os.utime(src, (0, 0))
    assert open_store(tmp_path / "a", src, tgt, tokenizer).key == first.key
    assert open_store(tmp_path / "b", tgt, src, tokenizer).key != first.key


@pytest.mark.parametrize("side", [0, 1])
def test_each_side_counts(tmp_path: Path, own: tuple[Path, Path], tokenizer: Tokenizer, side: int) -> None:
    open_store(tmp_path / "data", *own, tokenizer)
    own[side].write_bytes(b"Katze" + own[side].read_bytes())
    store = open_store(tmp_path / "data", *own, tokenizer)
    assert contents(store) == [(tokenizer.encode(src), tokenizer.encode(tgt)) for src, tgt in read_pairs(*own)]


def test_other_text_or_another_tokenizer_is_another_store(
    tmp_path: Path, own: tuple[Path, Path], tokenizer: Tokenizer
) -> None:
    first = open_store(tmp_path / "data", *own, tokenizer)
    own[0].write_bytes(own[0].read_bytes().replace(b"Hund", b"hund", 1))
    second = open_store(tmp_path / "data", *own, tokenizer)
    assert second.key != first.key and len(list((tmp_path / "data").iterdir())) == 1
    other = Tokenizer.learn(["Hund und Katze"] * 3, vocab_size=300)
    third = open_store(tmp_path / "data", *own, other)
    assert third.key != second.key and len(list((tmp_path / "data").iterdir())) == 1
    assert third.ids(0, 1).tolist() == other.encode(list(read_pairs(*own))[1][0])


def test_an_interrupted_building_leaves_nothing_that_is_used(
    tmp_path: Path, own: tuple[Path, Path], tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", fail)
        with pytest.raises(OSError, match="No space left"):
            open_store(tmp_path / "data", *own, tokenizer)
    (leftover,) = (tmp_path / "data").iterdir()
    assert ".tmp-" in leftover.name
    store = open_store(tmp_path / "data", *own, tokenizer)
    assert contents(store) == [(tokenizer.encode(src), tokenizer.encode(tgt)) for src, tgt in PAIRS[:40]]
    assert not leftover.exists()


def test_text_that_is_wrong_leaves_no_store(tmp_path: Path, own: tuple[Path, Path], tokenizer: Tokenizer) -> None:
    own[1].write_bytes(own[1].read_bytes() + b"one line more\n")
    for _ in range(2):
        with pytest.raises(UserError, match="has 40 lines but .* has 41"):
            open_store(tmp_path / "data", *own, tokenizer)


@pytest.mark.parametrize(
    "damage", ["flip", "truncate", "empty", "remove", "garble the hashes", "cut the hashes", "no hashes"]
)
def test_a_damaged_store_is_built_again(
    tmp_path: Path, own: tuple[Path, Path], tokenizer: Tokenizer, damage: str
) -> None:
    good = contents(open_store(tmp_path / "data", *own, tokenizer))
    (folder,) = (tmp_path / "data").iterdir()
    hashes = folder / "sha256.json"
    names = [hashes] if "hashes" in damage else sorted(set(folder.iterdir()) - {hashes})
    assert len(names) in (1, 6)
    for path in names:
        content = path.read_bytes()
        if damage == "remove":
            path.unlink()
        elif damage == "flip":
            path.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
        elif damage == "garble the hashes":
            path.write_bytes(content.replace(b'":"', b'":"0', 1))
        elif damage == "no hashes":
            path.write_bytes(b"{}")
        else:
            path.write_bytes(b"" if damage == "empty" else content[:-2])
        assert contents(open_store(tmp_path / "data", *own, tokenizer)) == good
        assert path.read_bytes() == content


@pytest.mark.parametrize(("vocab_size", "dtype"), [(1 << 16, np.uint16), ((1 << 16) + 1, np.uint32)])
def test_the_width_of_a_token_holds_the_vocabulary(
    tmp_path: Path, own: tuple[Path, Path], vocab_size: int, dtype: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Tokenizer.learn(["Hund"], vocab_size=300)
    tokenizer.vocab_size = vocab_size
    highest = vocab_size - 1
    monkeypatch.setattr(tokenizer, "encode_batch", lambda lines: [[7, highest] for _ in lines])
    for _ in range(2):  # built, and mapped
        store = open_store(tmp_path / "data", *own, tokenizer)
        assert store.tokens[0].dtype == dtype
        assert store.ids(0, 3).tolist() == store.ids(1, 3).tolist() == [7, highest]


# ---- which pairs -------------------------------------------------------------------------------------------------


def test_empty_sides_and_long_pairs_are_left_out(store: TokenStore, tokenizer: Tokenizer) -> None:
    def is_good(pair: tuple[str, str]) -> bool:
        return all(1 <= len(tokenizer.encode(side)) < 60 for side in pair)

    assert usable(store, 60).tolist() == [i for i, pair in enumerate(PAIRS) if is_good(pair)]
    assert usable(store, 60).tolist() == list(range(300))


def test_the_limit_counts_eos(store: TokenStore) -> None:
    longest = int(max(store.lengths(0)[:300].max(), store.lengths(1)[:300].max()))
    assert len(usable(store, longest)) == 300
    assert len(usable(store, longest - 1)) < 300


def test_no_pair_at_all_is_a_user_error(tmp_path: Path, tokenizer: Tokenizer) -> None:
    store = open_store(tmp_path / "data", *write_corpus(tmp_path, PAIRS[300:]), tokenizer)
    with pytest.raises(UserError, match=r"train\.en and .*train\.de .* all 5 have .* data\.max_tokens=60"):
        Batches(store, tokenizer, DataConfig(max_tokens=60), seed=1)


# ---- the plan ----------------------------------------------------------------------------------------------------

LENGTHS = st.lists(st.tuples(st.integers(2, 40), st.integers(2, 40)), min_size=1, max_size=200)


@given(LENGTHS, st.integers(40, 300), st.integers(0, 2**63 - 1), st.integers(0, 10**6))
def test_an_epoch_has_every_pair_once_within_the_budget(
    lengths: list[tuple[int, int]], batch_tokens: int, seed: int, epoch: int
) -> None:
    src, tgt = np.array(lengths, np.int64).T
    batches = plan(src, tgt, batch_tokens=batch_tokens, seed=seed, epoch=epoch)
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    for members in batches:
        assert 0 < src[members].sum() <= batch_tokens and 0 < tgt[members].sum() <= batch_tokens
    again = plan(src, tgt, batch_tokens=batch_tokens, seed=seed, epoch=epoch)
    assert [members.tolist() for members in again] == [members.tolist() for members in batches]


def test_a_pair_over_the_budget_is_alone() -> None:
    batches = plan(np.array([5, 90, 5]), np.array([5, 5, 5]), batch_tokens=10, seed=1, epoch=0)
    assert sorted(sorted(members.tolist()) for members in batches) == [[0, 2], [1]]


def random_lengths(count: int = 20_000) -> tuple[np.ndarray, np.ndarray]:
    """Like sentences and their translations: correlated, and mostly short."""
    chance = np.random.default_rng(1)
    src = np.clip(chance.gamma(4, 4, count).astype(np.int64), 2, 100)
    return src, np.clip((src * chance.normal(1.1, 0.2, count)).astype(np.int64), 2, 100)


def test_seed_and_epoch_change_batches_and_their_order() -> None:
    src, tgt = random_lengths()
    plans = {
        (seed, epoch): [members.tolist() for members in plan(src, tgt, batch_tokens=2_000, seed=seed, epoch=epoch)]
        for seed, epoch in [(1, 0), (1, 1), (2, 0)]
    }
    for key, other in [((1, 0), (1, 1)), ((1, 0), (2, 0)), ((1, 1), (2, 0))]:
        shared = {frozenset(members) for members in plans[key]} & {frozenset(members) for members in plans[other]}
        assert len(shared) < len(plans[key]) / 10


def test_the_order_of_batches_does_not_follow_their_lengths() -> None:
    src, tgt = random_lengths()
    means = [tgt[members].mean() for members in plan(src, tgt, batch_tokens=2_000, seed=1, epoch=0)]
    assert abs(np.corrcoef(means, np.arange(len(means)))[0, 1]) < 0.2


def test_batches_are_full_and_hold_pairs_of_like_length() -> None:
    src, tgt = random_lengths()
    batches = plan(src, tgt, batch_tokens=2_000, seed=1, epoch=0)
    padded = sum(len(members) * (src[members].max() + tgt[members].max()) for members in batches)
    assert padded < 1.075 * (src.sum() + tgt.sum())
    fill = [max(src[members].sum(), tgt[members].sum()) / 2_000 for members in batches]
    assert sorted(fill)[1] > 0.9  # of all but the last


# ---- the stream --------------------------------------------------------------------------------------------------

CONFIG = DataConfig(batch_tokens=120, max_tokens=60)


def as_pairs(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """The ids of a batch, without BOS, EOS and padding."""
    src = [row[mask].tolist()[:-1] for row, mask in zip(batch.src, batch.src_mask, strict=True)]
    tgt = [row[mask].tolist()[:-1] for row, mask in zip(batch.tgt_out, batch.tgt_mask, strict=True)]
    return list(zip(src, tgt, strict=True))


def steps(batches: Batches, state: State = State(), count: int = 10**9) -> Iterator[tuple[list[Batch], State]]:  # noqa: B008
    return islice(batches.stream(state), count)


def equal(a: list[Batch], b: list[Batch]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x.src, y.src) and torch.equal(x.tgt_in, y.tgt_in) and torch.equal(x.tgt_out, y.tgt_out)
        for x, y in zip(a, b, strict=True)
    )


def test_an_epoch_of_the_stream_has_every_usable_pair_once(store: TokenStore, tokenizer: Tokenizer) -> None:
    batches = Batches(store, tokenizer, CONFIG, seed=3)
    size = len(batches.plan(0))
    for epoch in (0, 1):
        found = [
            pair for parts, _ in steps(batches, State(epoch, 0), len(batches.plan(epoch))) for pair in as_pairs(*parts)
        ]
        assert sorted(found) == sorted(contents(store)[:300])
    states = [state for _, state in steps(batches, State(), size + 1)]
    assert states == [*(State(0, i) for i in range(1, size)), State(1, 0), State(1, 1)]


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_the_stream_from_any_state_is_the_rest_of_the_stream(
    store: TokenStore, tokenizer: Tokenizer, dropout: float
) -> None:
    config = DataConfig(batch_tokens=400, max_tokens=60, bpe_dropout=dropout)
    whole = list(steps(Batches(store, tokenizer, config, seed=3), State(), 30))
    assert whole[-1][1].epoch >= 1
    for done in range(0, 30, 4):
        state = whole[done - 1][1] if done else State()
        rest = list(steps(Batches(store, tokenizer, config, seed=3), state, 30 - done))
        assert [after for _, after in rest] == [after for _, after in whole[done:]]
        assert all(equal(a, b) for (a, _), (b, _) in zip(rest, whole[done:], strict=True))


def test_neither_torchs_nor_numpys_generator_is_touched_or_asked(store: TokenStore, tokenizer: Tokenizer) -> None:
    config = DataConfig(batch_tokens=400, max_tokens=60, bpe_dropout=0.2)
    first = list(steps(Batches(store, tokenizer, config, seed=3), State(), 4))
    torch.manual_seed(5)
    np.random.seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index, union-attr]
    second = list(steps(Batches(store, tokenizer, config, seed=3), State(), 4))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()  # type: ignore[index, union-attr]
    assert all(equal(a, b) for (a, _), (b, _) in zip(first, second, strict=True))


@pytest.mark.parametrize("accumulate", [2, 3, 8, 1000])
def test_accumulation_cuts_a_step_and_changes_none(store: TokenStore, tokenizer: Tokenizer, accumulate: int) -> None:
    one = steps(Batches(store, tokenizer, CONFIG, seed=3), State(), 40)
    many = steps(Batches(store, tokenizer, CONFIG, seed=3, accumulate=accumulate), State(), 40)
    for (parts, state), (cut, other_state) in zip(one, many, strict=True):
        pairs = as_pairs(*parts)
        assert state == other_state and len(cut) == min(accumulate, len(pairs))
        assert sorted(pair for part in cut for pair in as_pairs(part)) == sorted(pairs)
        assert sum(int(part.tgt_mask.sum()) for part in cut) == int(parts[0].tgt_mask.sum())
        assert max(len(part.src) for part in cut) - min(len(part.src) for part in cut) <= 1


@pytest.mark.parametrize(("ranks", "accumulate"), [(1, 2), (2, 1), (2, 3), (4, 1), (4, 2), (7, 5)])
def test_all_ranks_together_see_what_one_alone_sees(
    store: TokenStore, tokenizer: Tokenizer, ranks: int, accumulate: int
) -> None:
    """Each step's pairs are dealt to ranks and micro-batches; with more hands than pairs some get none."""
    alone = Batches(store, tokenizer, CONFIG, seed=3)
    count = len(alone.plan(0)) + 3
    streams = [
        steps(Batches(store, tokenizer, CONFIG, seed=3, accumulate=accumulate, rank=rank, ranks=ranks), State(), count)
        for rank in range(ranks)
    ]
    without = 0
    for (whole,), state in steps(alone, State(), count):
        found = [next(stream) for stream in streams]
        assert all(after == state for _, after in found)
        hands = [micro_batches for micro_batches, _ in found]
        for part in range(ranks * accumulate):  # part p is pairs p, p + parts, ... and goes to rank p % ranks
            expected = whole.pairs[part :: ranks * accumulate].tolist()
            if expected:
                assert hands[part % ranks][part // ranks].pairs.tolist() == expected
        assert sum(map(len, hands)) == min(ranks * accumulate, len(whole.pairs))
        assert sorted(p for hand in hands for part in hand for p in as_pairs(part)) == sorted(as_pairs(whole))
        without += any(not hand for hand in hands)
    assert without or ranks < 4


def test_a_batch_knows_its_pairs_and_where_they_are(store: TokenStore, tokenizer: Tokenizer) -> None:
    batches = Batches(store, tokenizer, CONFIG, seed=3, accumulate=2)
    for micro_batches, _ in steps(batches, State(), 20):
        for batch in micro_batches:
            assert batch.pairs.dtype == np.int64
            assert as_pairs(batch) == [contents(store)[pair] for pair in batch.pairs]
    assert batches.where(np.array([2, 16])) == f"{store.paths[0]} and {store.paths[1]}, lines 3, 17"
    assert batches.where(np.arange(30)).endswith("lines " + ", ".join(map(str, range(1, 21))) + " and 10 more")


def test_tokens_of_a_step_stay_within_the_budget(store: TokenStore, tokenizer: Tokenizer) -> None:
    for batch_tokens in (60, 61, 120, 1000):
        batches = Batches(store, tokenizer, DataConfig(batch_tokens=batch_tokens, max_tokens=60), seed=3)
        for (batch,), _ in steps(batches, State(), len(batches.plan(0))):
            assert batch.src_mask.sum() <= batch_tokens and batch.tgt_mask.sum() <= batch_tokens


# ---- BPE-dropout -------------------------------------------------------------------------------------------------


def epoch_pairs(batches: Batches, epoch: int) -> list[tuple[list[int], list[int]]]:
    return [
        pair for (batch,), _ in steps(batches, State(epoch, 0), len(batches.plan(epoch))) for pair in as_pairs(batch)
    ]


@pytest.mark.parametrize(("dropout", "batch_tokens", "max_tokens"), [(0.1, 200, 60), (0.5, 61, 61), (0.9, 300, 70)])
def test_dropout_stays_within_both_limits_and_keeps_the_text(
    store: TokenStore, tokenizer: Tokenizer, dropout: float, batch_tokens: int, max_tokens: int
) -> None:
    config = DataConfig(batch_tokens=batch_tokens, max_tokens=max_tokens, bpe_dropout=dropout)
    batches = Batches(store, tokenizer, config, seed=3)
    for (batch,), _ in steps(batches, State(), len(batches.plan(0))):
        for mask in (batch.src_mask, batch.tgt_mask):
            assert mask.sum() <= batch_tokens and mask.sum(1).max() <= max_tokens
    found = [tuple(tokenizer.decode(side) for side in pair) for pair in epoch_pairs(batches, 0)]
    assert sorted(found) == sorted(PAIRS[i] for i in batches.pairs)


def test_dropout_draws_anew_for_each_epoch_and_seed_and_only_then(store: TokenStore, tokenizer: Tokenizer) -> None:
    config = DataConfig(batch_tokens=1000, max_tokens=60, bpe_dropout=0.2)
    draws = {
        (seed, epoch): sorted(epoch_pairs(Batches(store, tokenizer, config, seed=seed), epoch))
        for seed, epoch in [(1, 0), (1, 1), (2, 0)]
    }
    plain = sorted(contents(store)[:300])
    assert draws[1, 0] == sorted(epoch_pairs(Batches(store, tokenizer, config, seed=1), 0))
    for a, b in [((1, 0), (1, 1)), ((1, 0), (2, 0))]:
        assert sum(pair in draws[b] for pair in draws[a]) < 100
    assert sum(pair in plain for pair in draws[1, 0]) < 100


def test_dropout_draws_for_each_side_by_itself(tmp_path: Path, tokenizer: Tokenizer) -> None:
    same = [(src, src) for src, _ in PAIRS[:100]]
    store = open_store(tmp_path / "data", *write_corpus(tmp_path, same), tokenizer)
    batches = Batches(store, tokenizer, DataConfig(batch_tokens=1000, bpe_dropout=0.3), seed=1)
    assert sum(src == tgt for src, tgt in epoch_pairs(batches, 0)) < 50


def test_dropout_does_not_depend_on_the_batch(
    store: TokenStore, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transduce.batches.GROWTH", 30)  # so that no batch has to give it up
    small, large = (
        Batches(store, tokenizer, DataConfig(batch_tokens=size, max_tokens=256, bpe_dropout=0.1), seed=1)
        for size in (2_000, 10_000)
    )
    assert sorted(epoch_pairs(small, 0)) == sorted(epoch_pairs(large, 0))


def test_a_batch_that_dropout_made_too_large_gives_up_the_dropout_of_its_last_pairs(
    store: TokenStore, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transduce.batches.GROWTH", 0)  # so that plans leave no room
    config = DataConfig(batch_tokens=300, max_tokens=60, bpe_dropout=0.5)
    batches = Batches(store, tokenizer, config, seed=1)
    plain = dict(zip(range(300), contents(store), strict=False))
    mixed = 0
    for members, ((batch,), _) in zip(batches.plan(0), steps(batches, State(), len(batches.plan(0))), strict=True):
        assert batch.src_mask.sum() <= 300 and batch.tgt_mask.sum() <= 300
        is_plain = [pair[0] == plain[i][0] for pair, i in zip(as_pairs(batch), members, strict=True)]
        mixed += not is_plain[0] and is_plain[-1]
    assert mixed


def test_files_from_windows_are_read_through_spans_as_they_are_read_through(
    tmp_path: Path, tokenizer: Tokenizer
) -> None:
    src, tgt = write_corpus(tmp_path, PAIRS[:60], end="\r\n")
    for path in (src, tgt):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().removesuffix(b"\r\n"))
    store = open_store(tmp_path / "data", src, tgt, tokenizer)
    assert contents(store) == [(tokenizer.encode(a), tokenizer.encode(b)) for a, b in PAIRS[:60]]
    batches = Batches(store, tokenizer, DataConfig(batch_tokens=1000, bpe_dropout=0.3), seed=1)
    found = [tuple(tokenizer.decode(side) for side in pair) for pair in epoch_pairs(batches, 0)]
    assert sorted(found) == sorted(PAIRS[:60])


def test_text_that_changes_during_training_is_a_user_error(tmp_path: Path, tokenizer: Tokenizer) -> None:
    src, tgt = write_corpus(tmp_path, PAIRS[:60])
    store = open_store(tmp_path / "data", src, tgt, tokenizer)
    src.write_bytes(b"cut")
    batches = Batches(store, tokenizer, DataConfig(batch_tokens=1000, bpe_dropout=0.3), seed=1)
    with pytest.raises(UserError, match=r"train\.en .* was changed while in use"):
        next(batches.stream(State()))


# ---- tensors -----------------------------------------------------------------------------------------------------


def test_pad() -> None:
    ids, mask = pad([np.array([5, 6, 7]), np.array([8]), np.array([9, 5])])
    assert ids.tolist() == [[5, 6, 7], [8, PAD, PAD], [9, 5, PAD]]
    assert mask.tolist() == [[True, True, True], [True, False, False], [True, True, False]]
    assert ids.dtype == torch.int64 and mask.dtype == torch.bool


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.int64])
def test_collate(dtype: type) -> None:
    top = np.iinfo(np.uint16).max
    batch = collate([np.array([top, 6], dtype), np.array([7], dtype)], [np.array([8], dtype), np.array([], dtype)])
    assert batch.src.tolist() == [[top, 6, EOS], [7, EOS, PAD]]
    assert batch.src_mask.tolist() == [[True, True, True], [True, True, False]]
    assert batch.tgt_in.tolist() == [[BOS, 8], [BOS, PAD]]
    assert batch.tgt_out.tolist() == [[8, EOS], [EOS, PAD]]
    assert batch.tgt_mask.tolist() == [[True, True], [True, False]]
    assert all(ids.dtype == torch.int64 for ids in (batch.src, batch.tgt_in, batch.tgt_out))


def test_to_keeps_the_values() -> None:
    batch = collate([np.array([5])], [np.array([6, 7])])
    assert equal([batch.to(torch.device("cpu"))], [batch])
    assert batch.to(torch.device("meta")).tgt_mask.device.type == "meta"
