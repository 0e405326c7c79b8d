"""From `ModelConfig.kind` to an untrained model."""

from transduce.config.schema import ModelConfig
from transduce.model.baseline import Baseline
from transduce.model.convolutional import Convolutional
from transduce.model.lstm import Recurrent
from transduce.model.transformer import Transformer

Model = Transformer | Baseline


def build(config: ModelConfig) -> Model:
    """The untrained model that `config` describes. UserError if it is impossible, or its vocab_size still None."""
    if config.kind == "recurrent":
        return Recurrent(config)
    return Convolutional(config) if config.kind == "convolutional" else Transformer(config)
