"""Checking a corpus: every fault that is planted is found on its line, and a clean text has none."""

import gzip
import json
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.toy_task import Finished, write_lines

from transduce.check import KINDS, NOTES, Checked, check, show, verdict
from transduce.data.corpora import Corpus
from transduce.data.line_checks import faults_of_line, faults_of_pair, main_script
from transduce.data.tokenizer import Tokenizer
from transduce.demo.grammar import corpus as grammar
from transduce.errors import UserError

Pair = tuple[str, str]
CLEAN: list[Pair] = list(dict.fromkeys(grammar(3, 600)))[:400]


def write(folder: Path, pairs: list[Pair]) -> Corpus:
    src = write_lines(folder / "train.en", [src for src, _ in pairs])
    return Corpus(src, write_lines(folder / "train.de", [tgt for _, tgt in pairs]))


def found(checked: Checked, notes: bool = False) -> dict[tuple[str, str], list[int]]:
    """The line numbers of each finding by kind and place."""
    return {
        (finding.kind, finding.where): [place.line for place in finding.first]
        for finding in checked.findings
        if notes or finding.kind not in NOTES
    }


def planted(folder: Path, faults: dict[int, Pair]) -> Checked:
    """What is found in the clean text with some lines, counted from 1, replaced."""
    return check(write(folder, [faults.get(number, pair) for number, pair in enumerate(CLEAN, start=1)]))


def test_a_clean_text_has_no_findings(tmp_path: Path) -> None:
    checked = check(write(tmp_path, CLEAN))
    assert found(checked) == {} and (checked.suspects, checked.trainable, checked.pairs) == (0, True, 400)
    assert verdict(checked) == "It can be trained on; no pair needs a look."


# ---- planted faults ----------------------------------------------------------------------------------------------

SRC, TGT = CLEAN[6]
PLANTED = [
    ("blank", "pair", ("", TGT)),
    ("blank", "pair", (SRC, " \t ")),
    ("blank", "pair", ("", "")),
    ("copied", "pair", (SRC, SRC)),
    ("ratio", "pair", (SRC, "@@")),
    ("ratio", "pair", (SRC, " ".join([TGT] * 4))),
    ("numbers", "pair", (f"{SRC} in 1984.", f"{TGT} in 1948.")),
    ("links", "pair", (f"{SRC} www.dog.org", f"{TGT} www.hund.de")),
    ("script", "tgt", (SRC, "Собака " * 10)),
    ("mixed_script", "src", (SRC.replace("e", "\u0435", 1) if "e" in SRC else "h\u0435llo dog", TGT)),
    ("mojibake", "tgt", (SRC, f"{TGT} HÃ¤user")),
    ("not_nfc", "tgt", (SRC, f"{TGT} Ha\u0308user")),
    ("control", "src", (f"{SRC}\x07!", TGT)),
    ("control", "src", (f"{SRC} \ufffd", TGT)),
    ("markup", "tgt", (SRC, f"{TGT} &quot;")),
    ("markup", "src", (f"<b>{SRC}</b>", TGT)),
    ("long", "tgt", ("dog " * 220, "Hund" * 260)),
    ("repeated", "pair", CLEAN[2]),
]


@pytest.mark.parametrize(("kind", "where", "pair"), PLANTED)
def test_a_planted_fault_is_found_on_its_line_and_is_the_only_one(
    kind: str, where: str, pair: Pair, tmp_path: Path
) -> None:
    checked = planted(tmp_path, {321: pair})
    assert found(checked) == {(kind, where): [321]}
    assert (checked.suspects, checked.trainable) == (1, True)
    assert "1 of 400 pairs (0.2 %) deserve a look" in verdict(checked)


def test_bad_bytes_are_all_named_and_stop_a_training(tmp_path: Path) -> None:
    corpus = write(tmp_path, CLEAN)
    lines = corpus.src.read_bytes().splitlines(keepends=True)
    for number in (3, 17, 400):
        lines[number - 1] = b"caf\xe9 " + lines[number - 1]
    corpus.src.write_bytes(b"".join(lines))
    checked = check(corpus)
    assert found(checked) == {("not_utf8", "src"): [3, 17, 400]}
    assert [place.seen for place in checked.findings[0].first] == ["byte 4 is 0xe9"] * 3
    assert not checked.trainable and "not UTF-8" in verdict(checked)


def test_sides_of_unequal_length_are_checked_as_far_as_both_go(tmp_path: Path) -> None:
    corpus = write(tmp_path, [*CLEAN[:99], ("", "x")])
    corpus.src.write_bytes(corpus.src.read_bytes() + b"more\nmore")
    checked = check(corpus)
    assert found(checked) == {("unequal", "tgt"): [101], ("blank", "pair"): [100]}
    assert checked.findings[0].first[0].seen == "the other has 2 more"
    assert (checked.pairs, checked.trainable) == (100, False)


def test_nothing_but_blanks_cannot_be_trained_on(tmp_path: Path) -> None:
    checked = check(write(tmp_path, [("", "x"), ("y", " ")]))
    assert not checked.trainable and "every pair is blank" in verdict(checked)
    with pytest.raises(UserError, match="empty"):
        check(write(tmp_path, []))


def test_repeats_name_the_first_line(tmp_path: Path) -> None:
    a, b, c = CLEAN[:3]
    pairs = [a, b, a, (a[0], c[1]), a, (c[0], b[1]), (" " + b[0], b[1] + " "), ("", ""), ("", "")]
    checked = check(write(tmp_path, pairs))
    seen = {f.kind: [(p.line, p.seen) for p in f.first] for f in checked.findings}
    assert seen["repeated"] == [(3, "line 1"), (5, "line 1"), (7, "line 2")]
    assert seen["repeated_src"] == [(4, "line 1")] and seen["repeated_tgt"] == [(6, "line 2")]


def test_leaks_are_lines_of_the_validation_text(tmp_path: Path) -> None:
    valid = [("new", "neu"), CLEAN[5], (CLEAN[6][0], "anders"), ("newer", CLEAN[5][1])]
    (tmp_path / "valid").mkdir()
    other = write(tmp_path / "valid", valid)
    assert other.tgt is not None
    checked = check(write(tmp_path, CLEAN), (other.src, other.tgt))
    leaks = {key[0]: lines for key, lines in found(checked, notes=True).items() if key[0].startswith("leak")}
    assert leaks == {"leak": [2], "leaked_source": [2, 3]}
    assert checked.suspects == 0 and "1 validation pairs are in training" in verdict(checked)


def test_characters_without_a_piece(tmp_path: Path) -> None:
    tokenizer = Tokenizer.learn((side for pair in CLEAN for side in pair), vocab_size=500)
    checked = check(write(tmp_path, [*CLEAN, ("a tree 木 or 林", "x"), (CLEAN[0][0], "<0x41>")]), tokenizer=tokenizer)
    seen = {f.where: [(p.line, p.seen) for p in f.first] for f in checked.findings if f.kind == "bytes"}
    assert seen == {"src": [(401, "木 林")], "tgt": [(402, "0 1 4 < >")]}
    for line in CLEAN[0]:
        assert not any(piece.startswith("<0x") for piece in tokenizer.pieces(tokenizer.encode(line)))


# ---- rules -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "AT&T, R&D; if a < b then c > d",
        "Tシャツを3枚買った。",
        "5 µSv and 3 kΩ",
        "Ein Château in São Paulo, naïve Œuvre",
        "I <3 you",
        "你好，世界",
        "ÂGE: NÃO",
    ],
)
def test_no_false_alarm(line: str) -> None:
    assert list(faults_of_line(line)) == []


@pytest.mark.parametrize(
    ("src", "tgt"),
    [
        ("In 1,000 years", "In 1.000 Jahren"),
        ("10 000 euros", "10000 Euro"),
        ("at 3:00 pm", "um 15:00 Uhr"),
        ("12 inches", "30 Zentimeter"),
        ("It cost 500 dollars.", "Es war teuer."),
        ("１９８４年", "1984"),
        ("٢٠٢٤", "2024"),
        ("see www.dog.org.", "siehe www.dog.org"),
        ("Los Angeles", "Los Angeles"),
    ],
)
def test_sides_that_agree(src: str, tgt: str) -> None:
    assert list(faults_of_pair(src, tgt)) == []


def test_script_of_a_line() -> None:
    lines = {
        "Hello": "Latin",
        "Привет, Tom": "Cyrillic",
        "日本": "Han",
        "これは": "Hiragana",
        "12 ー!": "",
        "Ａ": "Latin",
    }
    assert {line: main_script(line) for line in lines} == lines


def test_a_text_of_two_scripts_has_no_rare_one(tmp_path: Path) -> None:
    pairs = [(src, "Собака бежит" if n % 3 else tgt) for n, (src, tgt) in enumerate(CLEAN)]
    assert "script" not in {kind for kind, _ in found(check(write(tmp_path, pairs)))}


def test_lengths_of_a_side(tmp_path: Path) -> None:
    lengths = [1, 1, 2, 3, 40, 40, 41, 80]
    side = check(write(tmp_path, [("a" * n, "b") for n in lengths] + [("", "b")])).sides[0]
    assert (side.characters, side.words, side.blank, side.distinct_characters) == (sum(lengths), 8, 1, 1)
    assert side.bar_characters == 2  # 40 bars up to the 99th percentile, which is 41 here
    assert side.histogram == [3, 1] + [0] * 17 + [2, 1] + [0] * 18 + [1]
    assert (side.lengths["least"], side.lengths["median"], side.lengths["most"]) == (1, 3, 80)


# ---- properties, hostile text ------------------------------------------------------------------------------------

strange = st.text(
    st.sampled_from("ab é\u0308ß木Ж\x00\x1b\r\u2028\ufeff\ue000😀<b>&amp;0123456789 ")
    | st.characters(exclude_characters="\n", exclude_categories=["Cs"]),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(strange, strange), min_size=1, max_size=30), st.integers(0, 4))
def test_counts_add_up_whatever_the_text(pairs: list[Pair], first: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        checked = check(write(Path(folder), pairs), first=first)
    stripped = [
        tuple(side.removeprefix("\ufeff" if n == 0 else "").removesuffix("\r").strip() for side in pair)
        for n, pair in enumerate(pairs)
    ]
    assert checked.pairs == len(pairs) and checked.suspects <= len(pairs)
    assert [f.kind for f in checked.findings] == sorted((f.kind for f in checked.findings), key=list(KINDS).index)
    for finding in checked.findings:
        lines = [place.line for place in finding.first]
        assert len(lines) == min(first, finding.count) and lines == sorted(set(lines))
        assert finding.count <= len(pairs) and all(1 <= line <= len(pairs) for line in lines)
        assert all(place.seen.isprintable() for place in finding.first)
    for n, side in enumerate(checked.sides):
        texts = [pair[n] for pair in stripped]
        assert side.characters == sum(map(len, texts)) and side.blank == texts.count("")
        assert sum(side.histogram) == len(texts) - side.blank
        assert side.distinct_characters == len(set("".join(texts)))
        assert list(side.lengths.values()) == sorted(side.lengths.values())
    counts = {finding.kind: finding.count for finding in checked.findings}
    assert counts.get("blank", 0) == sum(not all(pair) for pair in stripped)
    whole = Counter(pair for pair in stripped if all(pair))
    assert counts.get("repeated", 0) == whole.total() - len(whole)
    assert not set(map(unicodedata.category, show(checked).replace("\n", ""))) & {"Cc", "Cf", "Cs"}
    assert checked.trainable == bool(whole)


# ---- the command -------------------------------------------------------------------------------------------------


def test_the_command(tmp_path: Path, cli: Callable[..., Finished]) -> None:
    corpus = write(tmp_path, [*CLEAN[:50], ("", "")])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    done = cli("check", corpus.src, corpus.tgt, "--valid", corpus.src, corpus.tgt)
    assert done.code == 0 and done.err == ""
    assert done.out.decode().splitlines()[0] == "51 pairs"
    assert done.out.decode().splitlines()[-1].startswith("It can be trained on; 1 of 51 pairs (2.0 %) deserve a look.")
    told = json.loads(cli("check", corpus.src, corpus.tgt, "--json").out)
    assert told["trainable"] and told["pairs"] == 51
    assert told["findings"][0] | {"first": None} == {"kind": "blank", "where": "pair", "count": 1, "first": None}
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_command_ends_with_2_if_nothing_can_be_learned(tmp_path: Path, cli: Callable[..., Finished]) -> None:
    corpus = write(tmp_path, CLEAN[:30])
    corpus.src.write_bytes(b"\xff\n" * 30)
    done = cli("check", corpus.src, corpus.tgt, "--first", "2")
    assert (
        done.code == 2
        and "cannot be trained on: not UTF-8" in done.err
        and "1 (byte 1 is 0xff), 2 (" in done.out.decode()
    )
    assert json.loads(cli("check", corpus.src, corpus.tgt, "--json").out)["trainable"] is False
    for wrong in ([], ["a", "b", "c"], [corpus.src, tmp_path / "none"], [corpus.src, corpus.tgt, "--first", "-1"]):
        assert cli("check", *wrong).code == 2


def test_packed_text_and_tables_are_read_as_by_train(tmp_path: Path, cli: Callable[..., Finished]) -> None:
    table = tmp_path / "web.tsv.gz"
    table.write_bytes(gzip.compress("".join(f"{src}\t{tgt}\n" for src, tgt in [*CLEAN, CLEAN[0]]).encode()))
    told = json.loads(cli("check", table, "--json").out)
    assert [(f["kind"], f["first"][0]) for f in told["findings"] if f["kind"] == "repeated"] == [
        ("repeated", {"line": 401, "seen": "line 1"})
    ]
    assert told["sides"][1]["name"].endswith("web.tsv.gz (target)")
