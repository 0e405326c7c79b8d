"""Changed files on the disk: every change is detected, nothing crashes, and an older checkpoint is used."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from support.seeds import seed_of_the_commit
from support.small_runs import Texts, train_on, write_texts
from support.small_texts import check_sums

from transduce.config.files import from_json, to_json
from transduce.data.corpora import Corpus
from transduce.data.token_store import TokenStore, open_store
from transduce.data.tokenizer import Tokenizer
from transduce.errors import UserError
from transduce.storage.checkpoints import checkpoints
from transduce.storage.model_folder import load_model
from transduce.storage.run_folder import average_run, claim, find_run, run_tokenizer, write_config

# ---- changes of a file -------------------------------------------------------------------------------------------

Change = Callable[[bytes, random.Random], bytes | None]


def truncate(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def one_bit(content: bytes, rng: random.Random) -> bytes:
    i = rng.randrange(len(content))
    return content[:i] + bytes([content[i] ^ 1 << rng.randrange(8)]) + content[i + 1 :]


def eight_bytes(content: bytes, rng: random.Random) -> bytes:
    i = rng.randrange(len(content))
    return (content[:i] + rng.randbytes(8) + content[i + 8 :])[: len(content)]


def zero_page(content: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(content)) // 4096 * 4096
    page = content[start : start + 4096]
    return content[:start] + bytes(len(page)) + content[start + 4096 :]


def longer(content: bytes, rng: random.Random) -> bytes:
    return content + rng.randbytes(rng.choice((1, 8, 4096)))


def delete(content: bytes, rng: random.Random) -> None:
    return None


CHANGES: tuple[Change, ...] = (truncate, one_bit, eight_bytes, zero_page, longer, delete)


def mutate(files: list[Path], others: list[Path], rng: random.Random) -> str:
    """Change one of `files`, or replace it by a file of the same name from `others`. Return the change in words."""
    while True:
        file = rng.choice(files)
        content, change = file.read_bytes(), rng.choice((*CHANGES, None))
        twins = [other for other in others if other.name == file.name] if change is None else []
        if change is not None and content:
            new_content = change(content, rng)
        elif twins:
            new_content = rng.choice(twins).read_bytes()
        else:
            continue
        if new_content == content:
            continue
        if new_content is None:
            file.unlink()
        else:
            file.write_bytes(new_content)
        return f"{file.name}: {change.__name__ if change else 'another step or run'}"


# ---- checks ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Runs:
    """Two runs of the same length on different texts. The tests change files of the first."""

    out: Path
    other: Path
    texts: Texts
    pairs: list[object]  # of the first run

    @property
    def corpora(self) -> list[Corpus]:
        return [Corpus(*self.texts["train"])]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("runs")
    texts = write_texts(folder)
    train_on(texts, folder / "run")
    lines = texts["valid"][0].read_text("utf-8") * 9
    other = folder / "other.src", folder / "other.tgt"
    for path in other:
        path.write_text(lines + "klm nop\n" * 9, encoding="utf-8")
    train_on({**texts, "train": other}, folder / "other")
    tokenizer = Tokenizer.load(folder / "run" / "tokenizer.json")
    store = open_store(folder / "run" / "data" / "train", [Corpus(*texts["train"])], tokenizer)
    return Runs(folder / "run", folder / "other", texts, pairs_of(store))


def pairs_of(store: TokenStore) -> list[object]:
    return [[row.tolist() for row in side] for side in store.read(np.arange(len(store)))]


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "README.md")


def check_that_an_older_checkpoint_is_used(runs: Runs) -> None:
    path, lines = find_run(runs.out)
    older, newest = checkpoints(runs.out)[-2:]
    assert path == older
    assert str(newest) in lines[0] and lines[-1] == f"the run resumes from {older.name} instead"


def check_that_the_model_is_refused(runs: Runs) -> None:
    with pytest.raises(UserError, match="model"):
        load_model(runs.out / "model")


def check_that_the_tokenizer_is_refused(runs: Runs) -> None:
    newest = checkpoints(runs.out)[-1]
    with pytest.raises(UserError, match="tokenizer.json"):
        run_tokenizer(runs.out, newest)
    with pytest.raises(UserError, match="tokenizer.json"):
        average_run(runs.out, last=1, out=runs.out / "average")


def check_that_the_configuration_is_refused(runs: Runs) -> None:
    """A change without effect, such as 1e-6 to 1E-6, is accepted and overwritten."""
    config = from_json((runs.out / "model" / "config.json").read_bytes(), "")
    tokenizer = Tokenizer.load(runs.out / "tokenizer.json")
    path = runs.out / "config.json"
    try:
        is_same = from_json(path.read_bytes(), path) == config
    except (UserError, FileNotFoundError):
        is_same = False
    if is_same:
        claim(runs.out, config, tokenizer, [])
        write_config(runs.out, config)
        assert path.read_bytes() == to_json(config).encode()
        return
    with pytest.raises((UserError, FileNotFoundError), match="config.json|configuration that the run started with"):
        claim(runs.out, config, tokenizer, [])


def check_that_the_store_is_prepared_again(runs: Runs) -> None:
    """Opening or reading the store detects the change. The next opening writes the file again."""
    tokenizer = Tokenizer.load(runs.out / "tokenizer.json")
    for _ in range(2):
        store = open_store(runs.out / "data" / "train", runs.corpora, tokenizer)
        try:
            check_sums(store.files)
            break
        except OSError as problem:
            assert "part-" in str(problem)
    check_sums(store.files)
    assert pairs_of(store) == runs.pairs


CASES = {
    "checkpoint": (check_that_an_older_checkpoint_is_used, lambda run: files_in(checkpoints(run)[-1])),
    "model": (check_that_the_model_is_refused, lambda run: files_in(run / "model")),
    "tokenizer": (check_that_the_tokenizer_is_refused, lambda run: [run / "tokenizer.json"]),
    "config": (check_that_the_configuration_is_refused, lambda run: [run / "config.json"]),
    "data": (check_that_the_store_is_prepared_again, lambda run: files_in(run / "data" / "train")),
}
COUNTS = {"checkpoint": 600, "model": 600, "tokenizer": 400, "config": 200, "data": 200}  # 2,000 in total


def damage(runs: Runs, kind: str, count: int, seed: str) -> None:
    """Change the files of a kind `count` times, check that each change is detected, and restore the files."""
    check, files_of = CASES[kind]
    rng = random.Random(f"{kind} {seed}")
    others = [*files_in(runs.other), *(file for path in checkpoints(runs.out)[:-1] for file in files_in(path))]
    for number in range(count):
        files = {file: file.read_bytes() for file in files_of(runs.out)}
        change = mutate([*files], others, rng)
        try:
            check(runs)
        except Exception as problem:
            raise AssertionError(f"seed {seed}, change {number} of the {kind}: {change}") from problem
        finally:
            for file, content in files.items():
                if kind != "data":
                    file.write_bytes(content)


@pytest.mark.parametrize("kind", CASES)
def test_every_change_is_detected(runs: Runs, kind: str) -> None:
    damage(runs, kind, COUNTS[kind], seed="1")


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_five_times_as_many_changes_are_detected(runs: Runs, kind: str) -> None:
    """The changes differ for each commit."""
    seed = seed_of_the_commit()
    print(f"seed {seed}")
    damage(runs, kind, 5 * COUNTS[kind], seed)


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_differs_from_the_original(change: Change) -> None:
    rng, content = random.Random(1), bytes(range(256)) * 40
    assert all(change(content, rng) != content for _ in range(50))


def test_undamaged_files_are_accepted(runs: Runs) -> None:
    for check, _ in CASES.values():
        if check not in (check_that_the_store_is_prepared_again, check_that_the_configuration_is_refused):
            with pytest.raises(BaseException, match="DID NOT RAISE|not enough values|assert"):
                check(runs)
    assert find_run(runs.out) == (checkpoints(runs.out)[-1], [])
