"""Table 2: the Transformer beside an LSTM and a convolutional model, where they have cost the same.

    trainings -> FLOPs of a step, counted -> two budgets -> the mean of the newest checkpoints within each -> the test

Each system is trained once, in the same batches. The budgets are what the cheapest of the trainings has cost, once in
processor seconds and once in FLOPs; so all have reached both, and the learning rate does not know where they end. A
system is judged at a budget by the mean of its `AVERAGED` newest checkpoints within it, and only then is the test text
looked at.
"""

from pathlib import Path
from statistics import mean
from typing import Any

from transduce.config.files import from_json
from transduce.config.schema import Config
from transduce.data.batches import Batches, DataPosition
from transduce.data.corpora import Corpus
from transduce.data.token_store import open_store
from transduce.data.tokenizer import Tokenizer
from transduce.errors import UserError
from transduce.evaluate import TestSet, evaluate_model
from transduce.evaluation.page import duration
from transduce.evaluation.study_charts import COLOURS, progress_svg
from transduce.evaluation.study_report import Figure, Report, Section, Table, write_report
from transduce.model.build import build
from transduce.storage.checkpoints import checkpoints, load_state, regular_checkpoints, step_of
from transduce.storage.run_folder import average_run
from transduce.storage.run_log import reports
from transduce.studies.results import Results, open_results
from transduce.studies.trainings import Cell, Texts, run_cells
from transduce.training.flops import step_flops
from transduce.translate import load

SYSTEMS = {"transformer": "Transformer", "recurrent": "LSTM with attention", "convolutional": "gated convolutions"}
BUDGETS = {"time": "processor_seconds", "flops": "flops"}  # and the cost that each is one of
NAMES = {"time": "time", "flops": "FLOPs"}
AVERAGED = 5  # checkpoints (§6.1)
COUNTED = 16  # batches, evenly over an epoch, whose FLOPs are counted


def cells() -> list[Cell]:
    """The trainings of the table."""
    return [Cell(system, 1, f"small-table2-{system}") for system in SYSTEMS]


def run_table2(texts: Texts, out: Path, *, jobs: int | None = None) -> Results:
    """Train the systems that are not yet in OUT/results.json (see `run_cells`), then judge each at both budgets.

    Raises UserError if there is no test text, or a folder in OUT/runs is needed that is not there any more.
    """
    if texts.test is None:
        raise UserError("Table 2 is judged on a test text; give --test SRC REF")
    hashes = texts.read()
    results = open_results(out, "table2", {"scale": "small", "language": texts.language, **hashes})
    trainings = cells()
    judged = {f"{cell.row}-{budget}": (cell, budget) for cell in trainings for budget in BUDGETS}
    try:
        run_cells(trainings, Texts(texts.train, texts.valid, language=texts.language), results, jobs=jobs)
        for name in judged:
            results.cells.setdefault(name, {"status": "not run"})
        for cell in trainings:
            if "curve" not in results.cells[cell.name]:
                results.cells[cell.name] |= costs(out / "runs" / cell.name, Corpus(*texts.train))
                results.save()
        for name, (cell, budget) in judged.items():
            if not results.is_done(name):
                step = step_within(BUDGETS[budget], cell.name, results)
                figures = judge(out / "runs" / cell.name, step, texts)
                results.record(name, "done", row=cell.row, seed=cell.seed, **figures)
    finally:
        if results.cells:
            write_report(out, report(results), results.sessions)
    return results


# ---- what a training costs ---------------------------------------------------------------------------------------


def costs(run: Path, corpus: Corpus) -> dict[str, Any]:
    """The FLOPs of a step and of a target token, what each checkpoint has cost, and the validation scores on the way.

    processor_seconds: of batches and steps; evaluations and saves are not counted. flops: steps times FLOPs of a step.
    """
    config = _config(run)
    of_steps, of_tokens = _counted(run, config, corpus)
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


def _config(run: Path) -> Config:
    path = run / "config.json"
    if not path.is_file():
        raise UserError(f"{run} is not there any more, and the study is not done: give another --out, to begin anew")
    return from_json(path.read_bytes(), path)


def _counted(run: Path, config: Config, corpus: Corpus) -> tuple[float, float]:
    """The mean FLOPs of a step, and of a target token, over some batches of the first epoch."""
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


def step_within(cost: str, name: str, results: Results) -> int:
    """The last checkpoint of training `name` that cost no more than the cheapest training of all."""
    budget = least(cost, results)
    return max(point["step"] for point in results.cells[name]["checkpoints"] if point[cost] <= budget)


def least(cost: str, results: Results) -> float:
    """The budget: what the cheapest training of all has cost."""
    return min(results.cells[cell.name]["checkpoints"][-1][cost] for cell in cells())


def judge(run: Path, step: int, texts: Texts) -> dict[str, Any]:
    """The scores on the test text of the mean of the checkpoints up to `step`."""
    assert texts.test is not None
    folder = run.with_name(f"{run.name}-step-{step}")
    if not folder.exists():
        averaged = min(AVERAGED, sum(step_of(path) <= step for path in checkpoints(run)))
        average_run(run, last=averaged, until=step, out=folder)
    translator = load(folder)
    evaluation = evaluate_model(translator, TestSet(*texts.test, texts.language), translator.config.search)
    scores = evaluation.systems["model"]
    return {
        "step": step,
        "lines": evaluation.lines,
        "perplexity": round(evaluation.perplexity or 0.0, 4),
        **{score.name: round(score.value, 4) for score in scores},
        "signatures": {score.name: score.signature for score in scores},
    }


# ---- what came of it ---------------------------------------------------------------------------------------------

# BLEU English-German and English-French on newstest2014, and training FLOPs of each, as the paper has them; "" where it
# has none. Its FLOPs are time times what it takes a processor to do at most: not counted.
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
    """The systems at both budgets, how they got there, and the paper's rows, marked as quoted."""
    lead = (
        "The Transformer beside an LSTM and a convolutional model of the same size, in the same batches, through the "
    )
    lead += "same loop, search and scoring, judged on the test text where they have cost the same. In the paper the "
    lead += f"Transformer is ahead of both kinds. Here, {_ahead(results, 'time')}; {_ahead(results, 'flops')}."
    parts: list[str | Table | Figure] = [*(_comparison(results, budget) for budget in BUDGETS), HOW_JUDGED]
    if all("curve" in results.cells.get(cell.name, {}) for cell in cells()):
        parts += [_course(results, "processor_seconds"), _course(results, "flops")]
    failed = [f"{name}: {cell['why']}" for name, cell in results.cells.items() if cell["status"] == "failed"]
    parts += [f"Failed: {'; '.join(failed)}."] if failed else []
    quoted = Table(
        ["system", "BLEU EN-DE", "BLEU EN-FR", "training FLOPs EN-DE", "EN-FR"],
        [[f"{name} (quoted)", *row] for name, row in PAPER.items()],
    )
    return Report(
        "Table 2 at small scale",
        lead,
        [
            Section("At equal cost", parts),
            Section("What a training costs", [_costs(results), HOW_COUNTED]),
            Section("The paper's Table 2, quoted", [quoted, HOW_QUOTED]),
        ],
    )


HOW_JUDGED = (
    f"Test text, sacreBLEU 13a, beam search, the mean of the newest {AVERAGED} checkpoints within a budget; one seed. "
    "Perplexity is per token, of the same tokens for all. A budget is what the cheapest of the trainings cost. What is "
    "ahead after so short a training need not be after a longer one."
)
HOW_COUNTED = (
    "FLOPs are counted over the products of real batches, forward and backward, padding included; a multiplication and "
    "its addition are two. Processor seconds are those of the training process in batches and steps, without "
    "evaluations and saves; time is all of it by the clock, which on a busy machine is longer."
)
HOW_QUOTED = (
    "newstest2014, tokenised BLEU, trained on millions of pairs. The paper's FLOPs are the time of a training times an "
    "estimate of what its processors can do, not counted. Text, sizes and counting differ from those above: figures do "
    "not compare, only who is ahead of whom."
)


def _judged(results: Results, budget: str) -> dict[str, dict[str, Any]]:
    """For each system its scores at a budget, if it has been judged there."""
    found = {cell.row: results.cells.get(f"{cell.row}-{budget}", {}) for cell in cells()}
    return {system: cell for system, cell in found.items() if cell.get("status") == "done"}


def _ahead(results: Results, budget: str) -> str:
    """Who is ahead of whom, once all are judged."""
    judged = _judged(results, budget)
    if len(judged) < len(SYSTEMS):
        return f"not all have been judged at equal {NAMES[budget]}"
    spent = least(BUDGETS[budget], results)
    cost = f"{spent:,.0f} processor seconds" if budget == "time" else f"{_short(spent)} FLOPs"
    order = sorted(judged, key=lambda system: -judged[system]["bleu"])
    figures = ", ".join(f"{SYSTEMS[system]} {judged[system]['bleu']:.2f}" for system in order)
    return f"for {cost} each, BLEU: {figures}"


def _comparison(results: Results, budget: str) -> Table:
    """What each system reached at a budget, and for what; what was not run says so."""
    judged, rows, quiet = _judged(results, budget), [], set()
    for number, cell in enumerate(cells()):
        if cell.row not in judged:
            rows.append([SYSTEMS[cell.row], "not run", *[""] * 5])
            quiet.add(number)
            continue
        found = judged[cell.row]
        cost = next(point for point in results.cells[cell.name]["checkpoints"] if point["step"] == found["step"])
        rows.append(
            [
                SYSTEMS[cell.row],
                *(f"{found[score]:.2f}" for score in ("bleu", "chrf", "perplexity")),
                f"{found['step']:,}",
                f"{cost['processor_seconds']:,.0f}",
                _short(cost["flops"]),
            ]
        )
    head = [f"at equal {NAMES[budget]}", "BLEU", "chrF", "perplexity", "steps", "processor seconds", "FLOPs"]
    return Table(head, rows, quiet=frozenset(quiet))


def _short(flops: float) -> str:
    """2.06e13, as the paper has it."""
    return f"{flops:.2e}".replace("e+", "e")


def _course(results: Results, cost: str) -> Figure:
    """Validation perplexity of each system by what its training had cost."""
    unit, name = (1e12, "TFLOP") if cost == "flops" else (1.0, "processor seconds")
    curves: dict[str, list[tuple[float, float]]] = {}
    for cell in cells():
        training = results.cells[cell.name]
        spent = {point["step"]: point[cost] / unit for point in training["checkpoints"]}
        points = [(spent[p["step"]], p["valid_perplexity"]) for p in training["curve"] if p["step"] in spent]
        curves[SYSTEMS[cell.row]] = points
    alt = "; ".join(
        f"{system}: " + ", ".join(f"{y:.2f} after {x:,.1f}" for x, y in points) for system, points in curves.items()
    )
    legend = list(zip(curves, COLOURS, strict=False))
    return Figure(f"Perplexity by {name}", progress_svg(curves), 280, alt, "validation; lower is better", legend)


def _costs(results: Results) -> Table:
    """FLOPs and processor time of each training, by step and by target token."""
    head = ["system", "parameters", "FLOPs a step", "FLOPs a target token", "processor seconds a step", "GFLOP/s"]
    head += ["steps", "threads", "time"]
    rows, quiet = [], set()
    for number, cell in enumerate(cells()):
        training = results.cells.get(cell.name, {})
        if "checkpoints" not in training:
            rows.append([SYSTEMS[cell.row], "not run", *[""] * 7])
            quiet.add(number)
            continue
        end = training["checkpoints"][-1]
        seconds = end["processor_seconds"] / end["step"]
        rows.append(
            [
                SYSTEMS[cell.row],
                f"{training['parameters'] / 1e6:.2f} M",
                _short(training["flops_per_step"]),
                _short(training["flops_per_target_token"]),
                f"{seconds:.3f}",
                f"{training['flops_per_step'] / seconds / 1e9:.1f}",
                f"{end['step']:,}",
                str(training["threads"]),
                duration(training["seconds"]),
            ]
        )
    return Table(head, rows, quiet=frozenset(quiet))
