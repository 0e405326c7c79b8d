"""Data diversification: which new pairs come after each pair of the text. No held-out sentence is among them."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.toy_task import CommandResult, Toy, write_lines

from transduce.cleaning.diversification import OUTCOMES, Diversification, HeldOutSentences, outcome
from transduce.data.text import is_blank, read_lines

HELD_OUT = HeldOutSentences(frozenset(["a test", ""]), frozenset(["ein Test", ""]))

line = st.sampled_from(["", " ", "\u200b", "a", " a", "b", "ein Test", "ein Test ", "a test", " a test"])
pairs = st.tuples(line, line)


@given(pairs, st.lists(pairs, max_size=2))
def test_a_kept_pair_has_text_and_no_held_out_side_and_is_new(
    new: tuple[str, str], earlier: list[tuple[str, str]]
) -> None:
    src, tgt = new[0].strip(), new[1].strip()
    is_kept = (
        not is_blank(src)
        and not is_blank(tgt)
        and src not in HELD_OUT.sources
        and tgt not in HELD_OUT.targets
        and src != tgt
        and (src, tgt) not in earlier
    )
    assert (outcome(new, earlier, HELD_OUT) == "kept") == is_kept


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (("a", "x"), "kept"),
        (("a", " "), "blank"),
        (("", "ein Test"), "blank"),
        (("a", "ein Test "), "held out"),
        ((" a test", "x"), "held out"),
        (("ein Test", "a test"), "kept"),
        (("a", "c"), "repeated"),
        (("a", "a"), "copied"),
    ],
)
def test_each_outcome(new: tuple[str, str], expected: str) -> None:
    assert outcome(new, [("a", "c")], HELD_OUT) == expected and expected in OUTCOMES


# ---- the command -------------------------------------------------------------------------------------------------

TEXT = {
    "train.en": ["one", "two", "three", "a test"],
    "train.de": ["eins", "zwei", "drei", "ein Versuch"],
    "forward1.de": ["Eins", "zwei", "", "ein Test"],
    "forward2.de": ["Eins", "ZWEI", "ein Test", "eine Probe"],
    "backward.en": ["ONE", "a test", "drei", "an attempt"],
    "valid.en": ["a house"],
    "valid.de": ["ein Haus"],
    "test.en": ["a test"],
    "test.de": ["ein Test"],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, lines in TEXT.items():
        write_lines(tmp_path / name, lines)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def command(
    cli: Callable[..., CommandResult],
    *words: str,
    held_out: Sequence[str] = ("valid", "test"),
    output: tuple[str, str] = ("out.en", "out.de"),
) -> CommandResult:
    texts = [word for name in held_out for word in ("--held-out", f"{name}.en", f"{name}.de")]
    return cli("diversify", "train.en", "train.de", *words, *texts, "--output", *output)


ALL = ("--forward", "forward1.de", "--forward", "forward2.de", "--backward", "backward.en")


def test_new_pairs_follow_the_pair_that_they_come_from(folder: Path, cli: Callable[..., CommandResult]) -> None:
    result = command(cli, *ALL)
    assert (result.code, result.err) == (0, "")
    pairs = zip(read_lines("out.en"), read_lines("out.de"), strict=True)
    assert [*pairs] == [
        ("one", "eins"),
        ("one", "Eins"),
        ("ONE", "eins"),
        ("two", "zwei"),
        ("two", "ZWEI"),
        ("three", "drei"),
        ("a test", "ein Versuch"),
        ("an attempt", "ein Versuch"),
    ]
    assert result.out.decode().splitlines() == [
        "8 pairs: 4 of the text, 4 new",
        "forward1.de: 1 kept, 1 blank, 1 held out, 1 repeated, 0 copied",
        "forward2.de: 1 kept, 0 blank, 2 held out, 1 repeated, 0 copied",
        "backward.en: 2 kept, 0 blank, 1 held out, 0 repeated, 1 copied",
    ]


def test_models_that_write_only_test_sentences_add_nothing(folder: Path, cli: Callable[..., CommandResult]) -> None:
    """The text stays as it is: the test sentence that it had before remains, for `check` to report."""
    write_lines(folder / "forward1.de", TEXT["test.de"] * 4)
    write_lines(folder / "backward.en", TEXT["test.en"] * 2 + TEXT["valid.en"] * 2)
    assert command(cli, "--forward", "forward1.de", "--backward", "backward.en").code == 0
    assert [*read_lines("out.en")] == TEXT["train.en"] and [*read_lines("out.de")] == TEXT["train.de"]


def test_a_model_translates_and_continues(
    toy: Toy, folder: Path, cli: Callable[..., CommandResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lines(folder / "train.en", ["a b", "c d"])
    write_lines(folder / "train.de", ["f e", "h g"])
    words = ("--forward", str(toy.model), "--backward", str(toy.model))
    with monkeypatch.context() as context:
        context.setattr(Diversification, "pairs", lambda _: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            command(cli, *words)
    assert {path.name for path in folder.glob("*.translating")} == {"out.de.1.translating", "out.en.2.translating"}
    with monkeypatch.context() as context:
        context.setattr("transduce.cli.file_translation.load_translator", lambda *_: 1 / 0)  # nothing is left to do
        result = command(cli, *words)
    assert result.code == 0, result.err
    assert [*read_lines("out.en")] == ["a b", "a b", "e f", "c d", "c d", "g h"]
    assert [*read_lines("out.de")] == ["f e", "b a", "f e", "h g", "d c", "h g"]
    assert not [*folder.glob("*.translating")]
    assert "out.en: expected no file with this name" in command(cli, *words).err


def test_a_wrong_file_is_named_before_a_model_translates(
    toy: Toy, folder: Path, cli: Callable[..., CommandResult]
) -> None:
    write_lines(folder / "backward.en", ["one"])
    for name, message in (("backward.en", "not 1 and 4"), ("none", "none: expected a text file")):
        result = command(cli, "--forward", str(toy.model), "--backward", name)
        assert result.code == 2 and message in result.err and "translating" not in result.err


def test_mistakes_are_named(folder: Path, cli: Callable[..., CommandResult]) -> None:
    result = command(cli)
    assert result.code == 2 and "--forward: expected a file with translations" in result.err
    result = command(cli, *ALL, held_out=())
    assert result.code == 2 and "--held-out" in result.err
    result = command(cli, *ALL, output=("train.en", "out.de"))
    assert result.code == 2 and "expected another file than the input" in result.err
    result = command(cli, *ALL, output=("out.en", "out.en"))
    assert result.code == 2 and "--output=out.en out.en: expected different files" in result.err
    write_lines(folder / "forward1.de", ["eins"])
    result = command(cli, *ALL)
    assert result.code == 2 and "forward1.de and train.en: expected the same number of lines, not 1 and 4" in result.err
    for name in ("train.en", "train.de", "forward1.de"):
        write_lines(folder / name, [])
    result = command(cli, "--forward", "forward1.de")
    assert result.code == 2 and "train.en and train.de: expected at least 1 line" in result.err
    assert not (folder / "out.en").exists()
