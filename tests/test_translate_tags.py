"""A model with tags: `tag` puts one before each source line, and each part of a long line has it."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support.random_models import CONFIG, TEXT, random_model, save_to
from support.toy_task import CommandResult, Toy, write_lines

import transduce
from transduce import UserError
from transduce.cli.distil import Distillation
from transduce.cli.tags import ENOUGH_LINES, TagWatch
from transduce.config.files import from_json, to_json
from transduce.config.overrides import format_value, inherit, override, without_effect
from transduce.config.schema import Config, DataConfig, TrainConfig
from transduce.data.batches import Batches
from transduce.data.corpora import Corpus
from transduce.data.tags import TagCount
from transduce.data.token_store import open_store
from transduce.decoding.options import DecodingOptions, Split
from transduce.decoding.segmentation import segments_of, with_tag
from transduce.storage.model_folder import load_model
from transduce.storage.more_tags import add_tags, check_new_tags
from transduce.training import notices
from transduce.training.weights import weights
from transduce.translate import Translator

TAGS = ("<2de>", "<2fr>")
LINES = [*TEXT, "", " ", "the cat sat. The mat sat."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_to(random_model(CONFIG, tags=TAGS), tmp_path_factory.mktemp("tags") / "model")


@pytest.fixture(scope="module")
def model(folder: Path) -> Translator:
    return transduce.load(folder)


@pytest.mark.parametrize("split", ["long", "sentences"])
def test_the_option_gives_the_translations_of_lines_that_carry_the_tag(model: Translator, split: str) -> None:
    outputs = {}
    for tag in TAGS:
        outputs[tag] = model.translate(LINES, tag=tag, split=split)  # pyright: ignore[reportArgumentType]
        written = [f"{tag} {line}" if line.strip() else line for line in LINES]
        assert outputs[tag] == model.translate(written, split=split)  # pyright: ignore[reportArgumentType]
        assert [output.text for output in outputs[tag][len(TEXT) : -1]] == ["", " "]
    assert outputs["<2de>"] != outputs["<2fr>"]


def test_a_line_of_only_a_tag_is_blank(model: Translator) -> None:
    assert [output.text for output in model.translate(["<2de>", "<2de> ", "<2fr>  "])] == ["", "", " "]


@pytest.mark.parametrize("split", ["long", "sentences"])
def test_each_part_of_a_line_has_the_tag(model: Translator, split: Split) -> None:
    """Parts with their tag have at most the number of tokens that the model takes."""
    tokenizer, limit = model.tokenizer, 12
    number = tokenizer.vocabulary.index("<2fr>")
    long = "the cat sat on the mat. " * 5 + "a b c d e f g h i j " * 4
    lines = with_tag([long, "the cat"], "<2fr>", tokenizer)
    config = Config(data=DataConfig(max_tokens=limit + 1))
    segments, problems = segments_of(lines, tokenizer, config, DecodingOptions(split=split))
    assert problems == {} and len(segments) > 8
    for segment in segments:
        assert segment.ids[0] == number and number not in segment.ids[1:]
        assert 1 < len(segment.ids) <= limit
    text = " ".join(tokenizer.decode(segment.ids) for segment in segments if segment.line == 0)
    assert text.split() == long.split()


def test_an_unknown_tag_is_refused_with_the_tags_of_the_model(model: Translator) -> None:
    with pytest.raises(UserError, match="^tag='<2es>': expected a tag of the model; use one of <2de>, <2fr>$"):
        model.translate(["a"], tag="<2es>")
    with pytest.raises(UserError, match="^tag='<2es>': expected a tag of the model; use one of <2de>, <2fr>$"):
        model.check_options(DecodingOptions(tag="<2es>"))
    with pytest.raises(UserError, match="^tag=3: expected text or null$"):
        model.translate(["a"], tag=3)  # pyright: ignore[reportArgumentType]
    plain = Translator([random_model(CONFIG)])
    with pytest.raises(UserError, match="^tag='<2de>': must not be set, because the model has no tags; leave it out"):
        plain.translate(["a"], tag="<2de>")


# ---- the commands ------------------------------------------------------------------------------------------------


def test_translate_and_evaluate_take_a_tag(folder: Path, tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    plain = write_lines(tmp_path / "plain", TEXT)
    written = write_lines(tmp_path / "written", [f"<2fr> {line}" for line in TEXT])
    results = [
        cli("translate", folder, "--input", plain, "--tag", "<2fr>", "--json"),
        cli("translate", folder, "--input", written, "--json"),
    ]
    assert results[0].code == 0 and results[0].out == results[1].out
    results = [
        cli("evaluate", folder, "--src", plain, "--ref", plain, "--tag", "<2fr>"),
        cli("evaluate", folder, "--src", written, "--ref", plain),
        cli("evaluate", folder, "--src", plain, "--ref", plain),
    ]
    assert results[0].code == 0 and results[0].out == results[1].out != results[2].out


def test_commands_refuse_an_unknown_tag(folder: Path, tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    empty, text = write_lines(tmp_path / "empty", []), write_lines(tmp_path / "text", TEXT)
    for arguments in (
        ("translate", folder, "--input", empty, "--output", tmp_path / "out"),
        ("evaluate", folder, "--src", text, "--ref", text),
    ):
        result = cli(*arguments, "--tag", "<2es>")
        assert result.code == 2 and "use one of <2de>, <2fr>" in result.err
    assert not (tmp_path / "out").exists()
    result = cli("evaluate", "--hyp", text, "--ref", text, "--tag", "<2de>")
    assert result.code == 2 and "--tag" in result.err


NO_TAG = "expected a tag at the beginning of each source line, but {} of <2de>, <2fr>; "


@pytest.mark.parametrize("command", ["translate", "evaluate", "score"])
def test_a_text_without_tags_is_reported_once(
    command: str, folder: Path, tmp_path: Path, cli: Callable[..., CommandResult]
) -> None:
    lines = ["", "the cat", "a mat"]
    texts = {
        "plain": lines,
        "tagged": ["<2de> the cat", "", "<2fr> the mat"],
        "partial": [*lines, "<2fr> the mat"],
        "blank": ["", " "],
    }
    for name, text in texts.items():
        path = write_lines(tmp_path / name, text)
        options = {"translate": ["--input", path], "evaluate": ["--src", path, "--ref", path]}
        options["score"] = ["--src", path, "--tgt", path]
        if command == "evaluate" and name == "blank":
            continue  # which it refuses
        result = cli(command, folder, *options[command])
        warnings = [line for line in result.err.splitlines() if "expected a tag" in line]
        assert result.code == 0, result.err
        words = {"plain": "no line has one", "partial": "2 of 3 lines, from line 2 on, have none"}
        expected = [f"transduce: {path}: {NO_TAG.format(words[name])}"] if name in words else []
        assert [line[: len(expected[0])] for line in warnings] == expected
        if command != "score":
            tagged = {"tagged": "2 of 2 lines, from line 1 on,", "partial": "1 of 3 lines, from line 4 on,"}
            expected = [
                f"transduce: {path}: expected lines without a tag with --tag <2de>, but {count} begin with one, "
                "which is text after the other; leave --tag out, or remove the tags"
                for text, count in tagged.items()
                if text == name
            ]
            err = cli(command, folder, *options[command], "--tag", "<2de>").err
            assert [line for line in err.splitlines() if "--tag" in line] == expected


def test_jobs_of_hours_report_a_text_without_tags(
    folder: Path, tmp_path: Path, cli: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Distillation, "run", Distillation.write_text)  # without a training
    write_lines(tmp_path / "plain", [line for line in TEXT if line.strip()])
    write_lines(tmp_path / "tagged", [f"<2de> {line}" for line in TEXT if line.strip()])
    for name in ("plain", "tagged"):
        sample = ["backtranslate", folder, "--input", name]
        corpus = ["diversify", name, name, "--forward", folder, "--held-out", name, name]
        jobs = {
            "add --tag, or put one before each line": [
                [*sample, "--dry-run"],
                [*sample, "--out", f"{name}.a", f"{name}.b"],
            ],
            "put one before each line": [
                ["distil", folder, "--train", name, "--valid", name, name, "--out", f"{name}.c"]
            ],
            "give the output of transduce translate --tag instead of the model": [
                [*corpus, "--output", f"{name}.d", f"{name}.e"]
            ],
        }
        for remedy, commands in jobs.items():
            for command in commands:
                warnings = [line for line in cli(*command).err.splitlines() if "expected a tag" in line]
                expected = f"transduce: plain: {NO_TAG.format('no line has one')}{remedy}"
                assert warnings == ([expected] if name == "plain" else []), command


def test_a_long_text_without_tags_is_reported_before_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = random_model(CONFIG, tags=TAGS).tokenizer
    watch = TagWatch("text", tokenizer, "add --tag")
    for _ in range(ENOUGH_LINES - 1):
        watch.see(["a line", ""])
    assert capsys.readouterr().err == ""
    watch.see(["a line"])
    watch.see(["a line", "<2de> a line"])
    watch.end()
    warnings = [
        NO_TAG.format(f"none of the first {ENOUGH_LINES} lines has one"),
        NO_TAG.format("101 of 102 lines, from line 1 on, have none"),
    ]
    assert capsys.readouterr().err.splitlines() == [f"transduce: text: {warning}add --tag" for warning in warnings]
    without_tags = TagWatch("text", random_model(CONFIG).tokenizer, "add --tag")
    without_tags.see(["a line"] * ENOUGH_LINES)
    without_tags.end()
    assert capsys.readouterr().err == ""


# ---- settings and runs -------------------------------------------------------------------------------------------


def test_tags_are_a_setting() -> None:
    config = override(Config(), ["data.tags=<2de>,<2fr>"])
    assert config.data.tags == TAGS
    assert format_value(config.data.tags) == "<2de>,<2fr>"
    assert from_json(to_json(config), "") == config
    assert Config(data=DataConfig(tags=[*TAGS])) == config  # pyright: ignore[reportArgumentType]
    assert override(config, ["data.tags="]) == Config()
    assert inherit(Config(), config).data.tags == TAGS
    (line,) = without_effect(["data.tags=<2de>"], Path("model"))
    remedy = "for more tags, start from the model that transduce add-tags writes"
    assert line.endswith(f"must not be set with --from model, which sets it; {remedy}")


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_a_model_gets_more_tags(kind: str, tmp_path: Path) -> None:
    """Its tensors are the same, with a row for the tag: the mean. It translates as before."""
    model = save_to(random_model(replace(CONFIG, output_bias=True), kind, TAGS), tmp_path / "model")
    add_tags(model, ["<2es>"], tmp_path / "larger")
    old, new = load_model(model), load_model(tmp_path / "larger")
    assert new.config.data.tags == (*TAGS, "<2es>") == tuple(new.tokenizer.tags)
    row = new.tokenizer.vocabulary.index("<2es>")
    others = [i for i in range(new.tokenizer.vocab_size) if i != row]
    before, after = weights(old.model), weights(new.model)
    for name, table in before.items():
        assert after[name][others].equal(table) if len(after[name]) > len(table) else after[name].equal(table), name
    torch.testing.assert_close(after["src_embedding.weight"][row], before["src_embedding.weight"].mean(0))
    assert after["output.bias"][row] == before["output.bias"].min()
    outputs = [
        transduce.load(path).translate([f"<2de> {line}" for line in TEXT]) for path in (model, tmp_path / "larger")
    ]
    assert [output.text for output in outputs[0]] == [output.text for output in outputs[1]]
    assert new.tokenizer.encode("<2es> a b")[0] == row


@pytest.mark.parametrize("setting", ["train.lora_rank=2", "train.freeze=src_embedding.*"])
def test_a_new_tag_whose_embedding_no_step_changes_is_refused(setting: str, toy: Toy, tmp_path: Path) -> None:
    """The embeddings of other tags have been trained."""
    model = save_to(random_model(CONFIG, tags=TAGS), tmp_path / "model")
    add_tags(model, ["<2es>", "<2it>"], tmp_path / "larger")
    config = Config(train=TrainConfig(optimizer="adam", max_steps=1))
    request = {"valid": toy.valid, "out": tmp_path / "run", "recipe": config, "start_from": tmp_path / "larger"}
    with pytest.raises(UserError, match=r"but the embedding of <2es>, <2it> is new, and would stay as it is; leave"):
        transduce.fit(*toy.train, **request, settings=[setting])
    assert not (tmp_path / "run" / "config.json").exists()
    check_new_tags(load_model(model), {"src_embedding.weight"}, config.train)


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        (["<2de>"], "--tags=<2de>: expected a word that the model does not have yet; leave it out"),
        (["<2es>", "<2es>"], "--tags=<2es>: expected a word that the model does not have yet; leave it out"),
        (["spanish"], "--tags=spanish: expected words of at most 32 ASCII characters"),
    ],
)
def test_tags_that_cannot_be_added_are_refused(tags: list[str], message: str, tmp_path: Path) -> None:
    model = save_to(random_model(CONFIG, tags=TAGS), tmp_path / "model")
    with pytest.raises(UserError, match=message):
        add_tags(model, tags, tmp_path / "larger")
    assert not (tmp_path / "larger").exists()


def test_a_run_learns_the_tags(toy: Toy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = {}
    for name, (src, tgt) in {"train": toy.train, "valid": toy.valid}.items():
        lines = src.read_text("utf-8").splitlines()[:60]
        tagged = write_lines(tmp_path / f"{name}.src", [f"{TAGS[i % 2]} {line}" for i, line in enumerate(lines)])
        texts[name] = tagged, write_lines(tmp_path / f"{name}.tgt", tgt.read_text("utf-8").splitlines()[:60])
    config = Config(
        model=replace(CONFIG, n_layers=1),
        data=DataConfig(vocab_size=290, batch_tokens=200, max_tokens=30, tags=TAGS),
        train=transduce.TrainConfig(max_steps=3, average_checkpoints=1),
    )
    model = transduce.fit(*texts["train"], valid=texts["valid"], out=tmp_path / "run", recipe=config)
    assert model.tokenizer.tags == [*TAGS]
    assert model.translate(["a b"], tag="<2de>")[0] == model.translate(["<2de> a b"])[0]
    assert "expected a tag" not in capsys.readouterr().err
    plain = write_lines(tmp_path / "plain.src", ["a b"] * 60), texts["train"][1]
    for train, valid, untagged in ((plain, plain, 2), (texts["train"], plain, 1), (plain, texts["valid"], 1)):
        out = tmp_path / f"{train[0].stem}-{valid[0].stem}"
        transduce.fit(*train, valid=valid, out=out, recipe=config, settings=["train.max_steps=1"])
        assert (
            len(re.findall("(no line has one|60 of 60 lines have none) of <2de>", capsys.readouterr().err)) == untagged
        )


def test_a_text_with_few_tags_is_reported_at_the_start_of_its_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    src = write_lines(tmp_path / "src", ["<2de> a", *["a b"] * 3])
    tokenizer = random_model(CONFIG, tags=TAGS).tokenizer
    store = open_store(tmp_path / "store", [Corpus(src, src)], tokenizer)
    batches = Batches(store, tokenizer, DataConfig(), seed=1)
    valid = TagCount(tokenizer)
    valid.see(["<2fr> a", "", "a"])
    remedy = "put one before each line, or leave data.tags out"
    expected = [
        f"training text: {NO_TAG.format('3 of 4 lines have none')}{src}, lines 2, 3, 4: {remedy}",
        f"valid: {NO_TAG.format('1 of 2 lines, from line 3 on, have none')}{remedy}",
        "data.tags=<2fr>: expected source lines that begin with each; add them, or leave the tag out",
    ]
    assert notices.tags(batches, valid, "valid", is_from_model=False) == expected
    assert notices.tags(batches, valid, "valid", is_from_model=True) == expected[:2]
