"""The commands and the Python code of README and of the pages of use run, in their order, on a tiny corpus."""

import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from support.comet_models import write_comet
from support.documents import code_blocks
from support.serving import server_process
from support.toy_task import ROOT, CommandResult, Toy, toy_lines, write_lines
from support.whisper_folder import noise, write_whisper

from transduce import Config, DataConfig, ModelConfig, TrainConfig
from transduce.config import recipes
from transduce.config.overrides import overridden
from transduce.config.recipes.auto import ExplainedConfig
from transduce.storage import run_choices

PAGES = ["README.md", "docs/guide.md"]  # these train the model that they use
SRT = "1\n00:00:01,000 --> 00:00:02,000\n{}\n"
LATER_PAGES = ["docs/better-models.md", "docs/faster-translation.md"]  # these begin with a trained model


def tiny() -> Config:
    """Return the recipe that stands for every recipe here: five steps of a tiny model.

    Time: under a second.
    """
    return Config(
        model=ModelConfig(vocab_size=None, d_model=16, n_layers=1, n_heads=2, d_ff=16),
        data=DataConfig(vocab_size=300, batch_tokens=200, max_tokens=64),
        train=TrainConfig(max_steps=5, warmup_steps=2, evaluate_every_steps=5, checkpoint_every_steps=1),
    )


def choose_tiny(
    corpora: object, minutes: object, settings: Sequence[str] = (), *_: object, **__: object
) -> ExplainedConfig:
    """Stand for `auto`, which regards the settings of the user."""
    return ExplainedConfig(overridden(tiny(), settings)[0], [])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working folder of a reader, with all files that the pages name, 12 lines each."""
    for number, name in enumerate(("train", "valid", "test", "new", "new-valid", "old", "input", "more")):
        for language in ("en", "de"):
            write_lines(tmp_path / f"{name}.{language}", toy_lines(number, 120 if name in ("train", "new") else 12))
    for number, name in enumerate(("joint", "joint-valid")):
        lines = toy_lines(number, 60)
        write_lines(tmp_path / f"{name}.src", [f"<2{'de' if i % 2 else 'fr'}> {line}" for i, line in enumerate(lines)])
        write_lines(tmp_path / f"{name}.tgt", lines)
    monkeypatch.chdir(tmp_path)
    for name in recipes.RECIPES:
        monkeypatch.setitem(recipes.RECIPES, name, tiny)
    monkeypatch.setattr(run_choices, "choose_for", choose_tiny)
    return tmp_path


def run_command(command: str, cli: Callable[..., CommandResult]) -> None:
    """Run one command as a shell would, but in this process. Thousands of steps become single steps."""
    words = shlex.split(re.sub(r"(train\.max_steps=\d+)000", r"\1", command))
    assert words[0] == "transduce", command
    files = {sign: words[words.index(sign) + 1] for sign in "<>" if sign in words}
    arguments = words[1 : min([len(words), *(words.index(sign) for sign in files)])]
    stdin = os.dup(0)
    try:
        if "<" in files:
            with open(files["<"], "rb") as file:
                os.dup2(file.fileno(), 0)
        result = cli(*arguments)
    finally:
        os.dup2(stdin, 0)
        os.close(stdin)
    assert result.code == 0, f"{command}\n{result.err}"
    if ">" in files:
        Path(files[">"]).write_bytes(result.out)


def bash_commands(page: str) -> list[str]:
    """Return the commands of all ```bash blocks of a page, continued lines joined."""
    return [line for block in code_blocks(ROOT / page, "bash") for line in block.replace("\\\n", " ").splitlines()]


def train_command() -> str:
    """Return the command of the README that trains the model `run/model`."""
    return next(command for command in bash_commands("README.md") if command.startswith("transduce train "))


@pytest.mark.parametrize("page", [*PAGES, *LATER_PAGES])
def test_commands_run_in_the_order_of_the_page(page: str, folder: Path, cli: Callable[..., CommandResult]) -> None:
    commands = bash_commands(page)
    assert len(commands) >= 3
    if page in LATER_PAGES:
        run_command(train_command(), cli)
    for command in commands:
        run_command(command, cli)
    assert len((folder / "output.de").read_bytes().splitlines()) == 12


def test_commands_on_a_corpus_run(toy: Toy, folder: Path, cli: Callable[..., CommandResult]) -> None:
    shutil.copytree(toy.model, "run/model")
    for command in bash_commands("docs/jobs.md"):
        run_command(command, cli)
    kept, dropped = (folder / "clean.en").read_bytes(), (folder / "clean.en.dropped.jsonl").read_bytes()
    assert len(kept.splitlines()) + len(dropped.splitlines()) == 120
    for block in code_blocks(ROOT / "docs/jobs.md", "python"):
        exec(compile(block, "docs/jobs.md", "exec"), {})


def test_commands_for_other_programs_run(toy: Toy, folder: Path, cli: Callable[..., CommandResult]) -> None:
    shutil.copytree(toy.model, "run/model")
    write_comet(folder / "comet")
    shutil.copy("test.de", "output.de")
    commands = bash_commands("docs/interop.md")
    assert commands
    for command in commands:
        run_command(command, cli)


def test_commands_on_files_run(toy: Toy, folder: Path, cli: Callable[..., CommandResult]) -> None:
    shutil.copytree(toy.model, "run/model")
    Path("film.srt").write_text(SRT.format("a b"))
    Path("page.html").write_text("<p>a b</p>")
    Path("ui.po").write_text('msgid "a b"\nmsgstr ""\n')
    for command in bash_commands("docs/files.md"):
        run_command(command, cli)
    assert Path("film.de.srt").read_text() == SRT.format("b a")
    assert (Path("page.de.html").read_text(), Path("ui.de.po").read_text()) == (
        "<p>b a</p>",
        'msgid "a b"\nmsgstr "b a"\n',
    )


def test_commands_of_the_service_run(toy: Toy, folder: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    shutil.copytree(toy.model, "run/model")
    Path("film.srt").write_text(SRT.format("a b"))
    commands = [line for block in code_blocks(ROOT / "docs/serving.md", "") for line in block.splitlines()]
    serve, *others = [shlex.split(line) for line in commands if line.startswith("transduce serve ")]
    calls = [line for line in commands if line.startswith("curl ")]
    assert not others and len(calls) == 2
    with server_process(folder, serve[2:]) as server:
        address = f"http://127.0.0.1:{server.port}"
        outputs = [
            subprocess.check_output(call.replace("http://127.0.0.1:5000", address), shell=True) for call in calls
        ]
        text, file = map(json.loads, outputs)
        assert text["translatedText"]
        assert subprocess.check_output(["curl", "-s", file["translatedFileUrl"]]).decode() == SRT.format("b a")


def test_commands_on_any_text_run(toy: Toy, folder: Path, cli: Callable[..., CommandResult]) -> None:
    shutil.copytree(toy.model, "run/model")
    for command in bash_commands("docs/any-text.md"):
        run_command(command, cli)
    assert b'"confidence":0.' in (folder / "output.jsonl").read_bytes() and (folder / "confidence.html").exists()


def test_commands_on_sounds_run(folder: Path, cli: Callable[..., CommandResult]) -> None:
    soundfile = pytest.importorskip("soundfile", reason="needs transduce[sound]")
    write_whisper(folder / "whisper-tiny")
    for name in "talk.wav", "other.flac":
        soundfile.write(name, noise(1.0).numpy(), 16_000)
    for command in bash_commands("docs/family-whisper.md"):
        run_command(command, cli)
    assert len(Path("text").read_bytes().splitlines()) == 2
    assert Path("talk.srt").read_text("utf-8").startswith("1\n00:00:00,")


@pytest.mark.parametrize("page", PAGES)
def test_python_code_runs(page: str, folder: Path, cli: Callable[..., CommandResult]) -> None:
    run_command(train_command(), cli)
    blocks = code_blocks(ROOT / page, "python")
    assert blocks
    for block in blocks:
        names: dict[str, object] = {}
        exec(compile(block, page, "exec"), names)  # the code of the page
        assert "model" in names


def test_a_wrong_command_fails(folder: Path, cli: Callable[..., CommandResult]) -> None:
    with pytest.raises(AssertionError, match="--vaild"):
        run_command("transduce check train.en train.de --vaild valid.en valid.de", cli)
    shutil.rmtree(folder / "run", ignore_errors=True)
    with pytest.raises(AssertionError, match="run/model"):
        run_command("transduce translate run/model < input.en > output.de", cli)
