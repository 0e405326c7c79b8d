"""Compare an exported model with the original: both programs score the same random sentences.

random_pairs -> log-probability of every target token, by both programs -> compare

`search_differences` names the settings of the search with which the programs differ in spite of equal scores.
"""

import importlib
from collections.abc import Callable, Mapping

import numpy as np
import torch

from transduce.config.schema import SearchConfig
from transduce.data.batches import collate
from transduce.data.vocabulary import CONTROLS
from transduce.errors import UserError
from transduce.model.transformer import Transformer
from transduce.storage.model_folder import LoadedModel
from transduce.training.loss import token_log_probs

SentenceIds = list[np.ndarray]  # the token ids of each sentence
LogProbs = Callable[[SentenceIds, SentenceIds], np.ndarray]

PAIRS = 32
LONGEST = 64  # tokens of a side
TOLERANCE = 1e-3  # between log-probabilities of tokens; rounding causes about 1e-5
INT8_TOLERANCE = 2.0  # random tokens have log-probabilities of -10 to -30, where rounding to 8 bits shows most


def require_transformer(loaded: LoadedModel) -> Transformer:
    """Return the Transformer of `loaded`. Raises UserError for the other kinds, which other programs do not have."""
    if not isinstance(loaded.model, Transformer):
        raise UserError(
            f"model.kind={loaded.config.model.kind!r}: expected 'transformer' for an export; translate with transduce"
        )
    if loaded.config.data.target_tokens == "symbols":
        raise UserError("data.target_tokens='symbols': expected 'subwords' for an export; use the model with transduce")
    return loaded.model


def random_pairs(loaded: LoadedModel) -> tuple[SentenceIds, SentenceIds]:
    """Return the token ids of `PAIRS` random sources and targets, without control tokens."""
    longest = min(LONGEST, loaded.config.data.max_tokens - 1)
    random = np.random.default_rng(1)
    lengths = random.integers(1, longest + 1, (2, PAIRS))
    src, tgt = ([random.integers(len(CONTROLS), len(loaded.tokenizer.vocabulary), n) for n in side] for side in lengths)
    return src, tgt


@torch.inference_mode()
def own_log_probs(loaded: LoadedModel, src: SentenceIds, tgt: SentenceIds) -> np.ndarray:
    """Return our model's log-probability of every target token, EOS included: (tokens of all targets,), on the CPU.

    Raises UserError if one is not finite, because weights are too large: no other program could compute the same.
    """
    model = require_transformer(loaded)
    batch = collate(src, tgt)
    decoded = model.decode(batch.tgt_in, model.encode(batch.src, batch.src_mask), batch.src_mask)
    hidden, targets = batch.real(decoded)
    log_probs = token_log_probs(hidden, model.output.weight, targets, model.output.bias).numpy()
    if not np.isfinite(log_probs).all():
        raise UserError(f"{loaded.name}: expected outputs that are finite numbers; export an earlier checkpoint")
    return log_probs


def check_package(name: str, extra: str) -> None:
    """Raise UserError unless the package with which an export is compared is installed. extra: that installs it."""
    try:
        importlib.import_module(name)
    except ImportError as problem:
        raise UserError(
            f"the check of the export: expected the package {name} ({problem}); pip install 'transduce[{extra}]'"
        ) from None


def compare(program: str, loaded: LoadedModel, log_probs: LogProbs, tolerance: float = TOLERANCE) -> str:
    """Return a sentence on the difference between the log-probabilities of another program and ours, token by token.

    program: name of the other program. log_probs: its function of token ids of sources and targets, with the result of
    `own_log_probs`. Raises ArithmeticError if a value differs by more than `tolerance`, or is NaN.
    """
    src, tgt = random_pairs(loaded)
    differences = np.abs(log_probs(src, tgt) - own_log_probs(loaded, src, tgt))
    largest = differences.max()
    mean = differences.mean()
    words = (
        f"{len(differences):,} log-probabilities of tokens: they differ by {largest:.1e} at most, {mean:.1e} on average"
    )
    if not largest <= tolerance:
        raise ArithmeticError(f"{program} computes a different model. {words}, expected at most {tolerance}")
    return f"{program}, {words}"


def search_differences(search: SearchConfig, differences: Mapping[str, str]) -> list[str]:
    """Return a line for each setting of `differences` that is not the default.

    differences: what the other program does instead, by the name of the setting.
    """
    values = {name: getattr(search, name) for name in differences}
    changed = {name: value for name, value in values.items() if value != getattr(SearchConfig(), name)}
    return [f"search.{name}={value}: {differences[name]}" for name, value in changed.items()]
