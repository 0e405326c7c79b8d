"""The accepted keys: their file, the check of a key, its limit and its share."""

import hmac
import math
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

from transduce.errors import UserError
from transduce.serve.refusal import Refusal

FORM = "KEY, and then any of name=NAME, per-minute=REQUESTS, share=NUMBER"


@dataclass(eq=False)
class Sender:
    """The owner of a key; or any request, on a server without keys. share: its tokens for each one of others."""

    share: float = 1.0


@dataclass(frozen=True)
class ApiKey:
    """An accepted key.

    name: of its owner, in log and metrics. per_minute: its requests in a minute at most; None: any number.
    share: its tokens while the engine is busy, for each one of another key.
    """

    text: str
    name: str
    per_minute: int | None = None
    share: float = 1.0


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """Return the keys of a file. `#` begins a comment at the start of a line or after a space."""
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or "it is not UTF-8"
        raise UserError(f"--api-keys={path}: expected a text file that can be read: {reason}") from None
    keys: list[ApiKey] = []
    for number, line in enumerate(lines, 1):
        words = re.sub(r"(^|\s)#.*", "", line).split()
        if not words:
            continue
        key = _key(words[0], words[1:], number)
        if key is None:
            raise UserError(f"--api-keys={path}: line {number}: expected {FORM}")
        if key.text in {other.text for other in keys}:
            raise UserError(f"--api-keys={path}: line {number}: expected each key once; delete the line")
        keys.append(key)
    if not keys:
        raise UserError(f"--api-keys={path}: expected at least one key; leave the option out to need none")
    return tuple(keys)


def _key(text: str, options: Sequence[str], number: int) -> ApiKey | None:
    """Return the key of a line, None if an option is wrong. The error must not quote a word: it may be a key's part."""
    values = {option.partition("=")[0]: option.partition("=")[2] for option in options}
    name, per_minute, share = (values.pop(word, "") for word in ("name", "per-minute", "share"))
    is_right = (
        not values
        and re.fullmatch(r"[A-Za-z0-9._-]{0,64}", name)
        and re.fullmatch(r"([1-9][0-9]{0,8})?", per_minute)
        and re.fullmatch(r"((?=.*[1-9])[0-9]{1,6}(\.[0-9]{1,6})?)?", share)
    )
    if not is_right:
        return None
    return ApiKey(text, name or f"line-{number}", int(per_minute) if per_minute else None, float(share or 1))


@dataclass(eq=False)
class Account:
    """The use of a key: its turns in the queue, and the requests that it may send now."""

    key: ApiKey
    sender: Sender = field(init=False)
    _allowance: float = field(init=False)
    _counted_at: float = field(init=False)

    def __post_init__(self) -> None:
        self.sender = Sender(self.key.share)
        self._allowance = float(self.key.per_minute or 0)
        self._counted_at = time.monotonic()

    def count_request(self) -> None:
        """Count a request. Raises Refusal beyond the limit of the key."""
        most = self.key.per_minute
        if most is None:
            return
        now = time.monotonic()
        self._allowance = min(most, self._allowance + most / 60 * (now - self._counted_at))
        self._counted_at = now
        if self._allowance < 1:
            seconds = math.ceil((1 - self._allowance) * 60 / most)
            message = f"Slowdown: expected at most {most:,} requests in a minute with this key"
            raise Refusal(429, f"{message}; try again in {seconds} s", "key limit", retry_after=seconds)
        self._allowance -= 1


class Accounts:
    """The keys that a server accepts. False if it needs none."""

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        self._accounts = [(_digest(key.text), Account(key)) for key in keys]

    def __len__(self) -> int:
        return len(self._accounts)

    def of(self, text: str) -> Account | None:
        """Return the account of a key; None if the server needs no key.

        All keys are compared, in a time that does not depend on where they differ. Raises Refusal for a wrong key.
        """
        if not self._accounts:
            return None
        if not text:
            raise Refusal(400, "Please contact the server operator to get an API key", "key")
        digest = _digest(text)
        matches = [account for known, account in self._accounts if hmac.compare_digest(digest, known)]
        if not matches:
            raise Refusal(403, "Invalid API key", "key")
        return matches[0]


def _digest(text: str) -> bytes:
    return sha256(text.encode(errors="surrogatepass")).digest()
