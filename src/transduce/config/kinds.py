"""Kinds of model, and tasks: dictionaries from `model.kind` and `train.task` to the classes that they name.

A class is named as "module:class" and imported when it is used, so that reading a configuration loads no torch. A new
kind takes one line here; its configuration is a frozen dataclass with the properties of `ModelSettings`.
"""

import importlib
from dataclasses import dataclass
from typing import Any, Protocol

from transduce.errors import UserError, nearest


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

    def problems(self) -> list[str]:
        """Return a line for each combination of values with which the model cannot be built."""
        ...


@dataclass(frozen=True)
class Kind:
    """The two classes of a kind of model, each as "module:class"."""

    config_class: str
    model_class: str


_CONFIG = "transduce.config.schema:ModelConfig"

KINDS = {
    "transformer": Kind(_CONFIG, "transduce.model.transformer:Transformer"),
    "recurrent": Kind(_CONFIG, "transduce.model.lstm:Recurrent"),
    "convolutional": Kind(_CONFIG, "transduce.model.convolutional:Convolutional"),
}


TASKS = {"translation": "transduce.train:TranslationTask", "parsing": "transduce.parsing.task:ParsingTask"}


def task_class(task: str) -> Any:
    """Return the class of a task, which takes no argument."""
    return _import(TASKS[task])


def is_kind(kind: object) -> bool:
    """Check whether `kind` is a key of `KINDS`. A damaged file may give any value."""
    return isinstance(kind, str) and kind in KINDS


def config_class(kind: str) -> Any:
    """Return the dataclass that configures models of `kind`. UserError if there is no such kind."""
    return _import(_kind(kind).config_class)


def model_class(kind: str) -> Any:
    """Return the class of models of `kind`, which takes a configuration. UserError if there is no such kind."""
    return _import(_kind(kind).model_class)


def unknown_kind(kind: object) -> str:
    """Return the message for a `kind` that is not in `KINDS`."""
    hint = nearest(kind, KINDS) if isinstance(kind, str) else ""
    return f"model.kind={kind!r}: expected one of {', '.join(map(repr, KINDS))}{hint}"


def _kind(kind: str) -> Kind:
    if not is_kind(kind):
        raise UserError(unknown_kind(kind))
    return KINDS[kind]


def _import(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
