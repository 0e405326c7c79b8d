"""Translation: text -> tokens -> encode -> search -> text. The Python API of a trained model.

model = transduce.load("run/model")
model.translate(["A dog runs."])[0].text
"""

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from transduce import search as searching
from transduce.batches import Batch, collate, pad
from transduce.checkpoint import LoadedModel, load_model
from transduce.config import SearchConfig, problems
from transduce.errors import UserError
from transduce.loss import token_log_probs
from transduce.model import Cache, Transformer, attention_weights, mixed_precision
from transduce.search import Decoder, Hypothesis, Request, Sampling
from transduce.text import is_blank
from transduce.tokens import BOS, EOS, PAD, UNK, Tokenizer

MAX_LINE_TOKENS = 8_192  # a longer line is not translated

# ---- what comes back ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Translation:
    """One output line.

    score: what the search ranked it by (log-probability over length penalty; the sum over parts of a line that was
    split). pieces, token_log_probs: the tokens and the log-probability of each, EOS included.
    finished: False if it was cut at its maximum length. problem: why there is no translation, or None.
    alternatives: the other outputs of an n-best list, best first.
    """

    text: str
    score: float = 0.0
    pieces: tuple[str, ...] = ()
    token_log_probs: tuple[float, ...] = ()
    finished: bool = True
    problem: str | None = None
    alternatives: tuple["Translation", ...] = ()


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
    """

    src_pieces: tuple[str, ...]
    tgt_pieces: tuple[str, ...]
    encoder: np.ndarray
    decoder: np.ndarray
    cross: np.ndarray


# ---- the API -----------------------------------------------------------------------------------------------------


def load(*paths: str | Path, precision: str = "fp32") -> "Translator":
    """The model in a folder, ready to use; several folders are an ensemble and must share a tokenizer.

    precision: "fp32", or "bf16" (faster on some machines, and then the batch may change an answer in rare cases).
    Raises UserError if a folder is not a whole model.
    """
    if not paths:
        raise UserError("no model given; expected a model folder, such as RUN/model")
    if precision not in ("fp32", "bf16"):
        raise UserError(f"precision is {precision!r}, expected 'fp32' or 'bf16'")
    loaded = [load_model(Path(path)) for path in paths]
    for path, other in zip(paths, loaded, strict=True):
        if other.tokenizer.sha256 != loaded[0].tokenizer.sha256:
            raise UserError(f"{path} has another tokenizer than {paths[0]}; models of an ensemble must share one")
    return Translator(loaded, precision=precision)


class Translator:
    """One model, or an ensemble of several, with its tokenizer and its search settings."""

    def __init__(self, loaded: Sequence[LoadedModel], *, precision: str = "fp32") -> None:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.models = [one.model.to(device).eval() for one in loaded]
        self.tokenizer = loaded[0].tokenizer
        self.config = loaded[0].config
        self.precision = precision

    def translate(
        self,
        lines: Sequence[str],
        *,
        beam_size: int | None = None,
        alpha: float | None = None,
        n_best: int = 1,
        prefixes: Sequence[str] | None = None,
        sampling: Sampling | None = None,
        seed: int = 1,
        first_number: int = 0,
    ) -> list[Translation]:
        """Translate each line; the answer for a line does not depend on the others.

        beam_size, alpha: in place of the model's own settings. prefixes: text that each output must begin with.
        sampling: draw from the model instead of searching; the draw for a line depends on `seed` and its number,
        counted from `first_number`.
        A blank line is its own translation. A line of data.max_tokens tokens or more is split, if possible between
        sentences, and its parts are translated one by one; one of more than 8,192 tokens comes back empty, with
        `problem` set. Raises UserError for settings that cannot be met.
        """
        _refuse_string(lines, prefixes or [])
        if sampling is not None and (beam_size is not None or n_best != 1):
            raise UserError("beam_size and n_best have no effect on sampling, which draws one output; leave them out")
        ask = self.settings(beam_size, alpha, n_best)
        if prefixes is not None and len(prefixes) != len(lines):
            raise UserError(f"{len(prefixes)} prefixes for {len(lines)} lines; give one for each line, '' for none")
        parts, refused = self._parts(lines, prefixes)
        sources = self.tokenizer.encode_batch([part.text for part in parts])
        forced = self._prefix_ids(parts, prefixes) if prefixes is not None else None
        seeds = [searching.sentence_seed(seed, first_number + part.line) for part in parts] if sampling else None
        with mixed_precision(self.precision, self._device):
            found = search(self.models, sources, ask, n_best=n_best, prefixes=forced, seeds=seeds, sampling=sampling)
        by_line: list[list[tuple[_Part, list[Hypothesis]]]] = [[] for _ in lines]
        for part, hypotheses in zip(parts, found, strict=True):
            by_line[part.line].append((part, hypotheses))
        return [
            self._assemble(members) if members else _untranslated(line, refused.get(i))
            for i, (line, members) in enumerate(zip(lines, by_line, strict=True))
        ]

    def settings(self, beam_size: int | None = None, alpha: float | None = None, n_best: int = 1) -> SearchConfig:
        """The model's own search settings, or others in their place. UserError if `translate` could not meet them."""
        ask = self.config.search
        ask = dataclasses.replace(ask, beam_size=ask.beam_size if beam_size is None else beam_size)
        ask = dataclasses.replace(ask, alpha=ask.alpha if alpha is None else alpha)
        wrong = problems(dataclasses.replace(self.config, search=ask))
        if not 1 <= n_best <= ask.beam_size:
            wrong.append(f"n_best={n_best}: expected 1 to the beam size, {ask.beam_size}")
        if wrong:
            raise UserError("; ".join(wrong))
        return ask

    def score(self, src: Sequence[str], tgt: Sequence[str], *, first_number: int = 0) -> list[Scored]:
        """The log-probability of each given translation: log P(tgt | src), with each token's share.

        Raises UserError if the numbers of lines differ, or a side is over 8,192 tokens; its message counts the lines
        before these, `first_number`, in.
        """
        _refuse_string(src, tgt)
        if len(src) != len(tgt):
            raise UserError(f"{len(src)} source lines but {len(tgt)} target lines; they must match line by line")
        pairs = list(zip(self.tokenizer.encode_batch(src), self.tokenizer.encode_batch(tgt), strict=True))
        for number, pair in enumerate(pairs, start=first_number + 1):
            longest = max(len(ids) for ids in pair)
            if longest > MAX_LINE_TOKENS:
                raise UserError(f"line {number} has {longest:,} tokens; expected at most {MAX_LINE_TOKENS:,}")
        results: list[Scored] = [Scored(0.0, (), ())] * len(pairs)
        for members in _by_length([max(pair, key=len) for pair in pairs], 1):
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
        src_ids, tgt_ids = self.tokenizer.encode(src), self.tokenizer.encode(tgt)
        longest = max(len(src_ids), len(tgt_ids))
        if longest > MAX_LINE_TOKENS:
            raise UserError(f"a line of {longest:,} tokens; attend expects at most {MAX_LINE_TOKENS:,}")
        batch = collate([np.asarray(src_ids)], [np.asarray(tgt_ids)]).to(self._device)
        encoder, decoder, cross = _all_weights(self.models[0], batch)
        pieces = self.tokenizer.pieces
        return Attended(tuple(pieces([*src_ids, EOS])), tuple(pieces([*tgt_ids, EOS])), encoder, decoder, cross)

    # ---- steps of translate --------------------------------------------------------------------------------------

    @property
    def _device(self) -> torch.device:
        return self.models[0].output.weight.device

    def _parts(self, lines: Sequence[str], prefixes: Sequence[str] | None) -> tuple[list["_Part"], dict[int, str]]:
        """What is to be translated, and what is wrong with lines that cannot be, by their index.

        A line with a prefix stays whole, however long it is.
        """
        parts: list[_Part] = []
        refused: dict[int, str] = {}
        limit = self.config.data.max_tokens - 1
        for i, (line, ids) in enumerate(zip(lines, self.tokenizer.encode_batch(lines), strict=True)):
            if is_blank(line):
                continue
            if len(ids) > MAX_LINE_TOKENS:
                refused[i] = f"{len(ids):,} tokens, expected at most {MAX_LINE_TOKENS:,}; split the line"
            elif len(ids) <= limit or (prefixes and prefixes[i]):
                parts.append(_Part(i, line, ""))
            else:
                parts += [_Part(i, text, gap) for text, gap in split_line(line, self.tokenizer, limit)]
        return parts, refused

    def _prefix_ids(self, parts: Sequence["_Part"], prefixes: Sequence[str]) -> list[list[int]]:
        forced = self.tokenizer.encode_batch([prefixes[part.line] for part in parts])
        extra = self.config.search.max_extra_tokens
        for part, ids in zip(parts, forced, strict=True):
            longest = len(self.tokenizer.encode(part.text)) + extra
            if len(ids) > longest:
                prefix = f"the prefix of line {part.line + 1} has {len(ids)} tokens"
                raise UserError(f"{prefix}, its output may have {longest} (search.max_extra_tokens); shorten it")
        return forced

    def _assemble(self, members: Sequence[tuple["_Part", list[Hypothesis]]]) -> Translation:
        """The translation of a line from those of its parts; only a line of one part has alternatives."""
        best = self._translation([(part, found[0]) for part, found in members])
        if len(members) > 1:
            return best
        part, found = members[0]
        return dataclasses.replace(best, alternatives=tuple(self._translation([(part, other)]) for other in found[1:]))

    def _translation(self, members: Sequence[tuple["_Part", Hypothesis]]) -> Translation:
        texts = [self.tokenizer.decode(hypothesis.ids) + part.gap for part, hypothesis in members]
        ids = [i for _, h in members for i in [*h.ids, *([EOS] if h.finished else [])]]
        return Translation(
            text=re.sub(r"[\r\n]", " ", "".join(texts)),
            score=sum(h.score for _, h in members),
            pieces=tuple(self.tokenizer.pieces(ids)),
            token_log_probs=tuple(p for _, h in members for p in h.token_log_probs),
            finished=all(h.finished for _, h in members),
        )

    @torch.inference_mode()
    def _token_log_probs(self, batch: Batch) -> list[list[float]]:
        """log P(token | source, tokens before it) for every real target position; an ensemble's mean probability."""
        batch = batch.to(self._device)
        each = []
        with mixed_precision(self.precision, self._device):
            for model in self.models:
                decoded = model.decode(batch.tgt_in, model.encode(batch.src, batch.src_mask), batch.src_mask)
                hidden, targets = decoded[batch.tgt_mask], batch.tgt_out[batch.tgt_mask]
                each.append(token_log_probs(hidden, model.output.weight, targets))
        mean = torch.stack(each).logsumexp(0) - math.log(len(each))  # (real target tokens,)
        return [row.tolist() for row in mean.cpu().split(batch.tgt_mask.sum(1).tolist())]


def _refuse_string(*given: Sequence[str]) -> None:
    """A string is a sequence of strings too, but of characters."""
    if any(isinstance(lines, str) for lines in given):
        raise UserError("expected a list of lines, not one string; write [line]")


def _untranslated(line: str, problem: str | None) -> Translation:
    """A blank line as it is, but that it stays one line; nothing where there is a problem."""
    return Translation("" if problem else line.replace("\n", " "), problem=problem)


@dataclass(frozen=True)
class _Part:
    """A piece of line number `line`, and the space that followed it there."""

    line: int
    text: str
    gap: str


# ---- long lines --------------------------------------------------------------------------------------------------

_BREAKS = (
    re.compile(r"(?<=[.!?…])\s+|(?<=[。！？])\s*"),  # between sentences
    re.compile(r"(?<=[,;:])\s+|(?<=[、，；])\s*"),  # between clauses
    re.compile(r"\s+"),  # between words
    re.compile(r"(?<=.)(?=.)", re.DOTALL),  # anywhere
)


def split_line(line: str, tokenizer: Tokenizer, limit: int) -> list[tuple[str, str]]:
    """`line` in parts of at most `limit` tokens, each with the gap to put after its translation ("" or " ").

    A part that is too long is halved at the best break near its middle: between sentences, else between clauses, else
    between words, else anywhere. Nothing but white space is lost, and no part is blank unless the line is.
    """
    if len(line) < 2 or len(tokenizer.encode(line)) <= limit:
        return [(line, "")]
    middle = _break(line)
    left, right = line[: middle.start()], line[middle.end() :]
    if is_blank(left) or is_blank(right):
        return split_line(left.strip() or right.strip(), tokenizer, limit)
    parts = split_line(left, tokenizer, limit)
    parts[-1] = (parts[-1][0], " " if middle.group() else "")
    return parts + split_line(right, tokenizer, limit)


def _break(line: str) -> re.Match[str]:
    """The best place to break a line of at least two characters, in its middle three fifths."""
    first, last = len(line) // 5, len(line) * 4 // 5
    for pattern in _BREAKS:
        found = [match for match in pattern.finditer(line) if first <= match.start() and match.end() <= last]
        if found:
            return min(found, key=lambda match: abs(match.start() - len(line) // 2))
    raise AssertionError("a line of two characters can be broken between them")


# ---- the model as the search sees it -----------------------------------------------------------------------------


def decoder(model: Transformer) -> Decoder[Cache]:
    """The model's `decode_step` as a step function over log-probabilities."""

    def step(last_ids: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        logits, cache = model.decode_step(last_ids, cache)
        return logits.float().log_softmax(dim=-1), cache

    return Decoder(step, Cache.select, model.output.weight.device)


@torch.inference_mode()
def search(
    models: Sequence[Transformer],
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
    results: list[list[Hypothesis]] = [[] for _ in sources]
    decoders = [decoder(model) for model in models]
    joint: Decoder[Any] = searching.ensemble(decoders) if len(models) > 1 else decoders[0]
    for members in _by_length(sources, ask.beam_size):
        chosen = [sources[i] for i in members]
        request = _request(chosen, ask, models, [prefixes[i] for i in members] if prefixes else None)
        src, src_mask = (x.to(joint.device) for x in pad([np.append(np.asarray(s, np.int64), EOS) for s in chosen]))
        states = tuple(model.start(model.encode(src, src_mask), src_mask) for model in models)
        state = states if len(models) > 1 else states[0]
        if sampling is not None and seeds is not None:
            drawn = searching.sample(joint, state, request, sampling=sampling, seeds=[seeds[i] for i in members])
            found = [[hypothesis] for hypothesis in drawn]
        else:
            found = searching.beam_search(joint, state, request, beam_size=ask.beam_size, n_best=n_best)
        for i, hypotheses in zip(members, found, strict=True):
            results[i] = hypotheses
    return results


def _request(
    sources: Sequence[Sequence[int]],
    ask: SearchConfig,
    models: Sequence[Transformer],
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
    )


BATCH_TOKENS = 8_192  # source tokens times beam, padding included, that are searched together


def _by_length(sources: Sequence[Sequence[int]], beam_size: int) -> Iterator[list[int]]:
    """The numbers of the sources in batches of like length, the longest first."""
    members: list[int] = []
    for i in sorted(range(len(sources)), key=lambda i: -len(sources[i])):
        if members and (len(members) + 1) * (len(sources[members[0]]) + 1) * beam_size > BATCH_TOKENS:
            yield members
            members = []
        members.append(i)
    if members:
        yield members


@torch.inference_mode()
def _all_weights(model: Transformer, batch: Batch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The weights of every head of every layer, by passing an attention function that keeps them."""
    kept: list[np.ndarray] = []

    def recording(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, dropout: float) -> Tensor:
        weights = attention_weights(queries, keys, mask)
        kept.append(weights[0].float().cpu().numpy())
        return weights @ values

    memory = model.encode(batch.src, batch.src_mask, recording)
    model.decode(batch.tgt_in, memory, batch.src_mask, recording)
    layers = model.config.n_layers
    return np.stack(kept[:layers]), np.stack(kept[layers::2]), np.stack(kept[layers + 1 :: 2])
