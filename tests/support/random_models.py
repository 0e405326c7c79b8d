"""Whole models of random weights, with a tokenizer, for tests of what is made of a model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from support.small_models import disturb
from transduce.config.schema import Config, DataConfig, ModelConfig, SearchConfig
from transduce.data.tokenizer import Tokenizer
from transduce.model.build import build
from transduce.storage.model_folder import LoadedModel, save_model
from transduce.training.weights import weights

CONFIG = ModelConfig(vocab_size=None, d_model=32, n_layers=2, n_heads=4, d_ff=48, dropout=0.0)
TEXT = ["a b c d e f g h i j", "the cat sat on the mat", "Zürich ist schön"]


def random_model(model: ModelConfig, kind: Any = "bpe") -> LoadedModel:
    """A greedy model of random weights. (In its beams permutations of the same tokens would be as good as equal.)"""
    tokenizer = Tokenizer.learn(TEXT, kind=kind, vocab_size=600)
    model = replace(model, vocab_size=tokenizer.vocab_size)
    data = DataConfig(tokenizer=kind, vocab_size=600, max_tokens=40)
    config = Config(model=model, data=data, search=SearchConfig(max_extra_tokens=8, beam_size=1))
    torch.manual_seed(1)
    made = build(model).eval()
    disturb(made)
    return LoadedModel(made, config, tokenizer)


def saved(loaded: LoadedModel, folder: Path) -> Path:
    save_model(folder, weights(loaded.model), loaded.config, loaded.tokenizer, "")
    return folder
