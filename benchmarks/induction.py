"""Induction heads (Olsson et al. 2022) in a Llama of two layers: where they are, and what is lost without them.

    python benchmarks/induction.py --out FOLDER

The model learns lines of made text by the loop of transduce: 5 to 18 random letters, again and again up to 45 letters.
A letter that came before can be known: it is the one that came after the same letter. A head that attends to the letter
after the first copy of the current one is called an induction head. The feed-forward network has a width of 1, because
with 128 the models of the same size found other ways.

The test text is 200 lines of 12 random letters, twice. Printed for each head:

    previous      share of its attention on the token before, in the second half
    induction     share of its attention on the token after the first copy of the current one
    zero          increase of the loss of a letter of the second half, in nats, if its output is zero
    other         the same if its output is the one on another line of the test text

The patching is that of `transduce attend --lens`. The training takes 40 seconds of one core.
"""

import argparse
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from transduce.config.kinds import config_class
from transduce.config.recipes import find_recipe
from transduce.data.vocabulary import BOS, TokenizerLike
from transduce.evaluation.lens import Patch
from transduce.model.attention import Mask, attention_weights
from transduce.storage.model_folder import load_model
from transduce.storage.run_request import TrainRequest
from transduce.train import train

LETTERS = "abcdefghijklmnopqrstuvwxyz"
LENGTH = 12  # of the first half of a test line


def lines(count: int, seed: int, lengths: tuple[int, int], total: int) -> list[str]:
    """Return lines of different random letters, repeated up to `total` letters."""
    generator = random.Random(seed)
    cycles = (generator.sample(LETTERS, generator.randint(*lengths)) for _ in range(count))
    return [" ".join((cycle * total)[:total]) for cycle in cycles]


def model_folder(out: Path, settings: list[str]) -> Path:
    """Train the model, and return its folder."""
    out.mkdir(parents=True, exist_ok=True)
    for name, count, seed in (("train", 20_000, 1), ("valid", 200, 2)):
        (out / name).write_text("\n".join(lines(count, seed, (5, 18), total=45)) + "\n")
    recipe = find_recipe("llama-small")()
    steps = {"max_steps": 1_800, "warmup_steps": 200, "evaluate_every_steps": 250, "checkpoint_every_steps": 500}
    sizes = config_class("llama")(d_model=64, n_layers=2, n_heads=4, d_ff=1, max_positions=64, tied=False)
    recipe = replace(recipe, model=sizes, train=replace(recipe.train, **steps, precision="fp32", lr_factor=0.5))
    recipe = replace(recipe, data=replace(recipe.data, vocab_size=330, batch_tokens=1_000, max_tokens=60))
    text = out / "train"
    return train(TrainRequest(recipe, (text, text), [out / "valid"], out / "run", settings, resume=True))


def test_ids(tokenizer: TokenizerLike, seed: int) -> Tensor:
    """Return the ids of the test lines with BOS before them, (N,1+2n)."""
    rows = [[BOS, *ids] for ids in tokenizer.encode_batch(lines(200, seed, (LENGTH, LENGTH), total=2 * LENGTH))]
    assert {len(row) for row in rows} == {1 + 2 * LENGTH}, "a letter is not one token"
    return torch.tensor(rows)


class Recorder:
    """An attention function that records the weights of all calls."""

    def __init__(self) -> None:
        self.weights: list[Tensor] = []

    def __call__(self, queries: Tensor, keys: Tensor, values: Tensor, mask: Mask, dropout: float) -> Tensor:
        self.weights.append(attention_weights(queries, keys, mask))
        return self.weights[-1] @ values


def loss_of_second_half(model: Any, ids: Tensor, attention: Any) -> float:
    """Return the loss of a letter of the second half, without its first one, which nobody can know."""
    states = model.states(ids[:, :-1], attention=attention)[0][:, LENGTH + 1 :]
    return torch.nn.functional.cross_entropy(model.output(states).flatten(0, 1), ids[:, LENGTH + 2 :].flatten()).item()


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", dest="settings", action="append", default=[])
    options = parser.parse_args()
    with torch.inference_mode(mode=False):
        loaded = load_model(model_folder(options.out, options.settings))
    model: Any = loaded.model
    ids, others = (test_ids(loaded.tokenizer, seed) for seed in (3, 4))
    recorder, record = Recorder(), Patch()
    before = loss_of_second_half(model, ids, recorder)
    loss_of_second_half(model, others, record)
    print(f"loss of a letter of the second half {before:.3f}; of a guess {torch.tensor(len(LETTERS)).log():.3f}\n")
    print(f"{'head':8} {'previous':>9} {'induction':>10} {'zero':>7} {'other':>7}")
    for layer, number in [(layer, number) for layer in range(2) for number in range(4)]:
        weights = recorder.weights[layer][:, number, LENGTH + 1 :]  # queries at the second half but the last letter
        rows = torch.arange(weights.size(1))
        previous = weights[:, rows, LENGTH + rows].mean()
        induction = weights[:, rows, rows + 2].mean()
        heads = torch.zeros(1, 4, dtype=torch.bool)
        heads[0, number] = True
        patches = [Patch(layer, heads, outputs) for outputs in (None, record.recorded)]
        zero, other = (loss_of_second_half(model, ids, patch) - before for patch in patches)
        print(f"{layer + 1}.{number + 1:<6} {previous:9.0%} {induction:10.0%} {zero:+7.3f} {other:+7.3f}")


if __name__ == "__main__":
    main()
