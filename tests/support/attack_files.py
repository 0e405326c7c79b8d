"""Files to attack the command line with: good ones, damaged ones, foreign ones, devices and strange names."""

import bz2
import gzip
import json
import os
import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow
import pyarrow.feather
import pyarrow.parquet
import torch

from support.small_encoders import bert_folder
from support.small_members import gpt2_folder
from support.small_runs import AVERAGE, train_on
from support.toy_task import toy_lines, write_lines, write_pairs
from transduce.storage.atomic_folder import Content, write_folder
from transduce.storage.model_folder import load_model, save_model
from transduce.training.weights import weights

RECIPES = '''
from transduce import Config, DataConfig, ModelConfig, SearchConfig, TrainConfig

def tiny() -> Config:
    """Train for four steps, with two evaluations and two checkpoints."""
    return Config(
        model=ModelConfig(vocab_size=None, d_model=16, n_layers=1, n_heads=2, d_ff=32),
        data=DataConfig(vocab_size=290, batch_tokens=150, max_tokens=24),
        train=TrainConfig(max_steps=4, log_every_steps=1, evaluate_every_steps=2, checkpoint_every_steps=2),
        search=SearchConfig(max_extra_tokens=2, beam_size=2),
    )

def fails() -> Config:
    raise ZeroDivisionError("no recipe today")

def number() -> int:
    return 3

value = 3
'''
STRANGE_NAMES = {"latin": "v\udce4l.en", "newline": "two\nlines.en", "escape": "\x1b[31mred.en", "space": "a b.en"}
FIFO, DANGLING = "fifo", "dangling"


def write_files(folder: Path) -> None:
    """Write all files. `run` is a training; `bert`, `classes` and `gpt2` are members; `model` and others are models."""
    write_texts(folder)
    write_tables(folder)
    (folder / "recipes.py").write_text(RECIPES, encoding="utf-8")
    (folder / "syntax.py").write_text("def tiny(:\n", encoding="utf-8")
    short = replace(AVERAGE, train=replace(AVERAGE.train, max_steps=18))
    texts = {name: (folder / f"{name}.en", folder / f"{name}.de") for name in ("train", "valid")}
    train_on(texts, folder / "run", short)
    shutil.copytree(folder / "run" / "model", folder / "model")
    write_models(folder)
    bert_folder(folder / "bert", "words")
    bert_folder(folder / "classes", "pooler", "classifier")
    gpt2_folder(folder / "gpt2")
    (folder / "notes").mkdir()
    write_lines(folder / "notes" / "thesis.txt", ["years of work"])
    (folder / DANGLING).symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")


def write_texts(folder: Path) -> None:
    """Write good texts, and texts with one thing wrong."""
    for name, seed, count in (("train", 1, 90), ("valid", 2, 4)):
        for path, language in zip(write_pairs(folder, name, toy_lines(seed, count)), ("en", "de"), strict=True):
            path.rename(folder / f"{name}.{language}")
    good = (folder / "train.en").read_bytes()
    contents = {
        "empty.txt": b"",
        "blank.txt": b"\n" * 4,
        "short.txt": b"a b\n",
        "bom.txt": b"\xef\xbb\xbf" + good,
        "crlf.txt": good.replace(b"\n", b"\r\n"),
        "latin.txt": b"a b\nvoil\xe0\nc\nd\n",
        "utf16.txt": good.decode().encode("utf-16"),
        "surrogate.txt": b"a\n\xed\xa0\x80\nb\nc\n",
        "nul.txt": b"a\x00b\n\x00\nc\nd\n",
        "random.bin": random.Random(1).randbytes(5_000),
        "long.txt": b"a\n" + b"abc " * 150_000 + b"\nb\nc\n",
        "packed.gz": gzip.compress(good),
        "cut.gz": gzip.compress(good)[:-9],
        "packed.bz2": bz2.compress(good),
        "packed.zip": b"PK\x03\x04" + bytes(60),
        "unmatched.de": (folder / "train.de").read_bytes() + b"one more\n",
        **{name: good for name in STRANGE_NAMES.values()},
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)


def write_tables(folder: Path) -> None:
    """Write tab-separated and binary tables of pairs."""
    pairs = [f"{line}\t{line[::-1]}" for line in toy_lines(1, 90)]
    write_lines(folder / "pairs.tsv", pairs)
    write_lines(folder / "ragged.tsv", [*pairs[:5], "only one column", *pairs[5:]])
    table = pyarrow.table({"en": ["a b", "c d"] * 45, "de": ["b a", "d c"] * 45})
    pyarrow.parquet.write_table(table, folder / "pairs.parquet")
    content = (folder / "pairs.parquet").read_bytes()
    (folder / "cut.parquet").write_bytes(content[:-20])
    (folder / "bytes.parquet").write_bytes(content.replace(b"a b", b"a \xff"))
    category = table.set_column(0, "en", table["en"].dictionary_encode())
    pyarrow.parquet.write_table(category, folder / "category.parquet")
    with pyarrow.ipc.new_stream(folder / "pairs.arrow", table.schema) as stream:
        stream.write_table(table)
    offsets, wrong = struct.pack("<3i", 0, 3, 6), struct.pack("<3i", 0, 10**9, 6)
    (folder / "flipped.arrow").write_bytes((folder / "pairs.arrow").read_bytes().replace(offsets, wrong))
    pyarrow.feather.write_feather(table, folder / "feather.arrow")


def write_models(folder: Path) -> None:
    """Write models with weights that overflow, with a changed byte, and without a manifest."""
    loaded = load_model(folder / "model")
    huge = {name: value * 0 + 1e30 if value.dtype == torch.float32 else value for name, value in
            weights(loaded.model).items()}  # fmt: skip
    save_model(folder / "huge", huge, loaded.config, loaded.tokenizer, "")
    for name in ("flipped", "bare"):
        shutil.copytree(folder / "model", folder / name)
    path = folder / "flipped" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    (folder / "bare" / "manifest.json").unlink()


def copy_files(source: Path, folder: Path) -> Path:
    """Copy the files to the new `folder`, and add a pipe that nothing writes to. Return `folder`."""
    shutil.copytree(source, folder, symlinks=True)
    os.mkfifo(folder / FIFO)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Return the content of each file, by its path. A link has its target as content, a folder has none."""
    return {str(path.relative_to(folder)): content_of(path) for path in sorted(folder.rglob("*"))}


def content_of(path: Path) -> bytes:
    if path.is_symlink():
        return os.readlink(path).encode()
    return path.read_bytes() if path.is_file() else b""


# ---- changes of a folder with a manifest ---------------------------------------------------------------------------


def forge(folder: Path, name: str, content: bytes) -> None:
    """Replace a file of a folder, and write a manifest that fits."""
    files: dict[str, Content] = {
        path.name: [path.read_bytes()] for path in folder.iterdir() if path.name != "manifest.json"
    }
    shutil.rmtree(folder)
    write_folder(folder, {**files, name: [content]})


def forge_json(folder: Path, name: str, change: Callable[[dict[str, object]], object]) -> None:
    """Change the JSON object in a file of a folder, and write a manifest that fits."""
    content = json.loads((folder / name).read_bytes())
    change(content)
    forge(folder, name, json.dumps(content).encode())
