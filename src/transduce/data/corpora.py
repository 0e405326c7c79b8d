"""Corpora: every supported file or set of files is read as pairs of lines.

two files, one sentence per line          plain, or compressed as gz, xz or zst
one table                                 `data.corpus_tables` has the formats: TSV, CSV, JSON lines, TMX, parquet
several, as 'FOLDER/train-*.parquet'      one after the other, in the order of their names
a folder of parquet or arrow files        as Hugging Face's save_to_disk writes it, or a downloaded dataset
hf:OWNER/SET/de-en/train-*.parquet        files of a dataset at Hugging Face, downloaded and kept in its own cache
"""

import dataclasses
import glob
import importlib
import re
import reprlib
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

from transduce.config.validation import TEXT_FILE, as_path
from transduce.console import printable
from transduce.data import text
from transduce.data.compression import compression_format
from transduce.data.corpus_tables import has_columns, read_table
from transduce.data.disk import check_room, synced_file
from transduce.data.text import encode_names
from transduce.errors import UserError

WEIGHT_LIMIT = 1_000  # a weight is below this limit
HUGGING_FACE = "hf:"
EVALUATION = re.compile(r"(dev|test|valid)(ation|set|s|test)?(?![^\W\d_])")  # a word at the beginning of a name
TRAINING = re.compile(r"train(?![^\W\d_])")


@dataclass(frozen=True)
class Corpus:
    """Sentence pairs: two line-aligned files, or one file or folder that holds both sides (then `tgt` is None).

    A corpus of one text, such as the text of a language model, is a file that is aligned with itself: `tgt` is `src`.
    weight: how often each pair occurs in an epoch. After E epochs it has occurred weight * E times, rounded up or down.
    With 2, each pair occurs twice in each epoch. With 0.5, the seed draws half of the pairs for the first epoch, and
    the second epoch has the rest.
    """

    src: Path
    tgt: Path | None = None
    weight: float = 1.0

    @property
    def name(self) -> str:
        """The name of the corpus in messages."""
        return printable(self.src if self.tgt in (None, self.src) else f"{self.src} and {self.tgt}")

    @property
    def is_one_text(self) -> bool:
        """True if both sides of each pair are the same line."""
        return self.tgt == self.src


def parse(words: Sequence[str]) -> Corpus:
    """Return the corpus for the words "SRC TGT [WEIGHT]" or "FILE [WEIGHT]". Raises UserError for any other words."""
    files = list(words)
    weight = 1.0
    if len(words) > 1 and (number := _number(words[-1])) is not None and not Path(words[-1]).exists():
        files = files[:-1]
        weight = number
    if not 1 <= len(files) <= 2 or not 0 < weight < WEIGHT_LIMIT:
        value = " ".join(words)
        expected = f"expected SRC TGT or FILE, and optionally a weight over 0 and under {WEIGHT_LIMIT:,}"
        raise UserError(f"--train {value}: {expected}; for example --train web.en web.de 0.5")
    return Corpus(*map(Path, files), weight=weight)


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def training_text(src: object, tgt: object) -> Sequence[Corpus]:
    """Return the arguments `src` and `tgt` of `fit` as corpora. Raises UserError for other values, such as lines."""
    if isinstance(src, list | tuple) and all(isinstance(corpus, Corpus) for corpus in src):
        if tgt is not None:
            raise UserError(f"tgt={reprlib.repr(tgt)}: must not be set with corpora in src; leave it out")
        return [_with_paths(corpus, f"src[{i}].") for i, corpus in enumerate(src)]
    path = as_path("src", src, f"a list of Corpus, or {TEXT_FILE}")
    return [Corpus(path, None if tgt is None else as_path("tgt", tgt, TEXT_FILE))]


def _with_paths(corpus: Corpus, name: str) -> Corpus:
    """Return a corpus whose files are paths. name: begins the names of its fields, for messages."""
    tgt = None if corpus.tgt is None else as_path(f"{name}tgt", corpus.tgt, TEXT_FILE)
    return dataclasses.replace(corpus, src=as_path(f"{name}src", corpus.src, TEXT_FILE), tgt=tgt)


def as_corpora(train: tuple[Path, Path] | Sequence[Corpus]) -> list[Corpus]:
    """Return `train` as a list of corpora. Two paths are one corpus."""
    corpora = [item for item in train if isinstance(item, Corpus)]
    paths = [item for item in train if not isinstance(item, Corpus)]
    return [*corpora, Corpus(paths[0], paths[1])] if paths else corpora


def problems(corpora: Sequence[Corpus]) -> list[str]:
    """Return the problems of the files and the weights of corpora, one line each."""
    lines = [] if corpora else ["train: expected at least 1 corpus; give a source and a target file"]
    for corpus in corpora:
        if not 0 < corpus.weight < WEIGHT_LIMIT:
            lines.append(
                f"{corpus.name}: expected a weight over 0 and under {WEIGHT_LIMIT:,}, not {corpus.weight:g}; "
                "correct the weight"
            )
        lines += _missing(corpus)
    return list(dict.fromkeys(lines))


def read_pairs(corpus: Corpus) -> Iterator[tuple[str, str]]:
    """Yield the pairs (source, target) of a corpus. Raises UserError, with file and line, for mistakes in it."""
    if corpus.tgt is not None:
        return text.read_pairs(corpus.src, corpus.tgt)
    files, columns = _files(corpus.src)
    if not files:
        raise UserError(*_missing(corpus))
    source = str(corpus.src).removesuffix(":" + ",".join(columns)) if columns else str(corpus.src)
    return _read_tables(files, source, columns)


def _read_tables(files: Sequence[Path], source: str, columns: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the pairs of tables. source: their name in messages, without the columns."""
    is_empty = True
    for file in files:
        for pair in read_table(file, source, columns):
            is_empty = False
            yield pair
    if is_empty:
        raise UserError(f"{source}: expected a table of sentence pairs; it has no rows")


def corpus_sha256(corpus: Corpus) -> str:
    """Return the SHA-256 of each file of a corpus, separated by spaces, and the columns if the corpus names them."""
    columns = [] if corpus.tgt is not None else _files(corpus.src)[1]
    return " ".join([*(text.file_sha256(file) for file in _all_files(corpus)), *columns])


def _missing(corpus: Corpus) -> list[str]:
    """Return a line for each file of a corpus that is missing or has no supported format."""
    if corpus.tgt is not None:
        missing = [path for path in (corpus.src, corpus.tgt) if not path.is_file()]
        return [f"{path}: expected a text file, UTF-8, one sentence per line; check the path" for path in missing]
    files, columns = _files(corpus.src)
    if corpus.src.is_dir() and not files:
        return [f"{corpus.src}: expected .parquet or .arrow files in the folder; or give two text files"]
    if not files:
        return [f"{corpus.src}: expected a file with both sides in columns; check the path, or give two text files"]
    if not columns and len(files) == 1 and not has_columns(files[0]):
        return [
            f"{corpus.src}: expected tab-separated columns, CSV in a file named .csv, JSON lines, TMX or parquet in a "
            "single file; or give two text files"
        ]
    return []


def _files(path: Path) -> tuple[list[Path], list[str]]:
    """Return the files that hold both sides, and the columns in the path, such as 2 and 4 in FILE:2,4."""
    name = path.as_posix()
    columns = [] if path.exists() else columns_in(path)
    source = Path(name.rpartition(":")[0]) if columns else path
    if name.startswith(HUGGING_FACE):
        source = _download(source.as_posix())
    if source.is_file():
        return [source], columns
    if not source.is_dir():
        return [Path(file) for file in sorted(glob.glob(str(source)))], columns
    files = sorted(file for file in source.rglob("*") if file.suffix in (".parquet", ".arrow"))
    for file in files:
        if any(map(EVALUATION.match, file.relative_to(source).parts)):
            training = _training_part(source, files)
            remedy = "move it away"
            if training:
                remedy = "give " + shlex.quote(":".join([f"{training}", *([",".join(columns)] if columns else [])]))
            raise UserError(f"{file}: expected training text, but the name says test or validation; {remedy}")
    return files, columns


def _training_part(folder: Path, files: Sequence[Path]) -> Path | None:
    """Return the folder, or the pattern, of the first files of a dataset whose name says training; None without any."""
    for file in files:
        place = folder
        for part in file.relative_to(folder).parts:
            place /= part
            if TRAINING.match(part):
                return file.parent / f"train-*{file.suffix}" if file.name.startswith("train-") else place
    return None


def columns_in(path: PurePath) -> list[str]:
    """Return the columns in a path such as FILE:2,4. The colon of hf: and of a drive of Windows begins no columns."""
    name = path.as_posix()
    other_colons = name.startswith(HUGGING_FACE) or bool(path.drive)
    return name.rpartition(":")[2].split(",") if name.count(":") > other_colons else []


def _download(name: str) -> Path:
    """Fetch the files of a dataset, hf:OWNER/SET/FILES, and return their path on disk."""
    owner, _, rest = name.removeprefix(HUGGING_FACE).partition("/")
    dataset, _, files = rest.partition("/")
    if not files:
        raise UserError(f"{name}: expected hf:OWNER/SET/FILES, such as hf:wmt/wmt14/de-en/train-*.parquet")
    try:
        hub = importlib.import_module("huggingface_hub")
        folder = hub.snapshot_download(f"{owner}/{dataset}", repo_type="dataset", allow_patterns=[files])
    except ImportError:
        raise UserError(f"{name}: expected the package huggingface_hub; pip install 'transduce[data]'") from None
    except (OSError, ValueError) as error:
        reason = f"{error}".splitlines()[0]
        raise UserError(
            f"{name}: expected a dataset that can be fetched: {reason}; or download it and give its files"
        ) from error
    return Path(folder) / files


# ---- plain files -------------------------------------------------------------------------------------------------


def plain_files(corpus: Corpus, folder: Path) -> tuple[Path, Path]:
    """Return two plain files with the text of a corpus: its own files, or files that this function writes to `folder`.

    It writes them again only if the size or the time of a file of the corpus has changed.
    """
    if corpus.tgt is not None and not compression_format(corpus.src) and not compression_format(corpus.tgt):
        return corpus.src, corpus.tgt
    plain = (folder / "src.txt", folder / "tgt.txt")
    stamp = folder / "made_from.json"
    origin = encode_names([str(corpus.src), str(corpus.tgt), modification_stamps(corpus)])
    if not stamp.exists() or stamp.read_bytes() != origin:
        folder.mkdir(parents=True, exist_ok=True)
        stamp.unlink(missing_ok=True)
        if corpus.tgt is not None:  # the text takes at least the bytes of its compressed form
            check_room(folder, sum(size for _, size, _ in modification_stamps(corpus)))
        with synced_file(plain[0]) as src_file, synced_file(plain[1]) as tgt_file:
            for src, tgt in read_pairs(corpus):
                src_file.write(src.encode() + b"\n")
                if not corpus.is_one_text:
                    tgt_file.write(tgt.encode() + b"\n")
        with synced_file(stamp) as file:
            file.write(origin)
    return (plain[0], plain[0]) if corpus.is_one_text else plain


def modification_stamps(corpus: Corpus) -> list[tuple[str, int, int]]:
    """Return name, size and time of each file of a corpus."""
    return [(str(file), (status := file.stat()).st_size, status.st_mtime_ns) for file in _all_files(corpus)]


def hidden_modes(corpora: Sequence[Corpus]) -> int:
    """Return the permissions that a copy of the text must not give, because a file of the corpus lacks them."""
    modes = [file.stat().st_mode for corpus in corpora for file in _all_files(corpus)]
    return sum(bits for bits in (0o070, 0o007) if not all(mode & bits & 0o444 for mode in modes))


def _all_files(corpus: Corpus) -> list[Path]:
    return [corpus.src, corpus.tgt] if corpus.tgt is not None else _files(corpus.src)[0]
