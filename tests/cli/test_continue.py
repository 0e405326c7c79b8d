"""`transduce continue` as a Unix filter."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.command_line import assert_mistake
from support.small_encoders import bert_folder
from support.small_members import gpt2_folder
from support.toy_task import ROOT, CommandResult, write_lines

from transduce import Sampling
from transduce.family.inference.language_model import LanguageModel

LINES = ["two young men", "", "a dog", " \t", "Zürich", "a man", "x" * 100, "the man sits on"]
SEARCHES: list[tuple[list[object], dict[str, Any]]] = [
    ([], {}),
    (
        ["--beam-size", 3, "--length-penalty", "power", "--alpha", 0.5],
        {"beam_size": 3, "length_penalty": "power", "alpha": 0.5},
    ),
    (["--temperature", 1.5, "--top-k", 40, "--seed", 7], {"sampling": Sampling(1.5, 40), "seed": 7}),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gpt2_folder(tmp_path_factory.mktemp("gpt2") / "model")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "source", LINES)


@contextmanager
def running(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command with pipes, and kill it at the end of the block."""
    command = [sys.executable, "-m", "transduce", "continue", str(folder), "--max-tokens", "4"]
    environment, pipe = {**os.environ, "PYTHONPATH": str(ROOT / "src")}, subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(("arguments", "options"), SEARCHES)
def test_a_line_of_output_is_the_line_and_its_continuation_in_python(
    folder: Path, source: Path, cli: Callable[..., CommandResult], arguments: list[object], options: Any
) -> None:
    expected = LanguageModel.load(folder).continue_texts(LINES, max_tokens=8, **options)
    in_json = cli("continue", folder, "--input", source, "--max-tokens", 8, "--json", *arguments)
    assert [json.loads(line) for line in in_json.out.splitlines()] == [vars(continuation) for continuation in expected]
    result = cli("continue", folder, "--input", source, "--max-tokens", 8, *arguments)
    wholes = [
        line + continuation.text.replace("\n", " ").replace("\r", " ")
        for line, continuation in zip(LINES, expected, strict=True)
    ]
    assert result.out.decode().split("\n") == [*wholes[:6], "", wholes[7], ""]
    problem = f"transduce: {source}:7: expected at most 39 tokens, not 100; split the line\n"
    assert (result.code, result.err, in_json.err) == (0, problem, problem)
    assert any(continuation.text for continuation in expected)


def test_a_precision_equals_python(folder: Path, source: Path, cli: Callable[..., CommandResult]) -> None:
    expected = LanguageModel.load(folder, precision="int8").continue_texts(LINES)
    result = cli("continue", folder, "--input", source, "--precision", "int8", "--json")
    assert [json.loads(line) for line in result.out.splitlines()] == [vars(continuation) for continuation in expected]
    precision = LanguageModel.load(folder, precision="auto").precision
    assert cli("continue", folder, "--input", source, "--precision", "auto").err.startswith(
        f"transduce: precision {precision}\n"
    )


@pytest.mark.parametrize(("arguments", "options"), SEARCHES[:2])
def test_order_and_batches_of_lines_change_no_answer(
    folder: Path,
    tmp_path: Path,
    cli: Callable[..., CommandResult],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[object],
    options: Any,
) -> None:
    texts = [" ".join(LINES[0].split()[: 1 + i % 3] * (1 + i % 4)) for i in range(40)]
    answers = cli("continue", folder, "--input", write_lines(tmp_path / "in", texts), *arguments).out.splitlines()
    backwards = cli("continue", folder, "--input", write_lines(tmp_path / "back", texts[::-1]), *arguments)
    monkeypatch.setattr("transduce.cli.stream.CHUNK_LINES", 3)
    in_threes = cli("continue", folder, "--input", tmp_path / "in", *arguments)
    assert backwards.out.splitlines()[::-1] == in_threes.out.splitlines() == answers


def test_a_draw_depends_on_the_number_of_the_line_in_the_input(
    folder: Path, source: Path, cli: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["continue", folder, "--input", source, "--temperature", 2]
    whole = cli(*arguments).out
    assert cli(*arguments, "--seed", 2).out != whole
    monkeypatch.setattr("transduce.cli.stream.CHUNK_LINES", 2)
    assert cli(*arguments).out == whole


def test_a_line_is_answered_while_the_input_is_open_and_a_closed_pipe_ends_it(folder: Path) -> None:
    with running(folder) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        for _ in range(2):
            process.stdin.write(b"a dog\n")
            process.stdin.flush()
            assert process.stdout.readline().startswith(b"a dog")
        process.stdout.close()
        process.stdin.write(b"a dog\n")
        process.stdin.close()
        assert (process.wait(60), process.stderr.read()) == (0, b"")


def test_a_folder_that_draws_takes_a_seed(
    folder: Path, source: Path, tmp_path: Path, cli: Callable[..., CommandResult]
) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "generation_config.json").write_text('{"do_sample": true, "temperature": 2.0, "top_k": 0}')
    drawn = cli("continue", copy, "--input", source, "--seed", 3)
    assert drawn.code == 0, drawn.err
    assert drawn.out == cli("continue", folder, "--input", source, "--temperature", 2, "--seed", 3).out
    refused = cli("continue", copy, "--input", source, "--seed", 3, "--beam-size", 2)
    assert_mistake(refused, "--seed=3: must not be set without sampling")


def test_a_continuation_stays_on_its_line(folder: Path, source: Path, cli: Callable[..., CommandResult]) -> None:
    """The first draws with this seed have a line break."""
    arguments = ["continue", folder, "--input", source, "--temperature", 5]
    texts = [json.loads(line)["text"] for line in cli(*arguments, "--json").out.splitlines()]
    assert any("\n" in text or "\r" in text for text in texts)
    assert cli(*arguments).out.count(b"\n") == len(LINES)


def test_mistakes_are_refused_before_any_line_is_read(
    folder: Path, tmp_path: Path, cli: Callable[..., CommandResult]
) -> None:
    assert_mistake(cli("continue", folder, "--max-tokens", 0), "--max-tokens=0: expected an integer from 1")
    assert_mistake(cli("continue", folder, "--beam-size", 0), "--beam-size=0")
    assert_mistake(cli("continue", folder, "--beam-size", 2, "--top-k", 3), "--beam-size=2: must not be set")
    assert_mistake(cli("continue", folder, "--seed", 3), "--seed=3: must not be set without sampling")
    assert_mistake(cli("continue", folder, "--alpha", 1), "--alpha=1.0: expected 0 with length_penalty='none'")
    for penalty in ("power", "gnmt"):
        refused = cli("continue", folder, "--beam-size", 2, "--length-penalty", penalty)
        assert_mistake(refused, f"--length-penalty={penalty}: must not be set without alpha, which is 0; add alpha")
    assert_mistake(cli("continue", tmp_path / "none"), "none: expected a folder with config.json and model.safetensors")
    bert = bert_folder(tmp_path / "bert", "words")
    expected = "expected a model that continues text, such as GPT-2; use `transduce fill`, `embed` or `classify`"
    assert_mistake(cli("continue", bert), f"{bert}: model_type='bert': {expected}")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b"{", "config.json: expected a JSON object"),
        ("model.safetensors", b"\x08" + bytes(7) + b"{}", "model.safetensors: expected readable tensors"),
        ("tokenizer.json", b"[]", "tokenizer.json: expected a tokenizer"),
        ("tokenizer.json", None, "expected tokenizer.json; use a whole folder"),
    ],
)
def test_a_damaged_folder_is_refused(
    tmp_path: Path, cli: Callable[..., CommandResult], name: str, content: bytes | None, message: str
) -> None:
    folder = gpt2_folder(tmp_path / "damaged")
    (folder / name).unlink()
    if content is not None:
        (folder / name).write_bytes(content)
    assert_mistake(cli("continue", folder), message)


def test_the_lines_before_a_line_that_is_not_utf8_are_answered(
    folder: Path, tmp_path: Path, cli: Callable[..., CommandResult]
) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"a dog\n\xff\n")
    result = cli("continue", folder, "--input", source)
    assert (result.code, result.out.count(b"\n")) == (2, 1)
    assert f"{source}:2: " in result.err
