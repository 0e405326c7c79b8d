"""The search with a vocabulary shortlist for each sentence: a backend, of which the search notices nothing.

The state of its decoder knows the shortlist of each row, and so do the scores that a step returns. Log-probabilities
are over the shortlist of the row; other tokens have -inf. The common tokens of all shortlists are one product
of all rows. The few others of a sentence are packed once, when it is encoded, for a separate product of its rows. So a
sentence gets the same sums in any batch, to the last bit.

Letters: B sentences, N rows, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Generic

import torch
from torch import Tensor

from transduce.decoding.backends import Backend
from transduce.decoding.compiled_kernels import PackedLinear, PackedTokens
from transduce.decoding.compiled_search import TokenAddresses
from transduce.decoding.constraint import Constraint
from transduce.decoding.decoder import Decoder, DecoderState, State
from transduce.decoding.hypothesis import Hypothesis, Request
from transduce.decoding.shortlist.table import Shortlist


@dataclass(frozen=True)
class _Lists:
    """The shortlists of B sentences. ids: of each, beyond the common ones. tokens: the same for compiled kernels."""

    ids: Sequence[Tensor]
    tokens: Sequence[PackedTokens]

    def select(self, sentences: Sequence[int]) -> "_Lists":
        """Return the shortlists of `sentences`."""
        return _Lists([self.ids[i] for i in sentences], [self.tokens[i] for i in sentences if self.tokens])

    def join(self, others: "_Lists") -> "_Lists":
        """Return the shortlists of both."""
        return _Lists([*self.ids, *others.ids], [*self.tokens, *others.tokens])

    @cached_property
    def addresses(self) -> Tensor:
        """The addresses (B,) of the tokens."""
        return torch.tensor([tokens.address for tokens in self.tokens])

    def excluded(self, common: Tensor, n_ids: int) -> Tensor:
        """Return the mask (B, V) of the tokens that are not in the shortlists, on the CPU."""
        is_excluded = torch.ones(len(self.ids), n_ids, dtype=torch.bool)
        is_excluded[:, common] = False
        for row, ids in zip(is_excluded, self.ids, strict=True):
            row[ids] = False
        return is_excluded


@dataclass(frozen=True)
class _RowLists:
    """The shortlists of N rows: row i has number list_of_row[i]."""

    lists: _Lists
    list_of_row: Tensor

    def __getitem__(self, rows: Tensor) -> "_RowLists":
        """Return the shortlists of `rows`."""
        return _RowLists(self.lists, self.list_of_row[rows.to(self.list_of_row.device)])

    def keep(self, sentences: Tensor) -> "_RowLists":
        """Return the same rows without the shortlists of other sentences. sentences: the sentences that have rows."""
        if len(sentences) == len(self.lists.ids):
            return self
        lists = self.lists.select(sentences.tolist())
        return _RowLists(lists, torch.searchsorted(sentences, self.list_of_row))

    def join(self, others: "_RowLists") -> "_RowLists":
        """Return the rows of both."""
        list_of_row = torch.cat([self.list_of_row, others.list_of_row + len(self.lists.ids)])
        return _RowLists(self.lists.join(others.lists), list_of_row)


@dataclass(frozen=True)
class _State(Generic[State]):
    """The state of a decoder, and the shortlists of its rows."""

    state: State
    rows: _RowLists

    def select(self, rows: Tensor, sentences: Tensor) -> "_State[State]":
        """Return the state whose row i continues row rows[i] of this one."""
        return _State(self.state.select(rows, sentences), self.rows[rows].keep(sentences))


@dataclass(frozen=True)
class _Scores:
    """The scores of N rows, and their shortlists."""

    scores: Tensor
    rows: _RowLists

    def __getitem__(self, rows: Tensor) -> "_Scores":
        """Return the scores of `rows`."""
        return _Scores(self.scores[rows], self.rows[rows])

    @property
    def device(self) -> torch.device:
        """The device of the scores."""
        return self.scores.device


class ShortlistBackend(Backend):
    """A backend whose outputs have only tokens of the shortlists of their sentences.

    It is faster than `backend` for one model with compiled kernels in fp32 or int8; others compute all logits.
    """

    def __init__(self, backend: Backend, shortlist: Shortlist) -> None:
        super().__init__(backend.models, backend.precision)
        self.shortlist = shortlist
        self.common = torch.from_numpy(shortlist.common).long()
        self.output = self.models[0].packed_output if len(self.models) == 1 else None  # for compiled kernels
        self.decoder = _listed(self.decoder, self.common, self.output)

    def start(self, sources: Sequence[Sequence[int]], constraint: Constraint | None = None) -> _State[DecoderState]:
        """Encode sources, and return the decoder's state before the first token, with their shortlists."""
        needed = (constraint.needed_ids if constraint is not None else ()) or [()] * len(sources)
        own = [self.shortlist.own(*both) for both in zip(sources, needed, strict=True)]
        ids = [torch.from_numpy(of_source) for of_source in own]
        tokens = [] if self.output is None else self.output.tokens(ids)
        rows = _RowLists(_Lists(ids, tokens), torch.arange(len(sources), device=self.decoder.device))
        return _State(super().start(sources, constraint), rows)


def _listed(decoder: Decoder[State], common: Tensor, output: PackedLinear | None) -> Decoder[_State[State]]:
    """Return a decoder whose log-probabilities are over the shortlists of the rows."""

    def step(last_ids: Tensor, state: _State[State]) -> tuple[_Scores, _State[State]]:
        scores, after = decoder.step(last_ids, state.state)
        return _Scores(scores, state.rows), _State(after, state.rows)

    def log_probs(scores: _Scores) -> Tensor:
        logits = (decoder.logits or decoder.log_probs)(scores.scores)
        lists, used = scores.rows.list_of_row.cpu().unique(return_inverse=True)
        is_excluded = scores.rows.lists.select(lists.tolist()).excluded(common, logits.size(1))
        is_excluded = is_excluded.to(logits.device)[used.to(logits.device)]
        return logits.masked_fill(is_excluded, -torch.inf).log_softmax(dim=-1)

    def join(state: _State[State], new: _State[State]) -> _State[State]:
        assert decoder.join is not None
        return _State(decoder.join(state.state, new.state), state.rows.join(new.rows))

    listed = Decoder(step, decoder.device, log_probs, join=join if decoder.join else None)
    return listed if output is None else _compiled(listed, decoder, *output.tokens([common]))


def _compiled(listed: Decoder[_State[State]], decoder: Decoder[State], common: PackedTokens) -> Decoder[_State[State]]:
    """Return the same decoder with the compiled kernels."""

    def best(scores: _Scores, count: int, barred: Sequence[int]) -> tuple[Tensor, Tensor]:
        own = scores.rows.lists.addresses[scores.rows.list_of_row]
        return common.best_of(scores.scores, own, count, barred)

    def search(state: _State[State], request: Request, n_best: int) -> list[list[Hypothesis]]:
        assert decoder.search is not None
        return decoder.search(state.state, request, n_best, TokenAddresses(common.address, state.rows.lists.addresses))

    return replace(listed, best=best, search=search if decoder.search else None)
