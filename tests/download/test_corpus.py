"""`transduce download`: the whole job, from archives on a server to clean text, and its interruptions."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from support.command_line import assert_mistake
from support.http_server import Files, serve
from support.toy_task import ROOT, CommandResult
from support.wmt_archives import miniature

from transduce.cli.download import CorpusName
from transduce.config.recipes import RECIPES
from transduce.data.system import locked
from transduce.download import catalogue
from transduce.download.cleaning import OUTCOMES

Cli = Callable[..., CommandResult]
PARTS = ("europarl-v7", "commoncrawl", "news-commentary-v9", "un", "giga-fren")
TEXTS = {
    **{
        name: ([f"The {name} sentence {n}." for n in range(30)], [f"Der {name}-Satz {n}." for n in range(30)])
        for name in PARTS
    },
    "newstest2013": (["Valid  &amp; one", "", "two"], ["Gültig eins", "x", "zwei"]),
    "newstest2014": (["Test one", "Test “two”"], ["Probe eins", "Probe zwei"]),
}
PAGE = ROOT / "docs" / "wmt14.md"
NAMES = ["newstest2013.{}", "newstest2014.{}", "train.{}"]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    """Serve small archives of both corpora, which the catalogue has in place of WMT's."""
    content: dict[str, bytes] = {}
    for name, corpus in catalogue.CORPORA.copy().items():
        small, archives = miniature(corpus, TEXTS)
        monkeypatch.setitem(catalogue.CORPORA, name, small)
        content |= {f"/{name}{path}": archive for path, archive in archives.items()}
    with serve(content) as files:
        yield files


def download(cli: Cli, server: Files, name: str, out: Path) -> CommandResult:
    return cli("download", name, "--out", out, "--mirror", f"{server.url}/{name}")


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the files of a corpus, without the archives."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_the_names_of_the_command_equal_the_catalogue() -> None:
    assert [*CorpusName.__args__] == [*catalogue.CORPORA]


@pytest.mark.parametrize(("name", "tgt", "parts"), [("wmt14-en-de", "de", 3), ("wmt14-en-fr", "fr", 5)])
def test_the_texts_of_a_corpus(tmp_path: Path, cli: Cli, server: Files, name: str, tgt: str, parts: int) -> None:
    out = tmp_path / "corpus"
    result = download(cli, server, name, out)
    assert result.code == 0, result.err
    files = files_of(out)
    assert sorted(files) == sorted(["summary.json", *(n.format(s) for n in NAMES for s in ("en", tgt))])
    assert files["train.en"].decode() == "".join(f"{line}\n" for part in PARTS[:parts] for line in TEXTS[part][0])
    assert files[f"train.{tgt}"].count(b"\n") == 30 * parts
    assert files["newstest2013.en"].decode() == "Valid  &amp; one\n\ntwo\n"
    assert files["newstest2014.en"].decode() == "Test one\nTest “two”\n"
    summary = json.loads(files["summary.json"])
    assert summary["pairs"]["commoncrawl"] == {**dict.fromkeys(OUTCOMES, 0), "kept": 30}
    assert summary["texts"]["newstest2014.en"]["lines"] == 2 and len(summary["archives"]) == parts + 2
    table = result.out.decode().splitlines()
    assert table[0].split()[:2] == ["pairs", "read"] and table[parts + 1].split()[:2] == ["all", str(30 * parts)]
    assert sorted(os.listdir(out / "raw")) == sorted(path.rpartition("/")[2] for path, *_ in server.requests)


def test_a_second_call_does_nothing(tmp_path: Path, cli: Cli, server: Files) -> None:
    first = download(cli, server, "wmt14-en-de", tmp_path / "corpus")
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "corpus").rglob("*")}
    count = len(server.requests)
    second = download(cli, server, "wmt14-en-de", tmp_path / "corpus")
    assert (second.code, second.out, len(server.requests)) == (0, first.out, count)
    assert "complete; nothing to do" in second.err
    assert times == {path: path.stat().st_mtime_ns for path in (tmp_path / "corpus").rglob("*")}


def test_a_lost_text_is_written_again_from_the_archives(tmp_path: Path, cli: Cli, server: Files) -> None:
    out = tmp_path / "corpus"
    download(cli, server, "wmt14-en-de", out)
    before = files_of(out)
    (out / "train.de").unlink()
    count = len(server.requests)
    result = download(cli, server, "wmt14-en-de", out)
    assert result.code == 0 and result.err.count(", already there\n") == 5
    assert files_of(out) == before and len(server.requests) == count


def test_a_text_that_somebody_changed_is_not_replaced(tmp_path: Path, cli: Cli, server: Files) -> None:
    out = tmp_path / "corpus"
    download(cli, server, "wmt14-en-de", out)
    (out / "train.de").write_bytes(b"mine")
    (out / "train.en").unlink()
    before, count = files_of(out), len(server.requests)
    result = download(cli, server, "wmt14-en-de", out)
    assert_mistake(result, "train.de: expected", "bytes, not 4; give your changed file another name, and run")
    assert files_of(out) == before and len(server.requests) == count


@pytest.mark.parametrize(("name", "tgt", "recipe"), [("wmt14-en-de", "de", "base"), ("wmt14-en-fr", "fr", "base-enfr")])
def test_the_last_lines_are_the_next_commands(
    tmp_path: Path, cli: Cli, server: Files, name: str, tgt: str, recipe: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = download(cli, server, name, Path("my corpus"))
    heading, *steps = result.out.decode().splitlines()[-5:]
    assert heading == "Next steps"
    texts = {text: f"'my corpus/{text}.en' 'my corpus/{text}.{tgt}'" for text in ("train", "newstest2013")}
    assert steps[1] == (
        f"  transduce train --recipe vaswani2017-{recipe} --train {texts['train']} --valid {texts['newstest2013']} "
        "--out run  # 12 hours on 8 P100, in the paper"
    )
    paths = [Path(word) for step in steps[:3] for word in shlex.split(step) if "corpus" in word]
    assert len(paths) == 10 and all(path.is_file() for path in paths)
    shutil.rmtree(shlex.split(steps[3])[2])
    again = download(cli, server, name, Path("my corpus"))
    assert again.code == 0 and again.out.decode().splitlines() == result.out.decode().splitlines()[:-1]


def test_ctrl_c_says_that_the_same_command_continues_and_it_does(tmp_path: Path, cli: Cli, server: Files) -> None:
    out = tmp_path / "corpus"
    archive = out / "raw" / "training-parallel-commoncrawl.tgz.partial"

    def interrupt() -> None:
        while not (archive.exists() and archive.stat().st_size == 100):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    server.cuts, server.before_cut = [1 << 20, 100], interrupt
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    try:
        result = download(cli, server, "wmt14-en-de", out)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (result.code, result.out) == (130, b"")
    assert result.err.splitlines()[-1] == "transduce: interrupted; the same command continues"
    assert download(cli, server, "wmt14-en-de", out).code == 0
    assert server.ranges == [None, None, "bytes=100-", None, None, None]


def test_archives_may_be_there_before(tmp_path: Path, cli: Cli, server: Files) -> None:
    (tmp_path / "corpus" / "raw").mkdir(parents=True)
    for path, content in server.content.items():
        if path.startswith("/wmt14-en-de"):
            (tmp_path / "corpus" / "raw" / path.rpartition("/")[2]).write_bytes(content)
    assert download(cli, server, "wmt14-en-de", tmp_path / "corpus").code == 0
    assert server.requests == []


def test_what_a_killed_call_has_left_is_removed(tmp_path: Path, cli: Cli, server: Files) -> None:
    out = tmp_path / "corpus"
    server.statuses = [404]
    assert download(cli, server, "wmt14-en-de", out).code == 2
    for name in (".tmp-train.de-123", ".tmp-summary.json-4", "raw/.tmp-dev.tgz.partial.json-5", ".tmp-mine"):
        (out / name).write_bytes(b"x")
    (out / ".tmp-unpacked").mkdir()
    (out / ".tmp-unpacked" / "commoncrawl.de-en.de").write_bytes(b"x")
    assert download(cli, server, "wmt14-en-de", out).code == 0
    assert [path.name for path in out.rglob(".tmp-*")] == [".tmp-mine"]


def test_a_network_that_fails_exits_with_3_and_the_next_call_continues(tmp_path: Path, cli: Cli, server: Files) -> None:
    out = tmp_path / "corpus"
    server.cuts = [1 << 20, 100, 0, 0, 0]
    result = download(cli, server, "wmt14-en-de", out)
    assert result.code == 3 and result.out == b"" and "Traceback" not in result.err
    assert result.err.splitlines()[-1].endswith("run the command again: it continues at byte 100")
    result = download(cli, server, "wmt14-en-de", out)
    assert result.code == 0 and server.ranges.count("bytes=100-") == 4
    assert not [*out.rglob("*.partial*"), *out.rglob(".tmp-*")]


def test_a_full_disk_exits_with_3_before_anything_is_received(
    tmp_path: Path, cli: Cli, server: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transduce.data.disk.shutil.disk_usage", lambda path: type("Usage", (), {"free": 10}))
    result = download(cli, server, "wmt14-en-de", tmp_path / "corpus")
    assert result.code == 3 and "bytes needed, 10 free; make room there, or use another folder" in result.err
    assert server.requests == []


def test_the_room_for_archives_unpacked_and_clean_text_is_checked_first(
    tmp_path: Path, cli: Cli, server: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both texts are on the disk while the text is cleaned."""
    corpus = replace(catalogue.CORPORA["wmt14-en-de"], text_bytes=1_000_000)
    monkeypatch.setitem(catalogue.CORPORA, "wmt14-en-de", corpus)
    needed = sum(file.size or 0 for file in corpus.archives) + 2_000_000
    for free in (needed - 1, needed):
        usage = type("Usage", (), {"free": free})
        monkeypatch.setattr("transduce.data.disk.shutil.disk_usage", lambda path, usage=usage: usage)
        result = download(cli, server, "wmt14-en-de", tmp_path / "corpus")
        assert (result.code, bool(server.requests)) == ((3, False) if free < needed else (0, True)), result.err
        assert (f"{needed:,} bytes needed, {free:,} free" in result.err) == (free < needed)


@pytest.mark.parametrize(("status", "code"), [(404, 2), (403, 2), (500, 3)])
def test_a_server_without_the_file_is_a_mistake_and_a_failed_server_is_not(
    tmp_path: Path, cli: Cli, server: Files, status: int, code: int
) -> None:
    server.statuses = [status] * 5
    result = download(cli, server, "wmt14-en-de", tmp_path / "corpus")
    assert result.code == code and f"the server answers {status}" in result.err


@pytest.mark.parametrize("change", ["content", "size"])
def test_the_unattended_loop_of_the_page_ends_at_a_wrong_file(
    tmp_path: Path, cli: Cli, server: Files, change: str
) -> None:
    path = "/wmt14-en-de/wmt13/training-parallel-europarl-v7.tgz"
    content = server.content[path]
    server.content[path] = bytes(len(content)) if change == "content" else content[:-100]
    code = download(cli, server, "wmt14-en-de", tmp_path / "corpus").code
    (tmp_path / "wmt14.sh").write_text(f"echo tried\nexit {code}\n", encoding="utf-8")
    assert (code, run_loop(tmp_path), len(server.requests)) == (2, "tried\n", 1)


@pytest.mark.parametrize(
    ("codes", "tries"), [((3, 143, 0), 3), ((3, 1), 2), ((3, 2), 2), ((130,), 1)], ids=["machine", "1", "2", "Ctrl-C"]
)
def test_the_unattended_loop_starts_again_only_after_a_failure_of_the_machine(
    tmp_path: Path, codes: tuple[int, ...], tries: int
) -> None:
    cases = "".join(f"{number}) exit {code};; " for number, code in enumerate(codes, 1))
    script = f"echo tried >> tries\ncat tries | tail -n 1\ncase $(grep -c . tries) in {cases} esac\n"
    (tmp_path / "wmt14.sh").write_text(script, encoding="utf-8")
    assert run_loop(tmp_path) == "tried\n" * tries


def run_loop(folder: Path) -> str:
    """Run the loop of the page, without its waits, on wmt14.sh in `folder`. Return what the script printed."""
    (loop,) = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("until ")]
    assert "sleep 60" in loop
    command = ["bash", "-c", loop.replace("sleep 60", "true")]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=30).stdout


def test_a_wrong_number_of_lines_is_named(
    tmp_path: Path, cli: Cli, server: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = catalogue.CORPORA["wmt14-en-de"]
    tests = tuple(replace(test, lines=3_003) for test in corpus.tests)
    monkeypatch.setitem(catalogue.CORPORA, "wmt14-en-de", replace(corpus, tests=tests))
    result = download(cli, server, "wmt14-en-de", tmp_path / "corpus")
    assert_mistake(result, "dev.tgz: expected 3,003 lines in newstest2013.en, not 3; delete ")
    assert not (tmp_path / "corpus" / ".tmp-unpacked").exists()


@pytest.mark.parametrize("name", ["train.en", "notes.txt", "own/x", "raw"])
def test_a_folder_of_the_user_is_refused(tmp_path: Path, cli: Cli, server: Files, name: str) -> None:
    file = tmp_path / "corpus" / name
    file.parent.mkdir(parents=True)
    file.write_bytes(b"mine")
    result = download(cli, server, "wmt14-en-de", tmp_path / "corpus")
    assert_mistake(result, "corpus: expected a new folder, or one of an earlier call; give another name")
    assert file.read_bytes() == b"mine" and server.requests == []


def test_the_folder_of_another_corpus_or_of_another_call_is_refused(tmp_path: Path, cli: Cli, server: Files) -> None:
    out = tmp_path / "corpus"
    assert download(cli, server, "wmt14-en-de", out).code == 0
    before = files_of(out)
    assert_mistake(download(cli, server, "wmt14-en-fr", out), "expected the folder of wmt14-en-fr, not of another")
    (out / "train.en").unlink()
    with locked(out, "locked"):
        assert_mistake(download(cli, server, "wmt14-en-de", out), "expected a folder that no other command writes")
    (out / "summary.json").write_bytes(b"{}")
    assert_mistake(download(cli, server, "wmt14-en-de", out), "not of another corpus")
    assert files_of(out) == {**{k: v for k, v in before.items() if k != "train.en"}, "summary.json": b"{}"}


def test_mistakes_in_the_arguments(tmp_path: Path, cli: Cli) -> None:
    assert_mistake(cli("download", "wmt15"), "CORPUS=wmt15: expected wmt14-en-de or wmt14-en-fr")
    result = cli("download", "wmt14-en-de", "--mirror", "ftp://a", "--out", tmp_path / "corpus")
    assert_mistake(result, "--mirror=ftp://a: expected an address such as")
    (tmp_path / "file").write_bytes(b"")
    for out in (tmp_path / "file", tmp_path / "file" / "corpus"):
        assert_mistake(cli("download", "wmt14-en-de", "--out", out), f"--out={out}: expected a folder, but ")
    assert not (tmp_path / "corpus").exists()


def test_the_catalogue_equals_the_paper() -> None:
    """Sizes in gigabytes, as the help says; every archive has a checksum, and every member one archive."""
    sizes = {name: sum(file.size or 0 for file in corpus.archives) for name, corpus in catalogue.CORPORA.items()}
    assert sizes == {"wmt14-en-de": 1_695_017_123, "wmt14-en-fr": 6_655_754_089}
    for corpus in catalogue.CORPORA.values():
        assert [test.lines for test in corpus.tests] == [3_000, 3_003]
        assert corpus.recipe in RECIPES
        for file in corpus.archives:
            kind, _, digest = file.checksum.partition(":")
            assert file.url.startswith("https://") and len(digest) == {"sha256": 64, "md5": 32}[kind]
