"""Kinds of model, and tasks: dictionaries from `model.kind` and `train.task` to the classes that they name.

A class is named as "module:class" and imported when it is used, so that reading a configuration loads no torch. A new
kind takes one line here; its configuration is a frozen dataclass with the properties of `ModelSettings`.
"""

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from transduce.errors import UserError, nearest

if TYPE_CHECKING:
    from torch import nn


class ModelSettings(Protocol):
    """The part of a model's configuration that every kind has. All keys of the dataclass have a default."""

    @property
    def kind(self) -> str:
        """A key of `KINDS`."""
        ...

    @property
    def vocab_size(self) -> int | None:
        """Rows of the embedding; None: filled in from the tokenizer."""
        ...

    @property
    def d_model(self) -> int:
        """Width of the model, on which the learning rate of eq. 3 depends."""
        ...

    @property
    def n_layers(self) -> int:
        """Layers, of which each has weights."""
        ...

    @property
    def max_positions(self) -> int | None:
        """Maximum number of tokens of a text; None: no limit."""
        ...

    def problems(self) -> list[str]:
        """Return a line for each combination of values with which the model cannot be built."""
        ...


@dataclass(frozen=True)
class Kind:
    """The two classes of a kind of model, each as "module:class", and the tasks that it can learn."""

    config_class: str
    model_class: str
    tasks: tuple[str, ...] = ("translation", "parsing")


_CONFIG = "transduce.config.schema:ModelConfig"
_FAMILY = "transduce.family"


def _member(config_class: str, model_class: str, *tasks: str) -> Kind:
    """Return the kind of a member. tasks: none for a model that continues text."""
    tasks = tasks or ("language_model", "preferences")
    return Kind(f"{_FAMILY}.{config_class}", f"{_FAMILY}.{model_class}", tasks)


KINDS = {
    "transformer": Kind(_CONFIG, "transduce.model.transformer:Transformer"),
    "recurrent": Kind(_CONFIG, "transduce.model.lstm:Recurrent"),
    "convolutional": Kind(_CONFIG, "transduce.model.convolutional:Convolutional"),
    "gpt2": _member("configs:GPT2Config", "gpt2:GPT2"),
    "gpt2_reward": _member("configs:RewardConfig", "reward:RewardModel", "rewards"),
    "llama": _member("configs:LlamaConfig", "llama:Llama"),
    "palm": _member("attention_configs:PalmConfig", "palm:PaLM"),
    "synthesizer": _member("attention_configs:SynthesizerConfig", "synthesizer:SynthesizerGPT2"),
    "t6": _member("attention_configs:T6Config", "tensor_product_attention:T6"),
    "performer": _member("attention_configs:PerformerConfig", "performer:PerformerGPT2"),
    "transformer_xl": _member("configs:TransformerXLConfig", "transformer_xl:TransformerXL"),
    "decoder": _member("configs:DecoderConfig", "decoder_only:DecoderOnly"),
    "hyena": _member("configs:HyenaConfig", "hyena:Hyena"),
    "mamba": _member("configs:MambaConfig", "mamba:Mamba"),
    "rwkv": _member("configs:RWKVConfig", "rwkv:RWKV"),
    "llada": _member("configs:LladaConfig", "llada:Llada", "diffusion"),
    "bert": _member("configs:BertConfig", "bert:Bert", "masked_words"),
    "longformer": _member("attention_configs:LongformerConfig", "longformer:LongformerBert", "masked_words"),
    "linformer": _member("attention_configs:LinformerConfig", "linformer:LinformerBert", "masked_words"),
    "bert_classifier": _member("configs:BertClassifierConfig", "bert:BertClassifier", "classes"),
    "t5": _member("configs:T5Config", "t5:T5", "spans"),
    "whisper": _member("configs:WhisperConfig", "sound.whisper:Whisper", "speech"),
    "wav2vec2": _member("sound.configs:Wav2Vec2Config", "sound.wav2vec2:Wav2Vec2", "ctc"),
}


@dataclass(frozen=True)
class TaskEntry:
    """The class of a task, as "module:class", and facts that are checked before it is imported.

    scores: figures by which `train.best_by` can choose, except the loss.
    is_of_one_text: the task learns from one text, and not from source and target.
    is_of_sound: the source text has the paths of sound files.
    sides: the two texts in words, and as values of an option.
    start: the function, as "module:function", that makes the model to start from of a `TrainRequest`, which must name
    one. None: the run may start from a model of the same kind.
    """

    task_class: str
    scores: tuple[str, ...] = ()
    is_of_one_text: bool = False
    is_of_sound: bool = False
    sides: tuple[str, str] = ("source and target text", "SRC TGT")
    start: str | None = None

    @property
    def unit(self) -> str:
        """The words for the count of a batch, in the speed of a training."""
        return "samples and tokens" if self.is_of_sound else "tokens"


TASKS = {
    "translation": TaskEntry("transduce.train:TranslationTask", scores=("bleu", "chrf")),
    "parsing": TaskEntry("transduce.parsing.task:ParsingTask", scores=("f1",)),
    "language_model": TaskEntry(f"{_FAMILY}.tasks.language_model:LanguageModelTask", is_of_one_text=True),
    "masked_words": TaskEntry(f"{_FAMILY}.tasks.masked_words:MaskedWordsTask", is_of_one_text=True),
    "diffusion": TaskEntry(f"{_FAMILY}.tasks.diffusion:DiffusionTask", is_of_one_text=True),
    "spans": TaskEntry(f"{_FAMILY}.tasks.spans:SpanTask", is_of_one_text=True),
    "classes": TaskEntry(
        f"{_FAMILY}.tasks.classes:ClassTask",
        scores=("accuracy", "macro_f1"),
        sides=("sentences and labels", "SENTENCES LABELS"),
        start=f"{_FAMILY}.tasks.fine_tuning:start",
    ),
    "preferences": TaskEntry(
        f"{_FAMILY}.tasks.preferences:PreferenceTask",
        scores=("accuracy",),
        sides=("chosen and rejected texts", "CHOSEN REJECTED"),
        start=f"{_FAMILY}.tasks.preferences:start",
    ),
    "rewards": TaskEntry(
        f"{_FAMILY}.tasks.preferences:RewardTask",
        scores=("accuracy",),
        sides=("chosen and rejected texts", "CHOSEN REJECTED"),
        start=f"{_FAMILY}.tasks.preferences:start_reward",
    ),
    "speech": TaskEntry(
        f"{_FAMILY}.tasks.speech:SpeechTask",
        scores=("bleu",),
        is_of_sound=True,
        sides=("paths of sounds and text", "PATHS TEXT"),
    ),
    "ctc": TaskEntry(
        f"{_FAMILY}.tasks.speech:CTCTask", is_of_sound=True, sides=("paths of sounds and text", "PATHS TEXT")
    ),
}


def kinds_of(task: str) -> list[str]:
    """Return the kinds of model that can learn a task."""
    return [name for name, kind in KINDS.items() if task in kind.tasks]


def is_kind(kind: object) -> bool:
    """Check whether `kind` is a key of `KINDS`. A damaged file may give any value."""
    return isinstance(kind, str) and kind in KINDS


def config_class(kind: str) -> Any:
    """Return the dataclass that configures models of `kind`. UserError if there is no such kind."""
    return import_object(_kind(kind).config_class)


def model_class(kind: str) -> "type[nn.Module]":
    """Return the class of models of `kind`, which takes a configuration. UserError if there is no such kind."""
    return import_object(_kind(kind).model_class)


def unknown_kind(kind: object) -> str:
    """Return the message for a `kind` that is not in `KINDS`."""
    hint = nearest(kind, KINDS) if isinstance(kind, str) else ""
    return f"model.kind={kind!r}: expected one of {', '.join(map(repr, KINDS))}{hint}"


def _kind(kind: str) -> Kind:
    if not is_kind(kind):
        raise UserError(unknown_kind(kind))
    return KINDS[kind]


def import_object(path: str) -> Any:
    """Return the class or the function of `path`, which is "module:name"."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
