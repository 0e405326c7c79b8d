"""The report of `transduce study attention`: costs against n, and losses beside exact attention."""

import statistics
from collections.abc import Mapping
from typing import Any

from transduce.evaluation.study_charts import COLOURS, powers_svg
from transduce.evaluation.study_report import Figure, Report, Section, Table
from transduce.studies import attention_costs
from transduce.studies.attention_costs import HEADS, ROUNDS, WIDTH
from transduce.studies.attention_forms import BASE, FORMS, Form
from transduce.studies.attention_models import LENGTH, MASK_SHARE, ROWS, STEPS, Row
from transduce.studies.results import Results

IN_FIGURES = ("fused", "window", "performer", "reference")
Costs = Mapping[int, Mapping[str, Mapping[str, float]]]  # length -> form -> figures


def report(results: Results) -> Report:
    """Return the report of what has been measured and trained."""
    costs = {n: entry["forms"] for n in attention_costs.LENGTHS if (entry := _done(results, f"costs-{n}"))}
    n_done = sum(_done(results, f"{row.name}-{seed}") is not None for row in ROWS for seed in row.seeds)
    n_trainings = sum(len(row.seeds) for row in ROWS)
    return Report(
        "Forms of attention: cost and quality",
        f"Efficient forms of attention beside exact attention, in fp32 on a CPU: {len(costs)} of "
        f"{len(attention_costs.LENGTHS)} lengths measured, {n_done} of {n_trainings} models trained.",
        [
            Section("Time", [_table(costs, _time), *_figures(costs), TIME]),
            Section("Memory", [_table(costs, _memory), MEMORY, memory_claim(costs)]),
            Section("Loss", [_losses(results, causal=True), _losses(results, causal=False), LOSS]),
        ],
    )


def _done(results: Results, name: str) -> dict[str, Any] | None:
    return results.entries[name] if results.is_done(name) else None


# ---- costs -------------------------------------------------------------------------------------------------------

TIME = (
    f"Milliseconds of processor time of a forward and of a backward pass over one text, {HEADS} heads of {WIDTH}, on "
    f"one thread: the minimum of {ROUNDS[16_384]} to {ROUNDS[256]} rounds, in which the forms take turns. The factor "
    "is that of both passes to the fused kernel under the same mask. Strided, fixed and BigBird are masks here: they "
    "show the pattern, not the speed of a kernel made for it. Forms that hold n² values are not run at the longest "
    "length."
)
MEMORY = (
    "MB that torch holds at once in both passes, above the inputs and the gradient of the output. The same arithmetic "
    "always gives the same figure."
)


def _table(costs: Costs, cell: Any) -> Table:
    rows = []
    for form in FORMS:
        mask = "causal" if form.causal else "both sides"
        rows.append([form.title, mask, *(cell(costs, n, form) for n in attention_costs.LENGTHS)])
    return Table(["form", "sees", *(f"n = {n:,}" for n in attention_costs.LENGTHS)], rows, words=frozenset({0, 1}))


def _time(costs: Costs, n: int, form: Form) -> str:
    forms = costs.get(n, {})
    if form.name not in forms:
        return "not run"
    one, base = forms[form.name], forms.get(BASE[form.causal])
    factor = f" (x {_seconds(one) / _seconds(base):.2f})" if base else ""
    return f"{1_000 * one['forward_seconds']:,.1f} + {1_000 * one['backward_seconds']:,.1f}{factor}"


def _seconds(one: Mapping[str, float]) -> float:
    return one["forward_seconds"] + one["backward_seconds"]


def _memory(costs: Costs, n: int, form: Form) -> str:
    forms = costs.get(n, {})
    return f"{forms[form.name]['peak_bytes'] / 1e6:,.1f}" if form.name in forms else "not run"


def memory_claim(costs: Costs) -> str:
    """Return which forms held less memory than the fused kernel under their mask, and where."""
    if not costs:
        return "No length has been measured yet."
    less = []
    for n, forms in costs.items():
        for form in FORMS:
            one, base = forms.get(form.name), forms.get(BASE[form.causal])
            if one and base and one["peak_bytes"] < base["peak_bytes"]:
                less.append(f"{form.title} ({'causal' if form.causal else 'both sides'}) at n = {n:,}")
    lengths = ", ".join(f"{n:,}" for n in costs)
    if not less:
        return f"At n = {lengths}, no form needs less memory than the fused kernel, which is exact."
    return f"Less memory than the fused kernel, which is exact, at n = {lengths}: {'; '.join(less)}; no other."


def _figures(costs: Costs) -> list[Figure]:
    """Return the figure of time against n, with the forms that are measured at two lengths or more."""
    curves = {
        form.title: [(float(n), 1_000 * _seconds(forms[form.name])) for n, forms in costs.items() if form.name in forms]
        for form in FORMS
        if form.name in IN_FIGURES
    }
    curves = {title: curve for title, curve in curves.items() if len(curve) > 1}
    if not curves:
        return []
    alt = "; ".join(
        f"{title}: {curve[0][1]:.1f} ms at {curve[0][0]:,.0f}, {curve[-1][1]:.1f} ms at {curve[-1][0]:,.0f}"
        for title, curve in curves.items()
    )
    legend = list(zip(curves, COLOURS, strict=False))
    note = "forward and backward, milliseconds of processor time, both axes logarithmic"
    return [Figure("Time against n, causal", powers_svg(curves), 280, alt, note=note, legend=legend)]


# ---- losses ------------------------------------------------------------------------------------------------------

LOSS = (
    f"Nats for each predicted token of the validation text, after {STEPS} steps on texts of {LENGTH} tokens: the next "
    f"token, or the {MASK_SHARE:.0%} of tokens that are masked. All models of a table have the same sizes, steps and "
    "order of texts for a seed. A difference smaller than the spread between the seeds of the base tells nothing. A "
    "small model that has just begun to learn uses little of a long context, so what a form leaves out costs less here "
    "than in a large one."
)


def _losses(results: Results, *, causal: bool) -> Table:
    rows = []
    for row in ROWS:
        if row.causal == causal:
            entries = [entry for seed in row.seeds if (entry := _done(results, f"{row.name}-{seed}"))]
            rows.append([row.title, *_figures_of(row, entries, _done(results, f"{row.base}-1"))])
    name = "next token" if causal else "masked tokens"
    head = [name, "loss of each seed", "seed 1 - base", "parameters", "processor seconds"]
    return Table(head, rows)


def _figures_of(row: Row, entries: list[dict[str, Any]], base: dict[str, Any] | None) -> list[str]:
    if not entries:
        return ["not run"] * 4
    first = next((entry for entry in entries if entry["seed"] == 1), None)
    if row.name == row.base:
        difference = "base"
    else:
        difference = f"{first['loss'] - base['loss']:+.3f}" if first and base else "not run"
    return [
        ", ".join(f"{entry['loss']:.3f}" for entry in entries),
        difference,
        f"{entries[0]['parameters']:,}",
        f"{statistics.mean(entry['cpu_seconds'] for entry in entries):,.0f}",
    ]
