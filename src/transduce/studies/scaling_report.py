"""The report of `transduce study scaling`: losses over parameters and tokens, and the laws of this text."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from transduce.errors import UserError
from transduce.evaluation.study_charts import laws_svg
from transduce.evaluation.study_report import NOT_RUN, Figure, Report, Table
from transduce.studies.comparison import report_of
from transduce.studies.results import JsonObject, Results
from transduce.studies.scaling_fit import CHINCHILLA, KAPLAN, Estimate, Fit, Law, Observation, fit, power_law

# Quoted. Hoffmann et al. 2022, eq. 10 and table 2 (approach 3); Besiroglu et al. 2024, table 1; Kaplan et al. 2020,
# eqs. 1.1 to 1.3, tables 2, 5 and 6.
HOFFMANN = {"E": "1.69", "A": "406.4", "B": "410.7", "alpha": "0.34", "beta": "0.28", "N": "0.46", "D": "0.54"}
BESIROGLU = {
    "E": "1.8172", "A": "482.01", "B": "2085.43", "alpha": "0.3478", "beta": "0.3658", "N": "0.513", "D": "0.487",
}  # fmt: skip
KAPLAN_JOINT = {"N_c": "6.4e13", "D_c": "1.8e13", "alpha_N": "0.076", "alpha_D": "0.103"}
KAPLAN_POWERS = {"L(N)": "0.076", "L(D)": "0.095", "L(C)": "0.057; 0.050 with the best batch size"}

NOTHING = 1e-6  # a constant below it is 0: where a law has no E, the fit of its logarithm falls without end

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What the trainings give: a law, or an exponent. problem: why they give none; then the value is None."""

    value: T | None
    problem: str = ""


@dataclass(frozen=True)
class Laws:
    """The laws of a text, as far as its trainings give them.

    whole: Chinchilla's with all parameters as N. All others have N without embeddings. powers: the exponents of L(N),
    L(D) and L(C). parts: Chinchilla's and Kaplan's laws of some of the trainings, by a description, without intervals.
    """

    chinchilla: Outcome[Fit]
    whole: Outcome[Fit]
    kaplan: Outcome[Fit]
    powers: Sequence[Outcome[Estimate]]
    parts: Mapping[str, tuple[Outcome[Fit], Outcome[Fit]]]


def fit_laws(results: Results, resamples: int) -> Laws:
    """Return the laws of the trainings that are done. resamples: of the bootstrap behind each interval."""
    trainings, sweep = results.done(), results.settings["sweep"]
    row, budget = _row(sweep["shapes"][-1]), max(sweep["budgets"])

    curves = [
        [(_body(entry), entry["loss"]) for entry in trainings if entry["tokens"] == budget],
        [(entry["tokens"], entry["loss"]) for entry in trainings if entry["row"] == row],
        [(entry["flops"], entry["loss"]) for entry in envelope(trainings)],
    ]
    return Laws(
        _fit(CHINCHILLA, trainings, _body, resamples),
        _fit(CHINCHILLA, trainings, _whole, resamples),
        _fit(KAPLAN, trainings, _body, resamples),
        [_outcome(partial(power_law, curve)) for curve in curves],
        {name: (_fit(CHINCHILLA, part), _fit(KAPLAN, part)) for name, part in _parts(trainings).items()},
    )


def _parts(trainings: Sequence[JsonObject]) -> dict[str, list[JsonObject]]:
    """Return the trainings without some sizes or amounts of text: what changes with them depends on the range."""
    sizes = sorted({_body(entry) for entry in trainings})
    most = max((entry["tokens"] for entry in trainings), default=0)
    return {
        "without the smallest size": [entry for entry in trainings if _body(entry) not in sizes[:1]],
        "without the two smallest sizes": [entry for entry in trainings if _body(entry) not in sizes[:2]],
        "without the most text": [entry for entry in trainings if entry["tokens"] != most],
    }


def _outcome(make: Callable[[], T]) -> Outcome[T]:
    try:
        return Outcome(make())
    except UserError as problem:
        return Outcome(None, str(problem))


def envelope(entries: Sequence[JsonObject]) -> list[JsonObject]:
    """Return the trainings that have a lower loss than all that took less compute or as much."""
    best: list[JsonObject] = []
    for entry in sorted(entries, key=lambda entry: (entry["flops"], entry["loss"])):
        if not best or entry["loss"] < best[-1]["loss"]:
            best.append(entry)
    return best


def _body(entry: JsonObject) -> int:
    """Return the parameters of a model without its embeddings."""
    return entry["parameters"] - entry["embeddings"]


def _whole(entry: JsonObject) -> int:
    return entry["parameters"]


def _fit(
    law: Law, entries: Sequence[JsonObject], size: Callable[[JsonObject], int] = _body, resamples: int = 0
) -> Outcome[Fit]:
    observations = [Observation(size(entry), entry["tokens"], entry["loss"]) for entry in entries]
    return _outcome(partial(fit, law, observations, resamples=resamples))


def _row(shape: Sequence[int]) -> str:
    return f"{shape[0]}x{shape[1]}"


# ---- the report --------------------------------------------------------------------------------------------------


def report(results: Results, laws: Laws) -> Report:
    """Return the report of the results so far."""
    trainings, sweep = results.done(), results.settings["sweep"]
    return report_of(
        results,
        n_sizes=len(sweep["shapes"]),
        n_budgets=len(sweep["budgets"]),
        batch=sweep["rows"] * sweep["segment"],
        losses=loss_table(trainings, sweep),
        figures=_figures(trainings, laws.chinchilla.value),
        sentence=chinchilla_sentence(laws, trainings),
        chinchilla=_chinchilla_table(laws, trainings),
        kaplan=_kaplan_table(laws),
        powers=[
            [name, _long(power.value) if power.value else power.problem, quoted]
            for (name, quoted), power in zip(KAPLAN_POWERS.items(), laws.powers, strict=True)
        ],
        parts=parts_table(laws),
        misses=_misses(laws, trainings),
    )


# ---- losses ------------------------------------------------------------------------------------------------------


def loss_table(trainings: Sequence[JsonObject], sweep: JsonObject) -> Table:
    """Return the table of losses: a row for each size, a column for each amount of text."""
    losses, budgets = {(entry["row"], entry["tokens"]): entry["loss"] for entry in trainings}, sweep["budgets"]
    first = {entry["row"]: entry for entry in reversed(trainings)}
    head = ["layers x width", "N", "embeddings", "FLOPs / 6 N", *map(_tokens, budgets)]
    lines = []
    for row in map(_row, sweep["shapes"]):
        sizes = ["", "", ""]
        if entry := first.get(row):
            ratio = entry["flops"] / entry["tokens"] / (6 * max(_body(entry), 1))
            sizes = [f"{_body(entry):,}", f"{entry['embeddings']:,}", f"{ratio:.2f}"]
        lines.append([row, *sizes, *(f"{losses[row, n]:.3f}" if (row, n) in losses else NOT_RUN for n in budgets)])
    quiet = frozenset(number for number, row in enumerate(map(_row, sweep["shapes"])) if row not in first)
    return Table(head, lines, quiet=quiet)


def _tokens(count: int) -> str:
    return f"{count / 1e6:.2f} M" if count >= 1e6 else f"{count / 1e3:.0f} k"


def _figures(trainings: Sequence[JsonObject], law: Fit | None) -> list[Figure]:
    if len(trainings) < 2:
        return []
    rows = list(dict.fromkeys(entry["row"] for entry in sorted(trainings, key=_body)))
    curves = {
        row: sorted((entry for entry in trainings if entry["row"] == row), key=lambda entry: entry["tokens"])
        for row in rows
    }
    measured = {row: [(entry["flops"], entry["loss"]) for entry in curve] for row, curve in curves.items()}
    lines = {row: _law_curve(curve, law) for row, curve in curves.items()} if law else {}
    lowest = [(entry["flops"], entry["loss"]) for entry in envelope(trainings)]
    alt = "; ".join(
        f"{row}: " + ", ".join(f"{loss:.2f} at {flops:.1e}" for flops, loss in (points[0], points[-1]))
        for row, points in measured.items()
    )
    dots = "measured, and Chinchilla's law of each size" if lines else "measured"
    legend = [(dots, "first"), ("the lowest measured for its compute", "second")]
    note = "nats for each token over counted FLOPs, both axes logarithmic"
    return [Figure("Loss against compute", laws_svg(measured, lines, lowest), 360, alt, note, legend)]


def _law_curve(curve: Sequence[JsonObject], law: Fit) -> list[tuple[float, float]]:
    """Return FLOPs and losses of the law for one size, from its smallest budget to its largest."""
    first = curve[0]
    low, high = first["tokens"], curve[-1]["tokens"]
    budgets = [low * (high / low) ** (i / 24) for i in range(25)]
    return [(first["flops"] / first["tokens"] * n, law.loss(_body(first), n)) for n in budgets]


# ---- laws --------------------------------------------------------------------------------------------------------


def chinchilla_sentence(laws: Laws, trainings: Sequence[JsonObject]) -> str:
    """Return the exponents of the best size, and how they depend on the count of parameters."""
    law, whole = laws.chinchilla.value, laws.whole.value
    if law is None:
        return f"No law yet: {laws.chinchilla.problem}."
    text = f"For a compute C = 6 N D, the best N of this text grows with C to the power {_short(law.n_share)}"
    if whole:
        text += f"; with all parameters counted as N, to the power {_short(whole.n_share)}"
    lowest = min(entry["loss"] for entry in trainings)
    end = law.constants["E"]
    text += f". The lowest measured loss is {lowest:.3f}, and E is {_short(end)}"
    return f"{text}: these trainings do not show where the loss ends." if end.low < NOTHING else f"{text}."


def _chinchilla_table(laws: Laws, trainings: Sequence[JsonObject]) -> list[Table]:
    """Return the constants of Chinchilla's law next to the quoted ones; nothing without a law."""
    fits = [law for law in (laws.chinchilla.value, laws.whole.value) if law]
    if len(fits) < 2:
        return []
    head = ["", "this text, N without embeddings", "N with embeddings"]
    head += ["quoted: Hoffmann et al. 2022", "quoted: Besiroglu et al. 2024"]
    quoted = [HOFFMANN, BESIROGLU]
    lines = [
        [name, *(_long(law.constants[name]) for law in fits), *(paper[name] for paper in quoted)]
        for name in ("E", "A", "B", "alpha", "beta")
    ]
    rest = [Estimate(1 - law.n_share.value, 1 - law.n_share.high, 1 - law.n_share.low) for law in fits]
    lines.append(["best N: exponent of C", *(_long(law.n_share) for law in fits), *(paper["N"] for paper in quoted)])
    lines.append(["best D: exponent of C", *map(_long, rest), *(paper["D"] for paper in quoted)])
    for share, where in ((1.0, "the largest N D"), (0.01, "a hundredth of it")):
        sizes = [
            _best_size(law, [(size(entry), entry["tokens"]) for entry in trainings], share)
            for law, size in zip(fits, (_body, _whole), strict=True)
        ]
        lines.append([f"best N, and tokens for each, at {where}", *sizes, "", ""])
    lines.append(["misfit", *(f"{100 * law.spread:.2f} %" for law in fits), "", ""])
    return [Table(head, lines)]


def _best_size(law: Fit, measured: Sequence[tuple[int, int]], share: float) -> str:
    """Return the best N where N D is a share of the largest measured one, and D / N.

    measured: N and D of the trainings. A law says nothing of sizes beyond them.
    """
    product = share * max(n * d for n, d in measured)
    best = law.best_parameters(product)
    pairs = zip((best, product / best), zip(*measured, strict=True), strict=True)
    if all(min(values) <= value <= max(values) for value, values in pairs):
        return f"{best:,.3g}, {product / best**2:,.3g}"
    return "not among the measured sizes"


def _kaplan_table(laws: Laws) -> Table | str:
    """Return the constants of Kaplan's law next to the quoted ones, or why there are none."""
    law = laws.kaplan.value
    if law is None:
        return f"No law of N and D yet: {laws.kaplan.problem}."
    lines = [[name, _long(law.constants[name]), KAPLAN_JOINT[name]] for name in KAPLAN_JOINT]
    lines.append(["best N: exponent of C, by this law", _long(law.n_share), "0.73, from their trainings"])
    lines.append(["misfit", f"{100 * law.spread:.2f} %", ""])
    return Table(["", "this text", "quoted: Kaplan et al. 2020"], lines)


def parts_table(laws: Laws) -> list[list[str]]:
    """Return the rows of the table of the exponents of the laws without some of the trainings."""
    lines = []
    for name, (chinchilla, kaplan) in {"all": (laws.chinchilla, laws.kaplan), **laws.parts}.items():
        law = chinchilla.value
        ours = [_value(law, key) for key in ("alpha", "beta")]
        lines.append([name, *ours, _value(law), _value(kaplan.value), _value(law, "E")])
    return lines


def _value(law: Fit | None, constant: str | None = None) -> str:
    """Return a constant, or the exponent of the best N; "none" without a law."""
    if law is None:
        return "none"
    return _number((law.n_share if constant is None else law.constants[constant]).value)


def _misses(laws: Laws, trainings: Sequence[JsonObject]) -> list[str]:
    texts = []
    for name, law in (("Chinchilla's", laws.chinchilla.value), ("Kaplan's", laws.kaplan.value)):
        if law:
            misses = sorted(
                (100 * (law.loss(_body(entry), entry["tokens"]) / entry["loss"] - 1), _place(entry))
                for entry in trainings
            )
            (least, below), (most, above) = misses[0], misses[-1]
            texts.append(f"{name} law is {-least:.1f} % too low for {below}, and {most:.1f} % too high for {above}.")
    return texts


def _place(entry: JsonObject) -> str:
    return f"{entry['row']} after {_tokens(entry['tokens'])}"


def _long(estimate: Estimate) -> str:
    """Return an estimate with six digits, from which others can compute, and its interval with three."""
    return f"{_number(estimate.value, 6)} ({_number(estimate.low)} to {_number(estimate.high)})"


def _short(estimate: Estimate) -> str:
    return f"{_number(estimate.value)} ({_number(estimate.low)} to {_number(estimate.high)})"


def _number(value: float, digits: int = 3) -> str:
    return "0" if 0 <= value < NOTHING else f"{value:.{digits}g}"
