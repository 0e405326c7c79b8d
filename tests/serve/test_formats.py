"""File formats: only texts change, and a hostile file is one mistake."""

import io
import json
import random
import re
import textwrap
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from babel.messages.pofile import read_po
from hypothesis import given, settings
from hypothesis import strategies as st

from transduce.errors import UserError
from transduce.serve.documents import lines_of
from transduce.serve.formats import limits, plain
from transduce.serve.formats.files import MODULES, MOST_BYTES, extension_of, read_file
from transduce.serve.formats.plain import PLAIN
from transduce.serve.markup_line import Element, MarkupLine


def written(content: bytes, extension: str, translate: Callable[[str], str] = str) -> bytes:
    """Return a file with its texts translated, without an alignment."""
    file = read_file(content, extension, f"in.{extension}")
    pieces = [part if isinstance(part, str) else part.write(translate(part.line), None) for part in file.document]
    return file.write(pieces)


def texts(source: str, extension: str) -> list[str]:
    return [part.line for part in lines_of(read_file(source.encode(), extension, "in").document)]


SRT = "1\n00:00:01,000 --> 00:00:02,500\n{}\n\n2\n00:00:03,000 --> 00:00:04,000 X1:1\n{}\n"
VTT = "WEBVTT\n\nNOTE a\n\nSTYLE\n::cue {{}}\n\nid\n00:01.000 --> 00:02.000 align:left\n{}\n"
PO = 'msgid ""\nmsgstr "Language: de\\n"\n\n#: a.c:1\nmsgctxt "c"\nmsgid {}\nmsgstr {}\n\n#~ msgid "x"\n#~ msgstr ""\n'
MARKDOWN = """---
code: 1
---
# A *b* #

Some ***strong*** ~~text~~ `x` and [a *link*](b.c/d),
wrapped 2 \\* 3  \nhard `x` [b.c/d] <http://b.c/d>.

1. 1
   c
- [ ] d
> e
> f

| g | 1 |
|---|:-:|
| h \\| i | **j** |

```
code
```

[b.c/d]: b.c/d
"""
WRAPPED = (
    "Title\n\nThis line is as long as the width of the text\nallows, and it goes on here.\n\n  - an item\n12. more\n"
)


@pytest.mark.parametrize(
    ("extension", "source", "target"),
    [
        ("txt", WRAPPED, WRAPPED.upper()),
        ("txt", "a\r\n\r\n b \t\rc", "A\r\n\r\n B \t\rC"),
        ("txt", "\ta b \t\tc\td. e\n- f     12   g\t\n", "\tA B \t\tC\tD. E\n- F     12   G\t\n"),
        ("srt", SRT.format("<i>a</i>\tb", "a   b\n- c\td"), SRT.format("<i>A</i>\tB", "A   B\n- C\tD")),
        (
            "srt",
            SRT.format("<i>a b,\nc</i> & d", "- a\n- {\\an8}b < c"),
            SRT.format("<i>A B,\nC</i> & D", "- A\n- {\\an8}B < C"),
        ),
        ("srt", SRT.format("a\n\nb", "12"), SRT.format("A\n\nB", "12")),
        ("vtt", VTT.format("<v Al>a &amp; <b>b</b>\nc"), VTT.format("<v Al>A &amp; <b>B</b>\nC")),
        (
            "json",
            '{"a": ["b\\u00e9\\nc", 1, true], "d" : {"e": "f"}}',
            '{"a": ["B\\u00c9\\nC", 1, true], "d" : {"e": "F"}}',
        ),
        ("json", '["https://a.bc/d", "{name}", "é \\/", ""]', '["https://a.bc/d", "{name}", "É /", ""]'),
        ("json", '["<p>a</p><p>b</p>", "A&T <b>b</b>"]', '["<p>A</p><p>B</p>", "<b>A&T B</b>"]'),
        (
            "json",
            r'["<p>a<\/p><p class=\"r\">\u00E9 c<\/p>"]',
            r'["<p>A<\/p><p class=\"r\">\u00c9 C<\/p>"]',
        ),
        (
            "json",
            r'["\u003cp\u003e\u00e9\u003c\/p\u003e\u003cp\u003ea\u003c\/p\u003e"]',
            r'["\u003cp\u003e\u00c9\u003c\/p\u003e\u003cp\u003eA\u003c\/p\u003e"]',
        ),
        ("json", r'["\ud83d\ude00 <p>a<\/p><p>2<\/p>"]', r'["\ud83d\ude00 <p>A<\/p><p>2<\/p>"]'),
        ("po", PO.format('"a \\"b\\"\\n"\n"c"', '""'), PO.format('"a \\"b\\"\\n"\n"c"', '""\n"A \\"B\\"\\n"\n"C"')),
        ("po", PO.format('"a"', '"b"'), PO.format('"a"', '"b"')),
        (
            "po",
            'msgid "a dog"\nmsgid_plural "dogs"\nmsgstr[0] ""\nmsgstr[1] ""\n',
            'msgid "a dog"\nmsgid_plural "dogs"\nmsgstr[0] "A DOG"\nmsgstr[1] "DOGS"\n',
        ),
        (
            "md",
            MARKDOWN,
            MARKDOWN.upper()
            .replace("`X`", "`x`")
            .replace("HTTP://", "http://")
            .replace("B.C/D", "b.c/d")
            .replace("CODE", "code"),
        ),
        ("html", "<title>a</title><style>b</style><p>a &amp; b\n", "<title>A</title><style>b</style><p>A &amp; B\n"),
    ],
)
def test_only_texts_change(extension: str, source: str, target: str) -> None:
    assert written(source.encode(), extension, str.upper).decode() == target
    if extension != "po":
        assert written(source.encode(), extension) == source.encode()


def test_tabs_and_runs_of_spaces_are_between_columns() -> None:
    assert texts("Apple\t3\tred\nA dog.  A cat    sits", "txt") == ["Apple\n3\nred", "A dog. A cat\nsits"]
    outputs = {"Apfel\n3\nrot": "Apfel\t3 \trot", "Apfel 3 rot": "Apfel\t3 \trot", "Apfel": "Apfel\t \t"}
    for output, expected in outputs.items():
        assert written(b"Apple\t3 \tred", "txt", lambda _, output=output: output).decode() == expected


def test_lines_that_were_wrapped_are_one_text() -> None:
    assert "This line is as long as the width of the text allows, and it goes on here." in texts(WRAPPED, "txt")
    assert texts("A dog runs in the park of the old town.\nA cat sits.", "txt") == [
        "A dog runs in the park of the old town.",
        "A cat sits.",
    ]
    assert texts(SRT.format("a dog\nruns", "It ends.\nIt begins"), "srt") == ["a dog runs", "It ends.", "It begins"]


@pytest.mark.parametrize(
    "lines",
    [
        ["Annual report of the city council for the year 2023", "Parks and gardens", "Schools"],
        ["Annual report of the city council for the year 2023", "Parks and gardens"],
        ["Report of the city council", "", "Annual report of the city council for the year 2023", "Parks", "1 school"],
    ],
)
def test_each_line_of_a_list_is_a_text(lines: list[str]) -> None:
    assert texts("\n".join(lines), "txt") == [line for line in lines if line]


def test_wrapped_text_under_a_heading_is_one_text() -> None:
    body = "In summer, all of the parks of the City of London are open every day, and on Mondays " * 3
    lines = textwrap.wrap(body, 45)
    assert len(lines) == 6 and texts("\n".join(["On Parks", *lines]), "txt") == ["On Parks", body.strip()]


def test_a_dash_or_a_number_after_a_tag_is_part_of_the_sentence() -> None:
    source = SRT.format("<i>Titanic</i> – a film\n<i>- Yes</i>", "<b>Nr</b> 3. <i> - a.</i>\n<i><b>No</b> - no</i>")
    assert texts(source, "srt") == ["Titanic – a film", "Yes", "Nr 3. - a.", "No - no"]


def test_wrapped_lines_keep_their_indents() -> None:
    source = "    This line is as long as the width of the text\n    allows, and it goes\n"
    assert written(source.encode(), "txt", str.upper).decode() == source.upper()


def test_a_translation_without_spaces_keeps_its_breaks() -> None:
    output = written(
        SRT.format("a dog\nruns", "b").encode(), "srt", lambda line: {"a dog runs": "小狗在跑"}.get(line, line)
    )
    assert output.decode() == SRT.format("小狗\n在跑", "b")
    for target, expected in (("姓名日期", "姓名<tab/>日期"), ("Datum", "Datum<tab/>"), ("Der Tag", "Der<tab/>Tag")):
        line = MarkupLine("Name Date", Element("", 0), "Name<tab/>Date", PLAIN, [(4, "<tab/>")])
        assert line.write(target, None) == expected


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("- foo is here\n\tand bar is there\n", "- FOO IS HERE\n\tAND BAR IS THERE\n"),
        ("---\n---\n# a\n\nb\n---\n", "---\n---\n# A\n\nB\n---\n"),
        ("---\na: b\n---\nc\n", "---\na: b\n---\nC\n"),
        ('+++\na = "b"\n---\n+++\nc\n\n+++\n', '+++\na = "b"\n---\n+++\nC\n\n+++\n'),
        ("&amp;lt; a & b\n", "\\&LT; A & B\n"),
        ('a [the guide](u "x](y z") b\n', 'A [THE GUIDE](u "x](y z") B\n'),
        ("[a [b] c](u) [d]\n\n[d]: e\n", "[A \\[B\\] C](u) [d]\n\n[d]: e\n"),
        ("a [b *c*][d] [d] [d][] [e\\]][d]\n\n[d]: e\n", "A [B *C*][d] [d] [d][] [E\\]][d]\n\n[d]: e\n"),
        ("a <code>b *c* <code>d</code> </code>, <i>e</i>\n", "A <code>b *c* <code>d</code> </code>, <i>E</i>\n"),
        ('a <b translate="no">b\n*c*</b> d <code>e *f*\n', 'A <b translate="no">b\n*c*</b> D <code>e *f*\n'),
        ("a <script>b</script> <code/> c\n", "A <script>b</script> <code/> C\n"),
        ("a[^n] b[^z]\n\n[^n]: word\n\n    *c* d\n\ne\n", "A[^n] B[^z]\n\n[^n]: WORD\n\n    *C* D\n\nE\n"),
    ],
)
def test_marks_of_markdown_stay(source: str, target: str) -> None:
    assert written(source.encode(), "md", str.upper).decode() == target
    assert written(source.encode(), "md") == source.encode()


@pytest.mark.parametrize("mark", ["-", "+", "#", "##", "===", "---", "12.", "3)", ">"])
def test_a_mark_at_the_start_of_a_wrapped_line_is_text(mark: str) -> None:
    output = written(b"one two\nthree\n", "md", lambda _: f"eins zwei {mark} ja").decode()
    (start, _), (line, _) = plain.lines_of(output)
    assert start == "eins zwei" and line.replace("\\", "") == f"{mark} ja" and "\\" in line


@pytest.mark.parametrize("extension", ["txt", "md", "html", "json"])
def test_a_text_whose_translation_is_empty_stays(extension: str) -> None:
    content = b'["a <b>b</b>"]' if extension == "json" else b"a <b>b</b>\n"
    for blank in ("", " ", "\u200b"):
        assert written(content, extension, lambda _, blank=blank: blank) == content


def test_a_longer_translation_is_wrapped_at_the_same_share() -> None:
    source = SRT.format("one two three four,\nfive six seven eight", "a")
    output = written(source.encode(), "srt", lambda line: re.sub(r"(\w+)", r"\1 \1", line)).decode()
    assert "one one two two three three four four,\nfive five six" in output


@pytest.mark.parametrize("extension", [name for name in MODULES if name != "po"])
@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 1 << 32), text=st.text(max_size=60))
def test_a_file_without_a_change_is_the_same_file(extension: str, seed: int, text: str) -> None:
    """Files of random bits of syntax: whatever is read is written again, byte for byte."""
    rng = random.Random(seed)
    bits = [
        "<i>",
        "</i>",
        "<b",
        "-->",
        "\n",
        "\r\n",
        "\n\n",
        "- ",
        "&amp;",
        '"',
        "\\",
        "a b",
        "c.",
        "{\\an8}",
        " ",
        text,
    ]
    body = "".join(rng.choices(bits, k=rng.randint(0, 12)))
    source = {"srt": SRT.format("a", body), "vtt": VTT.format(body), "json": json.dumps({body: [body, 1]})}
    content = rng.choice(["", "\ufeff"]).encode() + source.get(extension, body).encode(errors="replace")
    try:
        assert written(content, extension) == content
    except UserError as error:
        assert str(error).startswith("in.")


@pytest.mark.parametrize("content", [b"<i> </i>1 a", b"<i> <img></i>1 a", b"1 a<img><i> <img> </i>"])
def test_white_space_of_an_element_at_the_edge_stays(content: bytes) -> None:
    assert written(content, "html") == content


def upper_values(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: upper_values(each) for key, each in value.items()}
    return [upper_values(each) for each in value] if isinstance(value, list) else value.upper()


STRINGS = st.text(st.sampled_from('ab "\\\n\té'), max_size=8)


@settings(max_examples=40, deadline=None)
@given(
    value=st.recursive(STRINGS, lambda inner: st.lists(inner) | st.dictionaries(STRINGS, inner), max_leaves=6),
    indent=st.sampled_from([None, 2]),
    is_ascii=st.booleans(),
)
def test_all_values_of_json_are_texts(value: Any, indent: int | None, is_ascii: bool) -> None:
    content = json.dumps(value, indent=indent, ensure_ascii=is_ascii).encode()
    assert json.loads(written(content, "json", str.upper)) == upper_values(value)


@settings(max_examples=40, deadline=None)
@given(source=st.text(st.sampled_from('ab "\\\n\té'), max_size=8).filter(lambda text: text.strip()))
def test_a_message_of_gettext_gets_its_translation(source: str) -> None:
    quoted = '"' + source.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t") + '"'
    content = f'msgid {quoted}\nmsgstr ""\n'.encode()
    message = read_po(io.BytesIO(written(content, "po", str.upper))).get(source)
    assert message is not None and message.string == source.upper()


def test_all_escapes_of_gettext_are_read_and_written() -> None:
    source = r'msgid "\033[1mError\x1b[0m\a \303\251\v"' + '\nmsgstr ""\n'
    output = written(source.encode(), "po", lambda line: line.replace("Error", "Fehler")).decode()
    assert output.endswith('msgstr "\\033[1mFehler\\033[0m\\a é\\v"\n')


@pytest.mark.parametrize(
    ("extension", "content", "message"),
    [
        ("txt", "a\né".encode("latin-1"), "in.txt:2: expected UTF-8, not the byte 0xe9; convert the file: iconv"),
        ("txt", "a".encode("utf-16"), "iconv -f UTF-16"),
        ("txt", "a".encode("utf-16-le"), "in.txt:1: expected text in UTF-8, not the character NUL"),
        ("txt", b"a" * (MOST_BYTES + 1), "expected at most 4,194,304 bytes of text, not 4,194,305; split the file"),
        ("txt", b"\n" * 300_001, "in.txt: expected at most 300,000 lines"),
        ("html", b"PK\x03\x04", "expected text, not zip"),
        (
            "md",
            b"a\n\n" + b"[" * 1_001,
            "in.md:3: expected a paragraph of at most 10,000 characters and 1,000 brackets",
        ),
        ("srt", b"a dog", "in.srt:1: expected a number, and times such as 00:00:01,000 --> 00:00:02,000"),
        ("srt", b"1\n0:1 --> 2\na", "in.srt:2: expected times such as"),
        ("vtt", b"1\n", "in.vtt:1: expected WEBVTT"),
        ("json", b"{'a': 1}", "in.json: expected JSON; correct it"),
        ("json", b"[" * 100_000 + b"]" * 100_000, "in.json: expected less deep nesting; flatten the file"),
        ("po", b'msgid "a" x\nmsgstr ""', "in.po:1: expected a line of PO"),
        ("po", b'msgid "a"b"\nmsgstr ""', "in.po:1: expected one string in quotation marks"),
        ("po", b'msgstr "a"', "in.po:1: expected msgid"),
        ("po", b'msgid "a"\nmsgstr[0] ""', "in.po:2: expected msgid, and of a plural msgid_plural"),
        (
            "po",
            b'msgid "a"\nmsgid_plural "b"\nmsgstr[10] ""',
            "in.po:3: expected msgstr[0] to msgstr[9], not msgstr[10]; remove this form",
        ),
        ("html", b"<p>\n<meta charset='ISO-8859-1'>", "in.html:2: expected the charset utf-8, not iso-8859-1; save"),
        (
            "htm",
            b'<meta http-equiv="Content-Type" content="text/html; charset=us-ascii">',
            "in.htm:1: expected the charset utf-8, not us-ascii",
        ),
        ("html", b'<?xml version="1.0" encoding="latin1"?><p>a', "in.html:1: expected the charset utf-8, not latin1"),
        (
            "po",
            b'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=CHARSET\\n"',
            "in.po:2: expected charset=UTF-8, not CHARSET; set charset=UTF-8 in the header",
        ),
    ],
    ids=range(21),
)
def test_another_file_is_one_mistake(extension: str, content: bytes, message: str) -> None:
    with pytest.raises(UserError) as error:
        read_file(content, extension, f"in.{extension}")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("extension", "content"),
    [
        ("html", b'<meta charset="UTF-8"><meta name="description" content="about charset=latin1"><p>a'),
        ("html", b'<meta http-equiv=content-type content="text/html; charset=utf-8"><p>a'),
        ("po", b'msgid ""\nmsgstr "Content-Type: text/plain; charset=utf-8\\n"\n\nmsgid "a"\nmsgstr ""\n'),
    ],
)
def test_a_file_that_declares_utf_8_is_read(extension: str, content: bytes) -> None:
    assert texts(content.decode(), extension) == ["a"]


@pytest.mark.parametrize(
    ("page", "target"),
    [
        ("<p>Gr&uuml;n <b>a</b> b", "<p><b>&lt;gr&#252;n &#32160;</b>"),
        ("<p>Grün <b>a</b> b", "<p><b>&lt;grün 綠</b>"),
        ("<meta charset=utf-8><p>Gr&uuml;n <b>a</b> b", "<meta charset=utf-8><p><b>&lt;grün 綠</b>"),
    ],
)
def test_a_page_in_ascii_that_declares_no_charset_stays_in_ascii(page: str, target: str) -> None:
    assert written(page.encode(), "html", lambda _: "<grün 綠").decode() == target
    assert written(page.encode(), "html").decode() == page


@pytest.mark.parametrize(
    "content",
    [
        b"-->" + b"<!--" * 60_000,
        b"<b>" * 60_000,
        b"<pre>" * 60_000,
        b"<a x='" * 60_000,
        b"<pre><p translate=yes>" * 9_000,
    ],
    ids=["comments", "tags", "elements", "quotes", "nesting"],
)
def test_hostile_html_takes_time_in_proportion_to_its_size(content: bytes) -> None:
    assert written(content, "html") == content  # 0.1 s; minutes if each tag were looked for in all of the rest


@pytest.mark.parametrize(
    ("extension", "content"),
    [
        ("html", b"<p " + b"a=b " * 10_000 + b">a</p>"),
        ("html", b"<p " + b"".join(b"a%d=b " % i for i in range(10_000)) + b">a</p>"),
        ("po", b'msgid "' + b'\\"' * 10_000 + b'"\nmsgstr ""\n'),
        ("json", b'["' + b"\\\\" * 10_000 + b'"]'),
    ],
    ids=["attributes", "names of attributes", "escapes of gettext", "escapes of JSON"],
)
def test_hostile_files_take_memory_in_proportion_to_their_size(extension: str, content: bytes) -> None:
    tracemalloc.start()
    try:
        written(content, extension, lambda line: line + " ")
        assert tracemalloc.get_traced_memory()[1] < 25 * len(content)  # so 100 MB for the largest file
    finally:
        tracemalloc.stop()


def test_too_many_texts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MOST_TEXTS", 10)
    with pytest.raises(UserError, match="in.json: expected at most 10 texts; split the file"):
        written(b'["a","a","a","a","a","a","a","a","a","a","a","a","a","a","a","a"]', "json")


def test_an_unknown_extension_is_refused() -> None:
    with pytest.raises(UserError, match="--file=a.doc: expected a name that ends with .txt, .*; convert the file"):
        extension_of("a.doc", "--file=a.doc")
