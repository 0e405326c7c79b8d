"""The whole job: fetch the archives of a corpus, take its texts out of them, clean the training text, write all.

The folder of a corpus has

    raw/            the archives, unchanged; a complete corpus does not need them any more
    train.SRC ...   the training text, clean, and the test sets under their names
    summary.json    the report of the command; it names no text before all texts are written
"""

import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from transduce.console import printable
from transduce.data.disk import check_room
from transduce.data.system import locked
from transduce.data.text import count_lines, file_sha256, read_lines
from transduce.download.archive import extract
from transduce.download.catalogue import PublicCorpus, TextPair, find_corpus
from transduce.download.cleaning import OUTCOMES, clean
from transduce.download.fetch import RemoteFile, at_mirror, fetch
from transduce.download.sgml import read_segments
from transduce.errors import UserError
from transduce.storage.atomic_folder import encode_json, folder_problems, remove, remove_unfinished, write_file

RAW = "raw"
SUMMARY = "summary.json"
UNPACKED = ".tmp-unpacked"
HEADINGS = {
    "not_utf8": "not UTF-8",
    "blank": "blank",
    "long": "too long",
    "copied": "copied",
    "ratio": "lengths",
    "repeated": "repeated",
    "kept": "kept",
}


@dataclass(frozen=True)
class CorpusFile:
    """A file of a corpus."""

    lines: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Summary:
    """The result of `download_corpus`. pairs: by part and outcome, as in `cleaning`."""

    corpus: str
    archives: list[RemoteFile]
    pairs: dict[str, dict[str, int]]
    texts: dict[str, CorpusFile]


def download_corpus(name: str, out: Path, mirror: str | None = None) -> Summary:
    """Write the corpus `name` to the folder `out`, unless it is there. An interrupted call can be repeated.

    mirror: address of a server that has the files under the same paths; None: the server of the catalogue.
    Raises UserError for a wrong name, mirror or folder, for a server that has no such file or another one, or for a
    text that has changed since its download. Raises OSError if the network, the server or the disk fails.
    """
    corpus = find_corpus(name)
    urls = {file: file.url if mirror is None else at_mirror(file.url, mirror) for file in corpus.archives}
    summary = _read_summary(corpus, out)
    if summary is not None and _is_complete(summary, corpus, out):
        _say(f"{printable(out)}: complete; nothing to do")
        return summary
    with _locked(out):
        if summary is None:
            _write_summary(Summary(corpus.name, corpus.archives, {}, {}), out)  # from now on the folder is ours
        (out / RAW).mkdir(exist_ok=True)
        _remove_unfinished(corpus, out)
        _check_room(corpus, out)
        archives = _fetch_all(urls, out / RAW)
        try:
            return _write_texts(corpus, archives, out)
        finally:
            remove(out / UNPACKED)


def _fetch_all(urls: dict[RemoteFile, str], folder: Path) -> dict[RemoteFile, Path]:
    """Return the path of each archive, by its entry in the catalogue."""
    paths = {}
    for number, (file, url) in enumerate(urls.items(), start=1):
        size = f"{file.size:,} bytes" if file.size else "size unknown"
        is_there = (folder / file.name).exists()
        place = f"{printable(folder / file.name)}, already there" if is_there else f"{url} ({size})"
        _say(f"archive {number} of {len(urls)}: {place}")
        paths[file] = fetch(replace(file, url=url), folder)
    return paths


def _check_room(corpus: PublicCorpus, out: Path) -> None:
    """Raise OSError if the disk has no room for the archives that are missing, the unpacked and the clean text."""
    missing = sum(file.size or 0 for file in corpus.archives if not (out / RAW / file.name).exists())
    partial = sum(path.stat().st_size for path in (out / RAW).glob("*.partial"))
    check_room(out, missing - partial + 2 * corpus.text_bytes)


def _write_texts(corpus: PublicCorpus, archives: dict[RemoteFile, Path], out: Path) -> Summary:
    """Write the texts of a corpus and its summary."""
    unpacked = out / UNPACKED
    unpacked.mkdir()
    members = _unpack(corpus, archives, unpacked)
    names = _text_names(corpus)
    pairs = clean({part.name: members[part] for part in corpus.train}, (out / names[0], out / names[1]), _say)
    for test in corpus.tests:
        for language, path in zip((corpus.src, corpus.tgt), members[test], strict=True):
            _write_test_set(path, out / f"{test.name}.{language}", test)
    texts = {
        name: CorpusFile(count_lines(out / name), (out / name).stat().st_size, file_sha256(out / name))
        for name in names
    }
    remove(unpacked)  # before the summary, which marks the corpus as complete
    summary = Summary(corpus.name, corpus.archives, pairs, texts)
    _write_summary(summary, out)
    return summary


def _text_names(corpus: PublicCorpus) -> list[str]:
    """Return the names of the files of a corpus, first the names of the training text."""
    stems = ["train", *(test.name for test in corpus.tests)]
    return [f"{stem}.{language}" for stem in stems for language in (corpus.src, corpus.tgt)]


def _remove_unfinished(corpus: PublicCorpus, out: Path) -> None:
    """Remove the texts that a killed call has left: they are large, and of no use to the next call."""
    remove(out / UNPACKED)
    remove_unfinished(out, "|".join(map(re.escape, [*_text_names(corpus), SUMMARY])))
    remove_unfinished(out / RAW, r".+\.partial\.json")


def _unpack(corpus: PublicCorpus, archives: dict[RemoteFile, Path], folder: Path) -> dict[TextPair, tuple[Path, Path]]:
    """Write the texts of a corpus from its archives to `folder`, and return their paths."""
    paths = {}
    for archive, path in archives.items():
        members = {}
        for pair in (*corpus.train, *corpus.tests):
            if pair.archive == archive:
                sides = [member.rpartition("/")[2] for member in (pair.src, pair.tgt)]
                paths[pair] = folder / sides[0], folder / sides[1]
                members |= dict(zip((pair.src, pair.tgt), paths[pair], strict=True))
        _say(f"unpacking {archive.name}")
        extract(path, members)
    return paths


def _write_test_set(source: Path, target: Path, test: TextPair) -> None:
    """Write one side of a test set, with its lines unchanged, and check their number."""
    lines = [*(read_segments(source) if source.suffix == ".sgm" else read_lines(source))]
    if test.lines not in (None, len(lines)):
        raise UserError(
            f"{test.archive.name}: expected {test.lines:,} lines in {source.name}, not {len(lines):,}; delete "
            f"{target.parent / RAW / test.archive.name}, and run the command again"
        )
    write_file(target, "".join(f"{line}\n" for line in lines).encode())


# ---- the folder ----------------------------------------------------------------------------------------------------


def _read_summary(corpus: PublicCorpus, out: Path) -> Summary | None:
    """Return the summary in the folder of `corpus`; None for a new folder. A folder may have RAW, filled by hand.

    Raises UserError for a folder with something else.
    """
    if problems := folder_problems(out):
        raise UserError(*problems)
    if not out.exists():
        return None
    path = out / SUMMARY
    if path.is_file():
        with suppress(msgspec.MsgspecError):
            summary = msgspec.json.decode(path.read_bytes(), type=Summary)
            if summary.corpus == corpus.name:
                _check_unchanged(summary, out)
                return summary
        raise UserError(f"--out={out}: expected the folder of {corpus.name}, not of another corpus; give a new folder")
    if any(file.name != RAW or not file.is_dir() for file in out.iterdir()):
        raise UserError(f"--out={out}: expected a new folder, or one of an earlier call; give another name")
    return None


def _is_complete(summary: Summary, corpus: PublicCorpus, out: Path) -> bool:
    """Return True if the folder has all texts of `corpus`, from the archives of today's catalogue."""
    has_texts = all(_size(out / name) == text.bytes for name, text in summary.texts.items())
    return bool(summary.texts) and has_texts and summary.archives == corpus.archives


def _check_unchanged(summary: Summary, out: Path) -> None:
    """Raise UserError for a text that has changed since its download: a new download would replace it."""
    sizes = {name: _size(out / name) for name in summary.texts}
    problems = [
        f"{out / name}: expected {text.bytes:,} bytes, not {sizes[name]:,}; give your changed file another name, and "
        "run the command again"
        for name, text in summary.texts.items()
        if sizes[name] not in (None, text.bytes)
    ]
    if problems:
        raise UserError(*problems)


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def _write_summary(summary: Summary, out: Path) -> None:
    write_file(out / SUMMARY, encode_json(msgspec.to_builtins(summary)))


@contextmanager
def _locked(out: Path) -> Iterator[None]:
    """Create the folder of a corpus, and lock it against other calls in the block."""
    out.mkdir(parents=True, exist_ok=True)
    with locked(out, f"--out={out}: expected a folder that no other command writes; wait for the other"):
        yield


# ---- text for a person ---------------------------------------------------------------------------------------------


def format_summary(summary: Summary, out: Path) -> str:
    """Return the summary as text: the pairs by part and outcome, the files, and the next commands."""
    rows = [["pairs", "read", *(HEADINGS[outcome] for outcome in OUTCOMES)]]
    rows += [[name, *_numbers(counts)] for name, counts in summary.pairs.items()]
    totals = {outcome: sum(counts[outcome] for counts in summary.pairs.values()) for outcome in OUTCOMES}
    rows.append(["all", *_numbers(totals)])
    files = [["file", "lines", "bytes", "SHA-256"]]
    for name, text in summary.texts.items():
        files.append([printable(out / name), f"{text.lines:,}", f"{text.bytes:,}", text.sha256])
    return "\n".join([*_table(rows), "", *_table(files), "", *_next_steps(find_corpus(summary.corpus), out)])


def _next_steps(corpus: PublicCorpus, out: Path) -> list[str]:
    """Return the commands from the texts to the scores, and the one that removes the archives."""

    def texts(name: str, option: str = " ") -> str:
        return option.join(_in_shell(out / f"{name}.{language}") for language in (corpus.src, corpus.tgt))

    steps = [
        f"transduce check {texts('train')} --valid {texts('newstest2014')}",
        f"transduce train --recipe {corpus.recipe} --train {texts('train')} --valid {texts('newstest2013')} --out run"
        "  # 12 hours on 8 P100, in the paper",
        f"transduce evaluate run/model --language {corpus.tgt} --src {texts('newstest2014', ' --ref ')}",
    ]
    size = sum(_size(out / RAW / archive.name) or 0 for archive in corpus.archives)
    if size:
        steps.append(f"rm -r {_in_shell(out / RAW)}  # {size:,} bytes of archives, which are not needed any more")
    return ["Next steps", *(f"  {step}" for step in steps)]


def _in_shell(path: Path) -> str:
    return printable(shlex.quote(f"{path}"))


def _numbers(counts: Mapping[str, int]) -> list[str]:
    return [f"{sum(counts.values()):,}", *(f"{counts[outcome]:,}" for outcome in OUTCOMES)]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the rows as lines, with the first column to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *others in rows:
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    return lines


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
