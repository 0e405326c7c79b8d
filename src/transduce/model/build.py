"""Build an untrained model from its configuration."""

from typing import overload

from torch import nn

from transduce.config.kinds import ModelSettings, model_class
from transduce.config.schema import ModelConfig
from transduce.config.validation import refuse_impossible
from transduce.model.baseline import Baseline
from transduce.model.transformer import Transformer

Model = Transformer | Baseline


@overload
def build(config: ModelConfig) -> Model: ...
@overload
def build(config: ModelSettings) -> nn.Module: ...
def build(config: ModelSettings) -> nn.Module:
    """Return the untrained model that `config` describes, of the class that `config.kinds` gives for its kind.

    Raises UserError if the kind is unknown, if the model is impossible, or if its vocab_size is still None.
    """
    kind = model_class(config.kind)
    refuse_impossible(config)
    return kind(config)
