"""Translation: text -> tokens -> encode -> search -> text. The Python API of a trained model.

model = transduce.load("run/model")
model.translate(["A dog runs."])[0].text
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch

from transduce.config.schema import SearchConfig
from transduce.config.validation import as_path
from transduce.data.batches import Batch, collate
from transduce.data.text import is_blank
from transduce.data.vocabulary import EOS
from transduce.decoding.backends import PRECISIONS, Backend, choose_backend, fastest_precision
from transduce.decoding.batched_search import by_length, sample_all, search_all
from transduce.decoding.compiled_kernels import compiled
from transduce.decoding.confidence import with_confidence
from transduce.decoding.constraint import Constraint
from transduce.decoding.hypothesis import Alignment, Attended, Hypothesis, Outputs, Scored, Translation
from transduce.decoding.options import DEFAULTS, DecodingKeywords, DecodingOptions, with_keywords
from transduce.decoding.phrases.placeholders import kept_lines, with_placeholders
from transduce.decoding.phrases.segment_constraints import (
    UNCONSTRAINED,
    ConstraintLike,
    SegmentConstraints,
    check_search,
    constrained_segments,
    line_constraints,
    search_constraint,
)
from transduce.decoding.phrases.terms import Terms
from transduce.decoding.running_translation import RunningTranslation
from transduce.decoding.segmentation import (
    LongLine,
    Segment,
    check_line,
    check_lines,
    check_number,
    check_tag,
    encode_pairs,
    in_small_letters,
    most_tokens,
    segments_of,
    with_positions,
    with_tag,
    without_tag,
)
from transduce.decoding.shortlist.backend import ShortlistBackend
from transduce.decoding.translations import nearest_first, translations_of, without_loops
from transduce.errors import NotFiniteError, UserError
from transduce.evaluation.attention import alignment_weights, all_weights
from transduce.evaluation.word_alignment import align_outputs, align_text
from transduce.model import devices
from transduce.model.transformer import mixed_precision
from transduce.storage.model_folder import SHORTLIST_FILE, LoadedModel, load_translation_model
from transduce.training.loss import token_log_probs

MOST_SEARCHES = 4  # at a time; their bookkeeping, 1 of 3 to 10 ms a step, shares the interpreter's lock


def load(*paths: str | Path, precision: str = "fp32", device: str = "auto") -> "Translator":
    """Load the model of a folder, ready to translate; several folders are an ensemble and must share a tokenizer.

    precision: precision of the computation:
    - "fp32";
    - "bf16": faster for large models where the processor has instructions for it, but many times slower on other CPUs;
      the batch may change an answer in rare cases;
    - "int8": on the CPU, also beside a GPU. Weights and activations are rounded to 8 bits, activations row by row, so
      the batch changes nothing;
    - "auto": the fastest on the device. The attribute `precision` of the result is the choice.

    device: "cpu", "cuda", "cuda:N" or "mps"; "auto" takes the first that exists of "cuda", "mps" and "cpu".

    Raises UserError if a folder is not a whole model, or the device does not exist.
    """
    if not paths:
        raise UserError("no model: expected a model folder, such as RUN/model")
    if precision not in PRECISIONS:
        raise UserError(f"precision={precision!r}: expected one of {', '.join(PRECISIONS)}")
    with devices.on_device(device):
        place = devices.device(only_cpu="precision='int8'" if precision == "int8" else "")
    loaded = [load_translation_model(as_path("path", path)) for path in paths]
    for each in loaded:
        each.model.to(place)
    for path, other in zip(paths, loaded, strict=True):
        if other.tokenizer.sha256 != loaded[0].tokenizer.sha256:
            raise UserError(f"{path}: expected the tokenizer of {paths[0]}; models of an ensemble must share one")
    return Translator(loaded, precision=precision)


class Translator:
    """One model, or an ensemble of several, with its tokenizer and search settings. It computes where they are."""

    engine = "torch"
    takes_constraints = True

    def __init__(self, loaded: Sequence[LoadedModel], *, precision: str = "fp32") -> None:
        self.models = [model.model.eval() for model in loaded]
        if precision == "int8" and self._device.type != "cpu":
            raise UserError("precision='int8': expected a model on the CPU; load it with transduce.load")
        self.tokenizer = loaded[0].tokenizer
        limits = [model.config.max_positions for model in self.models]
        self.config = with_positions(loaded[0].config, min((n for n in limits if n is not None), default=None))
        self.precision = fastest_precision(self._device, self.models) if precision == "auto" else precision
        self.shortlist = loaded[0].shortlist  # good for all models of an ensemble, which share a tokenizer
        self.calibration = loaded[0].calibration if len(loaded) == 1 else None
        self._name = " and ".join(model.name for model in loaded)

    def __getstate__(self) -> dict[str, object]:
        """Return all except the prepared models, which hold addresses in memory: a copy prepares its own."""
        return {name: value for name, value in self.__dict__.items() if not name.endswith("_backend")}

    def translate(
        self,
        lines: Sequence[str],
        *,
        options: DecodingOptions = DEFAULTS,
        prefixes: Sequence[str] | None = None,
        constraints: Sequence[ConstraintLike] | None = None,
        terms: Terms | Mapping[str, str] | None = None,
        first_number: int = 0,
        **keywords: Unpack[DecodingKeywords],
    ) -> list[Translation]:
        """Translate each line. On a CPU, in fp32 and int8, a translation does not depend on the other lines.

        keywords: the fields of `DecodingOptions`, such as beam_size=8; they replace the fields of `options`.
        prefixes: text that each output must begin with, one for each line; "" for none.
        constraints: one for each line: a `LineConstraint`, a dict of its fields (must, must_not, prefix), or None.
        terms: translations of terms, which outputs of lines with the terms must have: `Terms.load(FILE)`, or a dict.
        first_number: the number of the first line; the draw for a line depends on it and on the seed.

        On a GPU the size of a batch changes the rounding, so that nearly equal outputs may change places. A line of
        more than 8,192 tokens comes back empty, with `problem` set, and so does one that is not split and has more
        tokens than the model has positions. A blank line is its own translation. Raises UserError for options that
        cannot be met.
        """
        options = with_keywords(options, keywords)
        settings = options.resolve(self.config.search)
        check_lines(lines=lines)
        if options.placeholders:
            check_search(options, settings)
            more = {"prefixes": prefixes, "constraints": constraints, "first_number": first_number}
            return self._keep_placeholders(lines, options, Terms.of(terms), more)
        check_number("first_number", first_number)
        lines = with_tag(lines, options.tag, self.tokenizer)
        given = (self.tokenizer, self.config, options)
        if constraints is None and prefixes is None and terms is None:
            (segments, problems), of_segments = segments_of(lines, *given), UNCONSTRAINED
        else:
            of_lines = line_constraints(len(lines), constraints, prefixes)
            segments, problems, of_segments = constrained_segments(lines, *given, of_lines, Terms.of(terms))
        if of_segments.phrases:
            check_search(options, settings)
        segments = in_small_letters(segments, *given, of_segments.segments)
        constraint = self._constraint(segments, of_segments, settings, first_number)
        sources, backend = [segment.ids for segment in segments], self._backend_of(options)
        with self._finite_output():
            if options.draws is None:
                search = partial(search_all, backend, n_best=options.n_candidates)
                hypotheses = without_loops(search, sources, settings, constraint, options.loops)
            else:
                seeds = [options.seeds_of_line(first_number + segment.line) for segment in segments]
                random = {"sampling": options.draws, "seeds": seeds}
                hypotheses = sample_all(backend, sources, settings, **random, constraint=constraint)
        if options.mbr is not None:
            hypotheses = nearest_first(hypotheses, self.tokenizer, options)
        if options.alignment:
            hypotheses = self._aligned(without_tag(segments, options.tag), hypotheses)
        translations = translations_of(lines, segments, hypotheses, problems, self.tokenizer, of_segments.phrases)
        if self.calibration is None:
            return translations
        return with_confidence(self.calibration, [self.tokenizer.split_tag(line)[1] for line in lines], translations)

    def _keep_placeholders(
        self, lines: Sequence[str], options: DecodingOptions, terms: Terms, more: Mapping[str, Any]
    ) -> list[Translation]:
        """Return the translation of each line, with its placeholders. more: other arguments of `translate`."""
        texts, kept = kept_lines(lines, self.tokenizer, self.config.data)
        options = dataclasses.replace(options, placeholders=False)
        outputs = self.translate(texts, options=options, terms=with_placeholders(terms, kept), **more)
        return [line.restore(output) for line, output in zip(kept, outputs, strict=True)]

    def search(
        self,
        sources: Sequence[Sequence[int]],
        settings: SearchConfig,
        *,
        n_best: int = 1,
        constraint: Constraint | None = None,
    ) -> Outputs:
        """Return the n_best outputs for each source as ids, best first (see `search_all`)."""
        with self._finite_output():
            return search_all(self._backend, sources, settings, n_best=n_best, constraint=constraint)

    def max_lengths(self, sources: Sequence[Sequence[int]], settings: SearchConfig) -> list[int]:
        """Return the most tokens that the output of each source may have, EOS counted."""
        return [*self._backend.request(sources, settings).max_lengths]

    @property
    def longest_source(self) -> int:
        """The most tokens of a source, EOS not counted."""
        return most_tokens(self.config.model.max_positions)

    def running(self) -> RunningTranslation[object]:
        """Return a translation with continuous batching, for a service."""
        return RunningTranslation(self._backend_of, self.tokenizer, self.config, self._aligned, self.calibration)

    @property
    def kernels(self) -> str:
        """The kernels of the search: "cuda", or "compiled" on a CPU for which they are installed, else "torch"."""
        if self._device.type == "cuda":
            return "cuda"
        return "torch" if self._device.type != "cpu" or compiled() is None else "compiled"

    @property
    def parallel_searches(self) -> int:
        """The number of `running` translations that are fastest together, each in a thread."""
        is_compiled = all(model.is_compiled for model in self._backend.models)
        return min(torch.get_num_threads(), MOST_SEARCHES) if is_compiled else 1  # else torch has its own threads

    def score(self, src: Sequence[str], tgt: Sequence[str], *, first_number: int = 0) -> list[Scored]:
        """Return the log-probability of each given translation, log P(tgt | src), with each token's share.

        first_number: lines before these ones, which the line number in a message counts.
        Raises UserError if the numbers of lines differ, or a line is too long, and for a model in int8.
        """
        check_lines(src=src, tgt=tgt)
        check_number("first_number", first_number)
        if self.precision == "int8":
            raise UserError("precision='int8': expected fp32 or bf16 to score; load the model in one of them")
        if len(src) != len(tgt):
            raise UserError(
                f"src and tgt: expected the same number of lines, not {len(src):,} and {len(tgt):,}; "
                "give one translation for each source line"
            )
        pairs, too_long = encode_pairs(src, tgt, self.tokenizer, self.config.model.max_positions)
        if too_long is not None:
            raise UserError(too_long.problem(("src", "tgt"), first_number))
        lengths = [max(len(ids) for ids in pair) for pair in pairs]
        results: list[Scored] = [Scored(0.0, (), ())] * len(pairs)

        def token_log_probs_of(members: Sequence[int]) -> list[list[float]]:
            src_ids, tgt_ids = ([np.asarray(pairs[i][side]) for i in members] for side in (0, 1))
            return self._token_log_probs(collate(src_ids, tgt_ids))

        for members, of_members in by_length(token_log_probs_of, lengths, self._device):
            for i, log_probs in zip(members, of_members, strict=True):
                with self._finite_output():
                    if not math.isfinite(sum(log_probs)):
                        raise FloatingPointError(
                            f"line {first_number + i + 1} has the log-probability {sum(log_probs)}"
                        )
                pieces = tuple(self.tokenizer.pieces([*pairs[i][1], EOS]))
                results[i] = Scored(sum(log_probs), pieces, tuple(log_probs))
        return results

    def long_line(self, src: Sequence[str], tgt: Sequence[str]) -> LongLine | None:
        """Return the first line that is too long for `score`, 8,192 tokens or fewer; None if there is none."""
        return encode_pairs(src, tgt, self.tokenizer, self.config.model.max_positions)[1]

    def attend(self, src: str, tgt: str | None = None) -> Attended:
        """Return all attention weights (§3.2) of the steps that write `tgt`, by default the model's own translation.

        An ensemble shows the weights and log-probabilities of its first model, in fp32.
        Raises UserError for a blank source, or a side of more than 8,192 tokens.
        """
        check_line("src", src)
        check_line("tgt", "" if tgt is None else tgt)
        if is_blank(src):
            raise UserError("attend: expected a sentence, but the source is blank")
        if tgt is None:
            tgt = self.translate([src])[0].text
        pairs, too_long = encode_pairs([src], [tgt], self.tokenizer, self.config.model.max_positions)
        if too_long is not None:
            raise UserError(too_long.problem(("src", "tgt")))
        src_ids, tgt_ids = pairs[0]
        batch = collate([np.asarray(src_ids)], [np.asarray(tgt_ids)]).to(self._device)
        src_pieces, tgt_pieces = (tuple(self.tokenizer.pieces([*ids, EOS])) for ids in (src_ids, tgt_ids))
        weights = all_weights(self.models[0], batch)
        with self._finite_output():
            if not all(np.isfinite(array).all() for array in weights):
                raise FloatingPointError("attention weights or log-probabilities are not finite")
        return Attended(src_pieces, tgt_pieces, *weights)

    def align(self, src: str, tgt: str) -> Alignment | None:
        """Return the source word of each word of a given translation, or None if the alignment is unknown.

        It is unknown for a blank source, and for a side of more than 1,024 tokens. Of the model's own translations,
        `translate(..., alignment=True)` returns it faster. Raises UserError for an argument that is not a string.
        """
        check_line("src", src)
        check_line("tgt", tgt)
        if self.long_line([src], [tgt]) is not None:
            return None
        return align_text(src, tgt, self.tokenizer, self._alignment_weights)

    def _aligned(self, segments: Sequence[Segment], outputs: Sequence[Sequence[Hypothesis]]) -> list[list[Hypothesis]]:
        """Return the outputs for each segment with their alignments."""
        return align_outputs(segments, outputs, self.tokenizer, self._alignment_weights)

    def _alignment_weights(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[np.ndarray]:
        """Return the weights by which the words of pairs of ids are aligned, with padding: (T,S) of each pair."""
        weights = [np.empty(0)] * len(pairs)
        rows = [(np.asarray(src, np.int64), np.asarray(tgt[:-1], np.int64)) for src, tgt in pairs]  # BOS makes up for 1

        def weights_of(members: Sequence[int]) -> np.ndarray:
            batch = collate([rows[i][0] for i in members], [rows[i][1] for i in members])
            return alignment_weights(self.models, batch.to(self._device))

        for members, of_members in by_length(weights_of, [max(map(len, pair)) for pair in rows], self._device):
            for i, of_pair in zip(members, of_members, strict=True):
                weights[i] = of_pair
        return weights

    def check_options(self, options: DecodingOptions) -> None:
        """Raise UserError for options for which the model folder lacks something, and for a parser."""
        check_tag(options.tag, self.tokenizer)
        if self.config.data.target_tokens == "symbols":
            raise UserError(f"{self._name}: expected a model that writes text, not trees; use transduce parse")
        if options.shortlist and self.shortlist is None:
            command = f"transduce shortlist {self._name.split(' and ')[0]} --src TEXT --tgt TEXT"
            raise UserError(f"shortlist=True: expected a model folder with {SHORTLIST_FILE}; run {command}")

    @functools.cached_property
    def _backend(self) -> Backend:
        """The models as the search takes them, prepared at the first translation."""
        return choose_backend(self.models, self.precision)

    @functools.cached_property
    def _shortlist_backend(self) -> Backend:
        """The same models, with the shortlist."""
        assert self.shortlist is not None
        return ShortlistBackend(self._backend, self.shortlist)

    def _backend_of(self, options: DecodingOptions) -> Backend:
        """Return the backend for some options. Raises UserError as `check_options` does."""
        if not options.shortlist:
            return self._backend
        self.check_options(options)
        return self._shortlist_backend

    @contextlib.contextmanager
    def _finite_output(self) -> Iterator[None]:
        """Raise NotFiniteError, which names the model, for a FloatingPointError of the block."""
        try:
            yield
        except FloatingPointError as problem:
            remedy = "use an earlier checkpoint, or another copy"
            raise NotFiniteError(
                f"{self._name}: expected outputs that are finite numbers: {problem}; {remedy}"
            ) from None

    @property
    def _device(self) -> torch.device:
        return self.models[0].output.weight.device

    def _constraint(
        self,
        segments: Sequence[Segment],
        constraints: SegmentConstraints,
        settings: SearchConfig,
        first_number: int,
    ) -> Constraint | None:
        """Return the constraint of the search of segments; None if all are free."""
        if not constraints.segments:
            return None
        sources = [segment.ids for segment in segments]
        numbers = [first_number + segment.line + 1 for segment in segments]
        request_of = partial(self._backend.request, sources, settings)
        return search_constraint(constraints.segments, numbers, self.tokenizer, request_of)

    @torch.inference_mode()
    def _token_log_probs(self, batch: Batch) -> list[list[float]]:
        """Return log P(token | source, tokens before it) for every real target position.

        An ensemble gives the logarithm of the mean probability.
        """
        batch = batch.to(self._device)
        log_probs = []
        with mixed_precision(self.precision, self._device):
            for model in self.models:
                decoded = model.decode(batch.tgt_in, model.encode(batch.src, batch.src_mask), batch.src_mask)
                hidden, targets = batch.real(decoded)
                log_probs.append(token_log_probs(hidden, model.output.weight, targets, model.output.bias))
        mean = torch.stack(log_probs).logsumexp(0) - math.log(len(log_probs))  # (real target tokens,)
        return [row.tolist() for row in mean.cpu().split(batch.tgt_mask.sum(1).tolist())]
