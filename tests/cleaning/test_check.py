"""`check` reports every planted problem on its line, and no problem of a clean text."""

import gzip
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.toy_task import CommandResult, write_lines

from transduce.cleaning.check import check
from transduce.cleaning.corpus_report import KINDS, NOTES, CorpusReport, report_text, verdict
from transduce.data.corpora import Corpus
from transduce.data.text import is_blank
from transduce.data.tokenizer import Tokenizer
from transduce.demo.grammar import corpus as grammar
from transduce.errors import UserError

Pair = tuple[str, str]
CLEAN: list[Pair] = list(dict.fromkeys(grammar(3, 600)))[:400]


def write(folder: Path, pairs: list[Pair]) -> Corpus:
    src = write_lines(folder / "train.en", [src for src, _ in pairs])
    return Corpus(src, write_lines(folder / "train.de", [tgt for _, tgt in pairs]))


def swapped(pairs: list[Pair]) -> list[Pair]:
    return [(tgt, src) for src, tgt in pairs]


def lines_of(report: CorpusReport, notes: bool = False) -> dict[tuple[str, str], list[int]]:
    """Return the line numbers of each finding by kind and side."""
    return {
        (finding.kind, finding.where): [example.line for example in finding.first]
        for finding in report.findings
        if notes or finding.kind not in NOTES
    }


def check_with(folder: Path, replacements: dict[int, Pair]) -> CorpusReport:
    """Check the clean text after replacing some lines, counted from 1."""
    return check(write(folder, [replacements.get(number, pair) for number, pair in enumerate(CLEAN, start=1)]))


def test_a_clean_text_has_no_findings(tmp_path: Path) -> None:
    report = check(write(tmp_path, CLEAN))
    assert lines_of(report) == {} and (report.suspects, report.trainable, report.pairs) == (0, True, 400)
    assert verdict(report) == "It can be trained on; no pair looks wrong."


# ---- planted problems --------------------------------------------------------------------------------------------

SRC, TGT = CLEAN[6]
MISTAKES = [
    ("blank", "pair", ("", TGT)),
    ("blank", "pair", (SRC, " \t ")),
    ("blank", "pair", ("", "")),
    ("copied", "pair", (SRC, SRC)),
    ("ratio", "pair", (SRC, "@@")),
    ("ratio", "pair", (SRC, " ".join([TGT, CLEAN[7][1], TGT, CLEAN[8][1]]))),
    ("repetition", "pair", (f"{SRC} well", f"{TGT} so so so so")),
    ("numbers", "pair", (f"{SRC} in 1984.", f"{TGT} in 1948.")),
    ("links", "pair", (f"{SRC} www.dog.org", f"{TGT} www.hund.de")),
    ("script", "tgt", (SRC, "Собака бежит по улице домой, а кошка тихо спит на окне дома.")),
    ("mixed_script", "src", (SRC.replace("e", "\u0435", 1) if "e" in SRC else "h\u0435llo dog", TGT)),
    ("mojibake", "tgt", (SRC, f"{TGT} HÃ¤user")),
    ("not_nfc", "tgt", (SRC, f"{TGT} Ha\u0308user")),
    ("control", "src", (f"{SRC}\x07!", TGT)),
    ("control", "src", (f"{SRC} \ufffd", TGT)),
    ("markup", "tgt", (SRC, f"{TGT} &quot;")),
    ("markup", "src", (f"<b>{SRC}</b>", TGT)),
    ("subwords", "src", (f"{SRC} hou@@ se", TGT)),
    ("subwords", "tgt", (SRC, f"\u2581{TGT}")),
    ("long", "tgt", ("dog" * 290, "Hund" * 260)),
    ("repeated", "pair", CLEAN[2]),
]


@pytest.mark.parametrize(("kind", "where", "pair"), MISTAKES)
def test_a_planted_problem_is_the_only_finding(kind: str, where: str, pair: Pair, tmp_path: Path) -> None:
    report = check_with(tmp_path, {321: pair})
    assert lines_of(report) == {(kind, where): [321]}
    assert (report.suspects, report.trainable) == (1, True)
    assert "1 of 400 pairs (0.2 %) look wrong" in verdict(report)


def test_lines_that_are_not_utf8_are_named_and_prevent_training(tmp_path: Path) -> None:
    corpus = write(tmp_path, CLEAN)
    lines = corpus.src.read_bytes().splitlines(keepends=True)
    for number in (3, 17, 400):
        lines[number - 1] = b"caf\xe9 " + lines[number - 1]
    corpus.src.write_bytes(b"".join(lines))
    report = check(corpus)
    assert lines_of(report) == {("not_utf8", "src"): [3, 17, 400]}
    assert [example.seen for example in report.findings[0].first] == ["byte 4 is 0xe9"] * 3
    assert not report.trainable and "not UTF-8" in verdict(report)


def test_a_side_in_utf16_is_refused_with_the_way_to_convert_it(tmp_path: Path) -> None:
    corpus = write(tmp_path, CLEAN[:30])
    assert corpus.tgt is not None
    corpus.tgt.write_bytes(corpus.tgt.read_text().encode("utf-16"))
    with pytest.raises(UserError, match=r"train\.de: expected UTF-8, but it is UTF-16; convert it: iconv -f UTF-16 -t"):
        check(corpus)


def test_sides_of_unequal_length_are_checked_up_to_the_shorter_one(tmp_path: Path) -> None:
    corpus = write(tmp_path, [*CLEAN[:99], ("", "x")])
    corpus.src.write_bytes(corpus.src.read_bytes() + b"more\nmore")
    report = check(corpus)
    assert lines_of(report) == {("unequal", "tgt"): [101], ("blank", "pair"): [100]}
    assert report.findings[0].first[0].seen == "the other has 2 more"
    assert (report.pairs, report.trainable) == (100, False)


def test_a_text_of_blank_pairs_cannot_be_trained_on(tmp_path: Path) -> None:
    report = check(write(tmp_path, [("", "x"), ("y", " ")]))
    assert not report.trainable and "every pair is blank" in verdict(report)
    with pytest.raises(UserError, match="empty"):
        check(write(tmp_path, []))


def test_a_repetition_names_its_first_line(tmp_path: Path) -> None:
    a, b, c = CLEAN[:3]
    pairs = [a, b, a, (a[0], c[1]), a, (c[0], b[1]), (" " + b[0], b[1] + " "), ("", ""), ("", "")]
    report = check(write(tmp_path, pairs))
    examples = {f.kind: [(p.line, p.seen) for p in f.first] for f in report.findings}
    assert examples["repeated"] == [(3, "line 1"), (5, "line 1"), (7, "line 2")]
    assert examples["repeated_src"] == [(4, "line 1")] and examples["repeated_tgt"] == [(6, "line 2")]


def test_the_overlap_names_lines_of_the_validation_text(tmp_path: Path) -> None:
    valid = [("new", "neu"), CLEAN[5], (CLEAN[6][0], "anders"), ("newer", CLEAN[5][1])]
    (tmp_path / "valid").mkdir()
    other = write(tmp_path / "valid", valid)
    assert other.tgt is not None
    report = check(write(tmp_path, CLEAN), (other.src, other.tgt))
    overlap = {key[0]: lines for key, lines in lines_of(report, notes=True).items() if key[0].startswith("leak")}
    assert overlap == {"leak": [2], "leaked_source": [2, 3]}
    assert report.suspects == 0 and "1 validation pairs are also in training" in verdict(report)


def test_exchanged_sides_of_the_validation_text_are_a_finding(tmp_path: Path) -> None:
    corpus = write(tmp_path, grammar(3, 1_500))
    (tmp_path / "valid").mkdir()
    valid = write(tmp_path / "valid", grammar(4, 60))
    assert valid.tgt is not None
    report = check(corpus, (valid.tgt, valid.src))
    assert lines_of(report, notes=True)["exchanged", "valid"] == [1]
    assert "1 (to 60)" in report_text(report) and verdict(report).endswith("; give the two sides the other way round.")
    assert report.trainable
    report = check(corpus, (valid.src, valid.tgt))
    assert ("exchanged", "valid") not in lines_of(report, notes=True) and "other way round" not in verdict(report)


def test_characters_without_a_piece(tmp_path: Path) -> None:
    tokenizer = Tokenizer.learn((side for pair in CLEAN for side in pair), vocab_size=500)
    report = check(write(tmp_path, [*CLEAN, ("a tree 木 or 林", "x"), (CLEAN[0][0], "<0x41>")]), tokenizer=tokenizer)
    examples = {f.where: [(p.line, p.seen) for p in f.first] for f in report.findings if f.kind == "bytes"}
    assert examples == {"src": [(401, "木 林")], "tgt": [(402, "0 1 4 < >")]}
    for line in CLEAN[0]:
        assert not any(piece.startswith("<0x") for piece in tokenizer.pieces(tokenizer.encode(line)))


# ---- the corpus as a whole ---------------------------------------------------------------------------------------


def test_shuffled_targets_are_a_finding(tmp_path: Path) -> None:
    report = check(
        write(tmp_path, list(zip([s for s, _ in CLEAN], [t for _, t in CLEAN[200:] + CLEAN[:200]], strict=True)))
    )
    finding = next(f for f in report.findings if f.kind == "unrelated")
    assert (finding.count, finding.first[0].line, report.suspects) == (400, 1, 400)
    assert finding.first[0].seen.startswith("to 400, length correlation ")
    assert "The sides of 400 pairs hardly belong together: look for a lost line" in verdict(report)


@pytest.mark.parametrize("side", [0, 1])
def test_one_letter_on_every_second_line_of_a_side_is_a_finding(side: int, tmp_path: Path) -> None:
    letters = "abcdefghijklmnopqrst"
    pairs = [(letters[n % 20], pair[1]) if n % 2 else pair for n, pair in enumerate(CLEAN)]
    findings = check(write(tmp_path, swapped(pairs) if side else pairs), first=400).findings
    lines = next([example.line for example in f.first] for f in findings if f.kind == "ratio")
    seen = next(f.first for f in findings if f.kind == "ratio")
    assert all(re.fullmatch(r"\d+ : \d+ characters, usually \d+ : \d+", e.seen) for e in seen)
    assert len(lines) > 150 and all(line % 2 == 0 for line in lines)
    assert not any(f.kind == "unrelated" for f in findings)


def test_boilerplate_does_not_make_other_lengths_unusual(tmp_path: Path) -> None:
    """It would have a spread of 0, from which a tenth of all other pairs differed too much."""
    pairs = [*CLEAN, *[("All rights reserved.", "Alle Rechte vorbehalten.")] * 19 * len(CLEAN)]
    pairs.append((" ".join(src for src, _ in CLEAN[:5]), "Ein Hund."))
    findings = [f for f in check(write(tmp_path, pairs)).findings if f.kind == "ratio"]
    assert [example.line for f in findings for example in f.first] == [len(pairs)]


def test_one_line_with_very_many_translations_is_a_finding(tmp_path: Path) -> None:
    pairs = [(CLEAN[0][0], pair[1]) if n % 8 == 0 else pair for n, pair in enumerate(CLEAN)]
    for corpus, kind, others in (
        (pairs, "many_targets", "targets"),
        (swapped(pairs), "many_sources", "sources"),
    ):
        report = check(write(tmp_path, corpus))
        finding = next(f for f in report.findings if f.kind == kind)
        assert (finding.count, finding.first[1].line, finding.first[1].seen) == (50, 9, f"50 {others}")
        assert report.suspects >= 50


def test_a_side_of_two_frequent_scripts_has_no_rare_one(tmp_path: Path) -> None:
    pairs = [(src, "Собака бежит" if n % 3 else tgt) for n, (src, tgt) in enumerate(CLEAN)]
    assert "script" not in {kind for kind, _ in lines_of(check(write(tmp_path, pairs)))}


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


def visible(line: str) -> str:
    return "" if is_blank(line) else line.strip()


@settings(max_examples=60)
@given(st.lists(st.tuples(strange, strange), min_size=1, max_size=30), st.integers(0, 4))
def test_the_counts_of_any_text_add_up(pairs: list[Pair], first: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        report = check(write(Path(folder), pairs), first=first)
    clean_pairs = [
        tuple(visible(side.removeprefix("\ufeff" if n == 0 else "").removesuffix("\r")) for side in pair)
        for n, pair in enumerate(pairs)
    ]
    assert report.pairs == len(pairs) and report.suspects <= len(pairs)
    assert [f.kind for f in report.findings] == sorted((f.kind for f in report.findings), key=list(KINDS).index)
    for finding in report.findings:
        lines = [example.line for example in finding.first]
        assert len(lines) == min(first, finding.count) and lines == sorted(set(lines))
        assert finding.count <= len(pairs) and all(1 <= line <= len(pairs) for line in lines)
        assert all(example.seen.isprintable() for example in finding.first)
    for n, side in enumerate(report.sides):
        texts = [pair[n] for pair in clean_pairs]
        assert side.characters == sum(map(len, texts)) and side.blank == texts.count("")
        assert sum(side.histogram) == len(texts) - side.blank
        assert side.distinct_characters == len(set("".join(texts)))
        assert list(side.lengths.values()) == sorted(side.lengths.values())
    counts = {finding.kind: finding.count for finding in report.findings}
    assert counts.get("blank", 0) == sum(not all(pair) for pair in clean_pairs)
    complete = Counter(pair for pair in clean_pairs if all(pair))
    assert counts.get("repeated", 0) == complete.total() - len(complete)
    assert not set(map(unicodedata.category, report_text(report).replace("\n", ""))) & {"Cc", "Cf", "Cs"}
    assert report.trainable == bool(complete)


# ---- the command -------------------------------------------------------------------------------------------------


def test_the_command(tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    corpus = write(tmp_path, [*CLEAN[:50], ("", "")])
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    result = cli("check", corpus.src, corpus.tgt, "--valid", corpus.src, corpus.tgt)
    assert result.code == 0 and result.err == ""
    assert result.out.decode().splitlines()[0] == "51 pairs"
    assert result.out.decode().splitlines()[-1].startswith("It can be trained on; 1 of 51 pairs (2.0 %) look wrong.")
    output = json.loads(cli("check", corpus.src, corpus.tgt, "--json").out)
    assert output["trainable"] and output["pairs"] == 51
    assert output["findings"][0] | {"first": None} == {"kind": "blank", "where": "pair", "count": 1, "first": None}
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_command_exits_with_2_if_training_is_impossible(tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    corpus = write(tmp_path, CLEAN[:30])
    corpus.src.write_bytes(b"\xff\n" * 30)
    result = cli("check", corpus.src, corpus.tgt, "--first", "2")
    assert (
        result.code == 2
        and "cannot be trained on: not UTF-8" in result.err
        and "1 (byte 1 is 0xff), 2 (" in result.out.decode()
    )
    assert json.loads(cli("check", corpus.src, corpus.tgt, "--json").out)["trainable"] is False
    for wrong in ([], ["a", "b", "c"], [corpus.src, tmp_path / "none"], [corpus.src, corpus.tgt, "--first", "-1"]):
        assert cli("check", *wrong).code == 2


def test_a_compressed_table_is_read_as_by_train(tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    table = tmp_path / "web.tsv.gz"
    table.write_bytes(gzip.compress("".join(f"{src}\t{tgt}\n" for src, tgt in [*CLEAN, CLEAN[0]]).encode()))
    output = json.loads(cli("check", table, "--json").out)
    assert [(f["kind"], f["first"][0]) for f in output["findings"] if f["kind"] == "repeated"] == [
        ("repeated", {"line": 401, "seen": "line 1"})
    ]
    assert output["sides"][1]["name"].endswith("web.tsv.gz (target)")
