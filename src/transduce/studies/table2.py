"""Table 2: the Transformer compared with an LSTM and a convolutional model, at equal cost.

    trainings -> FLOPs of a step -> two budgets -> the mean of the newest checkpoints within each -> the test text

Each system is trained once, with the same batches. The two budgets are the cost of the cheapest training, in processor
seconds and in FLOPs. So every training reaches both, and the learning rate does not depend on the budget. The
model of a system at a budget is the mean of its `AVERAGED` newest checkpoints within the budget. Only these models see
the test text.
"""

from pathlib import Path
from statistics import mean
from typing import Any

from transduce.config.schema import Config, architecture
from transduce.data.batches import Batches, DataPosition
from transduce.data.corpora import Corpus
from transduce.data.token_store import open_store
from transduce.data.tokenizer import Tokenizer
from transduce.decoding.options import DecodingOptions
from transduce.errors import UserError
from transduce.evaluate import TestSet, evaluate_model
from transduce.evaluation.page import duration
from transduce.evaluation.study_charts import COLOURS, progress_svg
from transduce.evaluation.study_report import Figure, Report, Section, Table, write_report
from transduce.model.build import build
from transduce.storage.checkpoints import checkpoints, load_state, regular_checkpoints, step_of
from transduce.storage.run_folder import average_run
from transduce.storage.run_log import reports
from transduce.studies.entries import config_of, encode_config
from transduce.studies.results import Results, open_results
from transduce.studies.schedule import run_trainings
from transduce.studies.trainings import Texts, Training, read_config, score_figures
from transduce.training.flops import step_flops
from transduce.translate import load

SYSTEMS = {"transformer": "Transformer", "recurrent": "LSTM with attention", "convolutional": "gated convolutions"}
BUDGETS = {"time": "processor_seconds", "flops": "flops"}  # name of a budget: the cost that it limits
NAMES = {"time": "time", "flops": "FLOPs"}
AVERAGED = 5  # checkpoints (§6.1)
COUNTED = 16  # batches, evenly over an epoch, whose FLOPs are counted


def trainings() -> list[Training]:
    """Return the trainings of the table."""
    return [Training(system, 1, f"small-table2-{system}") for system in SYSTEMS]


def run_table2(texts: Texts, out: Path, *, jobs: int | None = None, rerun: bool = False) -> Results:
    """Train the systems that are not yet in OUT/results.json, then evaluate each at both budgets.

    jobs, rerun: as in `schedule.run_trainings`. Raises UserError if there is no test text, or if a folder in OUT/runs
    that the study still needs is missing.
    """
    if texts.test is None:
        raise UserError("--test: expected a test text, on which Table 2 evaluates the systems; give --test SRC REF")
    hashes = texts.read()
    results = open_results(out, "table2", {"scale": "small", "language": texts.language, **hashes})
    systems = trainings()
    evaluations = {f"{system.row}-{budget}": (system, budget) for system in systems for budget in BUDGETS}
    try:
        training_texts = Texts(texts.train, texts.valid, language=texts.language)
        run_trainings(systems, training_texts, results, jobs=jobs, rerun=rerun)
        for name in evaluations:
            results.entries.setdefault(name, {"status": "not run"})
        for system in systems:
            if not COSTS <= results.entries[system.name].keys():
                results.entries[system.name] |= costs(out / "runs" / system.name, Corpus(*texts.train))
                results.save()
        for name, (system, budget) in evaluations.items():
            if not is_evaluated(name, results):
                step = step_within(BUDGETS[budget], system.name, results)
                figures = evaluate_checkpoint(out / "runs" / system.name, step, texts)
                results.record(name, "done", row=system.row, seed=system.seed, **figures)
    finally:
        if results.entries:
            write_report(out, report(results), results.sessions)
    return results


# ---- the cost of a training --------------------------------------------------------------------------------------

COSTS = {"flops_per_step", "flops_per_target_token", "checkpoints", "curve"}


def costs(run: Path, corpus: Corpus) -> dict[str, Any]:
    """Return the FLOPs of a step and of a target token, the cost of each checkpoint, and the validation curve.

    processor_seconds: of batches and steps, without evaluations and saves. flops: steps times FLOPs of a step.
    """
    config = read_config(run)
    of_steps, of_tokens = _mean_flops(run, config, corpus)
    cost = [
        {"step": step_of(path), "processor_seconds": round(load_state(path)["processor_seconds"], 2)}
        for path in regular_checkpoints(run, config.train.checkpoint_every_steps)
    ]
    curve = [line for line in reports(run) if "valid_loss" in line]
    return {
        "flops_per_step": round(of_steps),
        "flops_per_target_token": round(of_tokens),
        "checkpoints": [{**point, "flops": round(point["step"] * of_steps)} for point in cost],
        "curve": curve,
    }


def _mean_flops(run: Path, config: Config, corpus: Corpus) -> tuple[float, float]:
    """Return the mean FLOPs of a step, and of a target token, over `COUNTED` batches of the first epoch."""
    tokenizer = Tokenizer.load(run / "tokenizer.json")
    store = open_store(run / "data" / "train", [corpus], tokenizer)
    batches = Batches(store, tokenizer, config.data, seed=config.train.seed)
    size = len(batches.plan(0))
    model = build(config.model).train()
    flops, tokens = [], 0
    for index in sorted({size * i // COUNTED for i in range(COUNTED)}):
        micro_batches, _ = next(batches.stream(DataPosition(0, index)))
        flops.append(step_flops(model, micro_batches, config.train.label_smoothing))
        tokens += sum(int(batch.tgt_mask.sum()) for batch in micro_batches)
    return mean(flops), sum(flops) / tokens


# ---- at equal cost -----------------------------------------------------------------------------------------------


def is_evaluated(name: str, results: Results) -> bool:
    """Check whether a system has its scores at a budget, which are no older than the trainings that set the budget."""
    if not results.is_done(name):
        return False
    entry, systems = results.entries[name], [results.entries.get(system.name, {}) for system in trainings()]
    row = name.rpartition("-")[0]
    steps = [p["step"] for system in systems for p in system.get("checkpoints", []) if system["row"] == row]
    ends = [system.get("ended_at", "") for system in systems]
    is_known = all("checkpoints" in system for system in systems) and entry["step"] in steps
    return is_known and max(ends) <= entry.get("ended_at", "")


def step_within(cost: str, name: str, results: Results) -> int:
    """Return the step of the last checkpoint of training `name` within the budget."""
    limit = budget_of(cost, results)
    return max(point["step"] for point in results.entries[name]["checkpoints"] if point[cost] <= limit)


def budget_of(cost: str, results: Results) -> float:
    """Return the budget: the cost of the cheapest training."""
    return min(results.entries[system.name]["checkpoints"][-1][cost] for system in trainings())


def evaluate_checkpoint(run: Path, step: int, texts: Texts) -> dict[str, Any]:
    """Return the scores on the test text of the mean of the `AVERAGED` checkpoints up to `step`."""
    assert texts.test is not None
    folder = run.with_name(f"{run.name}-step-{step}")
    count = min(AVERAGED, sum(step_of(path) <= step for path in checkpoints(run)))
    if not folder.exists():
        average_run(run, last=count, until=step, out=folder)
    translator = load(folder)
    evaluation = evaluate_model(translator, TestSet(*texts.test, texts.language), DecodingOptions())
    return {
        "step": step,
        "averaged": count,
        "config": encode_config(translator.config),
        **score_figures(evaluation.lines, evaluation.perplexity or 0.0, evaluation.systems["model"]),
    }


# ---- the report --------------------------------------------------------------------------------------------------

# BLEU English-German and English-French on newstest2014, and training FLOPs of each, from the paper; "" where it has
# none. The paper's FLOPs are estimates: training time times the sustained speed of the processor.
PAPER = {
    "ByteNet": ("23.75", "", "", ""),
    "Deep-Att + PosUnk": ("", "39.2", "", "1.0e20"),
    "GNMT + RL": ("24.6", "39.92", "2.3e19", "1.4e20"),
    "ConvS2S": ("25.16", "40.46", "9.6e18", "1.5e20"),
    "MoE": ("26.03", "40.56", "2.0e19", "1.2e20"),
    "Deep-Att + PosUnk, ensemble": ("", "40.4", "", "8.0e20"),
    "GNMT + RL, ensemble": ("26.30", "41.16", "1.8e20", "1.1e21"),
    "ConvS2S, ensemble": ("26.36", "41.29", "7.7e19", "1.2e21"),
    "Transformer, base": ("27.3", "38.1", "3.3e18", "3.3e18"),
    "Transformer, big": ("28.4", "41.8", "2.3e19", "2.3e19"),
}


def report(results: Results) -> Report:
    """Return the report: the systems at both budgets, their curves and costs, and the paper's rows as quotations."""
    lead = (
        "The Transformer beside an LSTM and a convolutional model of the same size: the same batches, training loop, "
        "search and scoring, evaluated on the test text at equal cost. In the paper the Transformer is better than "
        f"both kinds. Here, {_ranking(results, 'time')}; {_ranking(results, 'flops')}."
    )
    blocks: list[str | Table | Figure] = [*(_comparison(results, budget) for budget in BUDGETS)]
    blocks.append(_evaluation_method(results))
    if all(COSTS <= results.entries.get(system.name, {}).keys() for system in trainings()):
        blocks += [_progress(results, "processor_seconds"), _progress(results, "flops")]
    failures = [f"{name}: {entry['why']}" for name, entry in results.entries.items() if entry["status"] == "failed"]
    blocks += [f"Failed: {'; '.join(failures)}."] if failures else []
    quotations = Table(
        ["system", "BLEU EN-DE", "BLEU EN-FR", "training FLOPs EN-DE", "EN-FR"],
        [[f"{name} (quoted)", *row] for name, row in PAPER.items()],
    )
    systems = "; ".join(f"{_title(system.row, results)}: {_settings(system, results)}" for system in trainings())
    return Report(
        "Table 2 at small scale",
        lead,
        [
            Section("At equal cost", blocks),
            Section("The systems", [f"{systems}."]),
            Section("Cost of each training", [_costs(results), COST_METHOD]),
            Section("The paper's Table 2, quoted", [quotations, QUOTATION_SOURCES]),
        ],
    )


def _evaluation_method(results: Results) -> str:
    """Return the paragraph on the scores, with the number of checkpoints from the entries."""
    counts = {entry.get("averaged") for budget in BUDGETS for entry in _scores(results, budget).values()}
    averaged = " or ".join(f"{count} " for count in sorted(count for count in counts if count))
    return (
        f"Test text, sacreBLEU 13a, beam search, the mean of the newest {averaged}checkpoints within a budget; one "
        "seed. Perplexity is per token, and the tokens are the same for all systems. A budget is the cost of the "
        "cheapest training. These trainings are short: after longer ones the order of the systems may be different."
    )


def _settings(system: Training, results: Results) -> str:
    """Return the sizes, the steps and the peak of the learning rate of a training, from its entry."""
    entry = results.entries.get(system.name, {})
    config = config_of(entry)
    if config is None:
        return "settings not recorded" if entry.get("status") == "done" else "not run"
    train = config.train
    return (
        f"{architecture(config.model)}, {train.max_steps:,} steps, lr_factor {train.lr_factor:g}, "
        f"{train.warmup_steps:,} steps of warm-up, dropout {config.model.dropout:g}"
    )


COST_METHOD = (
    "FLOPs are counted over the products of real batches, forward and backward, with padding; a multiplication and its "
    "addition are two. Processor seconds are those of the training process in batches and steps, without evaluations "
    "and saves. Time is all of it by the clock, which is longer on a busy machine."
)
QUOTATION_SOURCES = (
    "newstest2014, tokenised BLEU, trained on millions of pairs. Both Transformers quoted are post-norm. The paper's "
    "FLOPs are not counted: they are the time of a training times an estimate of the speed of its processors. Text, "
    "sizes and counting differ from those above, so only the order of the systems can be compared, not their figures."
)


def _scores(results: Results, budget: str) -> dict[str, dict[str, Any]]:
    """Return the entry of each system at a budget, for the systems that have been evaluated there."""
    names = {system.row: f"{system.row}-{budget}" for system in trainings()}
    return {system: results.entries[name] for system, name in names.items() if is_evaluated(name, results)}


def _title(row: str, results: Results) -> str:
    """Return the name of a system; a Transformer's has the order of its norms, which is not that of the paper."""
    entries = [results.entries.get(system.name, {}) for system in trainings() if system.row == row]
    configs = [config_of(entry) for entry in entries]
    norms = {config.model.norm for config in configs if config and config.model.kind == "transformer"}
    return f"{SYSTEMS[row]} ({' and '.join(sorted(norms))}-norm)" if norms else SYSTEMS[row]


def _ranking(results: Results, budget: str) -> str:
    """Return the BLEU of the systems at a budget, best first, if all have been evaluated."""
    scores = _scores(results, budget)
    if len(scores) < len(SYSTEMS):
        return f"not all have been evaluated at equal {NAMES[budget]}"
    limit = budget_of(BUDGETS[budget], results)
    cost = f"{limit:,.0f} processor seconds" if budget == "time" else f"{_short(limit)} FLOPs"
    order = sorted(scores, key=lambda system: -scores[system]["bleu"])
    figures = ", ".join(f"{_title(system, results)} {scores[system]['bleu']:.2f}" for system in order)
    return f"for {cost} each, BLEU: {figures}"


def _comparison(results: Results, budget: str) -> Table:
    """Return the table of scores and costs of each system at a budget; a missing system is "not run"."""
    scores = _scores(results, budget)
    rows = []
    quiet = set()
    for number, system in enumerate(trainings()):
        if system.row not in scores:
            rows.append([_title(system.row, results), "not run", *[""] * 5])
            quiet.add(number)
            continue
        entry = scores[system.row]
        points = results.entries[system.name]["checkpoints"]
        cost = next(point for point in points if point["step"] == entry["step"])
        rows.append(
            [
                _title(system.row, results),
                *(f"{entry[score]:.2f}" for score in ("bleu", "chrf", "perplexity")),
                f"{entry['step']:,}",
                f"{cost['processor_seconds']:,.0f}",
                _short(cost["flops"]),
            ]
        )
    head = [f"at equal {NAMES[budget]}", "BLEU", "chrF", "perplexity", "steps", "processor seconds", "FLOPs"]
    return Table(head, rows, quiet=frozenset(quiet))


def _short(flops: float) -> str:
    """Return FLOPs in the paper's form: 2.06e13."""
    return f"{flops:.2e}".replace("e+", "e")


def _progress(results: Results, cost: str) -> Figure:
    """Return the figure of validation perplexity against the cost of training, with a curve for each system."""
    unit, name = (1e12, "TFLOP") if cost == "flops" else (1.0, "processor seconds")
    curves: dict[str, list[tuple[float, float]]] = {}
    for system in trainings():
        entry = results.entries[system.name]
        cost_at = {point["step"]: point[cost] / unit for point in entry["checkpoints"]}
        points = [(cost_at[p["step"]], p["valid_perplexity"]) for p in entry["curve"] if p["step"] in cost_at]
        curves[_title(system.row, results)] = points
    alt = "; ".join(
        f"{system}: " + ", ".join(f"{y:.2f} after {x:,.1f}" for x, y in points) for system, points in curves.items()
    )
    legend = list(zip(curves, COLOURS, strict=False))
    return Figure(f"Perplexity by {name}", progress_svg(curves), 280, alt, "validation; lower is better", legend)


def _costs(results: Results) -> Table:
    """Return the table of FLOPs and processor time of each training, per step and per target token."""
    head = ["system", "parameters", "FLOPs per step", "FLOPs per target token", "processor seconds per step", "GFLOP/s"]
    head += ["steps", "threads", "time"]
    rows = []
    quiet = set()
    for number, system in enumerate(trainings()):
        entry = results.entries.get(system.name, {})
        if not COSTS <= entry.keys():
            rows.append([_title(system.row, results), "not run", *[""] * 7])
            quiet.add(number)
            continue
        end = entry["checkpoints"][-1]
        seconds = end["processor_seconds"] / end["step"]
        rows.append(
            [
                _title(system.row, results),
                f"{entry['parameters'] / 1e6:.2f} M",
                _short(entry["flops_per_step"]),
                _short(entry["flops_per_target_token"]),
                f"{seconds:.3f}",
                f"{entry['flops_per_step'] / seconds / 1e9:.1f}",
                f"{end['step']:,}",
                str(entry["threads"]),
                duration(entry["seconds"]),
            ]
        )
    return Table(head, rows, quiet=frozenset(quiet))
