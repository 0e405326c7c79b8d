"""Members as kinds of model: each is built from its configuration, as the training loop builds its models."""

from collections.abc import Iterable
from functools import partial
from typing import Any, cast

from torch import Tensor, nn

from transduce.family.around import NO_PAST, Past
from transduce.family.attention_configs import LinformerConfig, LongformerConfig, PerformerConfig, T6Config
from transduce.family.bert import Bert, BertEncoder
from transduce.family.configs import (
    SENTINELS,
    BertClassifierConfig,
    BertConfig,
    DecoderConfig,
    GPT2Config,
    HyenaConfig,
    LladaConfig,
    LlamaConfig,
    MambaConfig,
    RWKVConfig,
    T5Config,
    TransformerXLConfig,
)
from transduce.family.decoder import Decoder
from transduce.family.experts import Experts, NoisyTopK, Switch, TopK, experts
from transduce.family.gpt2 import GPT2
from transduce.family.heads import Classifier, Pooler, WordHead
from transduce.family.hyena import Hyena
from transduce.family.linformer import Linformer
from transduce.family.llada import Llada
from transduce.family.llama import Llama
from transduce.family.longformer import LongformerAttention
from transduce.family.mamba import Mamba
from transduce.family.patterns import restricted
from transduce.family.performer import Performer
from transduce.family.positions import Alibi, Bucketed, Learned, Positions, Rotary, Shaw, Sinusoids
from transduce.family.recurrence import TransformerXL
from transduce.family.rope import LinearRope, Rope, YarnRope, ntk_theta
from transduce.family.rwkv import RWKV
from transduce.family.t5 import T5
from transduce.family.tpa import T6
from transduce.model.attention import Attention


class ConfiguredGPT2(GPT2):
    """The decoder of GPT-2, of the sizes in a configuration."""

    def __init__(self, config: GPT2Config) -> None:
        assert config.vocab_size is not None
        super().__init__(
            config.vocab_size,
            config.d_model,
            config.n_layers,
            config.n_heads,
            d_ff=config.d_ff,
            n_positions=config.max_positions,
            dropout=config.dropout,
        )


class ConfiguredLlama(Llama):
    """The decoder of Llama, of the sizes in a configuration."""

    def __init__(self, config: LlamaConfig) -> None:
        assert config.vocab_size is not None
        super().__init__(
            config.vocab_size,
            config.d_model,
            config.n_layers,
            config.n_heads,
            d_ff=config.d_ff,
            n_kv_heads=config.n_kv_heads,
            n_positions=config.max_positions,
            tied=config.tied,
        )


class ConfiguredT6(T6):
    """T6, of the sizes in a configuration."""

    def __init__(self, config: T6Config) -> None:
        assert config.vocab_size is not None
        super().__init__(
            config.vocab_size,
            config.d_model,
            config.n_layers,
            config.n_heads,
            d_ff=config.d_ff,
            ranks=(config.q_rank, config.kv_rank, config.kv_rank),
            n_positions=config.max_positions,
            tied=config.tied,
        )


class ConfiguredPerformer(ConfiguredGPT2):
    """GPT-2 with the attention of Performer, whose directions all heads and layers share."""

    def __init__(self, config: PerformerConfig) -> None:
        super().__init__(config.gpt2)
        self.performer = Performer(config.d_model // config.n_heads, config.n_features)

    def states(self, ids: Tensor, past: Past = NO_PAST, attention: Attention | None = None) -> tuple[Tensor, Past]:
        return super().states(ids, past, attention or self.performer)


class ConfiguredTransformerXL(TransformerXL):
    """Transformer-XL, of the sizes in a configuration."""

    def __init__(self, config: TransformerXLConfig) -> None:
        assert config.vocab_size is not None
        super().__init__(
            config.vocab_size,
            config.d_model,
            config.n_layers,
            config.n_heads,
            d_ff=config.d_ff,
            n_memory=config.n_memory or config.max_positions,
            n_positions=config.max_positions,
            dropout=config.dropout,
        )


class ConfiguredDecoder(Decoder):
    """A decoder with the parts in a configuration."""

    def __init__(self, config: DecoderConfig) -> None:
        assert config.vocab_size is not None
        super().__init__(
            config.vocab_size,
            config.d_model,
            config.n_layers,
            config.n_heads,
            positions_of(config),
            pattern=None if config.window is None else restricted(config.window),
            feed_forward=None if config.n_experts is None else partial(experts_of, config, config.n_experts),
            d_ff=config.d_ff,
            n_positions=config.max_positions,
            dropout=config.dropout,
        )


def positions_of(config: DecoderConfig) -> Positions:
    """Return the positions that a configuration names."""
    d_k = config.d_model // config.n_heads
    match config.positions:
        case "none":
            return Positions()
        case "sinusoids":
            return Sinusoids(config.d_model)
        case "learned":
            return Learned(config.max_positions, config.d_model)
        case "rope":
            return Rotary(d_k, rope_of(config, d_k))
        case "alibi":
            return Alibi(config.n_heads)
        case "t5":
            return Bucketed(config.n_heads)
        case "shaw":
            return Shaw(config.n_layers, d_k)


def rope_of(config: DecoderConfig, d_k: int) -> Rope:
    """Return RoPE with the scaling that a configuration names."""
    factor = config.rope_factor
    match config.rope:
        case "plain":
            return Rope()
        case "linear":
            return LinearRope(factor=factor)
        case "ntk":
            return Rope(ntk_theta(Rope().theta, factor, d_k))
        case "yarn":
            assert config.rope_length is not None
            return YarnRope(factor=factor, n_positions=config.rope_length)


def experts_of(config: DecoderConfig, n_experts: int) -> Experts:
    """Return the router and the networks of one layer."""
    d_model, d_ff = config.d_model, config.d_ff or 4 * config.d_model
    match config.router:
        case "switch":
            return experts(Switch(d_model, n_experts), d_ff)
        case "top_k":
            return experts(TopK(d_model, n_experts, config.n_chosen), d_ff)
        case "noisy_top_k":
            return experts(NoisyTopK(d_model, n_experts, config.n_chosen), d_ff)


class ConfiguredHyena(Hyena):
    """Hyena, of the sizes in a configuration."""

    def __init__(self, config: HyenaConfig) -> None:
        assert config.vocab_size is not None
        super().__init__(
            config.vocab_size,
            config.d_model,
            config.n_layers,
            order=config.order,
            d_ff=config.d_ff,
            n_positions=config.max_positions,
            dropout=config.dropout,
        )


class ConfiguredMamba(Mamba):
    """Mamba, of the sizes in a configuration."""

    def __init__(self, config: MambaConfig) -> None:
        assert config.vocab_size is not None
        super().__init__(
            config.vocab_size,
            config.d_model,
            config.n_layers,
            d_state=config.d_state,
            n_positions=config.max_positions,
        )


class ConfiguredRWKV(RWKV):
    """RWKV-4, of the sizes in a configuration."""

    def __init__(self, config: RWKVConfig) -> None:
        assert config.vocab_size is not None
        super().__init__(
            config.vocab_size,
            config.d_model,
            config.n_layers,
            d_ff=config.d_ff,
            n_positions=config.max_positions,
        )


class ConfiguredLlada(Llada):
    """LLaDA, of the sizes in a configuration."""

    def __init__(self, config: LladaConfig) -> None:
        super().__init__(ConfiguredLlama(config.llama), longest=config.max_positions - 2)  # without BOS and EOS


class ConfiguredBert(Bert):
    """BERT with a head for masked words, of the sizes in a configuration."""

    def __init__(self, config: BertConfig) -> None:
        assert config.vocab_size is not None
        encoder = BertEncoder(
            config.vocab_size,
            config.d_model,
            config.n_layers,
            config.n_heads,
            d_ff=config.d_ff,
            n_positions=config.max_positions,
            dropout=config.dropout,
        )
        super().__init__(encoder, words=WordHead(encoder.embedding))

    @property
    def output(self) -> nn.Linear:
        """The layer that makes logits of the states of the head."""
        assert self.words is not None
        return self.words.output


class ConfiguredLongformer(ConfiguredBert):
    """BERT with the attention of Longformer, of the sizes in a configuration."""

    def __init__(self, config: LongformerConfig) -> None:
        super().__init__(config.bert)
        for layer in cast(Iterable[Any], self.encoder.layers):
            attention = LongformerAttention(config.d_model, config.n_heads, config.reach, dropout=config.dropout)
            for part in (attention.local, attention.of_global):  # as the paper makes one of a trained BERT
                part.load_state_dict(layer.self_attention.state_dict())
            layer.self_attention = attention


class ConfiguredLinformer(ConfiguredBert):
    """BERT with the attention of Linformer, of the sizes in a configuration."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config.bert)
        self.encoder.attention = Linformer(config.max_positions, config.rank)


class ConfiguredBertClassifier(Bert):
    """BERT with a head for classes, of the sizes in a configuration. The classes are LABEL_0, LABEL_1 and so on."""

    def __init__(self, config: BertClassifierConfig) -> None:
        assert config.vocab_size is not None
        encoder = BertEncoder(
            config.vocab_size,
            config.d_model,
            config.n_layers,
            config.n_heads,
            d_ff=config.d_ff,
            n_positions=config.max_positions,
            n_segments=config.n_segments,
            dropout=config.dropout,
            norm_eps=config.norm_eps,
        )
        labels = [f"LABEL_{i}" for i in range(config.tgt_vocab_size)]
        classifier = Classifier(config.d_model, labels, config.dropout)
        super().__init__(encoder, pooler=Pooler(config.d_model), classifier=classifier)

    @property
    def output(self) -> nn.Linear:
        """The layer that makes logits of the pooled states."""
        assert self.classifier is not None
        return self.classifier.linear


class ConfiguredT5(T5):
    """T5, of the sizes in a configuration. Its vocabulary ends with the sentinels."""

    def __init__(self, config: T5Config) -> None:
        assert config.vocab_size is not None
        super().__init__(
            config.vocab_size + SENTINELS,
            config.d_model,
            config.n_layers,
            config.n_heads,
            d_k=config.d_k or config.d_model // config.n_heads,
            d_ff=config.d_ff,
            gated=config.gated,
            tied=config.tied,
            dropout=config.dropout,
        )
