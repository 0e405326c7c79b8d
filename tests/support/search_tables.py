"""Tables instead of models, and slow, simple versions of the search over them.

A table gives each (sentence, tokens so far) its own random distribution. A mistake in the tokens that the search keeps,
selects or forces changes a log-probability. V is 6: BOS 0 (banned), EOS 1, and four words 2 to 5.
"""

import itertools
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from transduce.config.schema import SearchConfig
from transduce.decoding.constraint import prefix_constraint
from transduce.decoding.decoder import Decoder
from transduce.decoding.hypothesis import Hypothesis
from transduce.decoding.search import Request, beam_search

BOS = 0
EOS = 1
V = 6
WORDS = range(2, V)
Table = Callable[[int, tuple[int, ...]], Tensor]  # (sentence, tokens so far) -> log_probs (V,) float32
Path = tuple[tuple[int, ...], float]  # tokens with EOS if finished, log-probability
Penalty = tuple[str, float]  # (name, alpha)
PENALTIES = [("none", 0.0), ("power", 1.0), ("power", -0.5), *(("gnmt", alpha) for alpha in (0.0, 0.6, 3.0, -1.0))]

# ---- tables, and a decoder that reads them -------------------------------------------------------------------------


def random_table(seed: int, sharpness: float = 1.5) -> Table:
    """Return a table in which each (sentence, tokens so far) has its own random distribution."""

    @cache
    def table(sentence: int, prefix: tuple[int, ...]) -> Tensor:
        rng = random.Random(f"{seed} {sentence} {prefix}")
        return torch.tensor([rng.gauss(0, sharpness) for _ in range(V)]).log_softmax(0)

    return table


def tied_table(seed: int) -> Table:
    """Return a table of few distinct probabilities: most comparisons are ties."""

    @cache
    def table(sentence: int, prefix: tuple[int, ...]) -> Tensor:
        rng = random.Random(f"{seed} {sentence} {prefix}")
        return torch.tensor([rng.choice([0.0, 1.0]) for _ in range(V)]).log_softmax(0)

    return table


def table_of(probs: dict[tuple[int, ...], dict[int, float]], default: dict[int, float]) -> Table:
    """Return a table of probabilities by the tokens so far, with `default` for all others."""

    def table(sentence: int, prefix: tuple[int, ...]) -> Tensor:
        row = probs.get(prefix, default)
        return torch.tensor([row.get(token, 1e-9) for token in range(V)]).log()

    return table


@dataclass(frozen=True)
class Rows:
    """The state of a decoder: the tokens so far of each row, and one value for each sentence."""

    sentence_of_row: Tensor  # (N,)
    prefixes: Tensor  # (N, t) BOS included
    sentences: Tensor  # (B,)

    def select(self, rows: Tensor, sentences: Tensor) -> "Rows":
        """Return the state of `rows`."""
        assert len(rows) > 0 and sentences.diff().gt(0).all()
        return Rows(self.sentence_of_row[rows], self.prefixes[rows], self.sentences[sentences])


def start(sentences: Sequence[int], device: str = "cpu") -> Rows:
    """Return the state before the first token, one row for each sentence."""
    numbers = torch.tensor(sentences, dtype=torch.int64, device=device)
    return Rows(numbers, torch.empty(len(sentences), 0, dtype=torch.int64, device=device), numbers)


class Reader:
    """A decoder of a table. It counts the rows of each step."""

    def __init__(self, table: Table, device: str = "cpu") -> None:
        self.table = table
        self.rows_per_step: list[int] = []
        self.decoder = Decoder(self.step, device)

    def step(self, last_ids: Tensor, state: Rows) -> tuple[Tensor, Rows]:
        """Return the log-probabilities of the next token and the new state, as `Decoder` describes."""
        n_rows = len(state.sentence_of_row)
        assert last_ids.shape == (n_rows,) and last_ids.dtype == torch.int64
        beam_size = n_rows // len(state.sentences)
        assert torch.equal(state.sentence_of_row, state.sentences.repeat_interleave(beam_size))
        self.rows_per_step.append(n_rows)
        prefixes = torch.cat([state.prefixes, last_ids[:, None]], dim=1)
        log_probs = []
        for sentence, prefix in zip(state.sentence_of_row.tolist(), prefixes.tolist(), strict=True):
            assert prefix[0] == BOS
            log_probs.append(self.table(sentence, tuple(prefix[1:])))
        return torch.stack(log_probs).to(last_ids.device), replace(state, prefixes=prefixes)


def request_for(
    max_lengths: Sequence[int],
    penalty: Penalty = ("gnmt", 0.6),
    min_length: int = 0,
    prefixes: Sequence[Sequence[int]] | None = None,
    **settings: Any,
) -> Request:
    """Return a request with BOS banned. settings: other fields of `SearchConfig`."""
    return Request(
        search=SearchConfig(length_penalty=penalty[0], alpha=penalty[1], min_tokens=min_length, **settings),  # pyright: ignore[reportArgumentType]
        max_lengths=max_lengths,
        bos=BOS,
        eos=EOS,
        banned=[BOS],
        constraint=prefix_constraint(prefixes, max_lengths, EOS) if prefixes is not None else None,
    )


def with_search(request: Request, **settings: Any) -> Request:
    """Return the request with other search settings."""
    return replace(request, search=replace(request.search, **settings))


def beam(
    table: Table, sentences: Sequence[int], request: Request, size: int, n_best: int = 1
) -> list[list[Hypothesis]]:
    """Run a beam search of `size` over a table."""
    return beam_search(Reader(table).decoder, start(sentences), with_search(request, beam_size=size), n_best=n_best)


# ---- the simple versions -------------------------------------------------------------------------------------------


def divisor(length: int, penalty: Penalty) -> float:
    """Return the length penalty, computed from its formula."""
    name, alpha = penalty
    return {"gnmt": ((5 + length) / 6) ** alpha, "power": length**alpha, "none": 1.0}[name]


Allowed = Callable[[tuple[int, ...]], Collection[int]]  # tokens so far -> ids that may come next


def any_token(ids: tuple[int, ...]) -> Collection[int]:
    """Allow every token."""
    return range(V)


def every_output(
    table: Table, sentence: int, max_length: int, min_length: int, prefix: Sequence[int], allowed: Allowed = any_token
) -> list[Path]:
    """Return all sequences that the request allows, by brute force."""
    outputs = []
    for length in range(max_length + 1):
        for words in itertools.product(WORDS, repeat=length):
            ends = [words] if length == max_length else [(*words, EOS)] if length >= min_length else []
            for ids in ends:
                is_allowed = all(ids[t] in allowed(ids[:t]) for t in range(len(ids)))
                if ids[: len(prefix)] == tuple(prefix) and is_allowed:
                    outputs.append((ids, sum(table(sentence, ids[:t])[ids[t]].item() for t in range(len(ids)))))
    return outputs


def best_of(outputs: list[Path], penalty: Penalty, n_best: int) -> list[tuple[tuple[int, ...], float]]:
    """Return the n_best by score: first the outputs that end in EOS, then those that were cut."""
    scores = [(ids, log_prob / divisor(len(ids), penalty)) for ids, log_prob in outputs]
    return sorted(scores, key=lambda x: (x[0][-1] != EOS, -x[1]))[:n_best]


def plain_beam_search(
    table: Table, sentence: int, max_length: int, penalty: Penalty, size: int, n_best: int, allowed: Allowed = any_token
) -> list[tuple[tuple[int, ...], float]]:
    """Search one sentence with lists, without stopping early."""
    live: list[Path] = [((), 0.0)]
    complete: list[Path] = []
    for _ in range(max_length):
        extensions = []
        for k, (ids, log_prob) in enumerate(live):
            for token in [EOS, *WORDS]:
                if token in allowed(ids):
                    extensions.append((-(log_prob + table(sentence, ids)[token].item()), k, token))
        candidates = [((*live[k][0], token), -cost) for cost, k, token in sorted(extensions)[: 2 * size]]
        complete += [path for path in candidates if path[0][-1] == EOS]
        live = [path for path in candidates if path[0][-1] != EOS][:size]
    return best_of(complete + live, penalty, n_best)


def check(outputs: list[Hypothesis], expected: list[tuple[tuple[int, ...], float]]) -> None:
    """Assert that the hypotheses are the expected ones, in this order."""
    assert [tuple(h.ids) + (EOS,) * h.finished for h in outputs] == [ids for ids, _ in expected]
    assert [h.score for h in outputs] == pytest.approx([score for _, score in expected], abs=1e-6)


def replay(table: Table, sentence: int, output: Hypothesis, penalty: Penalty) -> None:
    """Assert that a hypothesis reports the log-probabilities of the table."""
    tokens = (*output.ids, EOS) if output.finished else tuple(output.ids)
    log_probs = [table(sentence, tokens[:t])[token].item() for t, token in enumerate(tokens)]
    assert output.token_log_probs == pytest.approx(log_probs, abs=1e-6)
    assert output.log_prob == pytest.approx(sum(log_probs), abs=1e-6)
    assert output.score == pytest.approx(output.log_prob / divisor(len(tokens), penalty), abs=1e-9)
