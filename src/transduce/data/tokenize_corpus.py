"""Tokenize the training text: scan it, divide it into jobs, and run them on all cores.

    text -> TextScan: lines, SHA-256, the first byte of each job -> TokenFileJob, ... -> a process each -> token files

The corpus is never in memory as a whole. After a kill, only the token files that are missing are written.
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

import msgspec
import numpy as np
from rich.console import Console
from rich.progress import track

from transduce.console import import_path, module_command
from transduce.data import text
from transduce.data.compression import open_text
from transduce.data.disk import synced_file
from transduce.data.text import decode_names, encode_names
from transduce.data.token_file import TOO_LONG, Contents, NewPair, write_token_file
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import PAD, TokenizerLike
from transduce.errors import UserError

FILE_PAIRS = 100_000
BYTES_PER_PAIR = 44  # of a pair in a token file: four places in the text, two numbers of tokens, two lengths
BYTES_PER_TOKEN = 5  # bytes of text for each token; English and German have 4 to 5 with 8,000 pieces
LONGEST = 64 * TOO_LONG  # characters of a line that is encoded; this takes 100 bytes of memory for each
CHUNK_PAIRS, CHUNK_CHARACTERS = 2_048, 1 << 20  # the most that one call encodes

# ---- scanning ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TextScan:
    """The result of reading a plain text file once.

    starts: the first byte of the text of each token file, and the end of the file.
    """

    path: str
    size: int
    mtime_ns: int
    sha256: str
    lines: int
    starts: list[int]


CorpusScan = tuple[TextScan, TextScan]  # source and target, with the same number of lines


def scan_corpora(path: Path, texts: Sequence[tuple[Path, Path]]) -> list[CorpusScan]:
    """Return a scan of each corpus. `path` keeps the scans: a file of the same size and time is not read again.

    Raises UserError if a corpus is empty, or if its sides have different numbers of lines.
    """
    cache = _read_cache(path)
    scan_of = {(scan.path, scan.size, scan.mtime_ns): scan for scan in cache}

    def scan(file: Path) -> TextScan:
        return scan_of.get(_identity(file)) or _scan(file)

    corpora = []
    with ThreadPoolExecutor(2) as pool:
        for pair in texts:
            src, tgt = pool.map(scan, pair) if pair[0] != pair[1] else [scan(pair[0])] * 2
            if src.lines != tgt.lines:
                raise text.unequal((src.path, tgt.path), (src.lines, tgt.lines))
            if not src.lines:
                raise text.empty(src.path, tgt.path)
            corpora.append((src, tgt))
    scans = [scan for pair in corpora for scan in pair]
    if scans != cache:  # only the first of several processes writes
        path.parent.mkdir(parents=True, exist_ok=True)
        content = encode_names(scans)
        with synced_file(path) as file:
            file.write(hashlib.sha256(content).hexdigest().encode() + b"\n" + content)
    return corpora


def _read_cache(path: Path) -> list[TextScan]:
    with suppress(OSError, ValueError, msgspec.MsgspecError):
        digest, content = path.read_bytes().split(b"\n", 1)
        if digest == hashlib.sha256(content).hexdigest().encode():
            return decode_names(content, list[TextScan])
    return []


def _identity(path: Path) -> tuple[str, int, int]:
    """Return path, size and time of a file; size -1 if it is unreadable, which `_scan` reports."""
    with suppress(OSError):
        status = path.stat()
        return str(path), status.st_size, status.st_mtime_ns
    return str(path), -1, 0


def _scan(path: Path) -> TextScan:
    digest = hashlib.sha256()
    lines = 0
    position = 0
    starts = [0]
    last = b"\n"
    with open_text(path) as file:
        _, size, mtime_ns = _identity(path)
        while block := file.read(1 << 22):
            digest.update(block)
            count, missing = block.count(b"\n"), FILE_PAIRS - lines % FILE_PAIRS  # lines until the next token file
            if count >= missing:
                ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
                starts += (position + 1 + ends[missing - 1 :: FILE_PAIRS]).tolist()
            lines += count
            position += len(block)
            last = block[-1:]
    lines += last != b"\n"
    if position != size:
        raise text.changed(path, f"it has {position:,} bytes, not {size:,}")
    return TextScan(str(path), size, mtime_ns, digest.hexdigest(), lines, [*(s for s in starts if s < size), size])


@dataclass(frozen=True)
class TokenFileJob:
    """The work for one token file: tokenize the lines of both texts from byte `begins` to byte `ends` of each."""

    path: str
    contents: Contents
    begins: tuple[int, int]
    ends: tuple[int, int]

    @property
    def estimated_bytes(self) -> int:
        """The size of the token file, estimated for tokens of `BYTES_PER_TOKEN` bytes of text."""
        text_bytes = sum(self.ends) - sum(self.begins)
        return BYTES_PER_PAIR * self.contents.pairs + text_bytes * self.contents.token_bytes // BYTES_PER_TOKEN


def plan_jobs(scan: CorpusScan, folder: Path, key: str, token_bytes: int) -> list[TokenFileJob]:
    """Return the jobs that write the token files of a corpus to `folder`, under the key of a store."""
    src, tgt = scan
    jobs = []
    for number in range(len(src.starts) - 1):
        first = number * FILE_PAIRS
        contents = Contents(key, (src.path, tgt.path), first, min(FILE_PAIRS, src.lines - first), token_bytes)
        begins, ends = ((src.starts[n], tgt.starts[n]) for n in (number, number + 1))
        jobs.append(TokenFileJob(str(folder / f"part-{number:05}"), contents, begins, ends))
    return jobs


# ---- encoding ----------------------------------------------------------------------------------------------------


def run_job(job: TokenFileJob, tokenizer: TokenizerLike) -> None:
    """Encode the lines of a job and write its token file."""
    write_token_file(Path(job.path), job.contents, _encode(job, tokenizer))


def _encode(job: TokenFileJob, tokenizer: TokenizerLike) -> Iterator[NewPair]:
    """Yield the pairs of a job. A blank side gets no ids, so training skips the pair."""
    count = 0
    for pairs in _chunks(job):
        count += len(pairs)
        sides = [[line for _, _, line in side] for side in zip(*pairs, strict=True)]
        of_source = _ids(sides[0], tokenizer)
        is_same = job.contents.texts[0] == job.contents.texts[1] and tokenizer.target is tokenizer
        ids = [of_source, of_source if is_same else _ids(sides[1], tokenizer.target)]
        for (src, tgt), both in zip(pairs, zip(*ids, strict=True), strict=True):
            yield (src[0], src[1], tgt[0], tgt[1]), both
    if count != job.contents.pairs:
        texts = " or ".join(job.contents.texts)
        raise text.changed(texts, f"bytes that held {job.contents.pairs:,} lines do not hold them now")


def _ids(lines: list[str], tokenizer: TokenizerLike) -> list[list[int]]:
    """Return the ids of each line: none for a blank line, and `TOO_LONG` of them above `LONGEST` characters."""
    texts = [line if len(line) <= LONGEST and _has_text(line, tokenizer) else "" for line in lines]
    ids_of_lines = tokenizer.encode_batch(texts)
    return [[PAD] * TOO_LONG if len(line) > LONGEST else ids for line, ids in zip(lines, ids_of_lines, strict=True)]


def _has_text(line: str, tokenizer: TokenizerLike) -> bool:
    return not text.is_blank(tokenizer.split_tag(line)[1])


def _chunks(job: TokenFileJob) -> Iterator[list[tuple[tuple[int, int, str], ...]]]:
    """Yield lists of pairs of a job, at most `CHUNK_PAIRS` each. A side of a pair is (begin, end, line)."""
    sides = (
        text.spanned_lines(path, begin, end, first=job.contents.first + 1)
        for path, begin, end in zip(job.contents.texts, job.begins, job.ends, strict=True)
    )
    chunk = []
    characters = 0
    for pair in zip(*sides, strict=False):
        chunk.append(pair)
        characters += len(pair[0][2]) + len(pair[1][2])
        if len(chunk) == CHUNK_PAIRS or characters >= CHUNK_CHARACTERS:
            yield chunk
            chunk = []
            characters = 0
    if chunk:
        yield chunk


# ---- all cores ---------------------------------------------------------------------------------------------------


def run_jobs(jobs: Sequence[TokenFileJob], tokenizer: TokenizerLike) -> None:
    """Run the jobs, in one process per core. If several jobs fail, raise the error that is first in the text."""
    count = min(len(jobs), cores())
    bar = {"description": "preparing the text", "console": Console(stderr=True), "disable": not sys.stderr.isatty()}
    if count < 2:
        for job in track(jobs, **bar):
            run_job(job, tokenizer)
        return
    with ExitStack() as stack:
        workers = [stack.enter_context(_Worker(tokenizer)) for _ in range(count)]
        idle: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in workers:
            idle.put(worker)
        pool = stack.enter_context(ThreadPoolExecutor(count))
        results = [pool.submit(_run_in_idle_worker, idle, job) for job in jobs]
        try:
            for result in track(results, **bar):
                result.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.process.kill()
            raise


def cores() -> int:
    """Return the number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _run_in_idle_worker(idle: "queue.SimpleQueue[_Worker]", job: TokenFileJob) -> None:
    """Wait for an idle worker process, and run the job in it."""
    worker = idle.get()
    try:
        worker.run(job)
    finally:
        idle.put(worker)


class _Worker:
    """A process that runs jobs, one JSON line each: `python -m transduce.data.tokenize_corpus`.

    Leaving the context ends the process. The package `multiprocessing` would run a user's script again in each process,
    and the script would import torch.
    """

    def __init__(self, tokenizer: TokenizerLike) -> None:
        environment = {**os.environ, "PYTHONPATH": import_path(), "TOKENIZERS_PARALLELISM": "false"}
        command = module_command("transduce.data.tokenize_corpus")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)
        self._send(tokenizer.to_json())

    def run(self, job: TokenFileJob) -> None:
        """Run a job in the process, and raise its errors here."""
        self._send(job)

    def _send(self, message: object) -> None:
        """Send a message and wait for the answer. Raises the error that it reports."""
        assert self.process.stdin and self.process.stdout
        answer = b""
        with suppress(BrokenPipeError):
            self.process.stdin.write(encode_names(message) + b"\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
        if not answer:
            raise OSError(f"a process that prepares the text ended, with code {self.process.wait()}")
        kind, *details = decode_names(answer, list)
        if kind == "UserError":
            raise UserError(*details)
        if kind == "OSError":
            raise OSError(*details)

    def __enter__(self) -> "_Worker":
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin and self.process.stdout
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def _serve() -> None:
    """Read the tokenizer and then jobs from standard input, and answer each line on standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends this process
    tokenizer = None
    for line in sys.stdin.buffer:
        answer: list[object] = ["ok"]
        try:
            if tokenizer is None:
                tokenizer = Tokenizer.from_json(decode_names(line, str))
            else:
                run_job(decode_names(line, TokenFileJob), tokenizer)
        except UserError as error:
            answer = ["UserError", *error.args]
        except OSError as error:
            answer = ["OSError", *(detail for detail in (error.errno, error.strerror, error.filename) if detail)]
        sys.stdout.buffer.write(encode_names(answer) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve()
