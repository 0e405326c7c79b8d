"""Decoding options: the choices of one call of `translate`, checked in one place. Without torch.

`Translator.translate` makes a `DecodingOptions` of keywords, and every layer below passes it whole. A new option is a
field of `DecodingOptions`, a key of `DecodingKeywords`, its use in `beam.py`, and an argument of the command.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from transduce.config.schema import Config, LengthPenalty, SearchConfig, use_python_numbers
from transduce.config.validation import field_problems, problems, refuse
from transduce.errors import UserError, nearest

Split = Literal["auto", "none", "long", "sentences"]
Numbers = Literal["copy", "translate"]
Loops = Literal["retry", "keep"]
Capitals = Literal["keep", "lower"]
MbrMetric = Literal["chrf", "bleu"]


LEAST = 1e-6  # temperature, top_p and epsilon; a much smaller one is 0 in float32, or its inverse is infinite


@dataclass(frozen=True)
class Sampling:
    """Settings of a draw: the temperature is applied first, then top_k, top_p and epsilon, each to what is left.

    top_k keeps the K most likely tokens. top_p keeps the fewest tokens that have this probability together. epsilon
    keeps the tokens that have at least this probability, and always the most likely one. None keeps all tokens.
    Raises UserError for a value of a wrong type or out of range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    epsilon: float | None = None

    def __post_init__(self) -> None:
        use_python_numbers(self)
        refuse(field_problems(self))
        if not LEAST <= self.temperature <= 1 / LEAST:
            raise UserError(
                f"temperature={self.temperature}: expected a number from {LEAST:f} to {1 / LEAST:,.0f}; for the most "
                "likely token use a beam size of 1"
            )
        if self.top_k is not None and not 1 <= self.top_k < 1 << 63:
            raise UserError(f"top_k={self.top_k}: expected at least 1, below 2^63")
        for name, value in (("top_p", self.top_p), ("epsilon", self.epsilon)):
            if value is not None and not LEAST <= value <= 1:
                raise UserError(f"{name}={value}: expected a number from {LEAST:f} to 1")


# The limit is from Freitag et al. 2023 ("Epsilon Sampling Rocks"): without one, label smoothing gives a tenth of the
# draws to tokens that fit nowhere. Their temperature of 1 is for 1,024 samples. With 32, 0.7 has 0.2 to 0.4 less
# chrF, and 1.5 BLEU more (docs/log/translation-search.md).
MBR_SAMPLING = Sampling(temperature=0.7, epsilon=0.02)
MOST_CANDIDATES = 1_000


class DecodingKeywords(TypedDict, total=False):
    """The fields of `DecodingOptions` as the keywords of a call."""

    beam_size: int | None
    alpha: float | None
    length_penalty: LengthPenalty | None
    max_length: int | None
    no_repeat_ngram: int | None
    repetition_penalty: float | None
    lookahead: int | None
    loops: Loops
    n_best: int
    sampling: Sampling | None
    seed: int
    mbr: int | None
    mbr_metric: MbrMetric | None
    split: Split
    numbers: Numbers
    capitals: Capitals
    tag: str | None
    placeholders: bool
    alignment: bool
    shortlist: bool


@dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    """The choices of one call of `translate`.

    beam_size, alpha, length_penalty, max_length, no_repeat_ngram, repetition_penalty, lookahead: None takes the model's
    own setting in `SearchConfig`. With length_penalty="none" alpha is 0 unless it has a value.
    loops: "retry" searches an output again, without repeated tokens, that repeats itself 5 times as its source does
    not; "keep" keeps it. Sampling keeps it, too.
    n_best: outputs for each line, at most the beam size, or at most mbr.
    sampling: draw one output from the model instead of searching; None searches.
    seed: of a draw; the draw for a line depends on `seed` and the number of the line.
    mbr: minimum Bayes risk: the number of candidates, of which the one nearest to all is the output. They are the best
    of a beam search if beam_size has a value. Otherwise they are samples by `sampling`, or by `MBR_SAMPLING`.
    mbr_metric: nearness, the score of a candidate against another one: sentence chrF or sentence BLEU; None: chrF.
    split: which lines are translated sentence by sentence: "long", lines of data.max_tokens tokens or more, of which
    a sentence of that length is halved; "auto", also lines of more sentences than data.sentences_per_line; "sentences",
    all; "none". A line with a required phrase stays whole. A line break always divides.
    numbers: "copy" leaves text without a letter as it is; "translate" translates it if it has a digit.
    capitals: "lower" translates a sentence of words in capitals in small letters, and writes the output in capitals,
    unless the line has a constraint, or a term; "keep" gives the model the capitals.
    tag: one of the model's tags (`data.tags`), which comes before each source line; None: the lines have their own.
    placeholders: let {name}, %s, tags, URLs and the like stay as they are; see `phrases/placeholders.py`.
    alignment: also find the source word of each word of the output (`evaluation/word_alignment.py`).
    shortlist: let each output have only the tokens that the shortlist in the model folder has for its source.
    Raises UserError for an option of a wrong type, or that has no effect together with another one.
    """

    beam_size: int | None = None
    alpha: float | None = None
    length_penalty: LengthPenalty | None = None
    max_length: int | None = None
    no_repeat_ngram: int | None = None
    repetition_penalty: float | None = None
    lookahead: int | None = None
    loops: Loops = "retry"
    n_best: int = 1
    sampling: Sampling | None = None
    seed: int = 1
    mbr: int | None = None
    mbr_metric: MbrMetric | None = None
    split: Split = "auto"
    numbers: Numbers = "copy"
    capitals: Capitals = "lower"
    tag: str | None = None
    placeholders: bool = False
    alignment: bool = False
    shortlist: bool = False

    def __post_init__(self) -> None:
        use_python_numbers(self)
        refuse(field_problems(self))
        if self.mbr is not None and not 2 <= self.mbr <= MOST_CANDIDATES:
            raise UserError(f"mbr={self.mbr}: expected 2 to {MOST_CANDIDATES:,} candidates; give another number")
        if self.mbr is None:
            self.refuse(["mbr_metric"], "without mbr; add mbr")
        if self.draws is not None and self.mbr is None:
            self.refuse(["beam_size", "lookahead", "n_best"], "with sampling, which draws one output; leave it out")
        elif self.draws is not None:
            reason = "with sampling, from which mbr takes its candidates; leave it out"
            self.refuse(["beam_size", "lookahead"], reason)

    @property
    def draws(self) -> Sampling | None:
        """The settings of the draws; None: a search."""
        is_of_samples = self.mbr is not None and self.beam_size is None
        return MBR_SAMPLING if self.sampling is None and is_of_samples else self.sampling

    @property
    def n_candidates(self) -> int:
        """The number of outputs of a search or a draw, of which n_best are returned."""
        return self.n_best if self.mbr is None else self.mbr

    def seeds_of_line(self, number: int) -> list[int]:
        """Return the seed of each sample of line `number`."""
        return [sentence_seed(self.seed, number, sample) for sample in range(self.n_candidates)]

    @classmethod
    def from_arguments(
        cls,
        *,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        epsilon: float | None = None,
        seed: int | None = None,
        **keywords: Any,
    ) -> "DecodingOptions":
        """Return the options given by flat arguments, as a command line has them.

        temperature, top_k, top_p, epsilon: any of them asks for sampling. None in `seed` is seed 1.
        keywords: other fields.
        """
        if any(value is not None for value in (temperature, top_k, top_p, epsilon)):
            keywords["sampling"] = Sampling(1.0 if temperature is None else temperature, top_k, top_p, epsilon)
        return cls(**keywords).with_seed(seed)

    def with_seed(self, seed: int | None) -> "DecodingOptions":
        """Return the options with a seed; None: as they are. Raises UserError for a seed if nothing is drawn."""
        if seed is None:
            return self
        if self.draws is None:
            raise UserError(f"seed={seed}: must not be set without sampling; add a temperature")
        return dataclasses.replace(self, seed=seed)

    def resolve(self, search: SearchConfig) -> SearchConfig:
        """Return `search`, the settings of a model, with the values of these options in it.

        Raises UserError naming every value that the search cannot use.
        """
        return _resolved(self, search)

    def refuse(self, names: Sequence[str], reason: str) -> None:
        """Raise UserError if one of the options `names` differs from its default.

        reason: the end of the message, after "must not be set": the cause and the remedy.
        """
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if getattr(self, f.name) != f.default}
        refuse([f"{name}={values[name]}: must not be set {reason}" for name in names if name in values])


DEFAULTS = DecodingOptions()
NAMES = [f.name for f in dataclasses.fields(DecodingOptions)]

# Options that take the place of a search setting of the model.
OF_THE_SEARCH = {*NAMES} & {f.name for f in dataclasses.fields(SearchConfig)}


@functools.lru_cache(maxsize=64)  # the checks take 0.3 ms
def _resolved(options: DecodingOptions, search: SearchConfig) -> SearchConfig:
    values = {name: getattr(options, name) for name in OF_THE_SEARCH}
    if options.length_penalty == "none" and options.alpha is None:
        values["alpha"] = 0.0
    values = {name: value for name, value in values.items() if value is not None}
    settings = dataclasses.replace(search, **values)
    wrong = problems(Config(search=settings)) if values else []
    if not wrong and options.mbr is not None and options.draws is None and options.mbr > settings.beam_size:
        wrong.append(
            f"mbr={options.mbr}: expected 2 to the beam size, {settings.beam_size}; give fewer, or a larger beam"
        )
    limit, name = (settings.beam_size, "beam size") if options.mbr is None else (options.mbr, "number of candidates")
    if not wrong and not 1 <= options.n_best <= limit:
        wrong.append(f"n_best={options.n_best}: expected 1 to the {name}, {limit}")
    refuse([line.replace("search.", "") for line in wrong])
    return settings


def with_keywords(options: DecodingOptions, keywords: DecodingKeywords) -> DecodingOptions:
    """Return `options` with the values of `keywords`. Raises UserError for unknown ones, and for other objects."""
    if not isinstance(options, DecodingOptions):
        raise UserError(f"options={options!r}: expected a DecodingOptions")
    try:
        return _replaced(options, **keywords)
    except TypeError:  # a value that has no hash, such as a list
        return _replaced.__wrapped__(options, **keywords)


@functools.lru_cache(maxsize=64, typed=True)  # typed: 1 is a number of outputs, and True is none
def _replaced(options: DecodingOptions, /, **keywords: Any) -> DecodingOptions:
    refuse([f"{name}: expected a known option{_remedy(name)}" for name in keywords if name not in NAMES])
    return dataclasses.replace(options, **keywords) if keywords else options


def _remedy(name: str) -> str:
    """Return the end of a message about an unknown option."""
    if name in {f.name for f in dataclasses.fields(Sampling)}:
        return f"; give sampling=Sampling({name}=...)"
    return nearest(name, NAMES, cutoff=0.6) or f"; use one of {', '.join(NAMES)}"


def sentence_seed(seed: int, number: int, sample: int = 0) -> int:
    """Return the seed of a sample of sentence `number` in a run with `seed`. sample: of several, from 0."""
    name = f"{seed}:{number}" if sample == 0 else f"{seed}:{number}:{sample}"
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
