"""Loss and BLEU against the number of attention heads, pruned by importance and at random, as in Michel et al. 2019.

    python benchmarks/pruning.py MODEL --valid VALID.en VALID.de --test TEST.en TEST.de --out out.json

The importance is measured on the validation text, loss and BLEU (greedy search) on the test text.
"""

import argparse
import json
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from transduce import Translator
from transduce.data.text import read_pairs
from transduce.evaluate import validation_scores
from transduce.evaluation.heads import (
    Head,
    HeadReport,
    format_heads,
    heads_of,
    least_important,
    measure_heads,
    prune_heads,
    read_batches,
    transformer_of,
)
from transduce.storage.model_folder import load_model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--valid", type=Path, nargs=2, required=True)
    parser.add_argument("--test", type=Path, nargs=2, required=True)
    parser.add_argument("--pairs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=9, help="numbers of heads between all and none")
    parser.add_argument("--draws", type=int, default=3, help="random prunings of each number")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    loaded = load_model(args.model)
    model = transformer_of(loaded.model)
    start = time.process_time()
    report = measure_heads(model, read_batches(args.valid[0], args.valid[1], loaded.tokenizer, model, args.pairs))
    print(f"{format_heads(report)}\n\nmeasured in {time.process_time() - start:.0f} s of processor time\n", flush=True)
    heads, text = heads_of(model), list(read_pairs(*args.test))
    weights = {name: values.clone() for name, values in model.state_dict().items()}
    rows = []
    print("| heads | pruned | loss | BLEU |\n|---|---|---|---|")
    for name, pruned in prunings(report, heads, args.steps, args.draws):
        prune_heads(model, pruned)
        scores = validation_scores(Translator([loaded]), text)
        model.load_state_dict(weights)
        rows.append({"heads": len(heads) - len(pruned), "by": name, **scores})
        print(f"| {rows[-1]['heads']} | {name} | {scores['loss']:.3f} | {scores['bleu']:.1f} |", flush=True)
        args.out.write_text(json.dumps({"heads": msgspec.to_builtins(report), "prunings": rows}, indent=1) + "\n")


def prunings(
    report: HeadReport, heads: Sequence[Head], n_steps: int, n_draws: int
) -> Iterator[tuple[str, Sequence[Head]]]:
    """Yield the name of each choice of heads, and the heads to prune: none, then ever more."""
    rng = random.Random(1)
    yield "none", []
    for step in range(1, n_steps + 1):
        count = round(step * len(heads) / (n_steps + 1))
        yield "by loss", least_important(report, count, "loss")
        yield "by gradient", least_important(report, count, "gradient")
        for _ in range(n_draws):
            yield "at random", rng.sample(heads, count)


if __name__ == "__main__":
    main()
