"""Messages of Protocol Buffers, the format of SentencePiece's and ONNX's models, written field by field.

A message is the bytes of its fields, one after the other. A field is written again for each item of a list.
"""

import struct

# The kinds of values on the wire.
VARINT = 0
BYTES = 2
FLOAT = 5


def field(number: int, value: int | float | str | bytes) -> bytes:
    """Return a field of a message. value: not negative if it is an integer; a message is bytes."""
    if isinstance(value, float):
        return _varint(number << 3 | FLOAT) + struct.pack("<f", value)
    if isinstance(value, int):
        return _varint(number << 3 | VARINT) + _varint(value)
    content = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | BYTES) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    """Return an integer in groups of seven bits, the lowest first; the eighth bit says that another group follows."""
    groups = bytearray()
    while number > 127:
        groups.append(number & 127 | 128)
        number >>= 7
    return bytes([*groups, number])
