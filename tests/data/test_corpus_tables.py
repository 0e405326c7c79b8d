"""Tables of pairs: tab-separated columns, JSON lines, TMX, parquet and arrow."""

import csv
import gzip
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.corpus_files import PAIRS, both_ways
from support.toy_task import write_lines

from transduce.data import corpora
from transduce.data.corpora import Corpus, read_pairs
from transduce.errors import UserError

# ---- tab-separated columns ---------------------------------------------------------------------------------------


def test_tab_separated_columns(tmp_path: Path) -> None:
    table = tmp_path / "t.tsv"
    table.write_bytes("".join(f"{src}\t{tgt}\r\n" for src, tgt in PAIRS).encode())
    assert both_ways(Corpus(table), tmp_path / "made") == PAIRS
    table.write_bytes(gzip.compress("".join(f"7\t{tgt}\t{src}\t\n" for src, tgt in PAIRS).encode()))
    assert both_ways(Corpus(Path(f"{table}:3,2")), tmp_path / "made2") == PAIRS
    assert corpora.problems([Corpus(Path(f"{table}:3,2")), Corpus(table)]) == []
    (tmp_path / "u.tsv").write_text("7\tb\ta\n")
    assert both_ways(Corpus(tmp_path / "?.tsv:3,2"), tmp_path / "made3") == [*PAIRS, ("a", "b")]


def test_columns_by_the_names_of_a_header(tmp_path: Path) -> None:
    """A pair of words that could be names of columns is a header only in the first line."""
    rows = ["id\tde\ten", *(f"{i}\t{tgt}\t{src}" for i, (src, tgt) in enumerate([*PAIRS, ("en", "de")]))]
    table = write_lines(tmp_path / "t.tsv", rows)
    assert both_ways(Corpus(Path(f"{table}:en,de")), tmp_path / "made") == [*PAIRS, ("en", "de")]


# ---- quotation marks and CSV -------------------------------------------------------------------------------------

SENTENCES = [
    ("A dog, two; three.", "Ein Hund."),
    ('He said "yes".', '"Ja", sagte er; dann ging er.'),
    ("two\nlines", "zwei\r\nZeilen\tund ein Tab"),
    ("5", ""),
]
READ_SENTENCES = [(src.replace("\n", " "), tgt.replace("\r\n", " ")) for src, tgt in SENTENCES]


@pytest.mark.parametrize(
    ("separator", "quoting"),
    [*((separator, csv.QUOTE_ALL) for separator in "\t,;"), *((separator, csv.QUOTE_MINIMAL) for separator in ",;")],
)
@pytest.mark.parametrize("columns", ["", ":1,2", ":Source,Target"])
def test_tables_of_an_office_program(separator: str, quoting: int, columns: str, tmp_path: Path) -> None:
    """The standard library writes it, with a byte order mark and CR LF. Packed, it gives the same pairs."""
    table = tmp_path / ("t.tsv" if separator == "\t" else "t.CSV")
    with table.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file, delimiter=separator, quoting=quoting)
        writer.writerows([["Source", "Target"], *SENTENCES] if "S" in columns else SENTENCES)
    assert both_ways(Corpus(Path(f"{table}{columns}")), tmp_path / "made") == READ_SENTENCES
    packed = tmp_path / f"packed{table.suffix}.gz"
    packed.write_bytes(gzip.compress(table.read_bytes()))
    assert corpora.problems([Corpus(packed)]) == []
    assert list(read_pairs(Corpus(Path(f"{packed}{columns}")))) == READ_SENTENCES


def test_numbers_and_empty_cells_may_lack_quotation_marks(tmp_path: Path) -> None:
    table = tmp_path / "t.tsv"
    table.write_text('"id"\t"Source"\t"Target"\n7\t"a ""b"" e"\t"c\td"\n8\t\t""\n')
    assert list(read_pairs(Corpus(Path(f"{table}:Source,Target")))) == [('a "b" e', "c\td"), ("", "")]


@pytest.mark.parametrize(
    "rows",
    [
        [('"Yes."', '"Ja."'), ("He said.", "Sagte er.")],
        [('"Yes."', '"Ja."'), ('"No." He went.', '"Nein." Er ging.')],
        [('"Yes', '"Ja'), ('"No', '"Nein')],
        [('"Yes" and "no"', '"Ja" und "nein"')],
        [("1", "2"), ('"Yes."', '"Ja."')],
        [("5", '"Ja."'), ('"Yes."', '"Ja."')],
    ],
)
def test_direct_speech_keeps_its_quotation_marks(rows: list[tuple[str, str]], tmp_path: Path) -> None:
    table = write_lines(tmp_path / "t.tsv", ["\t".join(pair) for pair in rows])
    assert list(read_pairs(Corpus(table))) == rows


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        ("Source,Target\na,b\n", "", r"t\.csv:1: expected a pair of .*; name them: .*t\.csv:Source,Target$"),
        ('"Source text";Target\na;b\n', "", r"; name them: '.*t\.csv:Source text,Target'$"),
        ("a,b\nc, d,e\n", "", r"t\.csv:2: expected 2 comma-separated columns, as in the first row, not 3; correct"),
        ('a,b\n\n"c\nd",e\nf\n', "", r"t\.csv:5: expected 2 comma-separated columns, as in the first row, not 1"),
        ('a;b\n"c;d\ne;f\n', "", r"t\.csv:2: expected quotation marks around whole cells, but .*; correct the line"),
        ('a;b\n"c" d;e\n', "", r"t\.csv:2: expected quotation marks around whole cells, but ';' expected after"),
        ('a;b\n"' + "c" * 200_000, "", r"t\.csv:2: expected quotation marks around whole cells, but field larger"),
        ("a,b;c\nd,e;f\n", "", r"t\.csv: expected CSV, with columns that either commas or semicolons separate, "),
        ("one\ntwo\n", "", r"t\.csv: expected CSV, with columns that either commas or semicolons separate, "),
        ("a,b,c\n", "", r"t\.csv: expected 2 comma-separated columns, not 3; name two: .*t\.csv:1,2$"),
        ("a,b\n", ":1,3", r"t\.csv:1: expected at least 3 comma-separated columns, not 2; .* name other columns$"),
        ("a,b\n", ":en,de", "two names in its first line, not en,de; for"),
        ("\xe4;b\n", "", r"t\.csv:1: expected UTF-8, but byte 1 of the line is 0xe4; .* iconv -f ISO-8859-1"),
        ("", "", r"t\.csv: expected .* the file is empty"),
    ],
)
def test_invalid_csv_is_refused(content: str, columns: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(content.encode("latin-1"))
    with pytest.raises(UserError, match=message):
        list(read_pairs(Corpus(Path(f"{tmp_path / 't.csv'}{columns}"))))


def test_the_first_rows_show_what_separates_csv(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("Hello, you;Hallo, du\nIt is late;Es ist spät\n")
    assert list(read_pairs(Corpus(tmp_path / "t.csv")))[1] == ("It is late", "Es ist spät")
    (tmp_path / "t.csv").write_text('"a; b", "c; d"\ne;f, g\n')
    assert list(read_pairs(Corpus(tmp_path / "t.csv"))) == [("a; b", "c; d"), ("e;f", "g")]


# ---- JSON lines and TMX ------------------------------------------------------------------------------------------


def test_json_lines(tmp_path: Path) -> None:
    """A cell without a value is a blank side, and a line feed becomes a space."""
    rows = [{"id": 1, "translation": {"en": src, "de": tgt}} for src, tgt in [*PAIRS, ("a", None)]]
    rows.append({"id": 2, "translation": {"en": "a\nb", "de": "c"}})
    table = write_lines(tmp_path / "t.jsonl", ["", *map(json.dumps, rows), ""])
    expected = [*PAIRS, ("a", ""), ("a b", "c")]
    assert both_ways(Corpus(table), tmp_path / "made") == expected
    swapped = [(tgt, src) for src, tgt in expected]
    assert both_ways(Corpus(Path(f"{table}:de,en")), tmp_path / "made2") == swapped


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_tmx(encoding: str, tmp_path: Path) -> None:
    def unit(*texts: tuple[str, str]) -> str:
        return "<tu>" + "".join(f'<tuv xml:lang="{code}"><seg>{seg}</seg></tuv>' for code, seg in texts) + "</tu>"

    units = [
        unit(("en-US", "a &lt; b"), ("de-DE", "c")),
        unit(("de-DE", 'd <bpt i="1">&lt;b&gt;</bpt>e<ept i="1">&lt;/b&gt;</ept>\n<hi>f</hi>'), ("en-US", "g")),
        unit(("en-US", "h")),
    ]
    doctype = '<?xml version="1.0"?>\n<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n<tmx version="1.4"><header/><body>'
    table = tmp_path / "t.tmx"
    table.write_bytes((doctype + "\n".join(units) + "</body></tmx>").encode(encoding))
    expected = [("a < b", "c"), ("g", "d e f"), ("h", "")]
    assert both_ways(Corpus(table), tmp_path / "made") == expected
    table.write_bytes((doctype + "\n".join([*units, unit(("fr", "i"))]) + "</body></tmx>").encode(encoding))
    with pytest.raises(UserError, match="expected two languages, not de-de, en-us, fr; name two, as in"):
        list(read_pairs(Corpus(table)))
    assert both_ways(Corpus(Path(f"{table}:en,de")), tmp_path / "made2") == [*expected, ("", "")]


@pytest.mark.parametrize(
    ("names", "codes", "message"),
    [
        (":en,fr", ("en-US", "de-DE"), r"which has de-de, en-us, not fr; correct the name, as in .*t\.tmx:en,de-de$"),
        (
            ":FR,it",
            ("en-US", "de-DE"),
            r"which has de-de, en-us, not fr, it; correct the name, as in .*t\.tmx:de-de,en-us$",
        ),
        (":en,fr", ("en", "en-US"), "which has en, en-us, not fr; get a file with both languages$"),
        (":en,de", ("", ""), "which has a text without a language, not de, en; get a file with both languages$"),
    ],
)
def test_a_language_that_no_unit_has_is_refused(
    names: str, codes: tuple[str, str], message: str, tmp_path: Path
) -> None:
    """The file is larger than what is read at once. The corrected names can be read."""
    table = tmp_path / "t.tmx"
    variants = "".join(f'<tuv xml:lang="{code}"><seg>{code} text</seg></tuv>' for code in codes)
    table.write_text(f"<tmx><body>{f'<tu>{variants}</tu>' * 2_000}</body></tmx>")
    with pytest.raises(UserError, match=f"expected languages of the file, {message}") as caught:
        list(read_pairs(Corpus(Path(f"{table}{names}"))))
    remedy = str(caught.value).rpartition(" as in ")[2]
    if remedy.startswith(str(table)) and ";" not in remedy:
        assert len(list(read_pairs(Corpus(Path(remedy))))) == 2_000


@pytest.mark.parametrize("content", ["Source\tTarget\na\tb\n", "one column\n", '{"en": "a", "de": "b"}\n'])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_tables_in_utf16_are_refused(content: str, encoding: str, tmp_path: Path) -> None:
    table = tmp_path / "t.tsv"
    table.write_bytes(("\ufeff" * (encoding == "utf-16-be") + content).encode(encoding))
    message = r"t\.tsv: expected UTF-8, but it is UTF-16; convert it: iconv -f UTF-16 -t UTF-8 OLD > NEW$"
    for read in (lambda: list(read_pairs(Corpus(table))), lambda: corpora.problems([Corpus(table)])):
        with pytest.raises(UserError, match=message):
            read()


@pytest.mark.parametrize(
    ("content", "columns", "message"),
    [
        (
            "a\tb\nc\n",
            "",
            r"t\.tsv:2: .* 2 tab-separated columns, not 1; correct the line, or give CSV in a file named",
        ),
        ("a\tb\tc\n", "", r"t\.tsv: expected 2 tab-separated columns, not 3; name two: .*t\.tsv:1,2$"),
        ("a\tb\tc\n", ":1,4", r"t\.tsv:1: expected at least 4 tab-separated columns, not 3; correct the line"),
        ("c\na\tb\n", "", r"t\.tsv:1: expected at least 2 tab-separated columns, not 1; correct the line"),
        ("c\na\tb\n", ":1,2", r"t\.tsv:1: expected at least 2 tab-separated columns, not 1; correct the line"),
        (
            "a\tb\tc\n",
            ":0,1",
            "expected the numbers of two columns, from 1, or two names in its first line, not 0,1; f",
        ),
        ("a\tb\tc\n", ":en,de", "two names in its first line, not en,de; for"),
        ("a\tb\tc\n", ":2", "two names in its first line, not 2; for"),
        (
            "a\tb\nc\td\te\n",
            "",
            r"t\.tsv:2: expected 2 tab-separated columns, not 3; remove the tabs within a sentence",
        ),
        (
            "en\tde\na\tb\n",
            "",
            r"t\.tsv:1: expected a pair of .*, not the names of columns; name them: .*t\.tsv:en,de$",
        ),
        ("1\tSource\ttarget_text\n", ":2,3", r"name them: .*t\.tsv:Source,target_text$"),
        ('{"en": "a"}\n', "", r"t\.tsv:1: expected two texts, not en; name two of the keys"),
        ('{"en": "a", "de": "b"}\n{"en": "a"}\n', "", r"t\.tsv:2: expected two texts, not en; name two"),
        ('{"en": "a", "de": "b", "id": 3}\n', ":en,id", "expected text for 'id', not 3; correct the line"),
        ('{"en": "a", "de": "\\ud800"}\n', "", "character 1 of .*t.tsv:1: expected a character"),
        ('{"en": "a", \n', "", r"t\.tsv:1: expected a JSON object .*; correct the line"),
        ("<tmx><tu><tuv xml:lang='en'><seg>a</seg></tuv></tu></tmx>", "", "expected two languages, not en; name two"),
        ("<tmx><tu></tmx>", "", "expected TMX, but mismatched tag: line 1, column 11; get the file again"),
        (
            "<!DOCTYPE t [<!ENTITY a 'a'><!ENTITY b '&a;&a;'>]><tmx/>",
            "",
            "t.tsv:1: expected no entities of its own, but",
        ),
        (
            "<!DOCTYPE t [<!ENTITY % a SYSTEM '/etc/passwd'>]><tmx/>",
            "",
            "t.tsv:1: expected no entities of its own, but",
        ),
        ("", "", r"t\.tsv: expected .* the file is empty"),
    ],
)
def test_invalid_tables_are_refused(tmp_path: Path, content: str, columns: str, message: str) -> None:
    (tmp_path / "t.tsv").write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        list(read_pairs(Corpus(Path(f"{tmp_path / 't.tsv'}{columns}"))))


# ---- parquet and arrow -------------------------------------------------------------------------------------------


@pytest.fixture
def pa() -> Any:
    return pytest.importorskip("pyarrow")


def write_parquet(table: Any, path: Path) -> None:
    pytest.importorskip("pyarrow.parquet").write_table(table, path, row_group_size=2)


def columns(pa: Any, **more: list[Any]) -> Any:
    return pa.table({"en": [src for src, _ in PAIRS], "de": [tgt for _, tgt in PAIRS], **more})


def test_parquet(tmp_path: Path, pa: Any) -> None:
    path = tmp_path / "p"  # recognised by its first bytes
    write_parquet(columns(pa, id=list(range(5))), path)
    assert both_ways(Corpus(path), tmp_path / "made") == PAIRS
    assert list(read_pairs(Corpus(Path(f"{path}:de,en")))) == [(tgt, src) for src, tgt in PAIRS]
    assert corpora.problems([Corpus(path)]) == []


def test_a_folder_in_the_translation_format_of_hugging_face(tmp_path: Path, pa: Any) -> None:
    """It has two parquet files with a struct column. The rows are in the order of the file names."""
    for number, pairs in enumerate((PAIRS[:2], PAIRS[2:])):
        rows = [{"de": tgt, "en": src} for src, tgt in pairs]
        write_parquet(
            pa.table({"translation": rows, "id": ["x"] * len(rows)}), tmp_path / f"train-0000{number}.parquet"
        )
    assert both_ways(Corpus(Path(f"{tmp_path}:en,de")), tmp_path / "made") == PAIRS
    with pytest.raises(UserError, match="expected two of the text columns de, en, id; name them: .*:de,en"):
        list(read_pairs(Corpus(tmp_path)))
    assert both_ways(Corpus(tmp_path / "train-*.parquet:en,de"), tmp_path / "made2") == PAIRS
    (tmp_path / "test-00000.parquet").write_bytes((tmp_path / "train-00000.parquet").read_bytes())
    with pytest.raises(
        UserError, match=r"test-00000\.parquet: expected training text, but the name says test or validation; give"
    ):
        corpora.problems([Corpus(Path(f"{tmp_path}:en,de"))])
    assert both_ways(Corpus(tmp_path / "train-*.parquet:en,de"), tmp_path / "made2") == PAIRS


@pytest.mark.parametrize(
    ("test", "train", "advice"),
    [
        ("test/data-0.arrow", "train/data-0.arrow", "train"),  # of DatasetDict.save_to_disk
        ("data/validation-00000.parquet", "data/train-00000.parquet", "data/train-*.parquet"),  # of a Hub
        ("de-en/dev.parquet", "de-en/train.parquet", "de-en/train.parquet"),
        ("testset2014.parquet", "de/train-1.arrow", "de/train-*.arrow"),
        ("test-1.parquet", "testimonials.parquet", None),
    ],
)
def test_the_advice_for_a_dataset_with_a_test_set_works(
    test: str, train: str, advice: str | None, tmp_path: Path, pa: Any
) -> None:
    folder = tmp_path / "a set"
    for name, table in ((test, columns(pa)), (train, columns(pa, id=["x"] * len(PAIRS)))):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_parquet(table, folder / name)
    with pytest.raises(UserError, match="the name says test or validation; ") as refusal:
        corpora.problems([Corpus(Path(f"{folder}:en,de"))])
    remedy = str(refusal.value).partition("; ")[2]
    assert remedy == (f"give '{folder}/{advice}:en,de'" if advice else "move it away")
    if advice:
        assert list(read_pairs(Corpus(Path(*shlex.split(remedy)[1:])))) == PAIRS


def test_a_name_that_begins_as_test_does_is_training_text(tmp_path: Path, pa: Any) -> None:
    for name in ("testimonials.parquet", "devanagari/a.parquet", "validity.parquet"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_parquet(columns(pa), tmp_path / name)
    assert len(list(read_pairs(Corpus(tmp_path)))) == 3 * len(PAIRS)


def test_a_folder_written_by_save_to_disk(tmp_path: Path, pa: Any) -> None:
    """It has Arrow streams, and a JSON file that is not read."""
    table = columns(pa)
    for number, rows in enumerate((table.slice(0, 2), table.slice(2))):
        with pa.ipc.new_stream(tmp_path / f"data-0000{number}-of-00002.arrow", table.schema) as stream:
            stream.write_table(rows)
    (tmp_path / "state.json").write_text("{}")
    assert both_ways(Corpus(tmp_path), tmp_path / "made") == PAIRS


def test_a_dataset_by_name(tmp_path: Path, pa: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No network is used: a folder holds the files that the library would download."""
    (tmp_path / "de-en").mkdir()
    for name, rows in (("train-0", PAIRS[:3]), ("train-1", PAIRS[3:]), ("test-0", PAIRS)):
        table = pa.table({"translation": [{"de": tgt, "en": src} for src, tgt in rows]})
        write_parquet(table, tmp_path / "de-en" / f"{name}.parquet")

    class Hub:
        @staticmethod
        def snapshot_download(name: str, *, repo_type: str, allow_patterns: list[str]) -> str:
            if name != "wmt/wmt14":
                raise FileNotFoundError(f"404: no {name}\nand so on")
            assert repo_type == "dataset" and allow_patterns == ["de-en/train-*.parquet"]
            return str(tmp_path)

    monkeypatch.setitem(sys.modules, "huggingface_hub", Hub)
    corpus = Corpus(Path("hf:wmt/wmt14/de-en/train-*.parquet:en,de"))
    assert both_ways(corpus, tmp_path / "made") == PAIRS and corpora.problems([corpus]) == []
    reverse = Corpus(Path("hf:wmt/wmt14/de-en/train-*.parquet"))
    assert list(read_pairs(reverse)) == [(tgt, src) for src, tgt in PAIRS]
    with pytest.raises(
        UserError, match="hf:wmt/none/x: expected a dataset that can be fetched: 404: no wmt/none; or download it"
    ):
        corpora.problems([Corpus(Path("hf:wmt/none/x"))])
    with pytest.raises(UserError, match="expected hf:OWNER/SET/FILES"):
        corpora.problems([Corpus(Path("hf:wmt/wmt14"))])
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"huggingface_hub; pip install 'transduce\[data\]'"):
        corpora.problems([corpus])


def test_line_feeds_and_missing_values_in_cells(tmp_path: Path, pa: Any) -> None:
    write_parquet(pa.table({"a": ["x\ny", None, "\r\nz"], "b": ["1", "2", "3"]}), tmp_path / "p.parquet")
    pairs = both_ways(Corpus(tmp_path / "p.parquet"), tmp_path / "made")
    assert pairs == [("x y", "1"), ("", "2"), (" z", "3")]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (":en,fr", "expected two of the text columns en, de; 'fr' is not one of them; name"),
        (":en,d", "'d' is not one of them; did you mean 'de'?"),
        (":en", "name them: .*:en,de"),
        (":en,number", r"'number' is not one of them; name them: .*p\.parquet:en,de$"),
    ],
)
def test_missing_columns_are_refused(tmp_path: Path, pa: Any, names: str, message: str) -> None:
    write_parquet(columns(pa, number=list(range(5))), tmp_path / "p.parquet")
    with pytest.raises(UserError, match=message):
        list(read_pairs(Corpus(Path(f"{tmp_path / 'p.parquet'}{names}"))))


def test_damaged_and_empty_tables_are_refused(tmp_path: Path, pa: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "p.parquet"
    write_parquet(columns(pa), path)
    content = path.read_bytes()
    for damaged in (content[:-5], content[: len(content) // 2], content[:4]):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"p\.parquet: expected a table of sentence pairs: "):
            list(read_pairs(Corpus(path)))
    write_parquet(columns(pa).slice(0, 0), path)
    with pytest.raises(UserError, match="it has no rows"):
        list(read_pairs(Corpus(path)))
    (tmp_path / "folder").mkdir()
    with pytest.raises(UserError, match=r"expected \.parquet or \.arrow files"):
        list(read_pairs(Corpus(tmp_path / "folder")))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"expected the package pyarrow; pip install 'transduce\[data\]'"):
        list(read_pairs(Corpus(path)))


def test_reading_corpora_needs_no_torch() -> None:
    program = "import sys, transduce.data.token_store, transduce.data.corpora as _; "
    program += "print('torch' in sys.modules, 'pyarrow' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program]).split() == [b"False", b"False"]
