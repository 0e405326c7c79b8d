"""The report of `transduce study attention`: costs against n, and losses compared with exact attention."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transduce.evaluation.study_charts import powers_svg
from transduce.evaluation.study_report import Figure, Report, Section, Table
from transduce.studies.attention_forms import AttentionForm, AttentionSizes, TrainedForm, forms, layers, rows, sizes_of
from transduce.studies.comparison import NOT_RUN, Difference, Samples, as_points, by_verdict, curves_figure, ends_in_ms
from transduce.studies.results import Entry, Results

IN_FIGURES = ("fused", "window", "performer", "reference")
Costs = Mapping[int, Mapping[str, Mapping[str, float]]]  # length -> form or layer -> figures


def report(results: Results) -> Report:
    """Return the report of what has been measured and trained, with the sizes of the results."""
    sizes = sizes_of(results.settings)
    costs = {n: results.entries[f"costs-{n}"]["forms"] for n in sizes.lengths if results.is_done(f"costs-{n}")}
    n_done = sum(len(results.done(row.name)) for row in rows(sizes))
    n_trainings = sum(len(row.seeds) for row in rows(sizes))
    losses = [block for causal in (True, False) for block in _losses(results, sizes, causal=causal)]
    of_forms, of_layers = (
        [_table(costs, sizes, items, cell, kind) for cell in (_time, _memory)]
        for items, kind in ((forms(sizes), "form"), (layers(sizes), "layer"))
    )
    return Report(
        "Forms of attention: cost and quality",
        f"Efficient forms of attention compared with exact attention, in fp32 on a CPU: {len(costs)} of "
        f"{len(sizes.lengths)} lengths measured, {n_done} of {n_trainings} models trained.",
        [
            Section("Time", [of_forms[0], *_figures(costs, sizes), time_in_words(sizes)]),
            Section("Memory", [of_forms[1], MEMORY, *memory_claims(costs, forms(sizes))]),
            Section("Whole layers", [*of_layers, *cache_sizes(costs, sizes), LAYERS]),
            Section("Loss", losses),
            Section("Method of the trainings", [method(sizes), VERDICT]),
        ],
    )


# ---- costs -------------------------------------------------------------------------------------------------------

MEMORY = (
    "MB that torch holds at once in both passes, above the inputs, the weights of the form and the gradient of the "
    "output. The same arithmetic always gives the same figure."
)
LAYERS = (
    "Milliseconds, then MB, as above, of self-attention with its projections: Longformer's global positions and tensor "
    "product attention have separate projections, which a function of queries, keys and values does not show. The "
    "factor compares with the exact layer under the same mask. The gradients of the weights count as memory."
)


def time_in_words(sizes: AttentionSizes) -> str:
    """Return how the time was measured."""
    return (
        "Milliseconds of processor time of a forward and of a backward pass over one text, "
        f"{sizes.cost_heads} heads of {sizes.cost_width}, on one thread: the minimum of {min(sizes.rounds)} to "
        f"{max(sizes.rounds)} rounds, in which the forms take turns. The factor compares both passes with the fused "
        "kernel under the same mask. Strided, fixed and BigBird are masks here: they show the pattern, not the speed "
        "of a kernel made for it. Forms that "
        f"hold n² values are not run above n = {sizes.longest_square:,}."
    )


def _table(
    costs: Costs,
    sizes: AttentionSizes,
    items: Sequence[AttentionForm[Any]],
    cell: Callable[[Mapping[str, float], Mapping[str, float]], str],
    kind: str,
) -> Table:
    """Return a table over the lengths. cell: its text, from the figures of the item and of its base, if it ran."""
    lines = []
    for item in items:
        figures = [costs.get(n, {}) for n in sizes.lengths]
        cells = [cell(at[item.name], at.get(item.base, {})) if item.name in at else NOT_RUN for at in figures]
        lines.append([item.title, _sides(item), *cells])
    return Table([kind, "sees", *(f"n = {n:,}" for n in sizes.lengths)], lines, words=frozenset({0, 1}))


def _sides(item: AttentionForm[Any]) -> str:
    return "causal" if item.causal else "both sides"


def _time(item: Mapping[str, float], base: Mapping[str, float]) -> str:
    factor = f" (x {_seconds(item) / _seconds(base):.2f})" if base else ""
    return f"{1_000 * item['forward_seconds']:,.1f} + {1_000 * item['backward_seconds']:,.1f}{factor}"


def _seconds(item: Mapping[str, float]) -> float:
    return item["forward_seconds"] + item["backward_seconds"]


def _memory(item: Mapping[str, float], _: Mapping[str, float]) -> str:
    return f"{item['peak_bytes'] / 1e6:,.1f}"


def memory_claims(costs: Costs, items: Sequence[AttentionForm[Any]]) -> list[str]:
    """Return which forms held less memory than the fused kernel under their mask: a sentence for each group of lengths.

    The same forms ran at all lengths of a group.
    """
    rivals = [form for form in items if form.name != form.base]
    groups: dict[tuple[str, ...], list[int]] = {}
    for n, figures in costs.items():
        ran = tuple(form.name for form in rivals if form.name in figures and form.base in figures)
        groups.setdefault(ran, []).append(n)
    sentences = []
    for ran, lengths in groups.items():
        of_group = [form for form in rivals if form.name in ran]
        which = "all forms" if len(of_group) == len(rivals) else "; ".join(map(_named, of_group))
        less = [
            f"{_named(form)} at n = {n:,}"
            for n in lengths
            for form in of_group
            if costs[n][form.name]["peak_bytes"] < costs[n][form.base]["peak_bytes"]
        ]
        claim = f"{'these forms need' if less else 'none needs'} less memory than the fused kernel, which is exact"
        claim += f": {'; '.join(less)}" if less else ""
        what = f"these ran: {which}. Of them, {claim}." if ran else "only the fused kernel ran."
        sentences.append(f"At n = {', '.join(f'{n:,}' for n in lengths)}, {what}")
    return sentences or ["No length has been measured yet."]


def _named(form: AttentionForm[Any]) -> str:
    return f"{form.title} ({_sides(form)})"


def cache_sizes(costs: Costs, sizes: AttentionSizes) -> list[Table]:
    """Return the table of what a causal layer keeps of each token."""
    latest = {name: item for figures in costs.values() for name, item in figures.items()}
    lines = []
    for layer in layers(sizes):
        own, base = (latest.get(name, {}).get("cache_bytes_per_token") for name in (layer.name, layer.base))
        if layer.causal:
            factor = f"x {own / base:.2f}" if own and base else ""
            lines.append([layer.title, f"{own:,.0f}" if own else NOT_RUN, factor])
    return [Table(["layer", "bytes of a token in its cache, fp32", "over exact"], lines)] if latest else []


def _figures(costs: Costs, sizes: AttentionSizes) -> list[Figure]:
    """Return the figure of time against n, with the forms that are measured at two lengths or more."""
    curves = {
        form.title: [
            (float(n), 1_000 * _seconds(figures[form.name])) for n, figures in costs.items() if form.name in figures
        ]
        for form in forms(sizes)
        if form.name in IN_FIGURES
    }
    curves = {title: curve for title, curve in curves.items() if len(curve) > 1}
    if not curves:
        return []
    note = "forward and backward, milliseconds of processor time, both axes logarithmic"
    return [curves_figure("Time against n, causal", note, powers_svg(curves), curves, ends_in_ms)]


# ---- losses ------------------------------------------------------------------------------------------------------

VERDICT = (
    "A form is better or worse than exact attention if the whole 95 % interval of the difference of their mean losses "
    "is on one side of 0; otherwise the comparison is inconclusive. The interval is Student's, with the spread between "
    "the seeds of exact attention, pooled over the exact rows of a table. A form with one seed has no spread between "
    "seeds: it is taken to be the same. A small model that has just begun to learn uses little of a long context, so "
    "what a form leaves out costs less here than in a large one."
)


def method(sizes: AttentionSizes) -> str:
    """Return the method of the trainings in words."""
    return (
        f"Nats for each predicted token of the validation text (at most {sizes.valid_texts} texts), after "
        f"{sizes.steps:,} steps on batches of {sizes.batch} texts of {sizes.length} tokens: the next token, or the "
        f"{sizes.mask_share:.0%} of tokens that are masked. All models have {sizes.n_layers} layers, d_model "
        f"{sizes.d_model}, {sizes.n_heads} heads, and a vocabulary of at most {sizes.vocab_size:,}. Adam's learning "
        f"rate rises to {sizes.rate:g} in {sizes.warmup} steps, then falls to 0. All models of a table have the same "
        "steps, and the same order of texts for a seed. A base is the exact attention that a row is compared with."
    )


def _losses(results: Results, sizes: AttentionSizes, *, causal: bool) -> tuple[Table, str]:
    """Return the losses of the models under one mask as a table, and a sentence that compares them with the bases."""
    of_mask = [row for row in rows(sizes) if row.causal == causal]
    losses = {row.name: results.values(row.name, "loss") for row in of_mask}
    samples = Samples(losses, [row.name for row in of_mask if row.name == row.base])
    changes = {row.name: samples.change(row.name, row.base) for row in of_mask if row.name != row.base}
    task = "Next token" if causal else "Masked tokens"
    groups = by_verdict({row.title: changes.get(row.name) for row in of_mask})
    parts = " ".join(f"{verdict.capitalize()}: {'; '.join(titles)}." for verdict, titles in groups.items())
    comparison = (
        f", compared with exact attention after as many steps. {parts}" if parts else ": nothing to compare yet."
    )
    lines = [[row.title, *_loss_cells(results.done(row.name), changes.get(row.name), row)] for row in of_mask]
    head = [task.lower(), "loss of each seed", "less base", "verdict", "parameters", "processor seconds"]
    return Table(head, lines, words=frozenset({0, 3})), task + comparison


def _loss_cells(seeds: Sequence[Entry], change: Difference | None, row: TrainedForm) -> list[str]:
    if not seeds:
        return [NOT_RUN, "", "", "", ""]
    return [
        ", ".join(f"{entry['loss']:.3f}" for entry in seeds),
        as_points(change, digits=3),
        "base" if row.name == row.base else change.verdict() if change else "",
        f"{seeds[0]['parameters']:,}",
        f"{statistics.fmean(entry['cpu_seconds'] for entry in seeds):,.0f}",
    ]
