"""Direct preference optimisation and a reward model on made preferences: what is learned, and what it costs.

    python benchmarks/preferences.py --train train.en --valid valid.en --test test_2016_flickr.en --out FOLDER

A small GPT-2 learns the text. It then continues the first three words of other lines of it, twice each, by drawing.
A rule says which of the two is better: of "shorter" the one of fewer words, of "colourful" the one that names a colour.
So nobody has to judge, and the preference is known. The chosen and the rejected lines train both methods. Of
the other prompts, one half chooses the checkpoint of each training, and the other half, unseen, makes the figures.

Printed for each rule and beta: how often continuations of unseen prompts have the preferred form, before and after; the
perplexity of the test text, before and after; the accuracy of the reward model, and of the margins of the tuned model,
on pairs of unseen prompts. What exists is not trained again. With a processor for itself a training of 300 steps takes
1 minute, and all together about 8; a beta of 1 keeps the model near its start, one of 0.1 does not.
"""

import argparse
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from transduce.config.kinds import config_class
from transduce.config.recipes import find_recipe
from transduce.data.text import read_lines, read_pairs
from transduce.decoding.options import Sampling
from transduce.family.inference.language_model import LanguageModel
from transduce.family.tasks.preferences import PairTask, PreferenceTask, RewardTask
from transduce.family.tasks.text_scores import evaluate_text
from transduce.storage.model_folder import load_model
from transduce.storage.run_request import TrainRequest
from transduce.train import train

PROMPT_WORDS = 3
HELD_OUT = 500  # prompts for each of the two parts that are not trained on
COLOURS = set("red blue green yellow orange purple pink brown black white gray grey colorful".split())


@dataclass(frozen=True)
class Rule:
    """A made preference. value: of a continuation, of which the higher is better. has_form: the form to count."""

    value: Callable[[str], float]
    has_form: Callable[[str], bool]
    form: str  # in words


def has_colour(text: str) -> bool:
    return not COLOURS.isdisjoint(text.lower().replace(".", " ").split())


RULES = {
    "shorter": Rule(lambda text: -len(text.split()), lambda text: len(text.split()) <= 5, "at most 5 new words"),
    "colourful": Rule(has_colour, has_colour, "a colour"),
}


def language_model(options: argparse.Namespace) -> Path:
    """Train the language model and return its folder."""
    recipe = find_recipe("gpt2-small")()
    sizes = config_class("gpt2")(d_model=128, n_layers=2, n_heads=4, max_positions=64, dropout=0.1)
    steps = {"max_steps": 1_000, "warmup_steps": 200, "evaluate_every_steps": 500, "checkpoint_every_steps": 500}
    recipe = replace(recipe, model=sizes, train=replace(recipe.train, **steps, precision="fp32", lr_factor=0.7))
    recipe = replace(recipe, data=replace(recipe.data, vocab_size=2_000, batch_tokens=1_500, max_tokens=60))
    text, out = options.train, options.out / "lm"
    return train(TrainRequest(recipe, (text, text), [options.valid], out, resume=True))


def continuations(folder: Path, prompts: Sequence[str], seed: int) -> list[str]:
    """Return a drawn continuation of each prompt."""
    model = LanguageModel.load(folder)
    outputs = model.continue_texts(prompts, sampling=Sampling(), seed=seed, max_tokens=30)
    return [output.text for output in outputs]


def write_pairs(rule: Rule, prompts: Sequence[str], draws: Sequence[Sequence[str]], folder: Path) -> list[list[Path]]:
    """Write the pairs of three parts of the prompts, chosen and rejected, and return their files.

    The parts are to train on, to choose the checkpoint by, and to measure with. Of equal value there are no pairs.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files = list[list[Path]]()
    parts = {"train": slice(2 * HELD_OUT, None), "valid": slice(HELD_OUT, 2 * HELD_OUT), "unseen": slice(HELD_OUT)}
    for name, part in parts.items():
        pairs = [
            (prompt + max(texts, key=rule.value), prompt + min(texts, key=rule.value))
            for prompt, *texts in zip(prompts[part], *(drawn[part] for drawn in draws), strict=True)
            if rule.value(texts[0]) != rule.value(texts[1])
        ]
        print(f"  {name}: {len(pairs):,} pairs")
        of_part = [folder / f"{name}.{side}" for side in ("chosen", "rejected")]
        for path, lines in zip(of_part, list(zip(*pairs, strict=True)) or [(), ()], strict=True):
            path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
        files.append(of_part)
    return files


def learn(recipe: str, start: Path, files: list[list[Path]], out: Path, settings: Sequence[str]) -> Path:
    """Train with a recipe from the model `start`, and return the folder of the best model on the pairs to validate."""
    pairs: Any = tuple(files[0])
    settings = ["data.max_tokens=60", *settings]
    return train(TrainRequest(recipe, pairs, files[1], out, settings, resume=True, start_from=start))


def accuracy(task: PairTask, folder: Path, pairs: Sequence[Path]) -> float:
    """Return the percentage of pairs that a model orders as they were chosen. pairs: chosen and rejected texts."""
    model = load_model(folder)
    return task.evaluate(model.model, model.config, model.tokenizer, [*read_pairs(*pairs)])["accuracy"]


def report(title: str, rule: Rule, model: Path, prompts: Sequence[str], test: Path) -> None:
    """Print how often a model writes the preferred form, its perplexity, and some texts."""
    texts = continuations(model, prompts, seed=3)
    share = 100 * np.mean([rule.has_form(text) for text in texts])
    perplexity = evaluate_text(LanguageModel.load(model), test).word_perplexity
    print(f"  {title}: {share:.1f} % with {rule.form}; perplexity of a word of the test text {perplexity:.1f}")
    for prompt, text in list(zip(prompts, texts, strict=True))[:3]:
        print(f"    {prompt}{text}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("train", "valid", "test", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--prompts", type=int, default=3_000)
    parser.add_argument("--rules", nargs="+", choices=[*RULES], default=[*RULES])
    parser.add_argument("--betas", nargs="+", type=float, default=[0.1, 1.0])
    options = parser.parse_args()
    start = language_model(options)
    lines = itertools.islice(dict.fromkeys(read_lines(options.train)), 0, None, 5)
    words = (line.split()[:PROMPT_WORDS] for line in lines)
    prompts = [" ".join(prompt) for prompt in itertools.islice(words, options.prompts)]
    draws = [continuations(start, prompts, seed) for seed in (1, 2)]
    for name in options.rules:
        rule, folder = RULES[name], options.out / name
        print(f"{name}:")
        files = write_pairs(rule, prompts, draws, folder)
        reward = learn("gpt2-reward", start, files, folder / "reward", [])
        print(f"  right on unseen pairs, by the reward model: {accuracy(RewardTask(), reward, files[2]):.1f} %")
        report("before", rule, start, prompts[:HELD_OUT], options.test)
        task = PreferenceTask()
        task.reference = load_model(start).model
        for beta in options.betas:
            tuned = learn("gpt2-preferences", start, files, folder / f"tuned-{beta}", [f"train.dpo_beta={beta}"])
            report(f"beta {beta}", rule, tuned, prompts[:HELD_OUT], options.test)
            print(f"    right on unseen pairs, by the margins: {accuracy(task, tuned, files[2]):.1f} %")
    print(f"{torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
