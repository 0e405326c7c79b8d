"""The scores of models from the middle of a training, in a separate process.

    python -m transduce.studies.points RUN --src SRC --ref REF --language CODE --json STEP:COUNT ...

A model is the mean of the newest COUNT checkpoints up to STEP. The program prints the scores of each on the text.
"""

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from transduce.decoding.options import DecodingOptions
from transduce.errors import UserError
from transduce.evaluate import TestSet, evaluate_model
from transduce.storage.run_folder import average_run
from transduce.studies.trainings import score_figures
from transduce.translate import load


def main() -> int:
    """Print the scores of all models as JSON. Return the exit code."""
    parser = argparse.ArgumentParser(prog="transduce.studies.points")
    parser.add_argument("run", type=Path)
    for name in ("--src", "--ref"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--language", required=True)
    parser.add_argument("--json", action="store_true", help="no effect: transduce evaluate has the same arguments")
    parser.add_argument("models", nargs="+")
    options = parser.parse_args()
    test_set = TestSet(options.src, options.ref, options.language)
    models = [map(int, model.split(":")) for model in options.models]
    try:
        scores = [evaluate_point(options.run, step, count, test_set) for step, count in models]
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    print(msgspec.json.encode(scores).decode())
    return 0


def evaluate_point(run: Path, step: int, averaged: int, test_set: TestSet) -> dict[str, Any]:
    """Return the scores of the mean of the newest `averaged` checkpoints of `run` up to `step`."""
    with tempfile.TemporaryDirectory(dir=run.parent, prefix=f"{run.name}.") as folder:
        average_run(run, last=averaged, until=step, out=Path(folder) / "mean")
        evaluation = evaluate_model(load(Path(folder) / "mean"), test_set, DecodingOptions())
    assert evaluation.perplexity is not None
    scores = score_figures(evaluation.lines, evaluation.perplexity, evaluation.systems["model"])
    return {"step": step, "averaged": averaged, **scores}


if __name__ == "__main__":
    sys.exit(main())
