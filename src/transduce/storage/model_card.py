"""The model card: README.md of a model folder, which describes the model to a reader."""

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from transduce import __version__
from transduce.config.schema import Config, architecture, kind_in_words
from transduce.console import in_markdown, printable


def model_card(config: Config, origin: str, facts: Mapping[str, str]) -> str:
    """Return the card as Markdown.

    origin: the checkpoints of the weights, in words. facts: more rows of the table by name, such as recipe, text and
    validation scores.
    """
    model = config.model
    sizes = architecture(config)
    if model.kind == "transformer":
        sizes += f", {model.norm}-norm, {model.positions} positions"
    rows = {
        "weights": origin,
        "architecture": f"{kind_in_words(config)}, {sizes}",
        "tokenizer": f"{config.data.tokenizer}, {model.vocab_size:,} pieces{_sharing(config)}",
        **facts,
        "made with": f"transduce {__version__}, torch {torch.__version__}, Python {platform.python_version()}",
    }
    table = "\n".join(f"| {name} | {in_markdown(value)} |" for name, value in rows.items())
    title, use = USES[config.train.task]
    return f"""# {title}

| | |
|---|---|
{table}

All settings are in config.json. To use it: `{use}`
"""


# Of each task: the title of the card, and how to use the model.
USES = {
    "translation": ("A translation model", "transduce translate THIS_FOLDER < in.txt > out.txt"),
    "parsing": ("A parser", "transduce parse THIS_FOLDER < in.txt > out.txt"),
    "classes": ("A classifier", "transduce classify THIS_FOLDER < in.txt > out.txt"),
    "masked_words": ("An encoder", "transduce fill THIS_FOLDER < in.txt > out.txt"),
    "diffusion": ("A diffusion model of text", "transduce fill THIS_FOLDER < in.txt > out.txt"),
    "spans": ("A text-to-text model", 'transduce.family.load("THIS_FOLDER").generate("A man <extra_id_0> a guitar.")'),
    "speech": ("A model of speech", "transduce transcribe THIS_FOLDER a.wav"),
    "ctc": ("A model of speech", "transduce transcribe THIS_FOLDER a.wav"),
    "language_model": ("A language model", "transduce continue THIS_FOLDER < in.txt > out.txt"),
    "preferences": ("A language model", "transduce continue THIS_FOLDER < in.txt > out.txt"),
    "rewards": ("A reward model", 'transduce.family.tasks.preferences.rewards("THIS_FOLDER", ["a text", "another"])'),
}


def _sharing(config: Config) -> str:
    """Return in words how source and target divide the vocabulary; an empty text if there are none."""
    if config.data.target_tokens == "symbols":
        return f", of which {config.model.tgt_vocab_size:,} are symbols of the target"
    if config.data.target_tokens == "labels":
        return f"; {config.model.tgt_vocab_size:,} labels"
    return ", shared by both languages" if config.train.task == "translation" else ""


def recipe_in_words(recipe: str | Config, settings: Sequence[str], start_from: Path | None) -> str:
    """Return recipe, settings and parent model of a run as on the command line."""
    name = recipe if isinstance(recipe, str) else "a Config made in Python"
    parent = [f"--from {start_from}"] if start_from is not None else []
    return printable(" ".join([name, *(f"--set {setting}" for setting in settings), *parent]))
