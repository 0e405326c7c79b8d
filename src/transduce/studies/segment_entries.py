"""The form of the entries of studies of small language models, which are trained on segments of a text."""

from typing import Annotated, NotRequired, TypedDict

from msgspec import Meta

from transduce.studies.quantities import Cost, Count, Duration, Loss, Percent, Perplexity


class LengthPoint(TypedDict):
    """The perplexity on blocks of a length."""

    length: Count
    perplexity: Perplexity


class LengthsCell(TypedDict):
    """A training on short segments. points: by the names of rows, which may scale the positions of one training."""

    row: str
    seed: int
    parameters: Count
    steps: Count
    seconds: Duration
    cpu_seconds: Duration
    points: dict[str, Annotated[list[LengthPoint], Meta(min_length=1)]]


class Sizes(TypedDict):
    """The sizes of the models, of their training and of the evaluation."""

    vocab_size: Count
    d_model: Count
    n_layers: Count
    n_heads: Count
    segment: Count
    rows: Count
    steps: Count
    dropout: Percent
    lengths: Annotated[list[Count], Meta(min_length=1)]


class SegmentSettings(TypedDict):
    sizes: Sizes


class ExpertsCell(TypedDict):
    """A training with dense networks or experts. shares: of the tokens, by layer and expert, over an even share."""

    row: str
    seed: int
    parameters: Count
    steps: Count
    seconds: Duration
    cpu_seconds: Duration
    perplexity: Perplexity
    flops_per_token: Cost
    shares: NotRequired[list[Annotated[list[Duration], Meta(min_length=1)]]]


class Sweep(TypedDict):
    """The trainings of the study of scaling laws. shapes: layers and widths. budgets: tokens."""

    shapes: Annotated[list[tuple[Count, Count]], Meta(min_length=1)]
    budgets: Annotated[list[Count], Meta(min_length=1)]
    vocab_size: Count
    segment: Count
    rows: Count
    evaluated: Count
    peak_rate: Cost


class ScalingSettings(TypedDict):
    sweep: Sweep


class SweepCell(TypedDict):
    """A training of the study of scaling laws. row: layers x width. embeddings: parameters of tokens and positions."""

    row: str
    tokens: Count
    steps: Count
    parameters: Count
    embeddings: Count
    loss: Loss
    flops: Cost
    seconds: Duration
    cpu_seconds: Duration
