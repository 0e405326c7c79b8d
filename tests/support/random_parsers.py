"""Parsers with random weights: only the constraint of the search makes trees of what they write."""

from dataclasses import replace
from functools import partial

import torch

from support.small_models import disturb
from transduce.config.schema import Config, DataConfig, ModelConfig, SearchConfig
from transduce.data.symbols import SubwordsAndSymbols
from transduce.data.tokenizer import Tokenizer
from transduce.data.words import Words
from transduce.model.build import build
from transduce.parsing.linearize import TreeForm
from transduce.storage.model_folder import LoadedModel

TOP_DOWN = "(S (NP DT NN -LRB- )NP (VP VBZ )VP . )S"
BY_WORD = "(S(NP DT - NN - -LRB-)S (VP VBZ)S (S(S(X .)S)2 - ."
MODEL = ModelConfig(d_model=32, n_layers=2, n_heads=4, d_ff=48, dropout=0.0, norm="pre", tie_src_tgt=False)


def random_parser(form: TreeForm, seed: int = 1, *, has_words: bool = False, **search: int) -> LoadedModel:
    """Return a model of all symbols of a form. search: settings, by default a beam of 4 and 20 tokens more.

    has_words: each word is one token of the source.
    """
    symbols = TOP_DOWN if form == "top-down" else BY_WORD
    learn = partial(Words.learn if has_words else Tokenizer.learn, vocab_size=300)
    tokenizer = SubwordsAndSymbols.learn([("the cat ( sleeps .", symbols)], learn)
    model = replace(MODEL, vocab_size=tokenizer.vocab_size, tgt_vocab_size=tokenizer.target.vocab_size)
    data = DataConfig(vocab_size=300, max_tokens=40, target_tokens="symbols")
    config = Config(model, data, search=SearchConfig(**{"alpha": 0.3, "max_extra_tokens": 20, **search}))
    torch.manual_seed(seed)
    network = build(model).eval()
    disturb(network)
    return LoadedModel(network, config, tokenizer)
