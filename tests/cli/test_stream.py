"""`transduce translate` as a Unix filter: real pipes, any bytes, any end."""

import io
import json
import os
import pty
import random
import re
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest
from support.toy_task import ROOT, Finished, Toy, needs_dev_full, run_transduce, turned, write_lines

import transduce
from transduce import DecodingOptions, Sampling, UserError
from transduce.cli.stream import Models, run_filter, translations

PLAIN = DecodingOptions()


@pytest.fixture(scope="module")
def model(toy: Toy) -> transduce.Translator:
    return transduce.load(toy.model)


@contextmanager
def running(*arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """The command with pipes on all sides, killed if it is still there at the end."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "transduce", "translate", *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def read_line(process: subprocess.Popen[bytes], seconds: float = 60) -> bytes:
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], seconds)
    assert ready, "no answer while standard input is open"
    return process.stdout.readline()


def texts(lists: Iterable[list[transduce.Translation]]) -> list[str]:
    return [translation.text for translations in lists for translation in translations]


def give(process: subprocess.Popen[bytes], content: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(content)
    process.stdin.flush()


# ---- pipes -------------------------------------------------------------------------------------------------------


def test_it_answers_while_standard_input_is_open_and_survives_a_closed_pipe(toy: Toy) -> None:
    """As in `... | transduce translate MODEL | head -2`, where nobody ever closes the left side."""
    with running(toy.model) as process:
        give(process, b"a b c\n")
        assert read_line(process) == b"c b a\n"
        give(process, b"\nd e")
        assert read_line(process) == b"\n"
        give(process, b" f\n")
        assert read_line(process) == b"f e d\n"
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        give(process, b"a b\n" * 100)
        assert process.wait(60) == 0
        assert process.stderr.read() == b""


def test_it_stops_at_bytes_that_are_not_utf8_though_standard_input_is_open(toy: Toy) -> None:
    """What came before is answered; then the line is named, and the thread that waits for more does no harm."""
    with running(toy.model) as process:
        give(process, b"a b\n\nc \xff d\ne f\n")
        assert process.wait(60) == 2
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read() == b"b a\n\n"
        err = process.stderr.read().decode()
        assert err.startswith("transduce: standard input:3 is not valid UTF-8: byte 3 of the line is 0xff.")
        assert "Traceback" not in err and "Fatal" not in err


def test_any_characters_under_any_locale(toy: Toy) -> None:
    """Only LF ends a line; BOM and CRLF are understood; the last line needs no LF but gets one."""
    lines = ["a b", "", "c\u2028d", "e\u0085f", "g\x00h", "i\rj", "  ", "\x0c", "Grüße 😀", "\ufeffa"]
    given = b"\xef\xbb\xbf" + "\r\n".join(lines).encode()
    plain = run_transduce("translate", toy.model, given="\n".join(lines).encode(), environment={"LC_ALL": "C.UTF-8"})
    found = run_transduce("translate", toy.model, given=given, environment={"LC_ALL": "C"})
    assert (found.code, found.err) == (0, "")
    assert found.out == plain.out
    answers = found.out.split(b"\n")
    assert len(answers) == len(lines) + 1 and answers[-1] == b""
    assert answers[0] == b"b a"
    assert [answers[i].decode() for i in (1, 6, 7)] == ["", "  ", "\x0c"]
    found.out.decode()


@needs_dev_full
def test_a_full_disk_is_the_machine_s_fault(toy: Toy) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "transduce", "translate", str(toy.model)]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(command, input=b"a\n", stdout=full, stderr=subprocess.PIPE, env=environment, timeout=60)
    assert done.returncode == 3
    assert done.stderr.decode() == "transduce: No space left on device; make room there, or give another place\n"


# ---- files -------------------------------------------------------------------------------------------------------


def test_files_in_and_out(toy: Toy, tmp_path: Path, cli: Callable[..., Finished]) -> None:
    source, target = write_lines(tmp_path / "in", ["a b", " ", "c d e"]), tmp_path / "out"
    done = cli("translate", toy.model, "--input", source, "--output", target)
    assert (done.code, done.out, done.err) == (0, b"", "")
    assert target.read_bytes() == b"b a\n \ne d c\n"


def test_an_empty_file_gives_an_empty_file(toy: Toy, tmp_path: Path, cli: Callable[..., Finished]) -> None:
    (tmp_path / "in").touch()
    assert cli("translate", toy.model, "--input", tmp_path / "in", "--output", tmp_path / "out").code == 0
    assert (tmp_path / "out").read_bytes() == b""


def test_a_named_pipe_is_read_once(toy: Toy, tmp_path: Path, cli: Callable[..., Finished]) -> None:
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["sh", "-c", f"printf 'a b\\nc d\\n' > {tmp_path / 'pipe'}"]):
        assert cli("translate", toy.model, "--input", tmp_path / "pipe").out == b"b a\nd c\n"


def test_files_that_cannot_be(toy: Toy, tmp_path: Path, cli: Callable[..., Finished]) -> None:
    source = write_lines(tmp_path / "in", ["a b"])
    (tmp_path / "link").symlink_to(source)
    for more, message in (
        (["--input", source, "--output", source], "is the input file"),
        (["--input", source, "--output", tmp_path / "link"], "is the input file"),
        (["--input", tmp_path / "none"], "none does not exist"),
        (["--input", tmp_path], "is not a file"),
        (["--input", source, "--output", tmp_path / "no" / "out"], "there is no folder"),
        (["--input", source, "--output", tmp_path], "is a folder"),
    ):
        done = cli("translate", toy.model, *more)
        assert done.code == 2, (more, done)
        assert message in done.err and "Traceback" not in done.err
    assert source.read_bytes() == b"a b\n"


def test_a_failed_model_leaves_the_output_alone(toy: Toy, tmp_path: Path, cli: Callable[..., Finished]) -> None:
    source, target = write_lines(tmp_path / "in", ["a"]), write_lines(tmp_path / "out", ["dear"])
    assert cli("translate", tmp_path / "none", "--input", source, "--output", target).code == 2
    assert target.read_bytes() == b"dear\n"


# ---- what is written ---------------------------------------------------------------------------------------------


def test_json_lines(toy: Toy, tmp_path: Path, cli: Callable[..., Finished]) -> None:
    source = write_lines(tmp_path / "in", ["a b", "", "é\u2028 😀", "x " * 9_000])
    done = cli("translate", toy.model, "--input", source, "--json", "--n-best", 3, "--beam-size", 5)
    assert done.code == 0
    first, blank, _, too_long = [json.loads(line) for line in done.out.decode().removesuffix("\n").split("\n")]
    assert first["text"] == "b a" and first["finished"] and first["problem"] is None
    assert len(first["pieces"]) == len(first["token_log_probs"])
    assert len(first["alternatives"]) == 2
    assert first["alternatives"][0]["score"] <= first["score"] <= 0
    assert blank["text"] == "" and blank["alternatives"] == []
    assert too_long["text"] == "" and "expected at most 8,192" in too_long["problem"]
    assert "in:4: " in done.err and "expected at most 8,192" in done.err


def test_asked_for_what_has_no_effect(toy: Toy, tmp_path: Path, cli: Callable[..., Finished]) -> None:
    source = write_lines(tmp_path / "in", ["a b"])
    for more, message in (
        (["--n-best", 2], "add --json"),
        (["--seed", 3], "seed=3: expected no value without sampling"),
        (["--top-k", 3, "--beam-size", 2], "beam_size=2: expected no value with sampling"),
        (["--temperature", 1, "--n-best", 2, "--json"], "n_best=2: expected no value with sampling"),
        (["--temperature", 1, "--lookahead", 5], "lookahead=5: expected no value with sampling"),
        (["--lookahead", 0], "search.lookahead=0"),
        (["--temperature", 0], "temperature=0"),
        (["--top-p", 1.5], "top_p=1.5"),
        (["--beam-size", 0], "search.beam_size=0"),
        (["--n-best", 9, "--json"], "n_best=9"),
        (["--n-best", 0], "n_best=0"),
        (["--precision", "int4"], "'int4', expected"),
        (["--alpha", "nan"], "alpha"),
    ):
        done = cli("translate", toy.model, "--input", source, *more)
        assert (done.code, done.out) == (2, b""), (more, done)
        assert message in done.err and "Traceback" not in done.err, done.err
    assert cli("translate").code == 2


def test_sampling_is_repeatable_and_seed_0_is_a_seed(toy: Toy, tmp_path: Path, cli: Callable[..., Finished]) -> None:
    source = write_lines(tmp_path / "in", ["a b c d e f"] * 5)
    ask = ["translate", toy.model, "--input", source, "--temperature", "3", "--seed"]
    found = {seed: cli(*ask, seed).out for seed in (0, 1, 2)}
    assert len(set(found.values())) == 3
    assert cli(*ask, 2).out == found[2]
    assert len(set(found[0].splitlines())) > 1


def test_two_models_are_an_ensemble(toy: Toy, tmp_path: Path, cli: Callable[..., Finished]) -> None:
    source = write_lines(tmp_path / "in", ["a b c"])
    assert cli("translate", toy.model, toy.model, "--input", source).out == b"c b a\n"


# ---- progress ----------------------------------------------------------------------------------------------------


def shown_on_a_terminal(model: Path, source: Path | None, given: BinaryIO, out: Path | None) -> str:
    """What standard error shows where it is a terminal, and standard output, too, if `out` is None."""
    leader, terminal = pty.openpty()
    command = [sys.executable, "-m", "transduce", "translate", str(model), "--beam-size", "1"]
    command += [] if source is None else ["--input", str(source)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "100", "TERM": "xterm"}
    with open(out or os.devnull, "wb") as file:
        writing = terminal if out is None else file
        process = subprocess.Popen(command, stdin=given, stdout=writing, stderr=terminal, env=environment)
    os.close(terminal)
    shown = b""
    with suppress(OSError):  # Linux's way to say that nobody is left at the other end
        while block := os.read(leader, 1 << 16):
            shown += block
    os.close(leader)
    assert process.wait(60) == 0
    return shown.decode()


@pytest.mark.parametrize("way", ["file", "standard input", "pipe"])
def test_a_terminal_shows_how_far_it_is(toy: Toy, tmp_path: Path, way: str) -> None:
    source, out = write_lines(tmp_path / "in", ["a b"] * 2_100), tmp_path / "out"
    with subprocess.Popen(["cat", str(source)], stdout=subprocess.PIPE) as cat, source.open("rb") as file:
        assert cat.stdout is not None
        given = cat.stdout if way == "pipe" else file
        shown = shown_on_a_terminal(toy.model, source if way == "file" else None, given, out)
        cat.stdout.close()
    assert out.read_bytes() == b"b a\n" * 2_100
    assert "translating" in shown
    total = "?" if way == "pipe" else "2100"
    numbers = [int(number) for number in re.findall(rf"(\d+)/{re.escape(total)}", shown)]
    assert numbers == sorted(numbers) and numbers[-1] == 2_100
    assert any(0 < number < 2_100 for number in numbers)


def test_no_bar_among_translations(toy: Toy, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in", ["a b"] * 3)
    with source.open("rb") as given:
        assert shown_on_a_terminal(toy.model, source, given, None) == "b a\r\n" * 3


# ---- streams of any size -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 1_023, 1_024, 1_025, 2_100])
def test_the_number_of_lines_never_changes(model: transduce.Translator, count: int) -> None:
    rng = random.Random(count)
    lines = [" ".join(rng.sample("abcdefghij", rng.randrange(4))) for _ in range(count)]
    content = "".join(line + "\n" for line in lines).encode()
    found = texts(translations(model, io.BytesIO(content), "memory", replace(PLAIN, beam_size=1)))
    assert len(found) == count
    assert sum(a == turned(b) for a, b in zip(found, lines, strict=True)) >= 0.98 * count


def test_what_was_asked_arrives(model: transduce.Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []
    monkeypatch.setattr(model, "translate", lambda lines, **given: asked.append(given) or [])
    ask = replace(PLAIN, beam_size=3, alpha=0.5, lookahead=7, n_best=2, split="sentences")
    list(translations(model, io.BytesIO(b"a b\n"), "memory", ask))
    assert asked == [{"options": ask, "first_number": 0}]


def test_a_draw_does_not_depend_on_how_the_lines_arrive(model: transduce.Translator) -> None:
    class Slow(io.BytesIO):
        def __next__(self) -> bytes:
            time.sleep(0.002)
            return super().__next__()

    ask = replace(PLAIN, sampling=Sampling(temperature=3), seed=5)
    content = b"a b c d\n" * 60
    at_once, slowly = (texts(translations(model, kind(content), "memory", ask)) for kind in (io.BytesIO, Slow))
    assert at_once == slowly
    assert len(set(at_once)) > 5


def test_a_bad_line_comes_after_its_predecessors(model: transduce.Translator) -> None:
    found = translations(model, io.BytesIO(b"a b\nc d\n\xc3\x28\ne\n"), "memory", PLAIN)
    assert texts([next(found)]) == ["b a", "d c"]
    with pytest.raises(UserError, match="memory:3 is not valid UTF-8"):
        next(found)


def test_run_filter_needs_a_whole_model(toy: Toy, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no model given"):
        run_filter(Models([]), toy.train[0], tmp_path / "out", PLAIN)
    assert not (tmp_path / "out").exists()
