"""`transduce translate` as a Unix filter: real pipes, any bytes, closed pipes and full disks."""

import bz2
import gzip
import io
import json
import lzma
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
from support.command_line import assert_mistake
from support.streams import standard_input
from support.toy_task import ROOT, CommandResult, Toy, needs_dev_full, reverse_words, run_transduce, write_lines

import transduce
from transduce import DecodingOptions, Sampling, UserError
from transduce.cli.stream import Form, ModelFolders, run_filter, translations

PLAIN = DecodingOptions()


@pytest.fixture(scope="module")
def model(toy: Toy) -> transduce.Translator:
    return transduce.load(toy.model)


@contextmanager
def running(*arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """Run the command with pipes on all sides, and kill it at the end of the block."""
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


def send(process: subprocess.Popen[bytes], content: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(content)
    process.stdin.flush()


# ---- pipes -------------------------------------------------------------------------------------------------------


def test_it_answers_while_standard_input_is_open_and_survives_a_closed_pipe(toy: Toy) -> None:
    """As in `... | transduce translate MODEL | head -2`, where the left side stays open."""
    with running(toy.model) as process:
        send(process, b"a b c\n")
        assert read_line(process) == b"c b a\n"
        send(process, b"\nd e")
        assert read_line(process) == b"\n"
        send(process, b" f\n")
        assert read_line(process) == b"f e d\n"
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        send(process, b"a b\n" * 100)
        assert process.wait(60) == 0
        assert process.stderr.read() == b""


def test_it_stops_at_bytes_that_are_not_utf8_while_standard_input_is_open(toy: Toy) -> None:
    """The lines before are translated, the message names the line, and the reading thread does not block the exit."""
    with running(toy.model) as process:
        send(process, b"a b\n\nc \xff d\ne f\n")
        assert process.wait(60) == 2
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.read() == b"b a\n\n"
        err = process.stderr.read().decode()
        assert err.startswith("transduce: standard input:3: expected UTF-8, but byte 3 of the line is 0xff;")
        assert "Traceback" not in err and "Fatal" not in err


@pytest.mark.slow
def test_any_characters_under_any_locale(toy: Toy) -> None:
    """Only LF ends a line. A BOM and CRLF are accepted. The last line needs no LF; its translation has one."""
    lines = ["a b", "", "c\u2028d", "e\u0085f", "g\x00h", "i\rj", "  ", "\x0c", "Grüße 😀", "\ufeffa"]
    windows = b"\xef\xbb\xbf" + "\r\n".join(lines).encode()
    plain = run_transduce("translate", toy.model, stdin="\n".join(lines).encode(), environment={"LC_ALL": "C.UTF-8"})
    result = run_transduce("translate", toy.model, stdin=windows, environment={"LC_ALL": "C"})
    assert (result.code, result.err) == (0, "")
    assert result.out == plain.out
    answers = result.out.split(b"\n")
    assert len(answers) == len(lines) + 1 and answers[-1] == b""
    assert answers[0] == b"b a"
    assert [answers[i].decode() for i in (1, 6, 7)] == ["", "  ", "\x0c"]
    result.out.decode()


@needs_dev_full
def test_a_full_disk_exits_with_code_3(toy: Toy) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "transduce", "translate", str(toy.model)]
    with open("/dev/full", "wb") as full:
        result = subprocess.run(command, input=b"a\n", stdout=full, stderr=subprocess.PIPE, env=environment, timeout=60)
    assert result.returncode == 3
    assert result.stderr.decode() == (
        "transduce: standard output: No space left on device, writing 2 bytes; make room there, or use another folder\n"
    )


# ---- files -------------------------------------------------------------------------------------------------------


def test_translates_a_file_into_a_file(toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    source, target = write_lines(tmp_path / "in", ["a b", " ", "c d e"]), tmp_path / "out"
    result = cli("translate", toy.model, "--input", source, "--output", target)
    assert (result.code, result.out, result.err) == (0, b"", "")
    assert target.read_bytes() == b"b a\n \ne d c\n"


def test_an_empty_file_gives_an_empty_file(toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    (tmp_path / "in").touch()
    assert cli("translate", toy.model, "--input", tmp_path / "in", "--output", tmp_path / "out").code == 0
    assert (tmp_path / "out").read_bytes() == b""


def test_a_named_pipe_is_read_once(toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["sh", "-c", f"printf 'a b\\nc d\\n' > {tmp_path / 'pipe'}"]):
        assert cli("translate", toy.model, "--input", tmp_path / "pipe").out == b"b a\nd c\n"


@pytest.mark.parametrize("compress", [gzip.compress, lzma.compress])
def test_compressed_input_is_read_as_text(
    toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult], compress: Callable[[bytes], bytes]
) -> None:
    (tmp_path / "in").write_bytes(compress(b"a b\nc d\n"))
    assert cli("translate", toy.model, "--input", tmp_path / "in").out == b"b a\nd c\n"
    with standard_input(tmp_path / "in"):
        assert cli("translate", toy.model).out == b"b a\nd c\n"
    (tmp_path / "in").write_bytes(bz2.compress(b"a b\n"))
    assert_mistake(cli("translate", toy.model, "--input", tmp_path / "in"), "expected text, or gz, xz or zst, not bz2")


def test_lines_without_a_visible_character_stay(toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    source = write_lines(tmp_path / "in", ["\u200b", "a b", "\ufeff", "\0"])
    assert cli("translate", toy.model, "--input", source).out == "\u200b\nb a\n\ufeff\n\0\n".encode()


def test_impossible_files_are_refused_and_the_input_is_kept(
    toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]
) -> None:
    source = write_lines(tmp_path / "in", ["a b"])
    (tmp_path / "link").symlink_to(source)
    for more, message in (
        (["--input", source, "--output", source], "expected another file than the input"),
        (["--input", source, "--output", tmp_path / "link"], "expected another file than the input"),
        (["--input", tmp_path / "none"], "none: expected a text file"),
        (["--input", tmp_path], "expected a text file"),
        (["--input", source, "--output", source / "out"], f"expected a file in a folder, but {source} is a file"),
        (["--input", source, "--output", tmp_path], "expected a file, not a folder"),
    ):
        result = cli("translate", toy.model, *more)
        assert result.code == 2, (more, result)
        assert message in result.err and "Traceback" not in result.err
    assert source.read_bytes() == b"a b\n"


def test_a_missing_model_leaves_the_output_file_unchanged(
    toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]
) -> None:
    source, target = write_lines(tmp_path / "in", ["a"]), write_lines(tmp_path / "out", ["dear"])
    assert cli("translate", tmp_path / "none", "--input", source, "--output", target).code == 2
    assert target.read_bytes() == b"dear\n"


# ---- output ----------------------------------------------------------------------------------------------------------


def test_json_has_one_object_per_line(toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    source = write_lines(tmp_path / "in", ["a b", "", "é\u2028 😀", "x " * 9_000])
    result = cli("translate", toy.model, "--input", source, "--json", "--n-best", 3, "--beam-size", 5)
    assert result.code == 0
    first, blank, _, too_long = [json.loads(line) for line in result.out.decode().removesuffix("\n").split("\n")]
    assert first["text"] == "b a" and first["finished"] and first["problem"] is None
    assert len(first["pieces"]) == len(first["token_log_probs"])
    assert len(first["alternatives"]) == 2
    assert first["alternatives"][0]["score"] <= first["score"] <= 0
    assert blank["text"] == "" and blank["alternatives"] == []
    assert too_long["text"] == "" and "expected at most 8,192" in too_long["problem"]
    assert "in:4: " in result.err and "expected at most 8,192" in result.err


def test_the_length_penalty_of_the_command(toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    source = write_lines(tmp_path / "in", ["a b c"])
    command = ["translate", toy.model, "--input", source, "--json", "--length-penalty"]
    none, power = (json.loads(cli(*command, name).out) for name in ("none", "power"))
    assert none["score"] == pytest.approx(sum(none["token_log_probs"]))
    assert power["score"] == pytest.approx(sum(power["token_log_probs"]) / len(power["pieces"]) ** 0.6)
    assert cli(*command, "wu").code == 2


def test_options_that_have_no_effect_or_no_meaning_are_refused(
    toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]
) -> None:
    source = write_lines(tmp_path / "in", ["a b"])
    for more, message in (
        (["--n-best", 2], "add --json"),
        (["--seed", 3], "--seed=3: must not be set without sampling"),
        (["--top-k", 3, "--beam-size", 2], "--beam-size=2: must not be set with sampling"),
        (["--temperature", 1, "--n-best", 2, "--json"], "--n-best=2: must not be set with sampling"),
        (["--temperature", 1, "--lookahead", 5], "--lookahead=5: must not be set with sampling"),
        (["--lookahead", 0], "transduce: --lookahead=0: expected at least 1"),
        (["--temperature", 0], "transduce: --temperature=0.0: expected a number from 0.000001"),
        (["--top-p", 1.5], "transduce: --top-p=1.5: expected"),
        (["--beam-size", 0], "transduce: --beam-size=0: expected 1 to 500\n"),
        (["--n-best", 9, "--json"], "transduce: --n-best=9: expected 1 to the beam size"),
        (["--n-best", 0], "transduce: --n-best=0: expected 1 to the beam size"),
        (["--mbr", 1], "transduce: --mbr=1: expected 2 to 1,000 candidates; give another number\n"),
        (
            ["--mbr", 9, "--beam-size", 8],
            "transduce: --mbr=9: expected 2 to the beam size, 8; give fewer, or a larger beam\n",
        ),
        (["--mbr", 8, "--lookahead", 3], "--lookahead=3: must not be set with sampling, from which mbr takes"),
        (["--mbr", 8, "--beam-size", 8, "--seed", 3], "--seed=3: must not be set without sampling"),
        (["--mbr-metric", "bleu"], "--mbr-metric=bleu: must not be set without mbr; add mbr\n"),
        (["--mbr", 8, "--mbr-metric", "ter"], "--mbr-metric=ter: expected chrf or bleu"),
        (["--precision", "int4"], "transduce: --precision='int4': expected"),
        (["--alpha", "nan"], "transduce: --alpha=nan: expected a number from 0 to 10\n"),
    ):
        result = cli("translate", toy.model, "--input", source, *more)
        assert (result.code, result.out) == (2, b""), (more, result)
        assert message in result.err and "Traceback" not in result.err, result.err
    assert cli("translate").code == 2


def test_sampling_is_repeatable_and_seed_0_is_a_seed(
    toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]
) -> None:
    source = write_lines(tmp_path / "in", ["a b c d e f"] * 5)
    arguments = ["translate", toy.model, "--input", source, "--temperature", "3", "--seed"]
    outputs = {seed: cli(*arguments, seed).out for seed in (0, 1, 2)}
    assert len(set(outputs.values())) == 3
    assert cli(*arguments, 2).out == outputs[2]
    assert len(set(outputs[0].splitlines())) > 1


def test_minimum_bayes_risk(toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    source = write_lines(tmp_path / "in", ["a b c d e f", "", "g h"])
    command = ["translate", toy.model, "--input", source, "--mbr", 8, "--temperature", 3]
    lines = cli(*command).out.decode().splitlines()
    best = [json.loads(line) for line in cli(*command, "--json", "--n-best", 8).out.splitlines()]
    assert [output["text"] for output in best] == lines
    for output in (best[0], best[2]):
        utilities = [other["utility"] for other in (output, *output["alternatives"])]
        assert utilities == sorted(utilities, reverse=True) and 0 < utilities[0] <= 100
    assert len(best[0]["alternatives"]) == 7 and best[1]["utility"] is None
    assert cli(*command, "--seed", 1).out.decode().splitlines() == lines
    assert cli(*command, "--seed", 2).out.decode().splitlines() != lines
    by_bleu = json.loads(cli(*command, "--json", "--mbr-metric", "bleu").out.splitlines()[0])
    assert by_bleu["utility"] != best[0]["utility"]
    beam = cli("translate", toy.model, "--input", source, "--mbr", 4, "--beam-size", 4)
    likeliest = transduce.load(toy.model).translate(["a b c d e f"], beam_size=4, n_best=4)[0]
    assert (beam.code, beam.err) == (0, "")
    assert beam.out.decode().splitlines()[0] in [output.text for output in (likeliest, *likeliest.alternatives)]


def test_two_models_are_an_ensemble(toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    source = write_lines(tmp_path / "in", ["a b c"])
    assert cli("translate", toy.model, toy.model, "--input", source).out == b"c b a\n"


# ---- progress ----------------------------------------------------------------------------------------------------


def screen_of(model: Path, source: Path | None, stdin: BinaryIO, out: Path | None) -> str:
    """Translate on a terminal and return its screen.

    source: the --input; None translates `stdin`. out: a file for standard output; None is the terminal too.
    """
    leader, terminal = pty.openpty()
    command = [sys.executable, "-m", "transduce", "translate", str(model), "--beam-size", "1"]
    command += [] if source is None else ["--input", str(source)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "COLUMNS": "100", "TERM": "xterm"}
    with open(out or os.devnull, "wb") as file:
        stdout = terminal if out is None else file
        process = subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=terminal, env=environment)
    os.close(terminal)
    screen = b""
    with suppress(OSError):  # Linux raises it when the other end of the terminal is closed
        while block := os.read(leader, 1 << 16):
            screen += block
    os.close(leader)
    assert process.wait(60) == 0
    return screen.decode()


@pytest.mark.parametrize("way", ["file", "standard input", "pipe"])
def test_a_terminal_shows_the_progress(toy: Toy, tmp_path: Path, way: str) -> None:
    source, out = write_lines(tmp_path / "in", ["a b"] * 2_100), tmp_path / "out"
    with subprocess.Popen(["cat", str(source)], stdout=subprocess.PIPE) as cat, source.open("rb") as file:
        assert cat.stdout is not None
        stdin = cat.stdout if way == "pipe" else file
        screen = screen_of(toy.model, source if way == "file" else None, stdin, out)
        cat.stdout.close()
    assert out.read_bytes() == b"b a\n" * 2_100
    assert "translating" in screen
    total = "?" if way == "pipe" else "2100"
    numbers = [int(number) for number in re.findall(rf"(\d+)/{re.escape(total)}", screen)]
    assert numbers == sorted(numbers) and numbers[-1] == 2_100
    assert any(0 < number < 2_100 for number in numbers)


def test_no_progress_bar_between_translations(toy: Toy, tmp_path: Path) -> None:
    source = write_lines(tmp_path / "in", ["a b"] * 3)
    with source.open("rb") as stdin:
        assert screen_of(toy.model, source, stdin, None) == "b a\r\n" * 3


# ---- streams of any size -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, 1_023, 1_024, 1_025, 2_100])
def test_the_number_of_lines_never_changes(model: transduce.Translator, count: int) -> None:
    rng = random.Random(count)
    lines = [" ".join(rng.sample("abcdefghij", rng.randrange(4))) for _ in range(count)]
    content = "".join(line + "\n" for line in lines).encode()
    outputs = texts(translations(model, io.BytesIO(content), "memory", replace(PLAIN, beam_size=1)))
    assert len(outputs) == count
    assert sum(output == reverse_words(line) for output, line in zip(outputs, lines, strict=True)) >= 0.98 * count


def test_options_reach_the_translator(model: transduce.Translator, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, object]] = []
    monkeypatch.setattr(model, "translate", lambda lines, **keywords: calls.append(keywords) or [])
    options = replace(PLAIN, beam_size=3, alpha=0.5, lookahead=7, n_best=2, split="sentences")
    list(translations(model, io.BytesIO(b"a b\n"), "memory", options))
    assert calls == [{"options": options, "first_number": 0}]


def test_samples_do_not_depend_on_when_the_lines_arrive(model: transduce.Translator) -> None:
    class Slow(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            time.sleep(0.002)
            return super().readline(size)

    options = replace(PLAIN, sampling=Sampling(temperature=3), seed=5)
    content = b"a b c d\n" * 60
    from_memory, from_slow_stream = (
        texts(translations(model, kind(content), "memory", options)) for kind in (io.BytesIO, Slow)
    )
    assert from_memory == from_slow_stream
    assert len(set(from_memory)) > 5


def test_lines_before_a_bad_line_are_translated(model: transduce.Translator) -> None:
    chunks = translations(model, io.BytesIO(b"a b\nc d\n\xc3\x28\ne\n"), "memory", PLAIN)
    assert texts([next(chunks)]) == ["b a", "d c"]
    with pytest.raises(UserError, match="memory:3: expected UTF-8"):
        next(chunks)


def test_run_filter_without_a_model_writes_nothing(toy: Toy, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no model: expected"):
        run_filter(ModelFolders([]), toy.train[0], tmp_path / "out", PLAIN, form=Form())
    assert not (tmp_path / "out").exists()
