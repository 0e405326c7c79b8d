"""A whole search as calls of the compiled kernels (native/search.h), for sentences without a constraint.

A search step with few rows costs calls between kernels, not arithmetic. `beam.Beam` and `rows.Greedy` are the
definition; the tests compare the outputs, which are equal.
"""

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from transduce.decoding.compiled_kernels import (
    INTEGER,
    POINTER,
    CompiledStack,
    CRows,
    CStep,
    CTokens,
    CVisible,
    PackedLinear,
    addresses,
)
from transduce.decoding.cpu_cache import CpuCache
from transduce.decoding.hypothesis import Hypothesis, Request, hypothesis_of, no_continuation

STEPS = 16  # in one call: between calls, Ctrl-C ends the search
GOES_ON, IS_DONE, FAILS = range(3)  # what search_steps returns; else memory ran out


class CRequest(ctypes.Structure):
    """Request of search.h."""

    _fields_ = [
        *(("stack", POINTER), ("step", CStep), ("rows", CRows), ("common", POINTER), ("own", POINTER)),
        *((name, INTEGER) for name in ("beam", "n_best", "candidates", "bos", "eos", "min_tokens", "lookahead")),
        ("no_repeat_ngram", INTEGER),
        *(("barred", POINTER), ("n_barred", INTEGER), ("max_lengths", POINTER), ("penalties", POINTER)),
    ]


class COutputs(ctypes.Structure):
    """Outputs of search.h."""

    _fields_ = [
        *(("lengths", ctypes.POINTER(ctypes.c_int64)), ("ids", ctypes.POINTER(ctypes.c_int64))),
        *(("values", ctypes.POINTER(ctypes.c_float)), ("n_tokens", INTEGER), ("length", INTEGER)),
    ]


ARGUMENTS = {"search_steps": [POINTER, INTEGER], "search_outputs": [POINTER, POINTER], "search_end": [POINTER]}


@dataclass(frozen=True)
class TokenAddresses:
    """The tokens that sentences choose from, as addresses of C structs.

    common: of all sentences. own: (B,) of each sentence, in addition; None: none.
    """

    common: int
    own: Tensor | None = None


class CompiledSearch:
    """Searches with one model.

    embedding: of the target, the matrix (V,D) and its scale. positions: returns at least so many positions (P,D).
    """

    def __init__(
        self,
        decoder: CompiledStack,
        output: PackedLinear,
        embedding: tuple[Tensor, float],
        positions: Callable[[int], Tensor],
    ) -> None:
        self.library, self.decoder = decoder.library, decoder
        self.output = output
        self.embedding = embedding
        self.positions = positions
        self.tokens = CTokens(output.struct, None)
        self.library.search_begin.argtypes, self.library.search_begin.restype = [POINTER], POINTER
        for name, arguments in ARGUMENTS.items():
            getattr(self.library, name).argtypes, getattr(self.library, name).restype = arguments, INTEGER

    def __call__(
        self, state: CpuCache, request: Request, n_best: int, tokens: TokenAddresses | None = None
    ) -> list[list[Hypothesis]]:
        """Return what `Rows.search` returns for `state`, which is before its first token, one row for each sentence.

        tokens: None: all tokens.
        """
        tokens = tokens or TokenAddresses(ctypes.addressof(self.tokens))
        settings = request.search
        max_lengths = np.array(request.max_lengths, dtype=np.int64)
        barred = np.array([*request.banned, request.eos], dtype=np.int64)
        matrix, scale = self.embedding
        positions, source = self.positions(max(request.max_lengths)), state.source
        step = CStep(matrix.data_ptr(), positions.data_ptr(), scale)
        lines = CVisible(source.rows.data_ptr(), source.rows.size(1), source.lengths.data_ptr(), None)
        tables = addresses(state.cross.layers)
        rows = CRows(len(max_lengths), None, None, ctypes.addressof(tables), CVisible(), lines)
        n_candidates = 2 * settings.beam_size if settings.beam_size > 1 else 1
        lookahead = -1 if settings.lookahead is None else settings.lookahead
        own = None if tokens.own is None else tokens.own.data_ptr()
        counts = settings.beam_size, n_best, n_candidates
        numbers = *counts, request.bos, request.eos, settings.min_tokens, lookahead, settings.no_repeat_ngram
        arrays = barred.ctypes.data, len(barred), max_lengths.ctypes.data, request.penalties.ctypes.data
        asked = CRequest(self.decoder.address, step, rows, tokens.common, own, *numbers, *arrays)
        search = self.library.search_begin(ctypes.addressof(asked))
        if not search:
            raise MemoryError
        try:
            return self._outputs(search, request, n_best)
        finally:
            self.library.search_end(search)

    def _outputs(self, search: int, request: Request, n_best: int) -> list[list[Hypothesis]]:
        while (status := self.library.search_steps(search, STEPS)) == GOES_ON:
            pass
        outputs = COutputs()
        self.library.search_outputs(search, ctypes.addressof(outputs))
        if status == FAILS:
            raise no_continuation(outputs.length)
        if status != IS_DONE:
            raise MemoryError
        ids, values = outputs.ids[: outputs.n_tokens], outputs.values[: outputs.n_tokens]
        lengths = np.array(outputs.lengths[: n_best * len(request.max_lengths)]).reshape(-1, n_best)
        ends = lengths.cumsum().reshape(-1, n_best)
        return [
            [
                hypothesis_of(ids[end - length : end], values[end - length : end], request.eos, request.penalties)
                for length, end in zip(*of_sentence, strict=True)
                if length
            ]
            for of_sentence in zip(lengths.tolist(), ends.tolist(), strict=True)
        ]
