"""Output that several commands share."""

import sys
from typing import Any


def print_json(value: Any) -> None:
    """Print `value` as one line of JSON, in UTF-8 in every locale."""
    import msgspec

    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")
