"""Text: lines end at LF only, UTF-8 is strict, sides stay aligned, and errors name the file."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce.data import text
from transduce.data.compression import compression_format
from transduce.errors import UserError

BOM = b"\xef\xbb\xbf"

# The content of a file, and its lines.
FILES = {
    "empty": (b"", []),
    "one empty line": (b"\n", [""]),
    "no last LF": (b"a\nb", ["a", "b"]),
    "last LF": (b"a\nb\n", ["a", "b"]),
    "empty lines": (b"\n\na\n\n", ["", "", "a", ""]),
    "CRLF": (b"a\r\nb\r\n\r\n", ["a", "b", ""]),
    "CRLF, no last LF": (b"a\r\nb", ["a", "b"]),
    "mixed line ends": (b"a\r\nb\nc\r\n", ["a", "b", "c"]),
    "lone CR": (b"a\rb\n\rc\r\r\nd\r", ["a\rb", "\rc\r", "d\r"]),
    "BOM": (BOM + b"a\nb\n", ["a", "b"]),
    "only BOM": (BOM, [""]),
    "BOM and CRLF": (BOM + b"\r\na", ["", "a"]),
    "two BOMs": (BOM + BOM + b"a", ["\ufeffa"]),
    "BOM in a later line": (b"a\n" + BOM + b"b\n", ["a", "\ufeffb"]),
    "U+2028, U+2029, NEL": ("a\u2028b\u2029c\u0085d\n".encode(), ["a\u2028b\u2029c\u0085d"]),
    "VT, FF, FS, GS, RS": (b"a\x0bb\x0cc\x1cd\x1de\x1ef\n", ["a\x0bb\x0cc\x1cd\x1de\x1ef"]),
    "NUL": (b"a\0b\n\0\n", ["a\0b", "\0"]),
    "other scripts": ("東京 \U0001f30d\nعربي\n".encode(), ["東京 \U0001f30d", "عربي"]),
    "noncharacters": ("\ufffe\uffff\U0010ffff\n".encode(), ["\ufffe\uffff\U0010ffff"]),
    "spaces kept": (b"  a\t \n \n", ["  a\t ", " "]),
    "1 MB line": (b"x" * 1_000_000 + b"\ny", ["x" * 1_000_000, "y"]),
}


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, bytes], Path]:
    def write(name: str, content: bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


def by_spans(path: Path) -> list[str]:
    spans = list(text.spanned_lines(path, 0, path.stat().st_size, first=1))
    assert [line for _, _, line in spans] == [path.read_bytes()[begin:end].decode() for begin, end, _ in spans]
    return [line for _, _, line in spans]


@pytest.mark.parametrize("name", FILES)
def test_the_lines_of_a_file(name: str, write: Callable[[str, bytes], Path]) -> None:
    content, lines = FILES[name]
    path = write("text", content)
    assert list(text.read_lines(path)) == lines
    assert list(text.read_lines(str(path))) == lines
    assert text.count_lines(path) == len(lines)
    assert by_spans(path) == lines
    assert text.file_sha256(path) == hashlib.sha256(content).hexdigest()


pieces_of_a_file = st.lists(
    st.sampled_from([b"\n", b"\r", b"\r\n", BOM, b"a", b" ", b"\0", "é\u2028\u0085".encode(), b"\xff", b"\xc3"])
)


def plain_rule(content: bytes) -> list[bytes]:
    """Return the undecoded lines of a file, split from its whole content."""
    *complete_lines, last = content.removeprefix(BOM).split(b"\n")
    lines = [line.removesuffix(b"\r") for line in complete_lines]
    return [*lines, last] if last or content == BOM else lines


@settings(deadline=None, derandomize=True, max_examples=300)
@given(pieces_of_a_file.map(b"".join))
def test_the_lines_of_any_bytes_equal_a_direct_implementation(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(content)
    raws = plain_rule(content)
    assert text.count_lines(path) == len(raws)
    try:
        expected = [raw.decode() for raw in raws]
    except UnicodeDecodeError:
        with pytest.raises(UserError, match="expected UTF-8"):
            list(text.read_lines(path))
    else:
        assert list(text.read_lines(path)) == by_spans(path) == expected


def test_pairs_keep_blank_sides(write: Callable[[str, bytes], Path]) -> None:
    src, tgt = write("s", BOM + b"a\r\n\r\nc\n"), write("t", "A\n \nC\u2028".encode())
    assert list(text.read_pairs(src, tgt)) == [("a", "A"), ("", " "), ("c", "C\u2028")]


@pytest.mark.parametrize("shorter", [0, 1])
@pytest.mark.parametrize(("few", "many"), [(0, 1), (1, 3), (1200, 1201), (999, 12_000)])
def test_unequal_sides(write: Callable[[str, bytes], Path], shorter: int, few: int, many: int) -> None:
    counts = (few, many) if shorter == 0 else (many, few)
    paths = [write(name, b"x\n" * count) for name, count in zip(("train.en", "train.de"), counts, strict=True)]
    pairs = text.read_pairs(*paths)
    with pytest.raises(UserError) as caught:
        for _ in range(many):
            next(pairs)
    expected = f"train.de: expected the same number of lines, not {counts[0]:,} and {counts[1]:,};"
    assert "train.en and " in str(caught.value) and expected in str(caught.value)


def test_an_empty_corpus_is_refused(write: Callable[[str, bytes], Path]) -> None:
    with pytest.raises(UserError, match=r"en and .*de: expected at least 1 line"):
        list(text.read_pairs(write("en", b""), write("de", b"")))


def test_pairs_stream(write: Callable[[str, bytes], Path]) -> None:
    """Pairs are yielded before the end of a file is read, so before a mistake there."""
    pairs = text.read_pairs(write("s", b"a\nb\n"), write("t", b"A\n\xff\n"))
    assert next(pairs) == ("a", "A")
    with pytest.raises(UserError):
        next(pairs)


@pytest.mark.parametrize(
    ("content", "place", "byte"),
    [
        (b"\xff\n", ":1: ", "byte 1 of the line is 0xff"),
        (b"a\nab\xe4cd\n", ":2: ", "byte 3 of the line is 0xe4"),
        (b"a\r\n\r\nx\xc3", ":3: ", "byte 2 of the line is 0xc3"),
        (b"\xed\xa0\x80", ":1: ", "byte 1 of the line is 0xed"),  # a surrogate
        (b"\xc0\x80", ":1: ", "byte 1 of the line is 0xc0"),  # NUL in two bytes
        (b"\xf5\x80\x80\x80", ":1: ", "byte 1 of the line is 0xf5"),  # past U+10FFFF
    ],
)
def test_bytes_that_are_not_utf8(write: Callable[[str, bytes], Path], content: bytes, place: str, byte: str) -> None:
    path, good = write("bad.txt", content), write("good.txt", b"x\n" * 3)
    for lines in (text.read_lines(path), text.read_pairs(path, good), text.read_pairs(good, path)):
        with pytest.raises(UserError) as caught:
            list(lines)
        assert f"{path}{place}expected UTF-8" in str(caught.value)
        assert byte in str(caught.value) and "iconv" in str(caught.value)


def test_utf16_is_recognised(write: Callable[[str, bytes], Path]) -> None:
    with pytest.raises(UserError, match="expected UTF-8, but it is UTF-16; .* iconv -f UTF-16"):
        list(text.read_lines(write("u16", "Zwei Hunde\n".encode("utf-16"))))


def test_decode_line_serves_streams() -> None:
    assert text.decode_line(BOM + b"a\r\n", "stdin", 1) == "a"
    assert text.decode_line(BOM + b"a\r", "stdin", 2) == "\ufeffa\r"
    with pytest.raises(UserError, match="^stdin:7: expected UTF-8, but byte 1 "):
        text.decode_line(b"\xff\n", "stdin", 7)


def test_paths_without_a_file_are_refused(tmp_path: Path) -> None:
    missing, below = tmp_path / "missing", tmp_path / "file" / "x"
    (tmp_path / "file").write_bytes(b"x")
    for path, reason in ((missing, "does not exist"), (tmp_path, "is not a file"), (below, "is not a file")):
        for read in (text.count_lines, compression_format, text.file_sha256, lambda path: list(text.read_lines(path))):
            with pytest.raises(UserError, match=reason) as caught:
                read(path)
            assert str(path) in str(caught.value)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_refused(write: Callable[[str, bytes], Path]) -> None:
    path = write("secret", b"x")
    path.chmod(0)
    with pytest.raises(UserError, match="expected a readable file"):
        list(text.read_lines(path))


def test_spans_from_the_middle_of_a_file(write: Callable[[str, bytes], Path]) -> None:
    path = write("text", BOM + b"a\r\n" + BOM + b"b\nc\n\xff\n")
    assert list(text.spanned_lines(path, 6, 12, first=2)) == [(6, 10, "\ufeffb"), (11, 12, "c")]
    assert list(text.spanned_lines(path, 0, 6, first=1)) == [(3, 4, "a")]
    with pytest.raises(UserError, match="text:4: expected UTF-8"):
        list(text.spanned_lines(path, 11, 15, first=3))


def test_blank_is_what_has_no_visible_character() -> None:
    assert all(map(text.is_blank, ["", " ", "\t \r", "\u3000\u00a0\u2028\u0085", "\x0b\x0c"]))
    assert all(map(text.is_blank, ["\0", "\ufeff", "\u200b", "\u200e \u2060\u00ad", "\x1b"]))
    assert not any(map(text.is_blank, ["a", " . ", "\u200ba", "▁", "\u0301", "\ufffd"]))


def test_the_locale_has_no_effect(write: Callable[[str, bytes], Path]) -> None:
    path = write("text", "\ufeffGrüße\u2028東京\0\r\n".encode())
    program = "import sys; from transduce.data import text; print(ascii(list(text.read_lines(sys.argv[1]))))"
    answers = set()
    for locale in ("C", "C.UTF-8", "POSIX"):
        environment = {**os.environ, "LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
        run = subprocess.run([sys.executable, "-c", program, path], env=environment, capture_output=True, check=True)
        answers.add(run.stdout)
    assert answers == {ascii(["Grüße\u2028東京\0"]).encode() + b"\n"}


def test_reading_text_needs_no_torch() -> None:
    program = "import sys; import transduce.data.text, transduce.data.tokenizer; print('torch' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", program]).split() == [b"False"]
