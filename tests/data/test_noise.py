"""Noise: each kind does what its name says, on the sides that it says, as a function of the key of a pair."""

import re
from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random
from typing import get_args

import numpy as np
import pytest
from support.small_texts import PAIRS, open_one, write_corpus

from transduce.config.schema import Config, DataConfig, NoiseKind
from transduce.data.batches import Batches, DataPosition
from transduce.data.corpora import Corpus
from transduce.data.noise import CHANGES, EMOJI, MASKS, NOISE_GROWTH, add_noise, noisy_rows
from transduce.data.token_store import TokenStore
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import EOS
from transduce.storage.run_request import TrainRequest

PAIR = ("Anna Weber, 34, doesn't like the weather.", "Anna Weber, 34, mag das Wetter auf der Straße nicht.")
ALL: dict[NoiseKind, float] = dict.fromkeys(get_args(NoiseKind), 1.0)
BOTH_SIDES = {"capitals", "emoji", "urls", "masks"}


def noisy(kind: NoiseKind, seed: int = 0) -> tuple[str, str]:
    return add_noise(PAIR, {kind: 1}, Random(seed))


def test_all_kinds_have_a_change_and_a_growth() -> None:
    assert [*CHANGES] == [*NOISE_GROWTH] == [*get_args(NoiseKind)]


@pytest.mark.parametrize("kind", get_args(NoiseKind))
def test_a_kind_changes_both_sides_or_only_the_source(kind: NoiseKind) -> None:
    for seed in range(50):
        src, tgt = noisy(kind, seed)
        assert src != PAIR[0] and (tgt != PAIR[1]) == (kind in BOTH_SIDES)


def test_letters_and_punctuation() -> None:
    assert noisy("capitals") == (PAIR[0].upper(), "ANNA WEBER, 34, MAG DAS WETTER AUF DER STRAẞE NICHT.")
    assert noisy("lower")[0] == "anna weber, 34, doesn't like the weather."
    assert noisy("titles")[0] == "Anna Weber, 34, Doesn't Like The Weather."
    assert noisy("punctuation")[0] == "Anna Weber 34 doesn't like the weather"


def test_a_line_has_few_typos_and_few_wrong_spaces() -> None:
    for seed in range(100):
        words, others = PAIR[0].split(), noisy("typos", seed)[0].split()
        (different,) = [(a, b) for a, b in zip(words, others, strict=True) if a != b]
        assert abs(len(different[0]) - len(different[1])) <= 1 and different[0][0] == different[1][0]
        spaced = noisy("spaces", seed)[0]
        assert spaced.replace(" ", "") == PAIR[0].replace(" ", "")
        assert 1 <= sum(a != b for a, b in zip(PAIR[0].split(), spaced.split(), strict=False))


@pytest.mark.parametrize("kind", ["emoji", "urls", "masks"])
def test_both_sides_get_the_same_insertions(kind: NoiseKind) -> None:
    pattern = {"emoji": f"[{''.join(EMOJI)}]", "masks": f"[{''.join(MASKS)}]"}.get(kind, r"(?:https?://|www)\S+")
    places = set()
    for seed in range(60):
        src, tgt = noisy(kind, seed)
        inserted = re.findall(pattern, src)
        assert inserted and len({*inserted}) == len(inserted)
        assert sorted(inserted) == sorted(re.findall(pattern, tgt))
        places.add(src.index(inserted[0]))
    assert len(places) >= 3


def test_half_of_the_masks_touch_the_same_marks_on_both_sides() -> None:
    pattern = rf"(?<=\s)\S*[{''.join(MASKS)}]\S*"
    pairs = [add_noise((f" dogs run {seed}", " Hunde rennen"), {"masks": 1}, Random(seed)) for seed in range(200)]
    words = [[sorted(re.findall(pattern, f" {side}")) for side in pair] for pair in pairs]
    assert all(src == tgt for src, tgt in words)
    lengths = [len(word) for src, _ in words for word in src]
    assert 0.35 < sum(length > 1 for length in lengths) / len(lengths) < 0.65


def test_no_side_becomes_blank_and_short_lines_are_no_problem() -> None:
    for text in ("a", "...", "?", "ß", "1", "Hund"):
        for kind in get_args(NoiseKind):
            src, tgt = add_noise((text, text), {kind: 1}, Random(1))
            assert src.strip() and tgt.strip()


# ---- batches -----------------------------------------------------------------------------------------------------

NOISE = ("capitals:0.2", "lower:0.2", "typos:0.3", "spaces:0.2", "emoji:0.2", "urls:0.1", "masks:0.2")
CONFIG = DataConfig(batch_tokens=600, max_tokens=60, noise=NOISE, bpe_dropout=0.05)


def rows_of(batches: Batches, position: DataPosition, count: int) -> list[tuple[list[int], list[int]]]:
    steps = islice(batches.stream(position), count)
    return [
        (src[mask].tolist(), out[out_mask].tolist())
        for (batch,), _ in steps
        for src, mask, out, out_mask in zip(batch.src, batch.src_mask, batch.tgt_out, batch.tgt_mask, strict=True)
    ]


def test_a_resumed_stream_has_the_same_noise_and_each_epoch_another(store: TokenStore, tokenizer: Tokenizer) -> None:
    batches = Batches(store, tokenizer, CONFIG, seed=3)
    size = len(batches.plan(0))
    whole = rows_of(batches, DataPosition(), size)
    middle = next(islice(batches.stream(DataPosition()), size // 2, None))[1]
    rest = rows_of(Batches(store, tokenizer, CONFIG, seed=3), middle, size - middle.index)
    assert rest and whole[-len(rest) :] == rest
    texts = [
        {tokenizer.decode(src) for src, _ in rows_of(batches, DataPosition(epoch), len(batches.plan(epoch)))}
        for epoch in (0, 1)
    ]
    plain = {src for src, _ in PAIRS[:300]}
    assert len(texts[0] & texts[1]) < 0.3 * len(plain) and 0.05 < len(texts[0] & plain) / len(plain) < 0.5


@pytest.mark.parametrize("batch_tokens", [61, 150, 600])
def test_noise_stays_within_both_limits(store: TokenStore, tokenizer: Tokenizer, batch_tokens: int) -> None:
    config = DataConfig(batch_tokens=batch_tokens, max_tokens=60, noise=NOISE, bpe_dropout=0.1)
    batches = Batches(store, tokenizer, config, seed=3)
    for (batch,), _ in islice(batches.stream(DataPosition()), len(batches.plan(0))):
        for mask in (batch.src_mask, batch.tgt_mask):
            assert mask.sum() <= batch_tokens and mask.sum(1).max() <= 60


def test_without_noise_the_stream_is_as_before(store: TokenStore, tokenizer: Tokenizer) -> None:
    config = DataConfig(batch_tokens=600, max_tokens=60)
    rows = rows_of(Batches(store, tokenizer, config, seed=3), DataPosition(), 5)
    texts = {src for src, _ in PAIRS}
    assert all(tokenizer.decode(src) in texts and src[-1] == EOS for src, _ in rows)


def test_a_row_depends_on_its_key_only_and_keeps_its_tag(tmp_path: Path) -> None:
    tokenizer = Tokenizer.learn([side for pair in PAIRS for side in pair], vocab_size=350, tags=["<2de>"])
    pairs = [(f"<2de> {src}", tgt) for src, tgt in PAIRS[:20]]
    store = open_one(tmp_path / "data", write_corpus(tmp_path, pairs), tokenizer)
    rows = store.read(np.arange(20))
    keys = np.arange(20, dtype=np.uint64)
    changed = noisy_rows(rows, ALL, tokenizer, keys)
    assert all(tokenizer.pieces([row[0]]) == ["<2de>"] for row in changed[0])
    alone = noisy_rows((rows[0][7:8], rows[1][7:8]), ALL, tokenizer, keys[7:8])
    assert [side[7].tolist() for side in changed] == [side[0].tolist() for side in alone]
    assert any(len(a) != len(b) for a, b in zip(rows[1], changed[1], strict=True))


def test_a_tokenizer_has_masks_only_for_their_noise(tmp_path: Path) -> None:
    request = TrainRequest(Config(), [Corpus(*write_corpus(tmp_path, PAIRS))], (), tmp_path / "run")
    assert not {*request.learn_tokenizer().vocabulary} & {*MASKS}
    with_masks = replace(request, settings=["data.noise=masks:0.1"]).learn_tokenizer()
    assert {*MASKS} <= {*with_masks.vocabulary}
    assert with_masks.decode(with_masks.encode(f"a {MASKS[3]}.")) == f"a {MASKS[3]}."
