"""The effect of the batch on a translation: lines together, one by one and shuffled, with a count of the differences.

    python benchmarks/invariance.py MODEL FILE [--lines 1000] [--precision fp32|bf16]

A line whose tokens differ is a tie if the scores of its two best outputs are within 1e-5 of each other.
"""

import argparse
import random

from transduce import Translation, load
from transduce.data.text import read_lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("file")
    parser.add_argument("--lines", type=int, default=1_000)
    parser.add_argument("--precision", default="fp32")
    args = parser.parse_args()
    model = load(args.model, precision=args.precision)
    lines = list(read_lines(args.file))[: args.lines]
    together = model.translate(lines)
    order = random.Random(1).sample(range(len(lines)), len(lines))
    by_index = dict(zip(order, model.translate([lines[i] for i in order]), strict=True))
    settings: dict[str, list[Translation]] = {
        "alone": [model.translate([line])[0] for line in lines],
        "in sevens": [t for i in range(0, len(lines), 7) for t in model.translate(lines[i : i + 7])],
        "shuffled": [by_index[i] for i in range(len(lines))],
    }
    print("| against all together | lines | other tokens | largest difference in score |\n|---|---|---|---|")
    for name, translations in settings.items():
        pairs = list(zip(together, translations, strict=True))
        different = [i for i, (a, b) in enumerate(pairs) if a.pieces != b.pieces]
        largest = max(abs(a.score - b.score) for a, b in pairs)
        print(f"| {name} | {len(lines)} | {len(different)} {different[:5] or ''} | {largest:.1e} |")


if __name__ == "__main__":
    main()
