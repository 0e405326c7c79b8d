"""`transduce clean` on a corpus in which faults of eight kinds were planted: what it drops, and how many good pairs.

    python benchmarks/clean.py train.en train.de --foreign train.fr [--share 0.3] [--pairs 50000] [--keep FOLDER]

foreign: text in a third language. A corpus without faults (--share 0) shows how many good pairs the rules drop. --keep
leaves the planted text, the fault of each line, and the results in a folder, for trainings on them.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

Pair = tuple[str, str]
BOILERPLATE = (
    "Click here to read more about our products.",
    "Copyright 2019. All rights reserved.",
    "Please enable JavaScript in your browser.",
    "Your shopping cart is empty.",
    "Alle Rechte vorbehalten. Impressum und Datenschutz.",
    "Home | Kontakt | Impressum",
    "Diese Seite verwendet Cookies.",
    "Melden Sie sich an, um einen Kommentar zu schreiben.",
)
FAULTS = {
    "misaligned": "target of another pair",
    "language": "third language on one side",
    "untranslated": "target is the source",
    "cut": "one side cut to 20 to 60 %",
    "repetition": "up to three words, repeated 4 to 10 times",
    "mojibake": "UTF-8 read as Windows-1252",
    "boilerplate": "one or both sides replaced by boilerplate",
    "swapped": "sides swapped",
}


def with_fault(pair: Pair, fault: str, other: Pair, foreign: str, draw: random.Random) -> Pair:
    """Return a pair with a fault. other: another pair. foreign: a line in a third language."""
    src, tgt = pair
    match fault:
        case "misaligned":
            return src, other[1]
        case "language":
            return (src, foreign) if draw.random() < 0.5 else (foreign, tgt)
        case "untranslated":
            return src, src
        case "cut":
            return (src, _beginning(tgt, draw)) if draw.random() < 0.5 else (_beginning(src, draw), tgt)
        case "repetition":
            return src, _repeated(tgt, draw)
        case "mojibake":
            return src, _misread(tgt)
        case "boilerplate":
            line, kind = draw.choice(BOILERPLATE), draw.random()
            return (src, line) if kind < 0.4 else (line, tgt) if kind < 0.6 else (line, draw.choice(BOILERPLATE))
        case _:
            return tgt, src


def _beginning(line: str, draw: random.Random) -> str:
    words = line.split()
    return " ".join(words[: max(1, int(len(words) * draw.uniform(0.2, 0.6)))])


def _repeated(line: str, draw: random.Random) -> str:
    words = line.split()
    start = draw.randrange(max(1, len(words) - 2))
    some = words[start : start + draw.randint(1, 3)]
    return " ".join([*words[:start], *some * draw.randint(4, 10), *words[start + len(some) :]])


def _misread(line: str) -> str:
    misread = line.encode().decode("cp1252", "replace")
    return misread if misread != line else f"{line} {'für schöne Gärten'.encode().decode('cp1252')}"


def planted(pairs: Sequence[Pair], foreign: Sequence[str], share: float) -> tuple[list[Pair], list[str]]:
    """Return the pairs, a share of them with faults of all kinds in turn, and the fault of each; "" for none."""
    draw = random.Random(1)
    result, faults = [*pairs], [""] * len(pairs)
    for number, i in enumerate(draw.sample(range(len(pairs)), int(share * len(pairs)))):
        faults[i] = [*FAULTS][number % len(FAULTS)]
        result[i] = with_fault(pairs[i], faults[i], draw.choice(pairs), draw.choice(foreign), draw)
    return result, faults


def lines(path: Path) -> list[str]:
    return path.read_text("utf-8").split("\n")[:-1]


def clean(pairs: Sequence[Pair], folder: Path) -> tuple[list[dict[str, object]], float, float]:
    """Clean the pairs. Return what was dropped, the seconds, and the seconds of processor time."""
    sides = [folder / name for name in ("planted.src", "planted.tgt")]
    for side, path in enumerate(sides):
        path.write_text("".join(f"{pair[side]}\n" for pair in pairs), "utf-8")
    out = [folder / name for name in ("clean.src", "clean.tgt")]
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "transduce", "clean", *sides, "--out", *out], check=True)
    seconds = time.perf_counter() - began
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    dropped = [json.loads(line) for line in lines(folder / "clean.src.dropped.jsonl")]
    return dropped, seconds, usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("src", type=Path)
    parser.add_argument("tgt", type=Path)
    parser.add_argument("--foreign", type=Path, required=True)
    parser.add_argument("--share", type=float, default=0.3)
    parser.add_argument("--pairs", type=int, default=None)
    parser.add_argument("--keep", type=Path, default=None)
    args = parser.parse_args()
    pairs = [*zip(lines(args.src), lines(args.tgt), strict=True)][: args.pairs]
    pairs, faults = planted(pairs, lines(args.foreign), args.share)
    with tempfile.TemporaryDirectory() as scratch:
        folder = args.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        dropped, seconds, processor_seconds = clean(pairs, folder)
        (folder / "faults").write_text("".join(f"{fault}\n" for fault in faults))
    rules = {int(str(pair["line"])) - 1: str(pair["rule"]) for pair in dropped}
    total, found = Counter(faults), Counter(faults[i] for i in rules)
    for fault, meaning in FAULTS.items():
        if total[fault]:
            print(f"| {meaning} | {found[fault] / total[fault]:.1%} |")
    if n_faulty := len(faults) - total[""]:
        print(f"| all faults | {(len(rules) - found['']) / n_faulty:.1%} |")
    print(f"| good pairs, lost | {found[''] / total['']:.2%} |")
    print(f"good pairs by rule: {dict(Counter(rules[i] for i in rules if not faults[i]).most_common())}")
    print(f"{len(pairs):,} pairs, {seconds:.0f} s, {processor_seconds:.0f} s of processor time")


if __name__ == "__main__":
    main()
