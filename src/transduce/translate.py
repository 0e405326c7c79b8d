"""Translation: text -> tokens -> encode -> search -> text. The Python API of a trained model.

model = transduce.load("run/model")
model.translate(["A dog runs."])[0].text
"""

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack, cast

import numpy as np
import torch
from torch import Tensor

from transduce.config.schema import SearchConfig
from transduce.data.batches import Batch, collate, pad
from transduce.data.text import is_blank
from transduce.data.vocabulary import BOS, EOS, PAD, UNK
from transduce.decoding import search as searching
from transduce.decoding.cpu_transformer import PackedTransformer, Precision
from transduce.decoding.cuda_graphs import RecordedTransformer, recorded
from transduce.decoding.hypothesis import Hypothesis
from transduce.decoding.kernels import compiled
from transduce.decoding.options import DEFAULTS, DecodingKeywords, DecodingOptions, Sampling
from transduce.decoding.search import Decoder, Request
from transduce.decoding.segmentation import (
    MAX_LINE_TOKENS,
    Part,
    Translation,
    parts_of,
    refuse_string,
    translations_of,
)
from transduce.errors import UserError, is_out_of_memory
from transduce.model.attention import Mask, attention_weights
from transduce.model.build import Model
from transduce.model.transformer import Transformer, mixed_precision
from transduce.storage.model_folder import LoadedModel, load_model
from transduce.training.loss import token_log_probs

# ---- what comes back ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scored:
    """A given translation under the model: its log-probability in nats, EOS included, and each token's."""

    log_prob: float
    pieces: tuple[str, ...]
    token_log_probs: tuple[float, ...]


@dataclass(frozen=True)
class Attended:
    """Every attention weight of one sentence pair: L layers, H heads, S source and T target tokens.

    encoder (L,H,S,S), decoder (L,H,T,T), cross (L,H,T,S); row t of the target is the step that writes tgt_pieces[t].
    The rivals of Table 2 attend to the source alone: encoder and decoder then have no layers.
    """

    src_pieces: tuple[str, ...]
    tgt_pieces: tuple[str, ...]
    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray


# ---- the API -----------------------------------------------------------------------------------------------------

Searched = Model | PackedTransformer | RecordedTransformer  # a model, or one made ready for a CPU or a GPU
PRECISIONS = ("fp32", "bf16", "int8", "auto")


def load(*paths: str | Path, precision: str = "fp32") -> "Translator":
    """The model in a folder, ready to use; several folders are an ensemble and must share a tokenizer.

    precision: in which to translate. "fp32"; "bf16", faster on most machines, but there the batch may change an answer
    in rare cases; "int8", on CPUs: weights and activations are rounded to 8 bits, the latter row by row, so that the
    batch changes nothing; "auto": what this machine does fastest, to be read in the result's `precision`.
    Raises UserError if a folder is not a whole model.
    """
    if not paths:
        raise UserError("no model given; expected a model folder, such as RUN/model")
    if precision not in PRECISIONS:
        raise UserError(f"precision is {precision!r}, expected one of {', '.join(PRECISIONS)}")
    loaded = [load_model(Path(path)) for path in paths]
    for path, other in zip(paths, loaded, strict=True):
        if other.tokenizer.sha256 != loaded[0].tokenizer.sha256:
            raise UserError(f"{path} has another tokenizer than {paths[0]}; models of an ensemble must share one")
    return Translator(loaded, precision=precision)


class Translator:
    """One model, or an ensemble of several, with its tokenizer and its search settings."""

    def __init__(self, loaded: Sequence[LoadedModel], *, precision: str = "fp32") -> None:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if precision == "int8" and device.type == "cuda":
            raise UserError("precision int8 is for CPUs; on this GPU take bf16")
        self.models = [one.model.to(device).eval() for one in loaded]
        self.tokenizer = loaded[0].tokenizer
        self.config = loaded[0].config
        self.precision = fastest_precision(device, self.models) if precision == "auto" else precision

    def translate(
        self,
        lines: Sequence[str],
        *,
        options: DecodingOptions = DEFAULTS,
        prefixes: Sequence[str] | None = None,
        first_number: int = 0,
        **keywords: Unpack[DecodingKeywords],
    ) -> list[Translation]:
        """Translate each line; the translation of a line does not depend on the other lines.

        keywords: the fields of `DecodingOptions`, such as beam_size=8; they replace those of `options`.
        prefixes: text that each output must begin with.
        first_number: the number of the first line; the draw for a line depends on it and on the seed.
        A line of more than 8,192 tokens comes back empty, with `problem` set; a blank line is its own translation.
        Raises UserError for options that cannot be met.
        """
        refuse_string(lines, prefixes or [])
        options = replace(options, **keywords)
        ask, sampling = options.resolve(self.config.search), options.sampling
        if prefixes is not None and len(prefixes) != len(lines):
            raise UserError(f"{len(prefixes)} prefixes for {len(lines)} lines; give one for each line, '' for none")
        parts, refused = parts_of(lines, self.tokenizer, self.config.data.max_tokens - 1, options.split, prefixes)
        sources = self.tokenizer.encode_batch([part.text for part in parts])
        forced = self._prefix_ids(parts, prefixes) if prefixes is not None else None
        seeds = (
            [searching.sentence_seed(options.seed, first_number + part.line) for part in parts] if sampling else None
        )
        packed = all(isinstance(model, PackedTransformer | RecordedTransformer) for model in self._searched)
        with mixed_precision("fp32" if packed else self.precision, self._device):  # they do as they were made
            found = search(
                self._searched, sources, ask, n_best=options.n_best, prefixes=forced, seeds=seeds, sampling=sampling
            )
        return translations_of(lines, list(zip(parts, found, strict=True)), refused, self.tokenizer)

    def score(self, src: Sequence[str], tgt: Sequence[str], *, first_number: int = 0) -> list[Scored]:
        """The log-probability of each given translation: log P(tgt | src), with each token's share.

        Raises UserError if the numbers of lines differ, or a side is over 8,192 tokens; its message counts the lines
        before these, `first_number`, in.
        """
        refuse_string(src, tgt)
        if len(src) != len(tgt):
            raise UserError(f"{len(src)} source lines but {len(tgt)} target lines; they must match line by line")
        pairs = list(zip(self.tokenizer.encode_batch(src), self.tokenizer.target.encode_batch(tgt), strict=True))
        for number, pair in enumerate(pairs, start=first_number + 1):
            longest = max(len(ids) for ids in pair)
            if longest > MAX_LINE_TOKENS:
                raise UserError(f"line {number} has {longest:,} tokens; expected at most {MAX_LINE_TOKENS:,}")
        results: list[Scored] = [Scored(0.0, (), ())] * len(pairs)
        for members in _by_length([max(pair, key=len) for pair in pairs], 1, BATCH_TOKENS[self._device.type]):
            src_ids, tgt_ids = ([np.asarray(pairs[i][side]) for i in members] for side in (0, 1))
            batch = collate(src_ids, tgt_ids)
            for i, log_probs in zip(members, self._token_log_probs(batch), strict=True):
                pieces = tuple(self.tokenizer.pieces([*pairs[i][1], EOS]))
                results[i] = Scored(sum(log_probs), pieces, tuple(log_probs))
        return results

    def attend(self, src: str, tgt: str | None = None) -> Attended:
        """All attention weights (§3.2) while `tgt`, by default the model's own translation, is written.

        An ensemble shows its first model. Raises UserError for a blank source.
        """
        if is_blank(src):
            raise UserError("attend needs a sentence, but the source is blank")
        if tgt is None:
            tgt = self.translate([src])[0].text
        src_ids, tgt_ids = self.tokenizer.encode(src), self.tokenizer.target.encode(tgt)
        longest = max(len(src_ids), len(tgt_ids))
        if longest > MAX_LINE_TOKENS:
            raise UserError(f"a line of {longest:,} tokens; attend expects at most {MAX_LINE_TOKENS:,}")
        batch = collate([np.asarray(src_ids)], [np.asarray(tgt_ids)]).to(self._device)
        encoder, decoder, cross = _all_weights(self.models[0], batch)
        pieces = self.tokenizer.pieces
        return Attended(tuple(pieces([*src_ids, EOS])), tuple(pieces([*tgt_ids, EOS])), encoder, decoder, cross)

    # ---- steps of translate --------------------------------------------------------------------------------------

    @functools.cached_property
    def _searched(self) -> list[Searched]:
        """The models as the search takes them, made once."""
        return [_ready(model, self.precision) for model in self.models]

    @property
    def _device(self) -> torch.device:
        return self.models[0].output.weight.device

    def _prefix_ids(self, parts: Sequence[Part], prefixes: Sequence[str]) -> list[list[int]]:
        forced = self.tokenizer.target.encode_batch([prefixes[part.line] for part in parts])
        extra = self.config.search.max_extra_tokens
        for part, ids in zip(parts, forced, strict=True):
            longest = len(self.tokenizer.encode(part.text)) + extra
            if len(ids) > longest:
                prefix = f"the prefix of line {part.line + 1} has {len(ids)} tokens"
                raise UserError(f"{prefix}, its output may have {longest} (search.max_extra_tokens); shorten it")
        return forced

    @torch.inference_mode()
    def _token_log_probs(self, batch: Batch) -> list[list[float]]:
        """log P(token | source, tokens before it) for every real target position; an ensemble's mean probability."""
        batch = batch.to(self._device)
        each = []
        with mixed_precision(self.precision, self._device):
            for model in self.models:
                decoded = model.decode(batch.tgt_in, model.encode(batch.src, batch.src_mask), batch.src_mask)
                hidden, targets = batch.real(decoded)
                each.append(token_log_probs(hidden, model.output.weight, targets, model.output.bias))
        mean = torch.stack(each).logsumexp(0) - math.log(len(each))  # (real target tokens,)
        return [row.tolist() for row in mean.cpu().split(batch.tgt_mask.sum(1).tolist())]


# ---- the model as the search sees it -----------------------------------------------------------------------------


def fastest_precision(device: torch.device, models: Sequence[Model]) -> str:
    """What "auto" stands for."""
    if device.type == "cuda":
        return "bf16"
    if compiled() is not None and all(isinstance(model, Transformer) for model in models):
        return "int8"
    return "bf16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "fp32"


def _ready(model: Model, precision: str) -> Searched:
    """The model to search with: made ready for the device where that is faster, or the only way."""
    if isinstance(model, Transformer) and model.output.weight.is_cuda:
        return recorded(model, cast(Precision, precision)) or model
    if isinstance(model, Transformer) and (precision == "int8" or compiled() is not None):
        return PackedTransformer(model, cast(Precision, precision))
    if precision == "int8":
        raise UserError(f"precision int8 is for Transformers, and this is a {model.config.kind} model; take bf16")
    return model


def decoder(model: Searched) -> Decoder[Any]:
    """The model's `decode_step` as a step function over logits."""
    if isinstance(model, PackedTransformer | RecordedTransformer):
        device, best = model.device, model.kernels.best
    else:
        device, best = model.output.weight.device, None

    def reorder(cache: Any, rows: Tensor, sentences: Tensor) -> Any:
        return cache.select(rows, sentences)

    return Decoder(model.decode_step, reorder, device, _log_probs, best)


def _log_probs(logits: Tensor) -> Tensor:
    return logits.float().log_softmax(dim=-1)


def search(
    models: Sequence[Searched],
    sources: Sequence[Sequence[int]],
    ask: SearchConfig,
    *,
    n_best: int = 1,
    prefixes: Sequence[Sequence[int]] | None = None,
    sampling: Sampling | None = None,
    seeds: Sequence[int] | None = None,
) -> list[list[Hypothesis]]:
    """The n_best outputs for each source (ids without EOS), best first, in the order given.

    Several models are an ensemble. An output is at most ask.max_extra_tokens longer than its own source (§6.1).
    prefixes: ids that each output begins with. sampling, with one of `seeds` for each source: draw one output.
    """
    decoders = [decoder(model) for model in models]
    joint: Decoder[Any] = searching.ensemble(decoders) if len(models) > 1 else decoders[0]

    @torch.inference_mode()
    def outputs(members: list[int]) -> list[list[Hypothesis]]:
        with contextlib.ExitStack() as alone:
            for model in models:
                if isinstance(model, RecordedTransformer):
                    alone.enter_context(model.alone)
            return found_for(members)

    def found_for(members: list[int]) -> list[list[Hypothesis]]:
        chosen = [sources[i] for i in members]
        request = _request(chosen, ask, models, [prefixes[i] for i in members] if prefixes else None)
        src, src_mask = (x.to(joint.device) for x in pad([np.append(np.asarray(s, np.int64), EOS) for s in chosen]))
        states = tuple(model.start(model.encode(src, src_mask), src_mask) for model in models)
        state = states if len(models) > 1 else states[0]
        if sampling is not None and seeds is not None:
            drawn = searching.sample(joint, state, request, sampling=sampling, seeds=[seeds[i] for i in members])
            return [[hypothesis] for hypothesis in drawn]
        return searching.beam_search(joint, state, request, beam_size=ask.beam_size, n_best=n_best)

    results: list[list[Hypothesis]] = [[] for _ in sources]
    at_once = torch.get_num_threads() if all(isinstance(model, PackedTransformer) for model in models) else 1
    batches = list(_by_length(sources, ask.beam_size, BATCH_TOKENS[torch.device(joint.device).type], at_once))
    for members, found in zip(batches, _each(functools.partial(_fitting, outputs), batches, at_once), strict=True):
        for i, hypotheses in zip(members, found, strict=True):
            results[i] = hypotheses
    return results


def _each(
    work: Callable[[list[int]], list[list[Hypothesis]]], batches: Sequence[list[int]], at_once: int
) -> list[list[list[Hypothesis]]]:
    """What `work` makes of each batch, so many of them at once, each on one thread: packed models gain by it."""
    threads = torch.get_num_threads()
    if min(at_once, len(batches)) < 2:
        return [work(batch) for batch in batches]
    patience = sys.getswitchinterval()
    sys.setswitchinterval(5e-5)  # a thread that comes back from a kernel of 0.1 ms does not wait 5 ms for its turn
    try:
        with ThreadPoolExecutor(at_once, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            return list(pool.map(work, batches))
    finally:
        torch.set_num_threads(threads)
        sys.setswitchinterval(patience)


def _fitting(work: Callable[[list[int]], list[list[Hypothesis]]], members: list[int]) -> list[list[Hypothesis]]:
    """What `work` makes of `members`; of each half of them, where memory runs out: the batch changes no answer."""
    try:
        return work(members)
    except (MemoryError, RuntimeError) as problem:
        if not is_out_of_memory(problem) or len(members) == 1:
            raise
    middle = len(members) // 2  # not in the handler: an exception keeps all that its frames hold
    return _fitting(work, members[:middle]) + _fitting(work, members[middle:])


def _request(
    sources: Sequence[Sequence[int]],
    ask: SearchConfig,
    models: Sequence[Searched],
    prefixes: Sequence[Sequence[int]] | None,
) -> Request:
    longest = min(model.config.max_positions or 1 << 30 for model in models)
    return Request(
        max_lengths=[min(len(ids) + ask.max_extra_tokens, longest) for ids in sources],
        bos=BOS,
        eos=EOS,
        length_penalty=ask.length_penalty,
        alpha=ask.alpha,
        banned=(PAD, BOS, UNK),
        min_length=ask.min_tokens,
        prefixes=prefixes,
        lookahead=ask.lookahead,
    )


# Source tokens times beam that are searched together: a GPU takes as long for a step of few.
BATCH_TOKENS = {"cpu": 8_192, "cuda": 65_536}


def _by_length(
    sources: Sequence[Sequence[int]], beam_size: int, batch_tokens: int, at_once: int = 1
) -> Iterator[list[int]]:
    """The numbers of the sources in batches of like length, the longest first, each of at most `batch_tokens`, padded.

    For those who work `at_once` and do not pad, in even shares, so that none waits for another at the end: a number of
    batches that goes into turns, but none of under a sixteenth of `batch_tokens`, nor of over twice as many padded. A
    source that is longer is a batch by itself.
    """
    costs = [(len(source) + 1) * beam_size for source in sources]
    remaining, shares, least, most = sum(costs), 1, batch_tokens // 16, batch_tokens
    if at_once > 1:
        turns = math.ceil(remaining / (batch_tokens * at_once))
        shares, most = min(turns * at_once, remaining // least), 2 * batch_tokens
    members: list[int] = []
    cost = 0
    for i in sorted(range(len(sources)), key=lambda i: -costs[i]):
        full = shares > 1 and cost + costs[i] / 2 > max(remaining / shares, least)
        if members and (full or (len(members) + 1) * costs[members[0]] > most):
            yield members
            remaining, shares = remaining - cost, shares - full
            members, cost = [], 0
        members.append(i)
        cost += costs[i]
    if members:
        yield members


@torch.inference_mode()
def _all_weights(model: Model, batch: Batch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The weights of every head of every layer, by passing an attention function that keeps them."""
    kept: list[np.ndarray] = []

    def recording(queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
        weights = attention_weights(queries, keys, mask)
        kept.append(weights[0].float().cpu().numpy())
        return weights @ values

    if not isinstance(model, Transformer):
        model.decode(batch.tgt_in, model.encode(batch.src, batch.src_mask), batch.src_mask, recording)
        encoder, decoder = (np.zeros((0, 1, ids.size(1), ids.size(1)), "f4") for ids in (batch.src, batch.tgt_in))
        return encoder, decoder, np.stack(kept)
    memory = model.encode(batch.src, batch.src_mask, recording)
    model.decode(batch.tgt_in, memory, batch.src_mask, recording)
    layers = model.config.n_layers
    return np.stack(kept[:layers]), np.stack(kept[layers::2]), np.stack(kept[layers + 1 :: 2])
