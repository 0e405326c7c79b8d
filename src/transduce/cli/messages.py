"""Turn errors into messages of one line, with the remedy if one is known."""

import errno
import os
import re
from collections.abc import Sequence
from typing import Literal, get_args, get_origin

from cyclopts import (
    App,
    Argument,
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    RepeatArgumentError,
    Token,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from transduce.errors import is_out_of_memory, nearest

REMEDIES = {
    errno.ENOSPC: "make room there, or use another folder",
    errno.EDQUOT: "make room there, or use another folder",
    errno.EFBIG: "raise the limit of the size of a file (ulimit -f)",
    errno.EACCES: "change its permissions, or use another folder",
    errno.EPERM: "change its permissions, or use another folder",
    errno.EROFS: "use a folder on a writable disk",
}

LINE_CHARACTERS = 2_000  # characters of a message; a longer message quotes a value that would hide the rest


def shorten(message: str) -> str:
    """Return a message without the middle of each line that is too long. The remedy stays, at the end."""
    half = LINE_CHARACTERS // 2
    lines = message.split("\n")
    return "\n".join(f"{line[:half]} ... {line[-half:]}" if len(line) > 2 * half else line for line in lines)


def describe_os_error(problem: OSError) -> str:
    """Return the file, the error of the operating system and, if known, the remedy."""
    file = f"{os.fsdecode(problem.filename)}: " if problem.filename is not None else ""
    remedy = f"; {REMEDIES[problem.errno]}" if problem.errno in REMEDIES else ""
    return f"{file}{problem.strerror or problem}{remedy}"


def describe_lack(problem: Exception) -> str | None:
    """Return which resource of the machine ran out, with the remedy; None if `problem` is another one."""
    if is_out_of_memory(problem):
        message = str(problem) if isinstance(problem, MemoryError) else ""
        return f"out of memory: {message or 'use a smaller model, or a machine with more memory'}"
    if "can't start new thread" in str(problem):
        return f"{problem}: no process or no memory is left for it; end other programs, or raise `ulimit -u`"
    return None


def name_option_as_typed(message: str, arguments: Sequence[str]) -> str:
    """Return the message of a UserError about `beam_size=0` or `search.beam_size=0` as one about `--beam-size=0`.

    arguments: the arguments of the command line. A message about a value that is not among their options does not
    change.
    """
    match = re.match(r"(?:\w+\.)?(\w+)=", message)
    option = f"--{match[1].replace('_', '-')}" if match else ""
    if match is None or option not in {argument.partition("=")[0] for argument in arguments}:
        return message
    return f"{option}={message[match.end() :]}"


def describe_usage_error(problem: CycloptsError) -> str:
    """Return the expectation of the command line, with the nearest known name or the help command as the remedy."""
    message = _expectation(problem)
    command = " ".join(["transduce", *(problem.command_chain or ()), "--help"])
    return message if message.endswith("?") else f"{message}; see `{command}`"


def _expectation(problem: CycloptsError) -> str:
    match problem:
        case UnknownOptionError(token=token, argument_collection=arguments):
            option = token.keyword or token.value
            return f"{option}: expected a known option{nearest(option, [name for a in arguments for name in a.names])}"
        case UnknownCommandError(unused_tokens=[name, *_], app=App() as app):
            return f"{name}: expected a known command{nearest(name, [known for known in app if known[0] != '-'])}"
        case UnusedCliTokensError(unused_tokens=[word, *_]):
            return f"{word}: expected no further argument; leave it out"
        case RepeatArgumentError(token=token):
            return f"{token.keyword}: expected once; leave out the repeated one"
        case MissingArgumentError(argument=Argument() as argument):
            count, _ = argument.token_count()
            return f"{argument.name}: expected {f'{count} values' if count > 1 else 'a value'}"
        case CoercionError(msg=None, token=Token() as token, argument=Argument() as argument):
            name = token.keyword or argument.name
            return f"{name}={token.value}: expected {_name_of_type(problem.target_type)}"
    problem.verbose = False
    return str(problem).rstrip(".")


def _name_of_type(kind: object) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    return {int: "an integer", float: "a number"}.get(kind, f"a value of type {getattr(kind, '__name__', kind)}")
