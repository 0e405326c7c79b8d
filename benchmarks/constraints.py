"""Phrases in translations: are they in the text, does the batch change anything, and what does a search with them cost?

    python benchmarks/constraints.py MODEL SRC REF [--lines 1000] [--beam-size 4] [--precision fp32|int8]

Each line requires one to four phrases of one to three words: three of four are taken from its reference, the others are
words of other references. The texts are searched for the phrases by a regular expression, not by the program's own
check. Times are processor time; the two searches take turns. Then one word of each free output is forbidden.
"""

import argparse
import random
import re
import time
from collections.abc import Sequence
from typing import Any

import sacrebleu

from transduce import Translation, Translator, load
from transduce.data.text import read_lines

ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("src")
    parser.add_argument("ref")
    parser.add_argument("--lines", type=int, default=1_000)
    parser.add_argument("--beam-size", type=int, default=4)
    parser.add_argument("--precision", default="fp32")
    args = parser.parse_args()
    model = load(args.model, precision=args.precision)
    src, ref = (list(read_lines(path))[: args.lines] for path in (args.src, args.ref))
    constraints = [{"must": phrases_of(i, ref)} for i in range(len(src))]
    options: dict[str, Any] = {"beam_size": args.beam_size}
    model.translate(src[:50], constraints=constraints[:50], **options)
    seconds, results = dict[str, list[float]](), dict[str, list[Translation]]()
    searches: dict[str, dict[str, Any]] = {"free": {}, "phrases": {"constraints": constraints}}
    for _ in range(ROUNDS):
        for name, more in searches.items():
            begin = time.process_time()
            results[name] = model.translate(src, **options, **more)
            seconds.setdefault(name, []).append(time.process_time() - begin)
    report(constraints, results, ref, {name: min(values) for name, values in seconds.items()})
    report_forbidden(model, src, [translation.text for translation in results["free"]], options)
    order = random.Random(1).sample(range(len(src)), len(src))
    in_sevens = dict[int, Translation]()
    for k in range(0, len(order), 7):
        few = order[k : k + 7]
        some = [constraints[i] if i % 3 else None for i in few]
        in_sevens |= zip(few, model.translate([src[i] for i in few], constraints=some, **options), strict=True)
    expected = {i: results["phrases" if i % 3 else "free"][i] for i in range(len(src))}
    different = sum(in_sevens[i] != expected[i] for i in expected)
    print(f"| shuffled, in sevens, every third line free: lines that differ in anything | {different} |")


def report_forbidden(model: Translator, src: Sequence[str], free: Sequence[str], options: dict[str, Any]) -> None:
    """Forbid one word of each free output, and print how many outputs have it or are short."""
    chance, words = random.Random(1), list[str]()
    for text in free:
        names = re.findall(r"\w{3,}", text) or ["x"]
        words.append(chance.choice([name for name in names if name[0].isupper()] or names))
    translations = model.translate(src, constraints=[{"must_not": [word]} for word in words], **options)
    texts = [translation.text for translation in translations]
    n_broken = sum(bool(re.search(rf"(?<!\w){word}(?!\w)", text)) for word, text in zip(words, texts, strict=True))
    shares = [len(text.split()) / max(1, len(other.split())) for text, other in zip(texts, free, strict=True)]
    print(f"| a word of each free output forbidden: outputs with it | {n_broken} |")
    short = [sum(share < least for share in shares) for least in (0.7, 0.5)]
    print(f"| of fewer than 70 %, 50 % of the words of the free output | {short[0]}, {short[1]} |")


def phrases_of(i: int, references: Sequence[str]) -> list[str]:
    """Return the phrases that line `i` requires."""
    chance, phrases = random.Random(i), list[str]()
    for _ in range(chance.randint(1, 4)):
        line = references[i] if chance.random() < 0.75 else chance.choice(references)
        words = re.findall(r"\w+(?: \w+)*", line)
        words = chance.choice(words).split(" ") if words else ["x"]
        length = min(chance.choice([1, 1, 2, 3]), len(words)) if line == references[i] else 1
        begin = chance.randrange(len(words) - length + 1)
        phrases.append(" ".join(words[begin : begin + length]))
    return phrases


def report(
    constraints: Sequence[dict[str, list[str]]],
    results: dict[str, list[Translation]],
    references: Sequence[str],
    seconds: dict[str, float],
) -> None:
    """Print the counts of phrases, the quality and the times."""
    n_phrases = n_met = n_silent = 0
    for constraint, translation in zip(constraints, results["phrases"], strict=True):
        for phrase in {*constraint["must"]}:
            n_required = constraint["must"].count(phrase)
            count = len(re.findall(rf"(?<!\w){re.escape(phrase)}(?!\w)", translation.text))
            n_phrases += n_required
            n_met += min(n_required, count)
            n_silent += max(0, n_required - count - translation.unmet.count(phrase))
    print("| phrases | |\n|---|---|")
    print(f"| required | {n_phrases:,} |\n| in the text as whole words | {n_met:,}, {n_met / n_phrases:.2%} |")
    print(f"| neither in the text nor named | {n_silent} |")
    for name, translations in results.items():
        texts = [translation.text for translation in translations]
        bleu, chrf = sacrebleu.corpus_bleu(texts, [references]).score, sacrebleu.corpus_chrf(texts, [references]).score
        length = sum(len(translation.pieces) for translation in translations) / len(texts)
        print(f"| {name}: BLEU, chrF, tokens a line | {bleu:.1f}, {chrf:.1f}, {length:.1f} |")
    free, phrases = seconds["free"], seconds["phrases"]
    print(f"| processor seconds: free, with phrases | {free:.2f}, {phrases:.2f}: {phrases / free:.2f} times |")


if __name__ == "__main__":
    main()
