"""Attacks on the command line: each must end with a documented exit code, say what is wrong, and lose no file."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.attack_files import STRANGE_NAMES, contents, copy_files, forge_json, write_files
from support.calls import HANG, call
from support.toy_task import ROOT

SECONDS = 15  # that an attack may take
MESSAGE_CHARACTERS = 4_000  # that a message may have


@dataclass(frozen=True)
class Attack:
    """A command line, and what it must answer.

    command: the words after `transduce`, as a shell splits them. They name files of `attack_files`.
    words: standard output or standard error has them.
    stdin: the file on standard input. before: a change of the files before the call.
    changes: files and folders that the command may change. It may also write new ones, and lose or change no other.
    """

    command: str
    code: int
    words: str | tuple[str, ...] = ()
    stdin: str = "/dev/null"
    environment: Mapping[str, str] = field(default_factory=dict)
    before: Callable[[Path], object] | None = None
    output: bytes | None = None  # that standard output must have
    changes: tuple[str, ...] = ()


TRAIN = "train --recipe recipes.py:tiny --train train.en train.de --valid valid.en valid.de --out new"
LATIN, NEWLINE, ESCAPE = (shlex.quote(STRANGE_NAMES[name]) for name in ("latin", "newline", "escape"))


def write(name: str, content: bytes) -> Callable[[Path], object]:
    """Return a change that writes a file, and the folders above it."""

    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)

    return change


def link(name: str, target: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).hardlink_to(folder / target)


def state(key: str, value: object) -> Callable[[Path], object]:
    """Return a change of the newest checkpoint's state, with a manifest that fits."""

    def change(folder: Path) -> None:
        newest = folder / "run" / "checkpoints" / "step-00000018"
        forge_json(newest, "state.json", lambda content: content.update({key: value}))

    return change


LOST_FILES = [
    Attack("translate model --output train.en", 2, ("train.en", "another file"), stdin="train.en"),
    Attack("translate model --output ./notes/../train.en", 2, "another file", stdin="train.en"),
    Attack("translate model --output again", 2, "another file", stdin="train.en", before=link("again", "train.en")),
    Attack("translate model --output train.de", 2, ("standard input:2", "iconv"), stdin="latin.txt"),
    Attack("translate model --input latin.txt --output train.de", 2, ("latin.txt:2", "iconv")),
    Attack("translate model --input cut.gz --output train.de", 2, "cut.gz"),
    Attack("translate huge --input train.en --output train.de", 2, "huge"),
    Attack("translate model --output /dev/full", 3, ("/dev/full", "No space left"), stdin="train.en"),
    Attack(TRAIN, 0, "new/model", before=write("new/.tmp-mine/thesis", b"years")),
    Attack(TRAIN, 0, "new/model", before=write("new/.tmp-step-notes", b"years")),
    Attack(TRAIN, 2, ("--out=new", "report.html", "another folder"), before=write("new/report.html", b"mine")),
    Attack(f"{TRAIN}/..", 2, "--out=new/..", before=write("new/x", b"")),
    Attack(TRAIN.replace("new", "train.en"), 2, "--out=train.en: expected a folder"),
    Attack(TRAIN.replace("new", "model"), 2, ("--out=model", "not a model")),
    Attack("report notes", 2, "notes"),
    Attack("report model", 2, "model"),
    Attack("average run --last 1 --out notes", 2, "notes"),
    Attack("average run --last 1 --out run/model", 2, "run/model"),
    Attack(
        "shortlist model --src train.en --tgt train.de", 0, "learned from 90 pairs", changes=("model/manifest.json",)
    ),
    Attack("calibrate notes --src valid.en --ref valid.de", 2, "notes"),
    Attack("calibrate model --src latin.txt --ref valid.de", 2, "latin.txt:2"),
    Attack("calibrate model --src valid.en --ref valid.de --report train.en", 2, "--report=train.en: expected no file"),
    Attack("shortlist notes --src train.en --tgt train.de", 2, "notes"),
    Attack("shortlist run --src train.en --tgt train.de", 2, "run/model"),
    Attack("shortlist flipped --src train.en --tgt train.de", 2, "flipped"),
    Attack("shortlist model --src latin.txt --tgt valid.de", 2, "latin.txt:2"),
    Attack("shortlist model --src train.en --tgt unmatched.de", 2, ("unmatched.de", "90", "91")),
    Attack("shortlist model --src blank.txt --tgt valid.de", 2, ("blank.txt", "neither blank")),
    Attack("embed bert --output train.en", 2, ("train.en", "another file"), stdin="train.en"),
    Attack("fill bert --input latin.txt --output train.de", 2, ("latin.txt:2", "iconv")),
    Attack("classify classes --output /dev/full", 3, ("/dev/full", "No space left"), stdin="train.en"),
    Attack("classify model --output train.de", 2, "expected a model of the family", stdin="train.en"),
    Attack("transcribe classes no.wav", 2, "no.wav: expected a sound file, but it is missing"),
    Attack("continue gpt2 --output ./notes/../train.en", 2, "another file", stdin="train.en"),
    Attack("continue gpt2 --input cut.gz --output train.de", 2, "cut.gz"),
    Attack("continue gpt2 --output /dev/full", 3, ("/dev/full", "No space left"), stdin="train.en"),
    Attack("continue bert --output train.de", 2, ("bert: model_type='bert'", "fill"), stdin="train.en"),
    Attack("embed notes --output train.de", 2, "config.json", stdin="train.en"),
    Attack("export model notes --to ctranslate2", 2, "notes"),
    Attack("export model model --to ctranslate2", 2, "model"),
    Attack("demo --out notes", 2, "notes: expected a new folder"),
    Attack("demo --out train.en", 2, "train.en: expected a new folder"),
    Attack("study table1 --out notes/thesis.txt", 2, "notes/thesis.txt"),
    Attack("study table1 --out mine", 2, "mine/results.json", before=write("mine/results.json", b"[1, 2]")),
]
NAMES = [
    Attack(TRAIN.replace("valid.en", LATIN).replace("valid.de", LATIN), 0, "\\xe4l.en"),
    Attack(TRAIN.replace("train.en", LATIN), 0, "new/model"),
    Attack(f"check {LATIN} train.de", 0, "\\xe4l.en"),
    Attack(f"check {LATIN} train.de --json", 0, "\\xe4l.en"),
    Attack(f"evaluate --hyp {LATIN} --ref train.de --json", 0, "\\xe4l.en"),
    Attack(f"check {LATIN} nothing.de", 2, "nothing.de"),
    Attack(f"translate model --input {LATIN} --output {LATIN}", 2, "\\xe4l.en"),
    Attack(f"check {NEWLINE} unmatched.de", 2, "two\\nlines.en"),
    Attack(f"check {ESCAPE} unmatched.de", 2, "\\x1b[31mred.en"),
    Attack("translate '\x1b[31mno model'", 2, "\\x1b[31mno model"),
    Attack(f"{TRAIN} --set {'x' * 100_000}", 2, "xxx"),
    Attack(f"recipes {'x' * 100_000}", 2, "xxx"),
    Attack(f"translate {'x' * 3_000}", 3, "xxx"),
    Attack("check loop loop", 3, "loop"),
    Attack("check dangling dangling", 2, "dangling"),
    Attack("check notes notes", 2, "notes"),
    Attack("check '' ''", 2),
    Attack("translate ''", 2),
]
NUMBERS = [
    *(Attack(f"translate model {option}={value}", 2, (f"{option}={value}", "expected"), stdin="short.txt") for
      option, value in (
        ("--beam-size", "2.5"), ("--beam-size", "nan"), ("--beam-size", "inf"), ("--beam-size", "0"),
        ("--beam-size", "-1"), ("--beam-size", "9" * 30), ("--beam-size", "10001"), ("--beam-size", ""),
        ("--lookahead", "2.5"), ("--lookahead", "0"), ("--lookahead", "9" * 30),
        ("--alpha", "nan"), ("--alpha", "inf"), ("--alpha", "-1"), ("--alpha", "1e+39"),
        ("--n-best", "2.5"), ("--n-best", "0"), ("--n-best", "-1"),
        ("--top-k", "1.5"), ("--top-k", "0"),
        ("--top-p", "0"), ("--top-p", "1.5"), ("--top-p", "nan"),
        ("--temperature", "0"), ("--temperature", "-1"), ("--temperature", "nan"), ("--temperature", "inf"),
        ("--temperature", "1e-40"), ("--temperature", "1e+39"), ("--top-p", "1e-46"),
        ("--epsilon", "0"), ("--epsilon", "1.5"), ("--epsilon", "nan"),
        ("--mbr", "2.5"), ("--mbr", "0"), ("--mbr", "-1"), ("--mbr", "9" * 30), ("--mbr-metric", "no"),
      )),
    Attack("translate model --temperature 1 --seed 1.5", 2, "--seed=1.5: expected an integer"),
    Attack(f"translate model --temperature 1 --seed {'9' * 30}", 0, stdin="short.txt"),
    Attack("average run --last 1.5 --out new", 2, "--last=1.5: expected an integer"),
    Attack("average run --last 0 --out new", 2, "--last=0"),
    Attack("average run --last 1 --until -1 --out new", 2, ("--last=1", "step -1")),
    Attack("check train.en train.de --first 1.5", 2, "--first=1.5: expected an integer"),
    Attack("check train.en train.de --first -1", 2, "--first=-1"),
    Attack("score model --src train.en --tgt train.de --precision int8", 2, ("int8", "fp32")),
    Attack("evaluate model --src train.en --ref train.de --precision int8", 2, ("int8", "fp32")),
    Attack("translate model --precision fp16", 2, ("--precision='fp16'", "fp32")),
    Attack("evaluate --hyp train.de --ref train.de --language ''", 2, "--language"),
    Attack("evaluate --hyp train.de --ref train.de --tokenize no", 2, ("--tokenize='no'", "13a")),
    Attack(TRAIN.replace("train.de", "train.de 1e-9"), 2, ("train.en and train.de", "larger weights")),
    Attack(TRAIN.replace("train.de", "train.de nan"), 2, "weight"),
    Attack(TRAIN.replace("train.de", "train.de -1"), 2, "weight"),
    Attack(f"{TRAIN} --set train.lr_factor=1e8 --set train.warmup_steps=1", 2, "diverged"),
    Attack(f"{TRAIN} --set train.lr_factor=nan", 2, "train.lr_factor=nan"),
    Attack(f"{TRAIN} --set search.beam_size=10001", 2, "search.beam_size=10001: expected 1 to"),
    Attack(f"{TRAIN} --set train.seed=18446744073709551616", 2, "train.seed=18446744073709551616"),
    Attack(f"{TRAIN} --rank-timeout nan", 2, "rank-timeout"),
    Attack(f"{TRAIN} --rank-timeout -1", 2, "rank-timeout"),
    Attack("study table3 --train train.en train.de --valid valid.en valid.de --out new --jobs 0", 2, "--jobs=0"),
    Attack("study table3 --train train.en train.de --valid valid.en valid.de --out new --seeds 1.5", 2, "1.5"),
    Attack("study table3 --train train.en train.de --valid valid.en valid.de --out new --rows no", 2, "no"),
    Attack("study attention --train train.en --valid no-text.en --out new", 2, "no-text.en: expected a text file"),
    Attack("study positions --train train.en --valid no-text.en --out new", 2, "no-text.en: expected a text file"),
    Attack("study experts --train valid.en --valid notes --out new", 2, "notes: expected a text file"),
    Attack("study scaling --train no-text.en --valid valid.en --out new", 2, "no-text.en: expected a text file"),
    Attack("study scaling --train train.en --valid valid.en --out new --jobs 0", 2, "--jobs=0"),
]  # fmt: skip
TEXTS = [
    Attack("translate model --input nul.txt", 0, output=None),
    Attack("translate model", 0, stdin="blank.txt", output=b"\n" * 4),
    Attack("translate model --input packed.bz2", 2, ("packed.bz2", "bz2")),
    Attack("translate model --input packed.zip", 2, ("packed.zip", "zip")),
    Attack("translate model --input random.bin", 2, "random.bin:1"),
    Attack("translate model --input utf16.txt", 2, ("utf16.txt", "iconv -f UTF-16")),
    Attack("translate model --input surrogate.txt", 2, "surrogate.txt:2"),
    Attack("translate model --input long.txt", 0, ("long.txt:2", "expected at most")),
    Attack("score model --src long.txt --tgt long.txt", 2, ("long.txt:2", "expected at most")),
    Attack("evaluate model --src long.txt --ref long.txt", 2, ("long.txt", "2", "expected at most")),
    Attack("check random.bin random.bin", 2, ("random.bin", "not UTF-8")),
    Attack("check latin.txt valid.de", 2, ("latin.txt", "not UTF-8")),
    Attack("check train.en unmatched.de", 2, ("unmatched.de", "90", "91")),
    Attack("check empty.txt empty.txt", 2, "empty.txt"),
    Attack("check blank.txt blank.txt", 2, "blank"),
    Attack("check train.en train.de extra", 2, ("extra", "expected SRC TGT")),
    Attack("check ragged.tsv", 2, ("ragged.tsv:6", "columns")),
    Attack("check ragged.tsv:1,2", 2, ("ragged.tsv:6", "columns")),
    Attack("check pairs.tsv:1,3", 2, ("pairs.tsv", "columns", "3")),
    Attack("check pairs.parquet:en,xx", 2, ("pairs.parquet", "'xx' is not one of them", "pairs.parquet:en,de")),
    Attack("check category.parquet", 2, ("category.parquet", "en")),
    Attack("check bytes.parquet", 2, ("bytes.parquet", "UTF8", "get the file again")),
    Attack("check cut.parquet", 2, ("cut.parquet", "get the file again")),
    Attack("check feather.arrow", 0, "feather.arrow"),
    Attack("check flipped.arrow", 2, "flipped.arrow"),
    Attack("check cut.gz train.de", 2, "cut.gz"),
    Attack("check train.en train.de --tokenizer /dev/zero", 2, "/dev/zero"),
    Attack("check train.en train.de --tokenizer fifo", 2, "fifo"),
    Attack("check train.en train.de --tokenizer train.en", 2, "train.en"),
    Attack("check fifo fifo", 2, "fifo"),
    Attack("check /dev/zero /dev/zero", 2, "/dev/zero"),
    Attack("check long.txt long.txt", 0, before=write("long.txt", b"1 000 " * 150_000 + b"\n")),
    Attack(TRAIN.replace("train.en", "fifo"), 2, "fifo"),
    Attack(TRAIN.replace("valid.en", "fifo"), 2, "fifo"),
    Attack(TRAIN.replace("train.en train.de", "ragged.tsv"), 2, "ragged.tsv:6"),
    Attack(TRAIN.replace("train.en train.de", "bytes.parquet"), 2, ("bytes.parquet", "UTF8")),
    Attack(TRAIN.replace("train.en", "surrogate.txt"), 2, "surrogate.txt"),
    Attack(TRAIN.replace("tiny", "fails"), 2, ("recipes.py:fails", "no recipe today")),
    Attack(TRAIN.replace("tiny", "number"), 2, ("recipes.py:number", "Config")),
    Attack(TRAIN.replace("tiny", "value"), 2, "recipes.py:value"),
    Attack(TRAIN.replace("recipes.py", "syntax.py"), 2, "syntax.py"),
    Attack(TRAIN.replace("recipes.py", "."), 2, ".:tiny"),
    Attack("train --empty-train", 2),
    Attack(f"{TRAIN} --empty-set", 2),
]
MODELS = [
    Attack("translate huge", 2, "huge", stdin="train.en"),
    Attack("translate huge --beam-size 1 --precision bf16", 2, "huge", stdin="train.en"),
    Attack("translate huge --precision int8", 2, "huge", stdin="train.en"),
    Attack("translate huge --temperature 1", 2, "huge", stdin="train.en"),
    Attack("score huge --src train.en --tgt train.de", 2, "huge"),
    Attack("evaluate huge --src train.en --ref train.de", 2, "huge"),
    Attack("translate flipped", 2, "model.safetensors", stdin="train.en"),
    Attack("translate bare", 2, "manifest.json", stdin="train.en"),
    Attack("translate run", 2, "run/model", stdin="train.en"),
    Attack("translate notes", 2, "notes", stdin="train.en"),
    Attack("translate train.en", 2, "train.en", stdin="train.en"),
    Attack("translate model --engine ctranslate2", 2, "model", stdin="train.en"),
    Attack("export huge new --to ctranslate2", 2, "huge"),
    Attack("import marian model new", 2, "model"),
    Attack("import marian foreign new", 2, ("foreign", "source.spm"), before=write("foreign/config.json", b"{}")),
    Attack("import marian fifo new", 2, "fifo"),
]
RUNS = [
    *(Attack("average run --last 1 --out new", 2, "state.json", before=state(key, value)) for key, value in (
        ("step", -1), ("step", "x"), ("step", 1 << 60), ("step", None),
    )),
    Attack("average run --last 9 --out new", 2, "expected 1 to 3"),
    Attack("average run --last 4 --out new", 2, "expected 1 to 3", before=write("run/checkpoints/step-00000013", b"")),
    Attack("report run", 2, "log.jsonl", before=write("run/log.jsonl", b"[]\n" * 3), changes=("run/log.jsonl",)),
    Attack("report run", 2, "log.jsonl", before=write("run/log.jsonl", b'{"step": 2}\n{"step": 1}\n')),
    Attack("report run", 2, "config.json", before=write("run/config.json", b"\xff")),
    Attack("study table1 --out s", 2, "s/results.json", before=write("s/results.json", b'{"format_version": 1}')),
    Attack("study table1 --out s", 2, "s/results.json", before=write("s/results.json", b"\xff\xfe")),
]  # fmt: skip
ENVIRONMENTS = [
    *(Attack("train --help", 0, "--recipe", environment={"COLUMNS": columns}) for columns in
      ("0", "1", "2", "99999999", "-5", "x")),
    *(Attack("translate", 2, "MODELS: expected a value", environment={"COLUMNS": columns}) for columns in ("0", "1")),
    Attack("recipes", 0, "vaswani2017-base", environment={"COLUMNS": "99999999"}),
    Attack("translate model", 2, "expected one of", stdin="short.txt", environment={"TRANSDUCE_CPU_LEVEL": "x"}),
    Attack("translate model", 0, stdin="short.txt", environment={"OMP_NUM_THREADS": "x"}),
    Attack("check train.en train.de", 0, environment={"TERM": "x" * 10_000, "NO_COLOR": "1"}),
]  # fmt: skip
SHELL = {  # a line for bash -> its exit code, and words that it prints
    "transduce recipes mixture > /dev/full": (3, "No space left"),
    "transduce check train.en train.de > /dev/full": (3, "No space left"),
    "transduce check --no-such 2> /dev/full": (2, ""),
    "transduce check train.en train.de | head -1; exit ${PIPESTATUS[0]}": (0, "90 pairs"),
    "transduce recipes mixture >&-": (0, ""),
    "transduce recipes nothing 2>&-": (2, ""),
    "transduce check train.en train.de >&- 2>&- <&-": (0, ""),
    "transduce translate model 2>&- < valid.en | wc -l; exit ${PIPESTATUS[0]}": (0, "4\n"),
    "PYTHONIOENCODING=ascii transduce check train.en train.de": (0, "90 pairs"),
    "PYTHONIOENCODING=latin-1 transduce check train.en train.de": (0, "90 pairs"),
    "LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 transduce check train.en train.de": (0, "90 pairs"),
    "transduce check <(cat pairs.tsv)": (2, "/dev/fd/"),
    "transduce evaluate --hyp <(cat train.de) --ref train.de": (0, "90 lines"),
    "transduce score model --src <(cat train.en) --tgt <(cat train.de) | wc -l; exit ${PIPESTATUS[0]}": (0, "90\n"),
    "transduce translate model --output valid.de < <(cat valid.en; printf '\\xff'); wc -l < valid.de": (0, "4\n"),
    "unset HOME; transduce check train.en train.de": (0, "90 pairs"),
}
TABLE = {"files": LOST_FILES, "names": NAMES, "numbers": NUMBERS, "texts": TEXTS, "models": MODELS, "runs": RUNS,
         "environment": ENVIRONMENTS}  # fmt: skip


def name_of(group: str, number: int, attack: Attack) -> str:
    return f"{group} {number}: {attack.command:.60}"


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("originals")
    write_files(folder)
    return folder


@pytest.mark.parametrize(
    "attack",
    [pytest.param(a, id=name_of(group, i, a)) for group, rows in TABLE.items() for i, a in enumerate(rows)],
)
def test_attack(attack: Attack, originals: Path, tmp_path: Path) -> None:
    folder = copy_files(originals, tmp_path / "files")
    if attack.before is not None:
        attack.before(folder)
    before = contents(folder)
    words = shlex.split(attack.command)
    result = call(words, folder, stdin=folder / attack.stdin, environment=attack.environment, seconds=SECONDS)
    assert HANG not in result.err, result.err
    assert result.code == attack.code and "Traceback" not in result.err, result
    assert len(result.err) < MESSAGE_CHARACTERS and result.err.replace("\n", "").replace("\t", "").isprintable()
    output = result.err + result.out.decode()
    for word in [attack.words] if isinstance(attack.words, str) else attack.words:
        assert word in output, output
    if attack.output is not None:
        assert result.out == attack.output
    after = contents(folder)
    missing = [name for name, content in before.items() if after.get(name) != content]
    assert [name for name in missing if not name.startswith(attack.changes or "/")] == []


@pytest.mark.parametrize("line", SHELL)
def test_attack_in_a_shell(line: str, originals: Path, tmp_path: Path) -> None:
    """Closed streams, full disks, pipes and encodings: what only a new process has."""
    folder = copy_files(originals, tmp_path / "files")
    before = contents(folder)
    command = f'transduce() {{ {sys.executable} -P -m transduce "$@"; }}; {line}'
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUTF8": "0"}
    result = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, env=environment, timeout=60)
    output = (result.stdout + result.stderr).decode(errors="replace")
    code, word = SHELL[line]
    assert result.returncode == code and word in output and "Traceback" not in output, (result.returncode, output)
    assert before.items() <= contents(folder).items()
