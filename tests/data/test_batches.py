"""Batches: the order is a function of (seed, epoch), for any number of ranks, and loses no pair."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from support.small_texts import PAIRS, contents, open_one, write_corpus

from transduce.config.schema import DataConfig
from transduce.data.batches import Batch, Batches, DataPosition, Share, collate, pad
from transduce.data.corpora import Corpus
from transduce.data.token_store import TokenStore, open_store
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import BOS, EOS, PAD
from transduce.errors import UserError

# ---- the pairs of an epoch ---------------------------------------------------------------------------------------


def usable_pairs(store: TokenStore, tokenizer: Tokenizer, max_tokens: int, epoch: int = 0) -> list[int]:
    """Return the numbers of the pairs of an epoch, ascending."""
    batches = Batches(store, tokenizer, DataConfig(batch_tokens=1_000, max_tokens=max_tokens), seed=1)
    members = [pair for batch in batches.plan(epoch) for pair in batch.tolist()]
    return sorted(members)


def test_empty_sides_and_long_pairs_are_left_out(store: TokenStore, tokenizer: Tokenizer) -> None:
    def is_good(pair: tuple[str, str]) -> bool:
        return all(1 <= len(tokenizer.encode(side)) < 60 for side in pair)

    assert usable_pairs(store, tokenizer, 60) == [i for i, pair in enumerate(PAIRS) if is_good(pair)]
    assert usable_pairs(store, tokenizer, 60) == list(range(300))


def test_the_limit_counts_eos(store: TokenStore, tokenizer: Tokenizer) -> None:
    longest = max(len(ids) + 1 for pair in contents(store)[:300] for ids in pair)
    assert len(usable_pairs(store, tokenizer, longest)) == 300
    assert len(usable_pairs(store, tokenizer, longest - 1)) < 300


def test_no_usable_pair_is_a_user_error(tmp_path: Path, tokenizer: Tokenizer) -> None:
    store = open_one(tmp_path / "data", write_corpus(tmp_path, PAIRS[300:]), tokenizer)
    with pytest.raises(
        UserError, match=r"train\.en and .*train\.de: .* of 5 there are .* of more than data\.max_tokens=60"
    ):
        Batches(store, tokenizer, DataConfig(max_tokens=60), seed=1)


@pytest.mark.parametrize("weight", [1, 2, 3.0, 0.5, 0.3, 1.25, 2.7])
def test_pairs_occur_as_often_as_their_weight_says(tmp_path: Path, tokenizer: Tokenizer, weight: float) -> None:
    known = write_corpus(tmp_path / "known", PAIRS[:50])
    files = write_corpus(tmp_path / "weighed", [*PAIRS[100:300], PAIRS[300]])
    store = open_store(tmp_path / "data", [Corpus(*known), Corpus(*files, weight=weight)], tokenizer)
    counts = np.zeros(len(store), int)
    for epoch in range(12):
        np.add.at(counts, usable_pairs(store, tokenizer, 60, epoch), 1)
        assert (counts[:50] == epoch + 1).all() and counts[250] == 0
        share = weight * (epoch + 1)
        assert counts[50:250].min() >= np.floor(share) and counts[50:250].max() <= np.ceil(share)
        assert abs(counts[50:250].mean() - share) < 0.13  # over three standard deviations of a binomial mean


def test_the_seed_draws_the_pairs_of_a_fractional_weight(tmp_path: Path, tokenizer: Tokenizer) -> None:
    corpus = Corpus(*write_corpus(tmp_path, PAIRS[:300]), weight=0.5)
    store = open_store(tmp_path / "data", [corpus], tokenizer)
    config = DataConfig(batch_tokens=1_000, max_tokens=60)
    first = {
        seed: sorted(pair for batch in Batches(store, tokenizer, config, seed=seed).plan(0) for pair in batch.tolist())
        for seed in (1, 2)
    }
    assert first[1] != first[2] and first[1] == usable_pairs(store, tokenizer, 60)
    assert 100 < len(first[1]) < 200 and first[1] != list(range(first[1][0], first[1][-1] + 1))


def test_a_weight_that_leaves_no_pair_in_an_epoch_is_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    files, config = write_corpus(tmp_path, PAIRS[:100]), DataConfig(batch_tokens=1_000, max_tokens=60)
    store = open_store(tmp_path / "data", [Corpus(*files, weight=1e-9)], tokenizer)
    with pytest.raises(UserError, match=r"at least 1 of the 100 usable pairs, not 1e-07 pairs; give larger weights"):
        Batches(store, tokenizer, config, seed=1)
    store = open_store(tmp_path / "data", [Corpus(*files, weight=0.011)], tokenizer)
    assert len(next(Batches(store, tokenizer, config, seed=1).stream(DataPosition()))[0]) == 1


# ---- the plan ----------------------------------------------------------------------------------------------------
# ---- the stream --------------------------------------------------------------------------------------------------

CONFIG = DataConfig(batch_tokens=120, max_tokens=60)


def as_pairs(batch: Batch) -> list[tuple[list[int], list[int]]]:
    """Return the ids of a batch, without BOS, EOS and padding."""
    src = [row[mask].tolist()[:-1] for row, mask in zip(batch.src, batch.src_mask, strict=True)]
    tgt = [row[mask].tolist()[:-1] for row, mask in zip(batch.tgt_out, batch.tgt_mask, strict=True)]
    return list(zip(src, tgt, strict=True))


START = DataPosition()
READ = TokenStore.read


def steps(
    batches: Batches, position: DataPosition = START, count: int = 10**9
) -> Iterator[tuple[list[Batch], DataPosition]]:
    return islice(batches.stream(position), count)


def equal(a: list[Batch], b: list[Batch]) -> bool:
    return len(a) == len(b) and all(
        torch.equal(x.src, y.src) and torch.equal(x.tgt_in, y.tgt_in) and torch.equal(x.tgt_out, y.tgt_out)
        for x, y in zip(a, b, strict=True)
    )


def test_an_epoch_of_the_stream_has_every_usable_pair_once(store: TokenStore, tokenizer: Tokenizer) -> None:
    batches = Batches(store, tokenizer, CONFIG, seed=3)
    size = len(batches.plan(0))
    for epoch in (0, 1):
        pairs = [
            pair
            for parts, _ in steps(batches, DataPosition(epoch, 0), len(batches.plan(epoch)))
            for pair in as_pairs(*parts)
        ]
        assert sorted(pairs) == sorted(contents(store)[:300])
    states = [state for _, state in steps(batches, START, size + 1)]
    assert states == [*(DataPosition(0, i) for i in range(1, size)), DataPosition(1, 0), DataPosition(1, 1)]


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_the_stream_from_any_position_is_the_rest_of_the_stream(
    store: TokenStore, tokenizer: Tokenizer, dropout: float
) -> None:
    config = DataConfig(batch_tokens=400, max_tokens=60, bpe_dropout=dropout)
    stream = list(steps(Batches(store, tokenizer, config, seed=3), START, 30))
    assert stream[-1][1].epoch >= 1
    for count in range(0, 30, 4):
        state = stream[count - 1][1] if count else START
        end = list(steps(Batches(store, tokenizer, config, seed=3), state, 30 - count))
        assert [after for _, after in end] == [after for _, after in stream[count:]]
        assert all(equal(a, b) for (a, _), (b, _) in zip(end, stream[count:], strict=True))


def test_global_random_generators_are_not_used(store: TokenStore, tokenizer: Tokenizer) -> None:
    config = DataConfig(batch_tokens=400, max_tokens=60, bpe_dropout=0.2)
    first = list(steps(Batches(store, tokenizer, config, seed=3), START, 4))
    torch.manual_seed(5)
    np.random.seed(5)
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index, union-attr]
    second = list(steps(Batches(store, tokenizer, config, seed=3), START, 4))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()  # type: ignore[index, union-attr]
    assert all(equal(a, b) for (a, _), (b, _) in zip(first, second, strict=True))


@pytest.mark.parametrize("accumulate", [2, 3, 8, 1000])
def test_accumulation_divides_a_step_and_does_not_change_it(
    store: TokenStore, tokenizer: Tokenizer, accumulate: int
) -> None:
    whole = steps(Batches(store, tokenizer, CONFIG, seed=3), START, 40)
    many = steps(Batches(store, tokenizer, CONFIG, seed=3, share=Share(accumulate=accumulate)), START, 40)
    for (parts, state), (shares, other_state) in zip(whole, many, strict=True):
        pairs = as_pairs(*parts)
        assert state == other_state and len(shares) == min(accumulate, len(pairs))
        assert sorted(pair for part in shares for pair in as_pairs(part)) == sorted(pairs)
        assert sum(int(part.tgt_mask.sum()) for part in shares) == int(parts[0].tgt_mask.sum())
        assert max(len(part.src) for part in shares) - min(len(part.src) for part in shares) <= 1


@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize(("ranks", "accumulate"), [(1, 2), (2, 1), (2, 3), (4, 1), (4, 2), (7, 5)])
def test_all_ranks_together_get_the_pairs_of_one_rank(
    store: TokenStore,
    tokenizer: Tokenizer,
    ranks: int,
    accumulate: int,
    dropout: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ranks and micro-batches share the pairs of a step. With more ranks than pairs, some ranks get none."""
    monkeypatch.setattr("transduce.data.batches.GROWTH", 30)  # so that no rank exceeds its part of the room
    config = DataConfig(batch_tokens=120 + round(3_600 * dropout), max_tokens=60, bpe_dropout=dropout)
    single = Batches(store, tokenizer, config, seed=3)
    count = len(single.plan(0)) + 3
    streams = [
        steps(Batches(store, tokenizer, config, seed=3, share=Share(rank, ranks, accumulate)), START, count)
        for rank in range(ranks)
    ]
    without = 0
    for (batch,), position in steps(single, START, count):
        items = [next(stream) for stream in streams]
        assert all(after == position for _, after in items)
        shares = [micro_batches for micro_batches, _ in items]
        for part in range(ranks * accumulate):  # part p is pairs p, p + parts, ... and goes to rank p % ranks
            expected = batch.pairs[part :: ranks * accumulate].tolist()
            if expected:
                assert shares[part % ranks][part // ranks].pairs.tolist() == expected
        assert sum(map(len, shares)) == min(ranks * accumulate, len(batch.pairs))
        assert sorted(p for share in shares for part in share for p in as_pairs(part)) == sorted(as_pairs(batch))
        without += any(not share for share in shares)
    assert without or ranks < 4


def test_a_rank_reads_only_its_own_pairs(
    store: TokenStore, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    monkeypatch.setattr(TokenStore, "read", lambda self, pairs: read.extend(pairs.tolist()) or READ(self, pairs))
    for rank in range(4):
        batches = Batches(store, tokenizer, CONFIG, seed=3, share=Share(rank, 4, 2))
        for micro_batches, _ in steps(batches, START, 10):
            own = sorted(pair for batch in micro_batches for pair in batch.pairs.tolist())
            assert sorted(read) == own
            read.clear()


def test_a_batch_has_the_numbers_and_lines_of_its_pairs(store: TokenStore, tokenizer: Tokenizer) -> None:
    batches = Batches(store, tokenizer, CONFIG, seed=3, share=Share(accumulate=2))
    for micro_batches, _ in steps(batches, START, 20):
        for batch in micro_batches:
            assert batch.pairs.dtype == np.int64
            assert as_pairs(batch) == [contents(store)[pair] for pair in batch.pairs]
    assert batches.where(np.array([2, 16])) == f"{store.corpora[0].name}, lines 3, 17"
    assert batches.where(np.arange(30)).endswith("lines " + ", ".join(map(str, range(1, 21))) + " and 10 more")


def test_tokens_of_a_step_stay_within_the_budget(store: TokenStore, tokenizer: Tokenizer) -> None:
    for batch_tokens in (60, 61, 120, 1000):
        batches = Batches(store, tokenizer, DataConfig(batch_tokens=batch_tokens, max_tokens=60), seed=3)
        for (batch,), _ in steps(batches, START, len(batches.plan(0))):
            assert batch.src_mask.sum() <= batch_tokens and batch.tgt_mask.sum() <= batch_tokens


@pytest.mark.parametrize("dropout", [0.05, 0.5])
def test_dropout_on_several_ranks_stays_within_the_budget(
    store: TokenStore, tokenizer: Tokenizer, dropout: float
) -> None:
    config = DataConfig(batch_tokens=200, max_tokens=60, bpe_dropout=dropout)
    streams = [steps(Batches(store, tokenizer, config, seed=3, share=Share(rank, 3)), START, 40) for rank in range(3)]
    for items in zip(*streams, strict=True):
        batches = [batch for micro_batches, _ in items for batch in micro_batches]
        for masks in ([batch.src_mask for batch in batches], [batch.tgt_mask for batch in batches]):
            assert sum(int(mask.sum()) for mask in masks) <= 200 or sum(map(len, masks)) == 1


# ---- BPE-dropout -------------------------------------------------------------------------------------------------


def epoch_pairs(batches: Batches, epoch: int) -> list[tuple[list[int], list[int]]]:
    return [
        pair
        for (batch,), _ in steps(batches, DataPosition(epoch, 0), len(batches.plan(epoch)))
        for pair in as_pairs(batch)
    ]


@pytest.mark.parametrize(("dropout", "batch_tokens", "max_tokens"), [(0.1, 200, 60), (0.5, 61, 61), (0.9, 300, 70)])
def test_dropout_stays_within_both_limits_and_keeps_the_text(
    store: TokenStore, tokenizer: Tokenizer, dropout: float, batch_tokens: int, max_tokens: int
) -> None:
    config = DataConfig(batch_tokens=batch_tokens, max_tokens=max_tokens, bpe_dropout=dropout)
    batches = Batches(store, tokenizer, config, seed=3)
    for (batch,), _ in steps(batches, START, len(batches.plan(0))):
        for mask in (batch.src_mask, batch.tgt_mask):
            assert mask.sum() <= batch_tokens and mask.sum(1).max() <= max_tokens
    texts = [tuple(tokenizer.decode(side) for side in pair) for pair in epoch_pairs(batches, 0)]
    assert sorted(texts) == sorted(PAIRS[pair] for pair in np.concatenate(list(batches.plan(0))))


def test_dropout_is_a_function_of_epoch_and_seed(store: TokenStore, tokenizer: Tokenizer) -> None:
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


def test_dropout_draws_separately_for_each_side(tmp_path: Path, tokenizer: Tokenizer) -> None:
    same = [(src, src) for src, _ in PAIRS[:100]]
    store = open_one(tmp_path / "data", write_corpus(tmp_path, same), tokenizer)
    batches = Batches(store, tokenizer, DataConfig(batch_tokens=1000, bpe_dropout=0.3), seed=1)
    assert sum(src == tgt for src, tgt in epoch_pairs(batches, 0)) < 50


def test_dropout_does_not_depend_on_the_batch(
    store: TokenStore, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transduce.data.batches.GROWTH", 30)  # so that no batch exceeds the budget
    small, large = (
        Batches(store, tokenizer, DataConfig(batch_tokens=size, max_tokens=256, bpe_dropout=0.1), seed=1)
        for size in (2_000, 10_000)
    )
    assert sorted(epoch_pairs(small, 0)) == sorted(epoch_pairs(large, 0))


def test_the_last_pairs_of_a_batch_lose_dropout_if_it_is_too_large(
    store: TokenStore, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transduce.data.batches.GROWTH", 0.5)  # so that plans leave little room
    config = DataConfig(batch_tokens=300, max_tokens=60, bpe_dropout=0.5)
    batches = Batches(store, tokenizer, config, seed=1)
    plain = dict(zip(range(300), contents(store), strict=False))
    count = 0
    for members, ((batch,), _) in zip(batches.plan(0), steps(batches, START, len(batches.plan(0))), strict=True):
        assert batch.src_mask.sum() <= 300 and batch.tgt_mask.sum() <= 300
        is_plain = [pair[0] == plain[i][0] for pair, i in zip(as_pairs(batch), members, strict=True)]
        count += not is_plain[0] and is_plain[-1]
    assert count


def test_files_from_windows_give_the_same_text_by_spans(tmp_path: Path, tokenizer: Tokenizer) -> None:
    src, tgt = write_corpus(tmp_path, PAIRS[:60], end="\r\n")
    for path in (src, tgt):
        path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().removesuffix(b"\r\n"))
    store = open_one(tmp_path / "data", (src, tgt), tokenizer)
    assert contents(store) == [(tokenizer.encode(a), tokenizer.encode(b)) for a, b in PAIRS[:60]]
    batches = Batches(store, tokenizer, DataConfig(batch_tokens=1000, bpe_dropout=0.3), seed=1)
    texts = [tuple(tokenizer.decode(side) for side in pair) for pair in epoch_pairs(batches, 0)]
    assert sorted(texts) == sorted(PAIRS[:60])


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
