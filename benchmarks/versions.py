"""Translation by this checkout compared with another one: the same models, text and number of threads.

    git worktree add ../before COMMIT
    python benchmarks/versions.py ../before MODEL... --src test.en [--lines 300] [--starts 5] [--rounds 4] [--threads 1]

Each side is a process that imports transduce from its own checkout, has loaded its model and has warmed up. Compile the
kernels in the other checkout first (CONTRIBUTING.md). The sides take turns, round by round, with the whole file. The
time includes reading and detokenising, not loading. Two starts of the same code differ by up to 5 %, so both sides are
started several times. Printed is the time of this checkout divided by the time of the other one: the median of all
rounds, the range of the medians of the starts, and the number of lines whose text differs. `alone` translates the first
lines of the file one by one.

The script writes benchmarks/results/versions.json.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from peers import RESULTS, ROOT, Worker, command_line, in_turn, processor, write_results

TRANSLATE = ROOT / "benchmarks" / "translate_sides.py"
SEARCHES = {"beam 4": 4, "greedy": 1, "alone": 4}  # the size of the beam


class Side:
    """A worker of one checkout, and the file of its last translation."""

    def __init__(self, checkout: Path, model: Path, precision: str, out: Path, args: argparse.Namespace) -> None:
        self.out = out
        arguments = [f"transduce {precision}", str(model), str(args.threads), str(args.src), str(out), "wall"]
        command = [sys.executable, str(TRANSLATE), *arguments]
        self.worker = Worker(f"{checkout} {precision}", command, args.threads, checkout)

    def seconds(self, search: str, args: argparse.Namespace) -> float:
        """Return the time of a translation."""
        if search == "alone":
            return sum(json.loads(self.worker.ask(f"alone {SEARCHES[search]} {args.alone}")))
        return float(self.worker.ask(f"file {SEARCHES[search]} {args.lines}"))

    def lines(self) -> list[str]:
        """Return the last translation of the file."""
        return self.out.read_text(encoding="utf-8").split("\n")


def measure(model: Path, precision: str, args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return of each search the ratios of the times, over all starts, and the lines that differ."""
    ratios, differ = {search: list[list[float]]() for search in args.searches}, dict[str, int]()
    for _ in range(args.starts):
        with tempfile.TemporaryDirectory() as folder:
            checkouts = enumerate((ROOT, args.other))
            this, other = sides = [
                Side(checkout, model, precision, Path(folder) / f"{i}.txt", args) for i, checkout in checkouts
            ]
            for search in args.searches:
                ratios[search].append(ratios_of(sides, search, args))
                if search != "alone":
                    texts = zip(this.lines(), other.lines(), strict=True)
                    differ[search] = max(differ.get(search, 0), sum(a != b for a, b in texts))
            for side in sides:
                side.worker.close()
    results = {search: summary(of_starts) for search, of_starts in ratios.items()}
    for search, result in results.items():
        result |= {"lines_that_differ": differ[search]} if search in differ else {}
        print(row(f"{model.name} {precision}, {search}", result), flush=True)
    return results


def ratios_of(sides: Sequence[Side], search: str, args: argparse.Namespace) -> list[float]:
    """Return the time of the first side divided by the second one's, in each round except the first, a warm-up."""
    ratios = []
    for number in range(args.rounds + 1):
        seconds = {side: side.seconds(search, args) for side in in_turn(sides, number)}
        ratios.append(seconds[sides[0]] / seconds[sides[1]])
    return ratios[1:]


def summary(of_starts: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return the median of all rounds, and the least and the most of the medians of a start."""
    medians = [statistics.median(rounds) for rounds in of_starts]
    values = {"median": statistics.median(itertools.chain(*of_starts)), "least": min(medians), "most": max(medians)}
    return {name: round(value, 3) for name, value in values.items()}


def row(name: str, result: dict[str, float]) -> str:
    ratios = " | ".join(f"{result[key]:.2f}" for key in ("median", "least", "most"))
    return f"| {name} | {ratios} | {result.get('lines_that_differ', '')} |"


def commit(checkout: Path) -> str:
    """Return the commit of a checkout, with a mark for changes that are not committed; else the name of the folder."""
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--exclude", "*"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or checkout.name


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, metavar="OTHER", help="the root folder of the other checkout")
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    parser.add_argument("--src", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=300, help="the number of lines from the start of the file")
    parser.add_argument("--alone", type=int, default=30, help="the number of sentences translated one by one")
    parser.add_argument("--starts", type=int, default=5, help="the number of times that both sides are started")
    parser.add_argument("--rounds", type=int, default=4, help="of each start")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precisions", nargs="+", default=["int8", "fp32"])
    parser.add_argument("--searches", nargs="+", choices=SEARCHES, default=[*SEARCHES])
    parser.add_argument("--out", type=Path, default=RESULTS / "versions.json")
    args = parser.parse_args()
    if not (args.other / "src" / "transduce").is_dir():
        parser.error(f"{args.other}: expected a checkout with src/transduce")
    return args


def main() -> None:
    args = arguments()
    this, other = commit(ROOT), commit(args.other)
    print(f"| time of {this} over {other} | median | least | most | lines that differ |\n|---|---|---|---|---|")
    models = {
        model.name: {precision: measure(model, precision, args) for precision in args.precisions}
        for model in args.models
    }
    facts = {"this": this, "other": other, "processor": processor(), "threads": args.threads, "lines": args.lines}
    facts |= {"date": date.today().isoformat(), "command": command_line()}
    write_results(args.out, {**facts, "time_ratios": models})


if __name__ == "__main__":
    main()
