"""The search of Table 2: the same for each system, judged on the validation text after the same number of steps.

    learning rates x shapes, at the middle dropout -> the best of these with the other dropouts -> the best of all

The search trains 8 of the 18 combinations of a system. The choices are written into `recipes.table2.CHOICES` by hand.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transduce.evaluation.study_report import Block, Report, Section, Table, write_report
from transduce.recipes.table2 import CHOICES, SHAPES
from transduce.studies.results import Results, open_results
from transduce.studies.schedule import run_trainings
from transduce.studies.texts import Texts
from transduce.studies.trainings import Training

LR_FACTORS = (0.6, 1.2, 2.4)
DROPOUTS = (0.1, 0.2, 0.3)
FIRST_DROPOUT = 0.2
STEPS, WARMUP = 500, 200
SYSTEMS = {
    "post-norm": "Transformer, post-norm",
    "pre-norm": "Transformer, pre-norm",
    "recurrent": "LSTM with attention",
    "convolutional": "gated convolutions",
}


@dataclass(frozen=True)
class Candidate:
    """A combination of settings of a system."""

    system: str
    shape: str
    lr_factor: float
    dropout: float

    def training(self) -> Training:
        """Return the training of the candidate: the recipe of the system with all settings that depend on a choice."""
        model = {**SHAPES[self.system][self.shape], "dropout": self.dropout}
        train: dict[str, Any] = {"max_steps": STEPS, "warmup_steps": WARMUP, "lr_factor": self.lr_factor, "use": "last"}
        train |= {"evaluate_every_steps": STEPS, "checkpoint_every_steps": STEPS, "keep_checkpoints": 2}
        settings = [f"model.{name}={value}" for name, value in model.items()]
        settings += [f"train.{name}={value}" for name, value in train.items()]
        row = f"{self.system}-{self.shape}-lr{self.lr_factor}-dropout{self.dropout}"
        return Training(row, 1, f"small-table2-{self.system}", tuple(settings))


def first_stage() -> list[Candidate]:
    """Return the candidates of the first stage, of all systems in turn."""
    pairs = [(shape, lr_factor) for lr_factor in LR_FACTORS for shape in ("deep", "wide")]
    return [Candidate(system, *pair, FIRST_DROPOUT) for pair in pairs for system in SYSTEMS]


def second_stage(results: Results) -> list[Candidate]:
    """Return the candidates of the second stage, for the systems whose first stage is done."""
    candidates = []
    for system in SYSTEMS:
        start = best(system, results, first_stage())
        if start is not None:
            others = [dropout for dropout in DROPOUTS if dropout != FIRST_DROPOUT]
            candidates += [Candidate(system, start.shape, start.lr_factor, dropout) for dropout in others]
    return candidates


def best(system: str, results: Results, candidates: list[Candidate]) -> Candidate | None:
    """Return the candidate of a system with the lowest validation perplexity; None unless all were run.

    A candidate that failed, such as one that diverged, cannot be the best.
    """
    own = [candidate for candidate in candidates if candidate.system == system]
    done = [candidate for candidate in own if results.is_done(candidate.training().name)]
    if not done or not all(is_done_or_failed(candidate, results) for candidate in own):
        return None
    return min(done, key=lambda candidate: results.entries[candidate.training().name]["perplexity"])


def is_done_or_failed(candidate: Candidate, results: Results) -> bool:
    return results.entries.get(candidate.training().name, {}).get("status") in ("done", "failed")


def run_search(texts: Texts, out: Path, *, jobs: int | None = None, rerun: bool = False) -> Results:
    """Train the candidates that are not yet in OUT/results.json, and write the report with the choices.

    A candidate that failed in an earlier session is not trained again. jobs, rerun: as in `schedule.run_trainings`.
    """
    texts = Texts(texts.train, texts.valid, language=texts.language)
    results = open_results(out, "table2-search", {"language": texts.language, **texts.read()})
    try:
        for stage in (first_stage, lambda: second_stage(results)):
            failed = {name for name, entry in results.entries.items() if entry["status"] == "failed"}
            trainings = [candidate.training() for candidate in stage()]
            trainings = [training for training in trainings if rerun or training.name not in failed]
            run_trainings(trainings, texts, results, jobs=jobs, rerun=rerun)
    finally:
        if results.entries:
            write_report(out, report(results), results.sessions)
    return results


def choices(results: Results) -> dict[str, Candidate]:
    """Return the best candidate of each system whose search is done."""
    second = second_stage(results)
    winners = {
        system: best(system, results, [*first_stage(), *second])
        for system in SYSTEMS
        if any(candidate.system == system for candidate in second)
    }
    return {system: winner for system, winner in winners.items() if winner is not None}


def report(results: Results) -> Report:
    """Return the report: the choices, and the validation perplexity of each candidate."""
    winners = choices(results)
    lines = [
        f'"{system}": Choice("{one.shape}", {one.dropout}, {one.lr_factor}, {CHOICES[system].max_steps:_}),'
        for system, one in winners.items()
    ]
    blocks: list[Block] = [f"    {line}" for line in lines]
    blocks.append(
        f"Each candidate has {STEPS} steps with {WARMUP} steps of warm-up, and one seed. The score is the perplexity "
        f"of the validation text under the last weights. The first stage is {len(LR_FACTORS)} learning rates and two "
        f"shapes, at dropout {FIRST_DROPOUT:g}. The second stage is the other dropouts at the best of these. That is 8 "
        "of the 18 combinations of a system. A search this short favours high learning rates and low dropout."
    )
    done = sum(entry["status"] == "done" for entry in results.entries.values())
    unfinished = [title for system, title in SYSTEMS.items() if system not in winners]
    lead = f"Settings for each system, by the same search: {done} trainings done."
    lead += f" Not finished: {'; '.join(unfinished)}." if unfinished else ""
    failures = [f"{name}: {entry['why']}" for name, entry in results.entries.items() if entry["status"] == "failed"]
    blocks += [f"Failed: {'; '.join(failures)}."] if failures else []
    sections = [Section("The choices, for recipes/table2.py", blocks)]
    sections += [Section(title, [_candidates(system, results, winners)]) for system, title in SYSTEMS.items()]
    return Report("The search of Table 2", lead, sections)


def _candidates(system: str, results: Results, winners: dict[str, Candidate]) -> Table:
    """Return the table of the candidates of a system, with the choice marked."""
    rows = []
    quiet = set()
    for candidate in [*first_stage(), *second_stage(results)]:
        if candidate.system != system:
            continue
        entry = results.entries.get(candidate.training().name, {})
        is_done = entry.get("status") == "done"
        scores = [f"{entry['perplexity']:.2f}", f"{entry['bleu']:.2f}"] if is_done else ["not run", ""]
        if not is_done:
            quiet.add(len(rows))
        sizes = ", ".join(f"{name} {value}" for name, value in SHAPES[system][candidate.shape].items())
        mark = "chosen" if winners.get(system) == candidate else ""
        shape = f"{candidate.shape}: {sizes}"
        rows.append([shape, f"{candidate.lr_factor:g}", f"{candidate.dropout:g}", *scores, mark])
    head = ["shape", "lr_factor", "dropout", "perplexity", "BLEU", ""]
    return Table(head, rows, quiet=frozenset(quiet), words=frozenset({0, 5}))
