"""ONNX models, written without the package onnx: nodes, weights, and the types of inputs and outputs."""

from collections.abc import Mapping, Sequence

import numpy as np

from transduce.interop.protobuf import field

FORMAT = 8  # version of the format; with the operators of `OPERATORS`
OPERATORS = 17  # version of the operators, the first with LayerNormalization
TYPES = {"float32": 1, "int64": 7, "bool": 9}  # numbers of the types of values
# Numbers of the types of attributes.
FLOAT_ATTRIBUTE = 1
INT_ATTRIBUTE = 2
INTS_ATTRIBUTE = 7

AxisSize = str | int  # of the shape of a value: a size, or the name of one that may change


class Graph:
    """A graph that grows by nodes. The name of a value is the name of the node that computes it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._nodes: list[bytes] = []
        self._arrays: dict[str, np.ndarray] = {}
        self._values: list[bytes] = []

    def add(self, operator: str, *inputs: str, name: str = "", **attributes: float | list[int]) -> str:
        """Add a node of one output, and return its name. name: of the output; "" takes another one for each node."""
        name = name or f"{operator}_{len(self._nodes)}"
        node = b"".join(field(1, value) for value in inputs) + field(2, name) + field(4, operator)
        self._nodes.append(node + b"".join(field(5, _attribute(*item)) for item in attributes.items()))
        return name

    def array(self, name: str, values: np.ndarray | Sequence[int]) -> str:
        """Add weights, or whole numbers such as a shape, and return `name`. The same name is added once."""
        if name not in self._arrays:
            self._arrays[name] = np.asarray(values, np.int64) if not isinstance(values, np.ndarray) else values
        return name

    def input(self, name: str, kind: str, *sides: AxisSize) -> str:
        """Declare an input, and return its name. kind: a key of `TYPES`."""
        self._values.append(field(11, _value(name, kind, sides)))
        return name

    def output(self, name: str, kind: str, *sides: AxisSize) -> None:
        """Declare the value `name` as an output."""
        self._values.append(field(12, _value(name, kind, sides)))

    def model(self, metadata: Mapping[str, str] = {}) -> bytes:
        """Return the file. metadata: texts that a program may read beside the network."""
        graph = b"".join(field(1, node) for node in self._nodes) + field(2, self.name)
        graph += b"".join(field(5, _tensor(name, array)) for name, array in self._arrays.items())
        graph += b"".join(self._values)
        texts = b"".join(field(14, field(1, key) + field(2, text)) for key, text in metadata.items())
        return field(1, FORMAT) + field(2, "transduce") + field(7, graph) + field(8, field(2, OPERATORS)) + texts


def _attribute(name: str, value: float | list[int]) -> bytes:
    if isinstance(value, list):
        return field(1, name) + b"".join(field(8, number) for number in value) + field(20, INTS_ATTRIBUTE)
    if isinstance(value, int):
        return field(1, name) + field(3, value) + field(20, INT_ATTRIBUTE)
    return field(1, name) + field(2, value) + field(20, FLOAT_ATTRIBUTE)


def _tensor(name: str, array: np.ndarray) -> bytes:
    sides = b"".join(field(1, side) for side in array.shape)
    content = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes()
    return sides + field(2, TYPES[array.dtype.name]) + field(8, name) + field(9, content)


def _value(name: str, kind: str, sides: Sequence[AxisSize]) -> bytes:
    """Return the type of an input or an output."""
    shape = b"".join(field(1, field(2, side) if isinstance(side, str) else field(1, side)) for side in sides)
    return field(1, name) + field(2, field(1, field(1, TYPES[kind]) + field(2, shape)))
