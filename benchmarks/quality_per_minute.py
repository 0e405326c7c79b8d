"""BLEU of the test text against minutes of training, for whole programs with the same text and the same cores.

    python benchmarks/quality_per_minute.py --train train.en train.de --valid valid.en valid.de \\
        --test test.en test.de --minutes 5 10 20 --sides transduce joeynmt transformers fairseq --out FOLDER

`transduce train --minutes M` is one training for each of the minutes, with everything that it chooses itself. Its time
is that of the whole command. The peers train with settings of their own documentation, which quality_sides.py names;
their clock starts with the first step. Each side learns its own subwords of the same raw text, and translates with its
own search. sacreBLEU (13a) scores all translations. Nothing is chosen by the test text.

FOLDER keeps what each side has made, and another call makes only what is missing: other minutes, sides or seeds. Delete
FOLDER/SIDE to repeat a side. The script writes a table of all that is in FOLDER, the same as JSON, and a figure.
"""

import argparse
import json
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from hashlib import sha256
from html import escape
from pathlib import Path

from peers import RESULTS, ROOT, command_line, install, processor, run, write_results
from trainers import install_trainers

from transduce.data.text import read_lines
from transduce.evaluation.metrics import corpus_scores
from transduce.evaluation.study_charts import COLOURS, progress_svg

OURS = "transduce"
PEERS = ("joeynmt", "transformers", "fairseq")
FAIRSEQ = (
    "torch", "numpy", "cython", "cffi", "regex", "bitarray", "scikit-learn", "sacrebleu", "tqdm", "pyyaml",
    "antlr4-python3-runtime==4.8", "subword-nmt", "sacremoses",
)  # fmt: skip
FAIRSEQ_WITHOUT_DEPENDENCIES = ("fairseq==0.12.2", "hydra-core==1.0.7", "omegaconf==2.0.6")
Curve = list[tuple[float, float]]  # minutes and BLEU, in ascending order of minutes


@dataclass(frozen=True)
class Point:
    """A training and its score. mark: the minutes that were asked for. minutes: those that it took."""

    side: str
    seed: int
    mark: float
    minutes: float
    steps: int
    bleu: float
    chrf: float


# ---- the sides: what is in FOLDER/SIDE/SEED -----------------------------------------------------------------------


def train(side: str, text: Path, folder: Path, seed: int, threads: int, minutes: Sequence[float]) -> None:
    """Write MINUTES.json after a training and MINUTES.txt after the translation, where they are missing."""
    if side == OURS:
        train_transduce(text, folder, seed, threads, minutes)
    else:
        script = str(Path(__file__).with_name("quality_sides.py"))
        words = [side, str(text), str(folder), str(seed), str(threads), *(f"{mark:g}" for mark in minutes)]
        if side == "fairseq":
            python = install(side, FAIRSEQ, without_dependencies=FAIRSEQ_WITHOUT_DEPENDENCIES)
        else:
            python = install_trainers()
        run([python, script, *words], threads)


def train_transduce(text: Path, folder: Path, seed: int, threads: int, minutes: Sequence[float]) -> None:
    program = [sys.executable, "-m", "transduce"]
    for mark in minutes:
        out, facts, translations = (folder / f"{mark:g}{ending}" for ending in ("", ".json", ".txt"))
        if not facts.exists():
            shutil.rmtree(out, ignore_errors=True)
            texts = [word for name in ("train", "valid") for word in (f"--{name}", *map(str, sides(text, name)))]
            options = ["--out", str(out), "--minutes", f"{mark:g}", "--set", f"train.seed={seed}"]
            began = time.perf_counter()
            run([*program, "train", *texts, *options], threads)
            lines = (out / "log.jsonl").read_text(encoding="utf-8").splitlines()
            steps = max(json.loads(line).get("step", 0) for line in lines)
            write_results(facts, {"minutes": round((time.perf_counter() - began) / 60, 3), "steps": steps})
        if not translations.exists():
            files = ["--input", str(sides(text, "test")[0]), "--output", str(translations)]
            run([*program, "translate", str(out / "model"), *files], threads)


def sides(text: Path, name: str) -> tuple[Path, Path]:
    return text / f"{name}.src", text / f"{name}.tgt"


def write_text(args: argparse.Namespace) -> Path:
    """Write the text that all sides get, without pairs with a blank side. Return its folder.

    Exits if FOLDER belongs to another text, or a line of the test text is blank.
    """
    folder = args.out / "text"
    files = {}
    for name, paths in (("train", args.train), ("valid", args.valid), ("test", args.test)):
        lines = [list(read_lines(path)) for path in paths]
        pairs = [(src, tgt) for src, tgt in zip(*lines, strict=True) if src.strip() and tgt.strip()]
        if name == "test" and len(pairs) < len(lines[0]):
            sys.exit(f"--test={args.test[0]}: expected no blank lines; remove them from both files")
        for path, side in zip(sides(folder, name), zip(*pairs, strict=True), strict=True):
            files[path] = "".join(f"{line}\n" for line in side).encode()
    stamp = sha256(b"\0".join(files.values())).hexdigest()
    known = folder / "sha256"
    if known.exists() and known.read_text() != stamp:
        sys.exit(f"--out={args.out}: expected a folder of this text; give another one")
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in files.items():
        path.write_bytes(content)
    known.write_text(stamp)
    return folder


# ---- the results -------------------------------------------------------------------------------------------------


def points_in(folder: Path) -> list[Point]:
    """Return all that is in a folder, by side, seed and minutes."""
    refs = list(read_lines(sides(folder / "text", "test")[1]))
    points = []
    for path in folder.glob("*/*/*.txt"):
        side, seed, _ = path.relative_to(folder).parts
        facts = path.with_suffix(".json")
        if side in (OURS, *PEERS) and facts.exists():
            scores = {score.name: round(score.value, 2) for score in corpus_scores(list(read_lines(path)), refs)}
            known = json.loads(facts.read_text(encoding="utf-8"))
            points.append(Point(side, int(seed), float(path.stem), **known, bleu=scores["bleu"], chrf=scores["chrf"]))
    order = [OURS, *PEERS]
    return sorted(points, key=lambda point: (order.index(point.side), point.seed, point.mark))


def curves_of(points: Sequence[Point]) -> dict[str, Curve]:
    """Return the curve of each side, means over the seeds."""
    curves: dict[str, Curve] = {}
    for side in dict.fromkeys(point.side for point in points):
        known = [point for point in points if point.side == side]
        for mark in sorted({point.mark for point in known}):
            seeds = [point for point in known if point.mark == mark]
            mean = statistics.mean(point.minutes for point in seeds), statistics.mean(point.bleu for point in seeds)
            curves.setdefault(side, []).append(mean)
    return curves


def minutes_to(bleu: float, curve: Curve) -> float | None:
    """Return the minutes after which a curve first reaches a score. None: it does not.

    Between two points, and between the start and the first of them, it is a straight line.
    """
    begin, low = 0.0, 0.0
    for minutes, score in curve:
        if score >= bleu:
            share = (bleu - low) / (score - low) if score > low else 1.0
            return begin + share * (minutes - begin)
        begin, low = minutes, score
    return None


def ratio_in_words(bleu: float, minutes: float, curve: Curve) -> str:
    """Return how many times as long as `minutes` a peer needs for a score."""
    needed = minutes_to(bleu, curve)
    return f"> {curve[-1][0] / minutes:.1f}, not reached" if needed is None else f"{needed / minutes:.1f}"


def tables(points: Sequence[Point]) -> str:
    """Return the scores of all sides, and the time that each peer needs for ours, as Markdown."""
    marks = sorted({point.mark for point in points})
    curves = curves_of(points)
    lines = [f"| BLEU after | {' | '.join(f'{mark:g} min' for mark in marks)} |", "|---" * (len(marks) + 1) + "|"]
    for side in curves:
        cells = [[point.bleu for point in points if (point.side, point.mark) == (side, mark)] for mark in marks]
        lines.append(f"| {side} | {' | '.join(map(in_words, cells))} |")
    ours = curves.get(OURS, [])
    if ours and len(curves) > 1:
        heads = " | ".join(f"{bleu:.1f}, ours after {minutes:.1f} min" for minutes, bleu in ours)
        lines += ["", f"| time to our BLEU, divided by ours | {heads} |", "|---" * (len(ours) + 1) + "|"]
    for side in [side for side in curves if ours and side != OURS]:
        cells = [ratio_in_words(bleu, minutes, curves[side]) for minutes, bleu in ours]
        lines.append(f"| {side} | {' | '.join(cells)} |")
    return "\n".join(lines)


def in_words(scores: Sequence[float]) -> str:
    """Return the mean of the seeds, with the lowest and the highest."""
    if len(scores) < 2:
        return "".join(f"{score:.1f}" for score in scores)
    return f"{statistics.mean(scores):.1f} ({min(scores):.1f} to {max(scores):.1f})"


WIDTH, HEIGHT, LEFT, TOP = 640, 360, 56, 48  # pixels of the figure, and where its chart begins
STYLE = (
    "text { font: 13px system-ui, sans-serif; fill: #5a6572 } line { stroke: #e1e5e9 } line.base { stroke: #b9c1c9 } "
    "path { fill: none; stroke: var(--c); stroke-width: 1.75; vector-effect: non-scaling-stroke } "
    "circle { fill: var(--c) } .first { --c: #1f6a9c } .second { --c: #bd4b08 } .third { --c: #2d7d46 } "
    ".fourth { --c: #8a3f9e }"
)


def figure(curves: dict[str, Curve]) -> str:
    """Return the picture of the curves, as the text of an SVG file."""
    names = [
        f'<circle class="{colour}" cx="{LEFT + 6 + 130 * i}" cy="16" r="5"/>'
        f'<text x="{LEFT + 16 + 130 * i}" y="20">{escape(side)}</text>'
        for i, (side, colour) in enumerate(zip(curves, COLOURS, strict=False))
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img">\n<title>BLEU of {escape(", ".join(curves))} against minutes of training</title>\n'
        f'<style>{STYLE}</style>\n<rect width="100%" height="100%" fill="#ffffff"/>\n' + "\n".join(names) + "\n"
        f'<text x="8" y="{TOP - 12}">BLEU</text>\n'
        f'<text x="{WIDTH - 16}" y="{HEIGHT - 8}" text-anchor="end">minutes of training</text>\n'
        f'<svg x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - 24}" height="{HEIGHT - TOP - 56}" overflow="visible">\n'
        f"{progress_svg(curves, is_logarithmic=False)}\n</svg>\n</svg>\n"
    )


# ---- the run -----------------------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("train", "valid", "test"):
        parser.add_argument(f"--{name}", type=Path, nargs=2, required=True, metavar=("SRC", "TGT"))
    parser.add_argument("--minutes", type=float, nargs="+", default=[5, 10, 20])
    parser.add_argument("--sides", nargs="+", choices=[OURS, *PEERS], default=[OURS, *PEERS])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, required=True, help="folder of the trainings")
    parser.add_argument("--results", type=Path, default=RESULTS / "quality_per_minute.json")
    parser.add_argument("--figure", type=Path, default=ROOT / "docs" / "results" / "quality-per-minute.svg")
    args = parser.parse_args()
    args.out = args.out.absolute()
    args.minutes.sort()
    return args


def main() -> None:
    args = arguments()
    text = write_text(args)
    for seed in args.seeds:
        for side in args.sides:
            folder = args.out / side / str(seed)
            folder.mkdir(parents=True, exist_ok=True)
            missing = [mark for mark in args.minutes if not (folder / f"{mark:g}.txt").exists()]
            if missing:
                print(f"{side}, seed {seed}: {' '.join(f'{mark:g}' for mark in missing)} minutes", file=sys.stderr)
                train(side, text, folder, seed, args.threads, missing)
    points = points_in(args.out)
    print(tables(points))
    args.figure.parent.mkdir(parents=True, exist_ok=True)
    args.figure.write_text(figure(curves_of(points)), encoding="utf-8")
    write_results(
        args.results,
        {
            "points": [vars(point) for point in points], "threads": args.threads, "processor": processor(),
            "date": date.today().isoformat(), "command": command_line(),
        },
    )  # fmt: skip


if __name__ == "__main__":
    main()
