"""How many pairs of a corpus have a target so short that, as an output, it would be named as doubtful.

    python benchmarks/short_pairs.py train.en train.de [--pieces 8000]

The references of a good corpus are right, so their share is the share of false alarms of `is_short`
(`decoding/translations.py`). It prints both directions, and the first such pairs.
"""

import argparse
from pathlib import Path

from transduce.data.text import read_lines
from transduce.data.tokenizer import Tokenizer
from transduce.decoding.translations import is_short

EXAMPLES = 5
LINES = 40_000  # of each side, from which the pieces are learned


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path, nargs=2)
    parser.add_argument("--pieces", type=int, default=8_000)
    args = parser.parse_args()
    texts = [[*read_lines(path)] for path in args.texts]
    tokenizer = Tokenizer.learn((line for text in texts for line in text[:LINES]), vocab_size=args.pieces)
    ids = [tokenizer.encode_batch(text) for text in texts]
    for source in (0, 1):
        pairs = zip(ids[source], ids[1 - source], strict=True)
        numbers = [i for i, (src, tgt) in enumerate(pairs) if is_short(src, tgt)]
        names = f"{args.texts[source].name} -> {args.texts[1 - source].name}"
        share = 10_000 * len(numbers) / len(texts[0])
        print(f"{names}: {len(numbers):,} of {len(texts[0]):,} pairs are short, {share:.2f} of 10,000")
        for i in numbers[:EXAMPLES]:
            print(f"  {texts[source][i]} => {texts[1 - source][i]}")


if __name__ == "__main__":
    main()
