"""The form of the entries in results.json, and of their configurations.

A results.json may come from an earlier version, or from an editor. `check_entries` therefore accepts only values from
which a report can be written. Keys that are not named here may have any value.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
from msgspec import Meta

from transduce.config.files import changed_values, from_json, to_json
from transduce.config.schema import Config, value_of, with_value
from transduce.errors import UserError
from transduce.studies.attention_sizes import Sizes
from transduce.studies.quantities import Cost, Count, Duration, Exponent, Percent, Perplexity
from transduce.studies.segment_entries import ExpertsCell, LengthsCell, ScalingSettings, SegmentSettings, SweepCell

# ---- sessions ----------------------------------------------------------------------------------------------------


class Machine(TypedDict):
    processor: str
    cores: Count
    gpus: list[str]


class Session(TypedDict):
    """A session of a study: command, versions of the programs by name, commit, machine and date."""

    command: str
    versions: dict[str, str]
    commit: str | None
    machine: Machine
    started_at: str


# ---- Table 1 -----------------------------------------------------------------------------------------------------


class Chains(TypedDict):
    """The counts of a layer at length n."""

    n: Count
    sequential_ops: Count
    path_length: Count


class Measurement(TypedDict):
    """The costs of a pass at length n and width d."""

    n: Count
    d: Count
    time_seconds: Cost
    kept_bytes: Cost


class Measurements(TypedDict):
    """The measurements over lengths, and over widths."""

    n: Annotated[list[Measurement], Meta(min_length=1)]
    d: Annotated[list[Measurement], Meta(min_length=1)]


class Layer(TypedDict):
    """A kind of layer of Table 1."""

    time_exponent_n: Exponent
    time_exponent_d: Exponent
    memory_exponent_n: Exponent
    memory_exponent_d: Exponent
    sequential_ops: Count
    path_length: Count
    counts: list[Chains]
    points: Measurements


# ---- Tables 2 and 3 ----------------------------------------------------------------------------------------------


class Penalty(TypedDict):
    """The brevity penalty of a BLEU score, and the tokens of output and references."""

    penalty: Annotated[float, Meta(ge=0, le=1)]
    hyp_tokens: Annotated[int, Meta(ge=0)]
    ref_tokens: Annotated[int, Meta(ge=0)]


class Scores(TypedDict):
    """All scores on a text, by name. brevity: of each BLEU."""

    bleu_compound_split: NotRequired[Percent]
    brevity: NotRequired[dict[str, Penalty]]


class WholeScores(Scores):
    """The scores of a second evaluation: of the mean of checkpoints, or on a second text."""

    perplexity: Perplexity
    bleu: Percent


class TrainingCell(TypedDict):
    """A training of Table 3. Cells of 0.1.0 have no configuration, no brevity penalties, and no mean of checkpoints."""

    row: str
    seed: int
    perplexity: Perplexity
    bleu: Percent
    parameters: Count
    seconds: Duration
    cpu_seconds: Duration
    steps: NotRequired[Count]
    ended_at: NotRequired[str]
    valid: NotRequired[Scores]
    valid_mean: NotRequired[WholeScores]
    config: NotRequired[dict[str, Any]]


class PaperScores(TypedDict):
    bleu_compound_split: Percent


class PaperCell(TypedDict):
    """The more fields of a training of Table 3 at the paper's scale, where the table shows the paper's BLEU."""

    valid: PaperScores
    valid_mean: NotRequired[PaperScores]


class CurvePoint(TypedDict):
    """An evaluation during a training."""

    step: Count
    valid_perplexity: Perplexity
    valid_bleu: Percent


class PointScores(TypedDict):
    """The scores of the mean of checkpoints up to a step, on the test text. averaged: the number of checkpoints."""

    step: Count
    bleu: Percent
    chrf: Percent
    perplexity: Perplexity
    averaged: Count


class SystemCell(TypedDict):
    """The more fields of a training of Table 2. Those of 0.1.0 have no points."""

    steps: Count
    curve: list[CurvePoint]
    points: NotRequired[list[PointScores]]


class StepCostCell(TypedDict):
    """The cost of a step of a system of Table 2. seconds_per_step: in several rounds.

    config: of the trainings with this step; costs of 0.1.0 have none.
    """

    row: str
    flops_per_step: Cost
    flops_per_target_token: Cost
    seconds_per_step: Annotated[list[Cost], Meta(min_length=1)]
    config: NotRequired[dict[str, Any]]


# ---- Table 4 -----------------------------------------------------------------------------------------------------


class TreeScores(TypedDict):
    """The scores of trees, in percent. valid: the number of outputs that are a tree over the words of the gold tree."""

    sentences: Count
    valid: Annotated[int, Meta(ge=0, le=1 << 62)]
    precision: Percent
    recall: Percent
    f1: Percent
    exact: Percent
    tagging: Percent


class ParserCurvePoint(TypedDict):
    """An evaluation during a training."""

    step: Count
    valid_f1: Percent


class ParserCell(TypedDict):
    """A training of Table 4. f1: that of `valid`."""

    row: str
    seed: int
    f1: Percent
    parameters: Count
    steps: Count
    seconds: Duration
    cpu_seconds: Duration
    curve: list[ParserCurvePoint]
    valid: TreeScores
    test: NotRequired[TreeScores]
    ended_at: NotRequired[str]
    config: NotRequired[dict[str, Any]]


# ---- the claims --------------------------------------------------------------------------------------------------


class Softmax(TypedDict):
    """The softmax of attention: means over its rows."""

    variance: Duration
    gradient: Duration
    components: Duration


class ScalingCell(TypedDict):
    """A training with or without the factor 1/sqrt(d_k)."""

    row: str
    seed: int
    perplexity: Perplexity
    cpu_seconds: Duration
    softmax_start: Softmax
    softmax_end: Softmax


class SmoothingCell(TrainingCell):
    """A training with or without label smoothing. accuracy: added after the training."""

    accuracy: NotRequired[Percent]


class PositionsCell(TrainingCell):
    """A training on short pairs. test: the scores on longer pairs."""

    test: WholeScores


# ---- forms of attention ------------------------------------------------------------------------------------------


class FormCosts(TypedDict):
    """The costs of a form of attention, or of a layer with it, at a length."""

    forward_seconds: Cost
    backward_seconds: Cost
    peak_bytes: Count
    cache_bytes_per_token: NotRequired[Count]


class CostsCell(TypedDict):
    """The costs of all forms at length n. forms: by name."""

    n: Count
    forms: dict[str, FormCosts]


class AttentionCell(TypedDict):
    """A training of a small model with a form of attention. loss: in nats for each predicted token."""

    row: str
    seed: int
    loss: Duration
    parameters: Count
    cpu_seconds: Duration


# ---- settings, and entries of all studies ------------------------------------------------------------------------


class AttentionSettings(TypedDict):
    sizes: Sizes


class Table3Settings(TypedDict):
    scale: str


Table4Settings = TypedDict("Table4Settings", {"number of training trees": Count})


# The pairs of section 3.5; results from before they were counted have none.
ClaimsSettings = TypedDict(
    "ClaimsSettings",
    {
        "most pieces of short pairs": NotRequired[Count],
        "least pieces of longer pairs": NotRequired[Count],
        "short training pairs": NotRequired[Count],
        "short pairs": NotRequired[Count],
        "longer pairs": NotRequired[Count],
        "new positions, %": NotRequired[Percent],
    },
)


class State(TypedDict):
    status: Literal["done", "failed", "not run"]


class Failure(TypedDict):
    """A training that failed. diverged: true if its numbers were not finite any more."""

    why: str
    diverged: NotRequired[bool]


SETTINGS = {"table3": Table3Settings, "table4": Table4Settings, "claims": ClaimsSettings, "scaling": ScalingSettings}
SETTINGS["attention"] = AttentionSettings
SETTINGS |= dict.fromkeys(("positions", "experts"), SegmentSettings)

# ---- checks ------------------------------------------------------------------------------------------------------


def check_entries(study: str, settings: Any, sessions: Any, entries: Any) -> None:
    """Raise ValueError if a session or an entry of the study has a key without which no report can be written."""
    _check("asked", settings, SETTINGS.get(study, dict[str, Any]))
    _check("sessions", sessions, list[Session])
    _check("the entries", entries, dict[str, dict[str, Any]])
    for name, entry in entries.items():
        _check(name, entry, State)
        if entry["status"] == "failed":
            _check(name, entry, Failure)
        if entry["status"] == "done":
            for form in _forms(study, settings, name):
                _check(name, entry, form)
            if "config" in entry:
                _check_config(name, entry["config"])


def _forms(study: str, settings: Mapping[str, Any], name: str) -> list[Any]:
    """Return the forms of the entry `name` if it is done."""
    if study == "table1":
        return [Layer]
    if study == "table2":
        return [StepCostCell] if name.endswith("-cost") else [TrainingCell, SystemCell]
    if study == "table2-search":
        return [TrainingCell]
    if study == "table4":
        return [ParserCell]
    if study == "attention":
        return [CostsCell if name.startswith("costs-") else AttentionCell]
    if study in ("positions", "experts"):
        return [LengthsCell if study == "positions" else ExpertsCell]
    if study == "scaling":
        return [SweepCell]
    if study == "claims":
        kind = name.split("-")[0]
        if kind in ("scaled", "unscaled"):
            return [ScalingCell]
        return [PositionsCell if kind in ("sinusoids", "learned", "relative") else SmoothingCell]
    return [TrainingCell, *([PaperCell] if settings["scale"] == "paper" else [])]


def _check(name: str, value: Any, form: Any) -> None:
    try:
        msgspec.convert(value, form)
    except msgspec.ValidationError as problem:
        raise ValueError(f"{name}: {problem}") from None


def _check_config(name: str, content: Any) -> None:
    try:
        config_of({"config": content})
    except UserError as problem:
        raise ValueError(f"{name}: {problem}") from None


# ---- configurations ----------------------------------------------------------------------------------------------


def encode_config(config: Config) -> dict[str, Any]:
    """Return a configuration as the key "config" of an entry: the content of config.json."""
    return json.loads(to_json(config))


def config_of(entry: Mapping[str, Any]) -> Config | None:
    """Return the configuration that made an entry; None for entries of 0.1.0, which do not have it."""
    return from_json(json.dumps(entry["config"]), "config") if "config" in entry else None


def changes_since(entry: Mapping[str, Any], config: Config) -> list[str]:
    """Return a line for each setting of an entry that differs from `config`; none if the entry has no configuration.

    config: from a recipe, where None as the size of a vocabulary means that of the tokenizer.
    """
    before = config_of(entry)
    if before is None:
        return []
    for name in ("model.vocab_size", "model.tgt_vocab_size"):
        if value_of(config, name) is None:
            config = with_value(config, name, value_of(before, name))
    return [f"{name}={old!r} then, {new!r} now" for name, (old, new) in changed_values(before, config).items()]
