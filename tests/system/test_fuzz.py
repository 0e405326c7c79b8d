"""500 random calls of all commands with all options: documented exit codes, no traceback, and no lost file.

Commands, options and their types come from the parser, so that a new option is included. Each commit has other calls.
`TRANSDUCE_SEED` sets the seed, and `TRANSDUCE_FUZZ_CALLS` the number of calls. The test prints its figures with
`pytest -s`.
"""

import os
import random
import shlex
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
from cyclopts import App
from cyclopts.argument import Argument
from support.attack_files import STRANGE_NAMES, contents, copy_files, write_files
from support.calls import HANG, call
from support.seeds import seed_of_the_commit

from transduce.cli.main import app
from transduce.config.schema import keys
from transduce.data.corpora import Corpus

CALLS = int(os.environ.get("TRANSDUCE_FUZZ_CALLS", 500))
SECONDS = 60  # that a call may take on a busy machine
CODES = (0, 2, 3)
CTRL_C = 130

# ---- values --------------------------------------------------------------------------------------------------------

TEXTS = [
    *("train.en", "train.de", "valid.en", "valid.de", "short.txt", "empty.txt", "blank.txt", "bom.txt", "crlf.txt"),
    *("latin.txt", "utf16.txt", "surrogate.txt", "nul.txt", "random.bin", "long.txt", "unmatched.de", "packed.gz"),
    *("cut.gz", "packed.bz2", "packed.zip", *STRANGE_NAMES.values()),
]
TABLES = [
    *("pairs.tsv", "pairs.tsv:2,1", "pairs.tsv:1,3", "ragged.tsv", "ragged.tsv:1,2", "pairs.parquet", "cut.parquet"),
    *("pairs.parquet:de,en", "pairs.parquet:en,xx", "bytes.parquet", "category.parquet", "pairs.arrow"),
    *("flipped.arrow", "feather.arrow", "pairs.*", "*"),
]
MODELS = ["model", "run/model"]
ODD_MODELS = ["huge", "flipped", "bare", "notes"]
ODD_OUTPUTS = ["run", "notes", "model", "train.en", "valid.de", "v\udce4", "/dev/null/x"]
ODD_PATHS = ["fifo", "dangling", "loop", "/dev/null", "/dev/full", "notes", "missing", ".", "..", "", "-", "run"]
INTEGERS = ["0", "-1", "7", "4000000000", str(2**62), str(2**63), str(2**64), "9" * 400, "2.5"]
FLOATS = ["0", "-1", "1e-9", "1e-46", "1e39", "1e400", "nan", "inf", "-inf", "0.9999999999", "9" * 400]
STRANGE = [
    *("", " ", "x", "null", "2.5", "0x10", "1_0", "１", "a=b", "=", "--", "-1e", "--help", "--json=maybe", "😀"),
    *("\udcff\udc80", "two\nlines", "\x1b[2Jred", "\x07\x08", "x" * 100_000, "a/" * 3_000, "{}", "%s", "~", "*"),
]  # fmt: skip
ODD_RECIPES = ["recipes.py:fails", "recipes.py:number", "recipes.py:missing", "syntax.py:tiny", "notes:tiny", "mixtur"]
GOOD = {
    "MODELS": MODELS,
    "--folder": ["bert", "classes", "gpt2"],
    "--model": MODELS,
    "--from": MODELS,
    "--tokenizer": [*MODELS, "model/tokenizer.json"],
    "--run": ["run"],
    "--out": ["new", "new", "new", "new/deeper", "run", "new.html", "new.svg", "new.npz"],
    "--head": ["encoder 1.1", "cross 1.mean", "decoder 1.rollout"],
    "--output": ["new", "valid.de"],
    "--recipe": ["recipes.py:tiny"] * 6 + ["mixture", "vaswani2017-base", "small-table2-recurrent"],
    "--name": ["recipes.py:tiny", "mixture", "vaswani2017-base"],
    "--language": ["en", "de", "fr"],
    "--tokenize": ["13a", "intl", "char", "none", "zh"],
    "--precision": ["fp32", "bf16", "int8", "auto"],
    "--rows": ["base", "h1", "n2"],
    "--allow-change": ["train.max_steps", "train.patience"],
    "--last": ["1", "2", "3"],
    "--until": ["12", "18"],
    "--mirror": ["http://127.0.0.1:9"],
    "--input": ["valid.en", "bom.txt", "nul.txt", "blank.txt", "long.txt"],
    **dict.fromkeys(["--src", "--train", "--valid", "--test", "--held-out", "--backward"], ["valid.en"]),
    **dict.fromkeys(["--ref", "--tgt", "--hyp", "--forward"], ["valid.de"]),
}
ODD = {"--recipe": ODD_RECIPES, "--name": ODD_RECIPES, "--out": ODD_OUTPUTS, "--output": ODD_OUTPUTS}

# What makes a training short. A call that sets one of them is ended by Ctrl-C.
SHORT = {
    "model.d_model": 16,
    "model.n_layers": 1,
    "model.n_heads": 2,
    "model.d_ff": 32,
    "data.vocab_size": 290,
    "data.batch_tokens": 150,
    "data.max_tokens": 24,
    "train.max_steps": 2,
    "train.warmup_steps": 2,
    "search.beam_size": 2,
    "search.max_extra_tokens": 2,
}
LONG = ("--minutes", "--hours")  # a training of so much time
TRAINERS = ("demo", "download", "study")  # they end by Ctrl-C after some seconds
NO_NETWORK = dict.fromkeys(["http_proxy", "https_proxy"], "http://127.0.0.1:9")
NEEDED = {"evaluate": [["MODELS", "--src"], ["--hyp"]]}  # arguments without which a command has nothing to do
RARE = 0.05  # of the calls of other commands with as many arguments, since these take seconds


def commands(part: App, chain: tuple[str, ...] = ()) -> Iterator[tuple[str, list[Argument]]]:
    """Yield the words of each command, and its arguments."""
    names = [name for name in part if not name.startswith("-")]
    for name in names:
        yield from commands(part[name], (*chain, name))
    if not names:
        yield " ".join(chain), [*part.assemble_argument_collection()]


COMMANDS = dict(commands(app))


def kinds_of(hint: Any) -> set[Any]:
    """Return the plain types and the literal values in a type: {int} of `list[int] | None`."""
    if get_origin(hint) is Literal:
        return {*get_args(hint)}
    parts = [part for part in get_args(hint) if part not in (type(None), Ellipsis)]
    return set().union(*map(kinds_of, parts)) if parts else {hint}


def good_value(argument: Argument, rng: random.Random) -> str:
    """Return a value that suits an argument."""
    kinds = kinds_of(argument.hint)
    if argument.name in GOOD:
        return rng.choice(GOOD[argument.name])
    if argument.name == "--set":
        return rng.choice(["train.seed=7", "model.dropout=0", "train.precision=bf16", "train.use=last"])
    if kinds <= {int, float}:
        return rng.choice(["1", "2", "3"] if int in kinds else ["0.5", "1", "2"])
    words = sorted(kind for kind in kinds if isinstance(kind, str))
    return rng.choice(words or ["train.en", "train.de"])


def odd_value(argument: Argument, rng: random.Random) -> str:
    """Return a value of the type of an argument that is at a boundary or damaged, or any strange text."""
    kinds = kinds_of(argument.hint)
    if rng.random() < 0.2:
        return rng.choice(STRANGE)
    if argument.name == "--set":
        pool = rng.choice([INTEGERS, FLOATS, STRANGE, ["ema", "best", "learned", "wordpiece", "convolutional"]])
        return f"{rng.choice(keys())}={rng.choice(pool)}"
    if argument.name in ODD and rng.random() < 0.6:
        return rng.choice(ODD[argument.name])
    if Path in kinds or Corpus in kinds:
        return rng.choice(rng.choice([TEXTS, TABLES, ODD_PATHS, [*MODELS, *ODD_MODELS]]))
    return rng.choice(INTEGERS if int in kinds else FLOATS if float in kinds else STRANGE)


def words_of(argument: Argument, rng: random.Random, *, is_odd: bool) -> list[str]:
    """Return the words that give an argument: its name, unless it is positional, and its values."""
    count, takes_more = argument.token_count()
    is_positional = argument.field_info.is_positional and (rng.random() < 0.9 or not argument.name.startswith("--"))
    if is_odd:
        count = rng.choice([max(count, 1)] * 9 + [0, 1, 2, 3])
        values = [rng.choice([odd_value, odd_value, good_value])(argument, rng) for _ in range(count)]
    elif Corpus in kinds_of(argument.hint):
        values = rng.choice([["train.en", "train.de"], ["packed.gz", "train.de"], ["pairs.tsv"], ["pairs.parquet"]])
        values += rng.choice([[], [], ["0.5"], ["2"]])
    elif count == 2:  # a pair of files
        values = ["valid.en", "valid.de"]
    else:
        values = [good_value(argument, rng) for _ in range(max(count, 1) + (takes_more and rng.random() < 0.2))]
    if is_positional:
        return values
    name = rng.choice(argument.names) if is_odd else argument.name
    if kinds_of(argument.hint) == {bool} or name != argument.name:
        return [f"{name}={rng.choice(STRANGE)}"] if is_odd and rng.random() < 0.3 else [name]
    return [f"{name}={values[0]}"] if len(values) == 1 and rng.random() < 0.5 else [name, *values]


@dataclass(frozen=True)
class RandomCall:
    """A command line. interrupt_after: seconds until a Ctrl-C, which may end it; None: no Ctrl-C."""

    command: str
    words: list[str]
    stdin: str
    interrupt_after: float | None

    @property
    def line(self) -> str:
        return ascii(" ".join(map(shlex.quote, self.words)))[:2_000]


def random_call(rng: random.Random) -> RandomCall:
    """Return a call of a random command. Half of the calls have no odd argument, the others one or two."""
    weights = [len(arguments) * (RARE if name.startswith(TRAINERS) else 1) for name, arguments in COMMANDS.items()]
    command = rng.choices([*COMMANDS], weights)[0]
    is_likely, odd_count = rng.choice([0.03, 0.1, 0.3]), rng.choice([0, 0, 0, 1, 1, 2])
    needed = rng.choice(NEEDED.get(command, [[]]))
    selection = [a for a in COMMANDS[command] if a.required or a.name in needed or rng.random() < is_likely]
    odd = {argument.name for argument in rng.sample(selection, min(odd_count, len(selection)))}
    # positional arguments keep their order
    selection.sort(key=lambda argument: rng.random() * (not argument.field_info.is_positional))
    groups = [words_of(argument, rng, is_odd=argument.name in odd) for argument in selection]
    if rng.random() < 0.05:  # an argument is missing, or one too many
        groups = [*groups[1:], *rng.choice([[], [[rng.choice(STRANGE)]]])]
    words = [*command.split(), *(word for group in groups for word in group)]
    is_open_ended = command.startswith(TRAINERS)
    if command == "train":
        own = {word.removeprefix("--set=").partition("=")[0] for word in words}
        is_open_ended = not own.isdisjoint([*SHORT, "model.n_encoder_layers", "model.n_decoder_layers"])
        is_open_ended |= any(word.startswith(LONG) for word in words)
        if not any("recipes.py:tiny" in word for word in words):
            words += [word for key, short in SHORT.items() if key not in own for word in ("--set", f"{key}={short}")]
    waits = any("fifo" in word or "/dev/" in word for word in words)
    seconds = 2.0 if is_open_ended else 1.0 if waits else None
    return RandomCall(command, words, rng.choice(["/dev/null", *TEXTS]), seconds)


# ---- checks --------------------------------------------------------------------------------------------------------


def may_change(path: str, call: RandomCall, code: int) -> bool:
    """Return True if a call may change an existing file: its --output, the list of the files of its model, and what a
    run or a study writes in its own.
    """
    if f"--output={path}" in call.words or {"--output", path} <= {*call.words}:
        return code == 0
    if call.command in ("shortlist", "calibrate") and path.endswith("/manifest.json"):
        return code == 0
    return path.startswith("run/") and any(word.rpartition("=")[2] in ("run", ".") for word in call.words)


def problems(call: RandomCall, code: int, err: str, before: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    """Return a line for each rule that the call broke."""
    lines = []
    if HANG in err:
        lines.append(f"took more than {SECONDS} s")
    elif code not in CODES and not (code == CTRL_C and call.interrupt_after is not None):
        lines.append(f"exit code {code}")
    if "Traceback (most recent" in err:
        lines.append("a traceback")
    if code in (2, 3) and not err.strip():
        lines.append("no message")
    changed = [path for path, content in before.items() if after.get(path) != content]
    lines += [f"changed or deleted {path!a}" for path in changed if not may_change(path, call, code)]
    if code in CODES:
        lines += [f"left {path!a}" for path in after.keys() - before.keys() if "/.tmp-" in f"/{path}"]
    return lines


@pytest.mark.slow
def test_random_calls_end_with_a_documented_code_and_lose_no_file(tmp_path: Path) -> None:
    seed = seed_of_the_commit()
    print(f"seed {seed}")
    originals, parent = tmp_path / "originals", tmp_path / "parent"  # a call may write to its parent folder
    originals.mkdir()
    parent.mkdir()
    write_files(originals)
    folder = copy_files(originals, parent / "files")
    before = contents(folder)
    codes: Counter[int] = Counter()
    failures: list[str] = []
    started_at = time.monotonic()
    for number in range(CALLS):
        random_one = random_call(random.Random(f"{seed} {number}"))
        stdin = folder / random_one.stdin
        result = call(
            random_one.words, folder, stdin=stdin, environment=NO_NETWORK, seconds=SECONDS,
            interrupt_after=random_one.interrupt_after,
        )  # fmt: skip
        codes[result.code] += 1
        after = contents(folder)
        for problem in problems(random_one, result.code, result.err, before, after):
            failures.append(f"call {number}: {problem}: transduce {random_one.line}\n{result.err[-2_000:]}")
        if after != before:
            shutil.rmtree(parent)
            parent.mkdir()
            copy_files(originals, folder)
    seconds = time.monotonic() - started_at
    figures = f"{len(COMMANDS)} commands, exit codes {dict(sorted(codes.items()))}, {seconds:.0f} s"
    print(f"{CALLS} calls, seed {seed}, {figures}")
    assert not failures, f"seed {seed}, {len(failures)} failures:\n" + "\n".join(failures[:30])
