"""The settings of a model in Hugging Face's form: the values of its config.json, read with checks."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from transduce.errors import UserError

MOST = 1 << 24  # maximum of a size; no public model has more rows of embeddings, or a longer context
MOST_LAYERS = 1_000
MOST_STAGES = 8


class Settings:
    """The values of a config.json. A value of null counts as absent. Every method raises UserError with a remedy.

    shapes: of the tensors in the folder, by their names; None: not known. A model of more layers or classes than the
    folder can have is refused before it is built.
    """

    def __init__(
        self, values: Mapping[str, Any], where: Path | str, shapes: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        self.values = values
        self.where = where
        self.shapes = shapes
        self._most_layers, self._most_classes = MOST_LAYERS, MOST
        if shapes is not None:
            self._most_layers = len(shapes)
            self._most_classes = max((shape[0] for shape in shapes.values() if all(shape)), default=0)

    def get(self, key: str) -> Any:
        """Return the value of `key`; None if it is absent or null."""
        return self.values.get(key)

    def part(self, key: str) -> "Settings":
        """Return the settings in the object of `key`; none where it is absent."""
        values = self.get(key) or {}
        if not isinstance(values, dict):
            raise self.refusal(key, "an object")
        return Settings(values, f"{self.where}: {key}", self.shapes)

    def refusal(self, key: str, expected: str) -> UserError:
        """Return the error for the value of `key`."""
        value = repr(self.values[key]) if key in self.values else "(absent)"
        return UserError(f"{self.where}: {key}={value}: expected {expected}; use a model that has it")

    def size(self, key: str, default: int | None = None, *, multiple_of: str | None = None) -> int:
        """Return a positive integer. default: its value where it is absent. multiple_of: another size, by its key."""
        value = default if self.get(key) is None else self.get(key)
        if type(value) is not int or not 1 <= value <= MOST:
            raise self.refusal(key, f"an integer from 1 to {MOST:,}")
        if multiple_of is not None and value % self.size(multiple_of):
            raise self.refusal(key, f"a multiple of {multiple_of}={self.size(multiple_of)}")
        return value

    def sizes(
        self, key: str, default: tuple[int, ...], *, most: int = MOST_LAYERS, most_values: int = MOST_STAGES
    ) -> tuple[int, ...]:
        """Return positive integers, such as one for each stage of a model. default: their values where they are absent.

        most: maximum of each. most_values: maximum number of them.
        """
        values = default if self.get(key) is None else self.get(key)
        if not isinstance(values, list | tuple) or not 1 <= len(values) <= most_values:
            raise self.refusal(key, f"a list of 1 to {most_values} integers")
        if any(type(value) is not int or not 1 <= value <= most for value in values):
            raise self.refusal(key, f"integers from 1 to {most:,}")
        return tuple(values)

    def depths(self, key: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """Return the number of layers of each stage."""
        depths = self.sizes(key, default)
        if sum(depths) > self._most_layers:
            raise self.refusal(key, f"at most {self._most_layers:,} in all, the number of tensors in the folder")
        return depths

    def n_layers(self, key: str, default: int | None = None) -> int:
        """Return the number of layers. A damaged number must not take the memory of the machine."""
        value = self.size(key, default)
        if value > MOST_LAYERS:
            raise self.refusal(key, f"at most {MOST_LAYERS:,}")
        if value > self._most_layers:
            raise self.refusal(key, f"at most {self._most_layers:,}, the number of tensors in the folder")
        return value

    def number(self, key: str, default: float, *, below: float) -> float:
        """Return a number from 0 to below `below`. default: its value where it is absent."""
        value = default if self.get(key) is None else self.get(key)
        if type(value) not in (int, float) or not 0 <= value < below:
            raise self.refusal(key, f"a number from 0 to below {below:,g}")
        return float(value)

    def one_of(self, key: str, *supported: Any) -> Any:
        """Return the value, which must be one of `supported`; the first where it is absent."""
        value = supported[0] if self.get(key) is None else self.get(key)
        if not any(type(value) is type(other) and value == other for other in supported):
            raise self.refusal(key, " or ".join(map(repr, supported)))
        return value

    def labels(self) -> list[str]:
        """Return the names of the classes, in the order of their numbers; two where none are named.

        Classes exclude each other: their probabilities are a softmax.
        """
        self.one_of("problem_type", "single_label_classification")
        names = self.get("id2label")
        if names is None:
            n_classes = self.size("num_labels", 2)
            if n_classes > self._most_classes:
                raise self.refusal(
                    "num_labels", f"at most {self._most_classes:,}, the most rows of a tensor in the folder"
                )
            if n_classes == 1:  # a regression
                raise self.refusal("num_labels", "2 or more")
            return [f"LABEL_{i}" for i in range(n_classes)]
        labels = [names.get(str(i)) for i in range(len(names))] if isinstance(names, dict) else []
        strings = [label for label in labels if isinstance(label, str)]
        if not strings or len(strings) < len(labels):
            raise self.refusal("id2label", "a name for each of the numbers from 0 on")
        if len(strings) == 1:
            raise self.refusal("id2label", "2 or more classes")
        return strings


def label_settings(labels: Sequence[str]) -> dict[str, object]:
    """Return the entries of a config.json for the names of classes."""
    return {
        "id2label": {str(i): label for i, label in enumerate(labels)},
        "label2id": {x: i for i, x in enumerate(labels)},
    }
