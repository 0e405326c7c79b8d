"""The speed and memory of preparing a large corpus, and of opening 36 million pairs.

    python benchmarks/prepare.py speed [--pairs 300000] [--rounds 3]    against the tokenizers library
    python benchmarks/prepare.py memory [--pairs 1000000]               the peak of a preparation, also with 10000000
    python benchmarks/prepare.py index [--pairs 36000000]               opening, and the first batch

The text is generated. Each command prints a table and a line of JSON. --folder: the folder of the files (36 million
pairs: 7 GB).
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import msgspec
import numpy as np

from transduce.data import text
from transduce.data import token_store as store
from transduce.data import tokenize_corpus as prepare
from transduce.data.corpora import Corpus
from transduce.data.token_file import FOOTER, open_token_file
from transduce.data.tokenizer import Tokenizer

VOCABULARY = 50_000  # words of the generated languages, with Zipf's frequencies
PIECES = 16_000


def write_text(path: Path, pairs: int, seed: int, words_a_line: int) -> None:
    """Write lines of 1 to 60 words, about `words_a_line` on average."""
    chance = np.random.default_rng(seed)
    letters = np.array(list("etaoinsrhldcumfpgwybvkxjqz"))
    weights = 1 / np.arange(1, 27)
    sizes = chance.integers(2, 11, VOCABULARY)
    words = np.array(["".join(chance.choice(letters, size, p=weights / weights.sum())) for size in sizes])
    frequency = 1 / np.arange(10, VOCABULARY + 10)
    with path.open("w", encoding="utf-8") as file:
        for begin in range(0, pairs, 10_000):
            counts = np.clip(chance.gamma(4, words_a_line / 4, min(10_000, pairs - begin)).astype(int), 1, 60)
            tokens = words[chance.choice(VOCABULARY, counts.sum(), p=frequency / frequency.sum())]
            for line in np.split(tokens, np.cumsum(counts)[:-1]):
                file.write(" ".join(line) + ".\n")


def generate(folder: Path, pairs: int, words_a_line: int = 24) -> tuple[Corpus, Tokenizer]:
    """Return a generated corpus in `folder`, and its tokenizer."""
    corpus = Corpus(folder / f"{pairs}-{words_a_line}.src", folder / f"{pairs}-{words_a_line}.tgt")
    for seed, path in enumerate((corpus.src, corpus.tgt or corpus.src)):
        if not path.exists():
            write_text(path, pairs, seed, words_a_line)
    lines = [line for path in (corpus.src, corpus.tgt or corpus.src) for line in islice(text.read_lines(path), 20_000)]
    return corpus, Tokenizer.learn(lines, vocab_size=PIECES)


def seconds(work: Callable[[], object]) -> float:
    started_at = time.perf_counter()
    work()
    return time.perf_counter() - started_at


def speed(folder: Path, pairs: int, rounds: int) -> dict[str, float]:
    """Return lines a second of the library and of ours, in turn.

    The library has its lines in memory and stores no ids.
    """
    corpus, tokenizer = generate(folder, pairs)
    lines = [line for pair in text.read_pairs(corpus.src, corpus.tgt or corpus.src) for line in pair]

    def library() -> None:
        for begin in range(0, len(lines), 4_096):
            tokenizer._engine.encode_batch_fast(lines[begin : begin + 4_096], add_special_tokens=False)

    def ours() -> None:
        shutil.rmtree(folder / "data", ignore_errors=True)
        store.open_store(folder / "data", [corpus], tokenizer)

    times = [(seconds(library), seconds(ours)) for _ in range(rounds)]
    rates = [statistics.median(len(lines) / time for time in column) for column in zip(*times, strict=True)]
    ratio = statistics.median(library / ours for library, ours in times)
    return {"tokenizers alone, lines/s": rates[0], "open_store, lines/s": rates[1], "ratio": ratio}


def memory(folder: Path, pairs: int) -> dict[str, float]:
    """Return the peak of resident memory in MB, here and in the largest worker. The lines are short."""
    corpus, tokenizer = generate(folder, pairs, words_a_line=5)
    shutil.rmtree(folder / "data", ignore_errors=True)
    before = reset_peak()
    duration = seconds(lambda: store.open_store(folder / "data", [corpus], tokenizer))
    worker = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
    growth = peak() - before
    return {"added here, MB": growth, "each worker, MB": worker, "s": duration, "lines/s": 2 * pairs / duration}


def index(folder: Path, pairs: int) -> dict[str, float]:
    """Return the figures of `first_batch` from another process."""
    corpus, tokenizer = generate(folder, 100_000)
    tokenizer.save(folder / "tokenizer.json")
    multiply(folder, corpus, tokenizer, pairs // 100_000)
    command = [sys.executable, __file__, "first-batch", "--folder", str(folder)]
    output = subprocess.run(command, check=True, capture_output=True).stdout
    figures = json.loads(output.splitlines()[-1])
    return {name: figure for name, figure in figures.items() if name not in ("pairs", "cores")}


def first_batch(folder: Path) -> dict[str, float]:
    """Return the seconds and the memory in MB of opening a store and of the first batch of 25,000 tokens a side."""
    from transduce.config.schema import DataConfig
    from transduce.data.batches import Batches, DataPosition

    corpus = Corpus(folder / "100000-24.src", folder / "100000-24.tgt")
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    tokenizer.encode("warm")
    before, started_at = reset_peak(), time.perf_counter()
    tokens = store.open_store(folder / "data", [corpus], tokenizer)
    opened_at, opened_mb = time.perf_counter(), peak()
    batches = Batches(tokens, tokenizer, DataConfig(), seed=1).stream(DataPosition())
    next(batches)
    first_at, first_mb = time.perf_counter(), peak()
    later_seconds = statistics.median(seconds(lambda: next(batches)) for _ in range(50))
    return {
        "opened, s": opened_at - started_at,
        "opening added, MB": opened_mb - before,
        "first batch, s": first_at - opened_at,
        "first batch added, MB": first_mb - before,
        "later batches, s": later_seconds,
    }


def multiply(folder: Path, corpus: Corpus, tokenizer: Tokenizer, copies: int) -> None:
    """Turn the store of 100,000 pairs into one of `copies` times as many pairs. The text files grow by holes."""
    data = folder / "data"
    shutil.rmtree(data, ignore_errors=True)
    (template,) = store.open_store(data, [corpus], tokenizer).files
    (scan,) = prepare.scan_corpora(data / "scans.json", [(corpus.src, corpus.tgt or corpus.src)])
    longer = []
    for side in scan:
        os.truncate(side.path, side.size * copies)
        starts = [number * side.size for number in range(copies + 1)]
        status = os.stat(side.path)
        longer.append(
            replace(side, size=status.st_size, mtime_ns=status.st_mtime_ns, lines=100_000 * copies, starts=starts)
        )
    content = msgspec.json.encode(longer)
    (data / "scans.json").write_bytes(store._sha256([content.decode()]).encode() + b"\n" + content)
    body = template.path.read_bytes()
    for job in prepare.plan_jobs((longer[0], longer[1]), template.path.parent, template.contents.key, 2):
        fields = list(FOOTER.unpack(body[-FOOTER.size :]))
        fields[1] = job.contents.first
        footer = FOOTER.pack(*fields)[:-4]
        Path(job.path).write_bytes(body[: -FOOTER.size] + footer + struct.pack("<I", zlib.crc32(footer)))
        assert open_token_file(Path(job.path), job.contents)


def reset_peak() -> float:
    """Set the peak to the memory that is resident now and return it in MB (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak()


def peak() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "memory", "index", "first-batch"])
    parser.add_argument("--pairs", type=int)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    pairs = args.pairs or {"speed": 300_000, "memory": 1_000_000, "index": 36_000_000}.get(args.what, 0)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        works: dict[str, Callable[[], dict[str, float]]] = {
            "speed": lambda: speed(folder, pairs, args.rounds),
            "memory": lambda: memory(folder, pairs),
            "index": lambda: index(folder, pairs),
            "first-batch": lambda: first_batch(folder),
        }
        figures = works[args.what]()
    texts = [f"{figure:,.3g}" if figure < 100 else f"{figure:,.0f}" for figure in figures.values()]
    print(f"| pairs | {' | '.join(figures)} |\n" + "|---" * (1 + len(figures)) + "|")
    print(f"| {pairs:,} | {' | '.join(texts)} |")
    print(json.dumps({"pairs": pairs, "cores": prepare.cores(), **figures}))


if __name__ == "__main__":
    main()
