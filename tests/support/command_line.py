"""Checks of the result of a command, and of the imports of a program."""

import json
import subprocess
import sys

from support.toy_task import ROOT, CommandResult


def assert_mistake(result: CommandResult, *messages: str) -> None:
    """Check for exit code 2, an empty standard output, and each of `messages` on standard error."""
    assert (result.code, result.out) == (2, b""), result
    assert "Traceback" not in result.err
    for message in messages:
        assert message in result.err, result.err


def assert_problems(result: CommandResult, *messages: str) -> None:
    """Check that standard error lists one problem for each of `messages`, in their order, and no other."""
    assert_mistake(result)
    heading, *lines = result.err.splitlines()
    assert heading == f"transduce: {len(messages)} problems:"
    assert len(lines) == len(messages), lines
    for line, message in zip(lines, messages, strict=True):
        assert message in line


def heavy_imports(code: str) -> list[str]:
    """Return the slow packages that are loaded after a new Python process ran `code`."""
    report = "import sys; print([n for n in ('torch', 'numpy', 'tokenizers', 'sacrebleu') if n in sys.modules])"
    command = [sys.executable, "-c", f"{code}\n{report}"]
    process = subprocess.run(command, capture_output=True, env={"PYTHONPATH": str(ROOT / "src")}, text=True)
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1].replace("'", '"'))
