"""A killed and resumed run equals an undisturbed one, and an extended run equals a longer one.

This is the short form of `support/killing.py`, which describes the kinds of death and the comparison.
"""

import random
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.killing import Death, Killer, Trap
from support.seeds import seed_of_the_commit
from support.small_runs import AVERAGE, CONFIGS, Texts, differences, ending, train_on
from support.toy_task import CommandResult

from transduce.config.files import CHANGEABLE, from_json
from transduce.config.schema import Config, keys
from transduce.errors import UserError
from transduce.storage.checkpoints import checkpoints, step_of

DEATH: dict[str, Death] = {"average": "kill", "ema": "power", "best": "torn"}  # by configuration


def with_train(config: Config, **changes: Any) -> Config:
    return replace(config, train=replace(config.train, **changes))


# The tests of a configuration share its undisturbed run, so one process runs them all.
PARAMS = [
    pytest.param(
        name, marks=[pytest.mark.xdist_group(f"killed {name}"), *([] if name == "average" else [pytest.mark.slow])]
    )
    for name in CONFIGS
]


@pytest.fixture(scope="module", params=PARAMS)
def killer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killer]:
    folder = tmp_path_factory.mktemp("killer")
    yield Killer(CONFIGS[request.param], folder / request.param)
    shutil.rmtree(folder)


# ---- kills -------------------------------------------------------------------------------------------------------


def test_the_killer_records_all_file_operations(killer: Killer) -> None:
    kinds = {operation.partition(" ")[0] for operation in killer.operations}
    assert kinds == {"open", "fsync", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}
    order = ["config.json", "tokenizer.json", "data", "log.jsonl", "step-00000006", "step-00000027", "model-"]
    numbers = [killer.first(name) for name in order]
    assert numbers == sorted(numbers)
    files = [name for name, content in killer.expected.items() if content != "folder" and "." in name]
    for name in files:
        assert killer.first(Path(name).name) < len(killer.operations)


def test_a_run_killed_at_any_operation_of_a_save_resumes(killer: Killer) -> None:
    """The operations belong to the save at step 18, and to the removal of older checkpoints.

    The commit selects one third of them.
    """
    seed = seed_of_the_commit()
    print(f"seed {seed}")
    begin, end = killer.first("step-00000018"), killer.first("step-00000024")
    assert end - begin > 12
    for at in range(begin + random.Random(seed).randrange(3), end, 3):
        killer.kill_at(Trap(at, DEATH[killer.config.train.use], size=100))


@pytest.mark.slow
@pytest.mark.parametrize("names", [("config.json", "step-00000006"), ("model-", None)], ids=["start", "end"])
def test_a_run_killed_at_its_start_and_end_resumes(killer: Killer, names: tuple[str, str | None]) -> None:
    """The commit selects an eighth of the operations."""
    begin, end = (killer.first(name) if name else len(killer.operations) for name in names)
    for at in range(begin + random.Random(seed_of_the_commit()).randrange(8), end, 8):
        killer.kill_at(Trap(at, DEATH[killer.config.train.use], size=100))


@pytest.mark.slow
def test_a_run_killed_again_and_again_resumes(killer: Killer) -> None:
    """Each resumed process is killed early: at operation 0, 5, 10 and so on."""
    traps = [Trap(at, "kill") for at in range(0, 30, 5)]
    killer.kill_at(Trap(killer.first("step-00000012"), DEATH[killer.config.train.use], size=100), *traps)


@pytest.mark.slow
def test_a_run_killed_and_interrupted_at_random_moments_resumes(killer: Killer) -> None:
    rng = random.Random(killer.config.train.use)
    kills = killer.kills
    while killer.kills < kills + 3:
        killer.kill_at_random(rng, signal.SIGKILL)
    killer.kill_at_random(rng, signal.SIGTERM, signal.SIGINT)


def test_a_finished_run_does_not_change_when_it_is_resumed(killer: Killer) -> None:
    out = killer.new_run()
    assert [killer.run_process(out), killer.run_process(out), killer.run_process(out)] == [0, 0, 0]
    killer.finish(out, "resumed when finished")


@pytest.mark.slow
def test_runs_killed_anywhere_resume(killer: Killer) -> None:
    """30 kills: at ten file operations, ten times when these runs resume, and at ten random moments."""
    seed = seed_of_the_commit()
    print(f"seed {seed}")
    rng = random.Random(f"{seed} {killer.config.train.use}")
    killer.kill_twice_at(rng.sample(range(len(killer.operations)), 10), rng, first_death=rng.randrange(3))
    killer.kill_at_random_moments(10, rng)


def test_the_comparison_detects_every_difference(killer: Killer, tmp_path: Path) -> None:
    """The differences are a bit of a weight, a line of the log, and another file."""
    out = tmp_path / "run"
    train_on(killer.texts, out, killer.config)
    assert differences(ending(out), killer.expected) == []
    (out / "model" / ".tmp-1").touch()
    log = (out / "log.jsonl").read_bytes()
    (out / "log.jsonl").write_bytes(log[: log.rindex(b"\n", 0, -1) + 1])
    names = [line.partition(":")[0] for line in differences(ending(out), killer.expected)]
    assert names == ["log.jsonl", "model/.tmp-1"]
    weights = checkpoints(out)[0] / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(UserError, match="expected the SHA-256 in manifest.json"):
        ending(out)


# ---- changed settings --------------------------------------------------------------------------------------------

FEWER: dict[str, dict[str, Any]] = {"average": {"max_steps": 22}, "ema": {"max_steps": 22}, "best": {"patience": 1}}


def test_an_extended_run_equals_a_longer_one(killer: Killer, tmp_path: Path) -> None:
    """Step 22 is due for no report, so only the lines that it has in the log as the last step differ."""
    fewer, out = FEWER[killer.config.train.use], tmp_path / "run"
    train_on(killer.texts, out, with_train(killer.config, **fewer))
    ended_at = step_of(checkpoints(out)[-1])
    assert ended_at == fewer.get("max_steps", 18)
    change = {"allow_change": [f"train.{key}" for key in fewer], "resume": True}
    train_on(killer.texts, out, killer.config, **change)
    contents = ending(out)
    lines = [line for line in contents["log.jsonl"] if line["step"] != 22]
    assert len(contents["log.jsonl"]) - len(lines) == (2 if ended_at == 22 else 0)
    assert differences({**contents, "log.jsonl": lines}, killer.expected) == []


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory, texts: Texts) -> Path:
    """Return a run of 6 steps."""
    out = tmp_path_factory.mktemp("short") / "run"
    train_on(texts, out, with_train(AVERAGE, max_steps=6))
    return out


def refusal(out: Path, texts: Texts, config: Config, *allow_change: str, resume: bool = True) -> str:
    """Return the message of the refusal to resume, and check that no file changes."""
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(UserError) as caught:
        train_on(texts, out, config, resume=resume, allow_change=list(allow_change))
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    return str(caught.value)


def test_a_changeable_key_changes_only_if_it_is_allowed(short: Path, texts: Texts) -> None:
    message = refusal(short, texts, with_train(AVERAGE, max_steps=9, seed=2))
    assert "train.max_steps: 6 then, 9 now (--allow-change train.max_steps allows it)" in message
    assert "train.seed: 1 then, 2 now" in message and "--allow-change train.seed" not in message
    message = refusal(short, texts, with_train(AVERAGE, max_steps=9, seed=2), "train.max_steps", "train.patience")
    assert "train.seed: 1 then, 2 now" in message and "max_steps" not in message


def test_other_keys_cannot_be_allowed(short: Path, texts: Texts) -> None:
    message = refusal(short, texts, with_train(AVERAGE, max_steps=6), "train.seed", "nonsense", resume=False)
    assert "--allow-change=train.seed: expected one of train.max_steps, " in message
    assert "--allow-change=nonsense: " in message
    assert "--allow-change=train.seed nonsense: must not be set without --resume" in message
    assert set(CHANGEABLE) < set(keys())


def test_max_steps_cannot_be_below_the_step_of_the_run(short: Path, texts: Texts) -> None:
    message = refusal(short, texts, with_train(AVERAGE, max_steps=5), "train.max_steps")
    assert message == (
        f"train.max_steps=5: expected at least 6, the step of the newest checkpoint of {short}; give a larger value"
    )


def test_the_command_changes_all_changeable_keys_and_the_run_stores_them(
    short: Path, texts: Texts, tmp_path: Path, cli: Callable[..., CommandResult]
) -> None:
    out = tmp_path / "run"
    shutil.copytree(short, out)
    program = "from support.small_runs import AVERAGE\nrecipe = lambda: AVERAGE\n"
    (tmp_path / "recipe.py").write_text(program, encoding="utf-8")
    values: dict[str, Any] = {
        "best_by": "bleu",
        "max_steps": 9,
        "accumulate": 3,
        "log_every_steps": 2,
        "keep_checkpoints": 4,
        "patience": 8,
    }
    values |= {"average_checkpoints": 2, "evaluate_every_steps": 4, "checkpoint_every_steps": 2}
    assert {f"train.{key}" for key in [*values, "use"]} == {name for name in CHANGEABLE if name.startswith("train.")}
    command = ["train", "--recipe", f"{tmp_path / 'recipe.py'}:recipe", "--train", *texts["train"]]
    command += ["--valid", *texts["valid"], "--out", out, "--resume"]
    for key, value in values.items():
        command += ["--set", f"train.{key}={value}"]
    result = cli(*command)
    assert result.code == 2 and all(f"--allow-change train.{key} allows it" in result.err for key in values)
    result = cli(*command, *(part for name in CHANGEABLE for part in ("--allow-change", name)))
    assert result.code == 0, result.err
    assert step_of(checkpoints(out)[-1]) == 9
    train = replace(AVERAGE.train, precision="fp32", **values)
    assert from_json((out / "config.json").read_bytes(), out).train == train
    assert cli(*command).code == 0  # the same command again
