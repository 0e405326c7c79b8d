"""The report of `transduce study attention`: costs against n, and losses compared with exact attention."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import convert

from transduce.evaluation.study_charts import curves_figure, ends_in_ms, powers_svg
from transduce.evaluation.study_report import NOT_RUN, Figure, Report, Table
from transduce.studies.attention_forms import AttentionForm, AttentionSizes, TrainedForm, forms, layers, rows
from transduce.studies.comparison import Difference, Row, as_points, by_verdict, report_of, samples_of
from transduce.studies.results import Results

IN_FIGURES = ("fused", "window", "performer", "reference")
Costs = Mapping[int, Mapping[str, Mapping[str, float]]]  # length -> form or layer -> figures


def report(results: Results) -> Report:
    """Return the report of what has been measured and trained, with the sizes of the results."""
    sizes = convert(results.settings["sizes"], AttentionSizes)
    costs = {n: results.entries[f"costs-{n}"]["forms"] for n in sizes.lengths if results.is_done(f"costs-{n}")}
    return report_of(
        results,
        n_lengths=len(costs),
        n_all_lengths=len(sizes.lengths),
        n_models=sum(len(results.done(row.name)) for row in rows(sizes)),
        n_all_models=sum(len(row.seeds) for row in rows(sizes)),
        fewest_rounds=min(sizes.rounds),
        most_rounds=max(sizes.rounds),
        form_times=_table(costs, sizes, forms(sizes), _time, "form"),
        form_memory=_table(costs, sizes, forms(sizes), _memory, "form"),
        layer_times=_table(costs, sizes, layers(sizes), _time, "layer"),
        layer_memory=_table(costs, sizes, layers(sizes), _memory, "layer"),
        figures=_figures(costs, sizes),
        memory_claims=memory_claims(costs, forms(sizes)),
        caches=cache_sizes(costs, sizes),
        losses=[block for causal in (True, False) for block in _losses(results, sizes, causal=causal)],
    )


# ---- costs -------------------------------------------------------------------------------------------------------


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


def _losses(results: Results, sizes: AttentionSizes, *, causal: bool) -> tuple[Table, str]:
    """Return the losses of the models under one mask as a table, and a sentence that compares them with the bases."""
    of_mask = [row for row in rows(sizes) if row.causal == causal]
    bases = [row.name for row in of_mask if row.name == row.base]
    samples = samples_of(results, [row.name for row in of_mask], "loss", pooled=bases)
    changes = {row.name: samples.change(row.name, row.base) for row in of_mask if row.name != row.base}
    task = "Next token" if causal else "Masked tokens"
    groups = by_verdict({row.title: changes.get(row.name) for row in of_mask})
    parts = " ".join(f"{verdict.capitalize()}: {'; '.join(titles)}." for verdict, titles in groups.items())
    comparison = (
        f", compared with exact attention after as many steps. {parts}" if parts else ": nothing to compare yet."
    )
    lines = [[row.title, *_loss_cells(Row(results.done(row.name)), changes.get(row.name), row)] for row in of_mask]
    head = [task.lower(), "loss of each seed", "less base", "verdict", "parameters", "processor seconds"]
    return Table(head, lines, words=frozenset({0, 3})), task + comparison


def _loss_cells(seeds: Row, change: Difference | None, row: TrainedForm) -> list[str]:
    if not seeds:
        return [NOT_RUN, "", "", "", ""]
    return [
        ", ".join(f"{entry['loss']:.3f}" for entry in seeds),
        as_points(change, digits=3),
        "base" if row.name == row.base else change.verdict() if change else "",
        f"{seeds[0]['parameters']:,}",
        f"{seeds.mean('cpu_seconds'):,.0f}",
    ]
