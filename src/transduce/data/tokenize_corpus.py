"""Preparing the training text: scan it, cut it into parts, and have all cores encode them.

    text -> Scan: lines, SHA-256, where parts begin -> Job, ... -> a process each -> part files

The corpus is never held in memory. Preparing that was killed goes on with the parts that are missing.
"""

import hashlib
import os
import queue
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from rich.progress import track

from transduce.data import text
from transduce.data.compression import open_text
from transduce.data.token_file import Contents, Encoded, write_part
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import TokenizerLike
from transduce.errors import UserError

PART_PAIRS = 100_000
PIECE_PAIRS, PIECE_CHARACTERS = 2_048, 1 << 20  # encoded at once: at most so many pairs, and hardly more characters

# ---- scanning ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Side:
    """What one pass over a plain text file finds. starts: the byte at which each part begins, and the file's end."""

    path: str
    size: int
    mtime_ns: int
    sha256: str
    lines: int
    starts: list[int]


Scan = tuple[Side, Side]  # with as many lines


def scans(path: Path, texts: Sequence[tuple[Path, Path]]) -> list[Scan]:
    """A scan of every corpus. What `path` remembers is used for files whose size and time are what they were."""
    remembered = _remembered(path)
    known = {(side.path, side.size, side.mtime_ns): side for side in remembered}

    def look(file: Path) -> Side:
        return known.get(_identity(file)) or _scan(file)

    found = []
    with ThreadPoolExecutor(2) as pool:
        for pair in texts:
            src, tgt = pool.map(look, pair)
            if src.lines != tgt.lines:
                raise text.unequal((src.path, tgt.path), (src.lines, tgt.lines))
            if not src.lines:
                raise text.empty(src.path, tgt.path)
            found.append((src, tgt))
    sides = [side for pair in found for side in pair]
    if sides != remembered:  # so that of several processes only the first one writes
        path.parent.mkdir(parents=True, exist_ok=True)
        content = msgspec.json.encode(sides)
        path.write_bytes(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
    return found


def _remembered(path: Path) -> list[Side]:
    with suppress(OSError, ValueError, msgspec.MsgspecError):
        digest, content = path.read_bytes().split(b"\n", 1)
        if digest == hashlib.sha256(content).hexdigest().encode():
            return msgspec.json.decode(content, type=list[Side])
    return []


def _identity(path: Path) -> tuple[str, int, int]:
    with suppress(OSError):
        found = path.stat()
        return str(path), found.st_size, found.st_mtime_ns
    return str(path), -1, 0  # reading it will tell what is wrong


def _scan(path: Path) -> Side:
    digest, lines, position, starts, last = hashlib.sha256(), 0, 0, [0], b"\n"
    with open_text(path) as file:
        _, size, mtime_ns = _identity(path)
        while block := file.read(1 << 22):
            digest.update(block)
            count, missing = block.count(b"\n"), PART_PAIRS - lines % PART_PAIRS  # lines until the next part begins
            if count >= missing:
                ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
                starts += (position + 1 + ends[missing - 1 :: PART_PAIRS]).tolist()
            lines += count
            position += len(block)
            last = block[-1:]
    lines += last != b"\n"
    if position != size:
        raise text.changed(path, f"has {position:,} bytes, not {size:,}")
    return Side(str(path), size, mtime_ns, digest.hexdigest(), lines, [*(s for s in starts if s < size), size])


def jobs(scan: Scan, folder: Path, key: str, token_bytes: int) -> list["Job"]:
    """The parts of a corpus, to be made in `folder` under the key of a store."""
    src, tgt = scan
    found = []
    for number in range(len(src.starts) - 1):
        first = number * PART_PAIRS
        contents = Contents(key, (src.path, tgt.path), first, min(PART_PAIRS, src.lines - first), token_bytes)
        begins, ends = ((src.starts[n], tgt.starts[n]) for n in (number, number + 1))
        found.append(Job(str(folder / f"part-{number:05}"), contents, begins, ends))
    return found


# ---- encoding ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """A part to be made: of the lines of both texts between two bytes of each."""

    path: str
    contents: Contents
    begins: tuple[int, int]
    ends: tuple[int, int]


def prepare_part(job: Job, tokenizer: TokenizerLike) -> None:
    """Encode the lines of a part and write its file."""
    write_part(Path(job.path), job.contents, _encoded(job, tokenizer))


def _encoded(job: Job, tokenizer: TokenizerLike) -> Iterator[Encoded]:
    """The pairs of a part. A blank side has no ids, so that the pair is left out of training."""
    done = 0
    for pairs in _pieces(job):
        done += len(pairs)
        lines = [["" if text.is_blank(line) else line for _, _, line in side] for side in zip(*pairs, strict=True)]
        ids = [tokenizer.encode_batch(lines[0]), tokenizer.target.encode_batch(lines[1])]
        for (src, tgt), both in zip(pairs, zip(*ids, strict=True), strict=True):
            yield (src[0], src[1], tgt[0], tgt[1]), both
    if done != job.contents.pairs:
        raise text.changed(" or ".join(job.contents.texts), f"has not {job.contents.pairs:,} lines where it had them")


def _pieces(job: Job) -> Iterator[list[tuple[Any, Any]]]:
    """The lines of a part with their spans, some pairs at a time."""
    sides = (
        text.spanned_lines(path, begin, end, first=job.contents.first + 1)
        for path, begin, end in zip(job.contents.texts, job.begins, job.ends, strict=True)
    )
    piece, characters = [], 0
    for pair in zip(*sides, strict=False):
        piece.append(pair)
        characters += len(pair[0][2]) + len(pair[1][2])
        if len(piece) == PIECE_PAIRS or characters >= PIECE_CHARACTERS:
            yield piece
            piece, characters = [], 0
    if piece:
        yield piece


# ---- all cores ---------------------------------------------------------------------------------------------------


def prepare(jobs: Sequence[Job], tokenizer: TokenizerLike) -> None:
    """Make the parts, by as many processes as there are cores. Of several mistakes the first in the text is raised."""
    count = min(len(jobs), cores())
    shown = {"description": "preparing the text", "console": Console(stderr=True), "disable": not sys.stderr.isatty()}
    if count < 2:
        for job in track(jobs, **shown):
            prepare_part(job, tokenizer)
        return
    with ExitStack() as stack:
        workers = [stack.enter_context(_Worker(tokenizer)) for _ in range(count)]
        idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in workers:
            idle.put(worker)
        pool = stack.enter_context(ThreadPoolExecutor(count))
        results = [pool.submit(_hand_over, idle, job) for job in jobs]
        try:
            for result in track(results, **shown):
                result.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.process.kill()
            raise


def cores() -> int:
    """How many processor cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _hand_over(idle: "queue.SimpleQueue[_Worker]", job: Job) -> None:
    worker = idle.get()
    try:
        worker.prepare(job)
    finally:
        idle.put(worker)


class _Worker:
    """A process that prepares parts, one JSON line a job: `python -m transduce.data.tokenize_corpus`. As a context: it
    is ended.

    Not by multiprocessing, which would run a user's script again in every process, and has to import torch for it.
    """

    def __init__(self, tokenizer: TokenizerLike) -> None:
        import_path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": import_path, "TOKENIZERS_PARALLELISM": "false"}
        command = [sys.executable, "-m", "transduce.data.tokenize_corpus"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self._ask(tokenizer.to_json())

    def prepare(self, job: Job) -> None:
        """`prepare_part`, over there; its errors are raised here."""
        self._ask(job)

    def _ask(self, question: Any) -> None:
        assert self.process.stdin and self.process.stdout
        answer = b""
        with suppress(BrokenPipeError):
            self.process.stdin.write(msgspec.json.encode(question) + b"\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        if not answer:
            raise OSError(f"a process that prepares the text ended, with code {self.process.wait()}")
        kind, *details = msgspec.json.decode(answer)
        if kind == "mistake":
            raise UserError(*details)
        if kind == "machine":
            raise OSError(*details)

    def __enter__(self) -> "_Worker":
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin and self.process.stdout
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def _work() -> None:
    """What a worker does until its standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the process that will end this one
    tokenizer = None
    for line in sys.stdin.buffer:
        answer: list[Any] = ["done"]
        try:
            if tokenizer is None:
                tokenizer = Tokenizer.from_json(msgspec.json.decode(line, type=str))
            else:
                prepare_part(msgspec.json.decode(line, type=Job), tokenizer)
        except UserError as mistake:
            answer = ["mistake", *mistake.args]
        except OSError as problem:
            answer = ["machine", *(part for part in (problem.errno, problem.strerror, problem.filename) if part)]
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _work()
