"""Whole models with random weights and a tokenizer, for tests that convert or store a model."""

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


def random_model(model: ModelConfig, kind: Any = "bpe", tags: tuple[str, ...] = ()) -> LoadedModel:
    """Return a model with random weights for greedy search. In a beam, permutations of tokens would score the same."""
    tokenizer = Tokenizer.learn(TEXT, kind=kind, vocab_size=600, tags=tags)
    model = replace(model, vocab_size=tokenizer.vocab_size)
    data = DataConfig(tokenizer=kind, vocab_size=600, max_tokens=40, tags=tags)
    config = Config(model=model, data=data, search=SearchConfig(max_extra_tokens=8, beam_size=1))
    torch.manual_seed(1)
    network = build(model).eval()
    disturb(network)
    return LoadedModel(network, config, tokenizer)


def save_to(loaded: LoadedModel, folder: Path) -> Path:
    save_model(folder, weights(loaded.model), loaded.config, loaded.tokenizer, "")
    return folder
