"""Word and OpenDocument: every member and every style stays, and a hostile archive is one mistake."""

import io
import re
import tracemalloc
import zipfile
from collections.abc import Callable
from functools import partial
from xml.dom import minidom

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.measured import measured

from transduce.decoding.hypothesis import AlignedWord
from transduce.errors import UserError
from transduce.serve.documents import lines_of
from transduce.serve.formats import archives
from transduce.serve.formats.files import read_file

NAMES = {"docx": "word/document.xml", "odt": "content.xml"}
WORD = '<?xml version="1.0"?>\n<w:document xmlns:w="w"><w:body>{}</w:body></w:document>'
OPEN = '<o:d xmlns:o="o" xmlns:text="t"><text:h>a</text:h><!-- b -->{}</o:d>'
DOCTYPE = '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'


def archive(extension: str, xml: str | bytes, *others: tuple[str, bytes], level: int = zipfile.ZIP_DEFLATED) -> bytes:
    """Return a document with this XML, and other members before and behind it."""
    output = io.BytesIO()
    with zipfile.ZipFile(output, "w", level) as file:
        file.writestr("mimetype", b"application/x", zipfile.ZIP_STORED)
        file.writestr(NAMES[extension], xml)
        for name, content in others or [("media/a b.png", b"\x00\xff")]:
            file.writestr(name, content)
    return output.getvalue()


def members(content: bytes) -> dict[str, tuple[int, bytes]]:
    with zipfile.ZipFile(io.BytesIO(content)) as file:
        return {info.filename: (info.compress_type, file.read(info)) for info in file.infolist()}


def written(content: bytes, extension: str, translate: Callable[[str], str] = str) -> bytes:
    file = read_file(content, extension, f"in.{extension}")
    pieces = [part if isinstance(part, str) else part.write(translate(part.line), None) for part in file.document]
    return file.write(pieces)


def translated(extension: str, xml: str, translate: Callable[[str], str] = str.upper) -> str:
    output = members(written(archive(extension, xml), extension, translate))[NAMES[extension]][1].decode()
    minidom.parseString(output)  # it is well-formed
    return output


def run(text: str, form: str = "", *, keeps_space: bool = True) -> str:
    space = ' xml:space="preserve"' if keeps_space else ""
    return f"<w:r>{form and f'<w:rPr>{form}</w:rPr>'}<w:t{space}>{text}</w:t></w:r>"


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (run("a b", keeps_space=False), run("A B")),
        (run("a ") + run("b", "<w:b/>") + run(" &amp; c"), run("A ") + run("B", "<w:b/>") + run(" &amp; C")),
        (f"<w:pPr/>{run('a ')}<w:proofErr/>{run('b')}", f"<w:pPr/>{run('A ')}<w:proofErr/>{run('B')}"),
        (
            f"{run('a ')}<w:hyperlink>{run('b', '<w:u/>')}</w:hyperlink>",
            f"{run('A ')}<w:hyperlink>{run('B', '<w:u/>')}</w:hyperlink>",
        ),
        (
            "<w:r><w:t>a</w:t><w:br/><w:t>b</w:t></w:r><w:r><w:drawing/></w:r>",
            run("A").replace("</w:r>", "<w:br/>") + run("B").removeprefix("<w:r>") + "<w:r><w:drawing/></w:r>",
        ),
        (run("12") + "<w:r><w:instrText>a</w:instrText></w:r>", run("12") + "<w:r><w:instrText>a</w:instrText></w:r>"),
        (
            f"{run('a')}<w:r><w:pict></w:p><w:p>{run('b')}</w:p><w:p></w:pict></w:r>{run('c')}".replace(
                "</w:p><w:p>" + run("b") + "</w:p><w:p>", "<w:p>" + run("b") + "</w:p>"
            ),
            f"{run('A')}<w:r><w:pict><w:p>{run('B')}</w:p></w:pict></w:r>{run('C')}",
        ),
    ],
    ids=["run", "format", "mark", "link", "break", "field", "text box"],
)
def test_the_runs_of_word_stay(source: str, target: str) -> None:
    xml = WORD.format(f"<w:p>{source}</w:p>")
    assert translated("docx", xml) == WORD.format(f"<w:p>{target}</w:p>")
    assert translated("docx", xml, str) == xml


def test_a_format_goes_with_its_word() -> None:
    xml = WORD.format(f"<w:p>{run('a ')}{run('b', '<w:b/>')}{run(' c')}</w:p>")
    (part,) = lines_of(read_file(archive("docx", xml), "docx", "in").document)
    assert part.line == "a b c" and part.needs_alignment
    alignment = (AlignedWord("X", 0, "b", 2), AlignedWord("Y", 2, "a", 0), AlignedWord("Z", 4, "c", 4))
    assert part.write("X Y Z", alignment) == run("X", "<w:b/>") + run(" Y Z")


@pytest.mark.parametrize(
    ("source", "target"),
    [
        (
            '<text:p>a <text:span text:style-name="T">b</text:span><text:line-break/>c</text:p>',
            '<text:p>A <text:span text:style-name="T">B</text:span><text:line-break/>C</text:p>',
        ),
        (
            "<text:p>a <text:date>b</text:date> c<text:note><text:p>d</text:p></text:note> e</text:p>",
            "<text:p>A <text:date>b</text:date> C<text:note><text:p>D</text:p></text:note> E</text:p>",
        ),
        ("<text:p><text:tab/>a<text:bookmark/></text:p>b", "<text:p><text:tab/>A<text:bookmark/></text:p>b"),
    ],
    ids=["span", "field", "marks"],
)
def test_the_spans_of_opendocument_stay(source: str, target: str) -> None:
    assert translated("odt", OPEN.format(source)) == OPEN.format(target).replace("h>a<", "h>A<")
    assert translated("odt", OPEN.format(source), str) == OPEN.format(source)


def test_columns_are_translated_one_by_one() -> None:
    """A tab ends a column. A line break stays in its column, and a constrained line keeps its tabs as line breaks."""
    columns = f"{run('a b')}<w:r><w:tab/><w:tab/><w:t>12</w:t><w:tab/></w:r>{run('c d')}<w:r><w:br/></w:r>{run('e')}"
    xml = WORD.format(f"<w:p>{columns}</w:p>")
    (part,) = lines_of(read_file(archive("docx", xml), "docx", "in").document)
    assert part.line == "a b\n12\nc d e"
    texts = {"A\n12\nC D E": ["A", "12", "C D", "E"], "A 12 C D": ["A", "12", "C", "D"]}
    for translation, expected in texts.items():
        assert re.findall(r">([^<>]+)<", part.write(translation, None)) == expected
        assert re.findall(r"<w:(?:tab|br)/>", part.write(translation, None)) == ["<w:tab/>"] * 3 + ["<w:br/>"]
    xml = OPEN.format("<text:p>b<text:tab/> c</text:p>")
    _, part = lines_of(read_file(archive("odt", xml), "odt", "in").document)
    assert (part.line, part.write("B\nC", None)) == ("b\nc", "B<text:tab/>C")


TEXTS = st.text(st.sampled_from("ab .&<é\n"), max_size=6)
FORMATS = st.sampled_from(["", "<w:b/>", "<w:i/>"])
LINKS = st.sampled_from(
    ["{}", "<w:hyperlink>{}</w:hyperlink>", "{}<w:bookmarkEnd/>", "<w:ins><w:smartTag>{}</w:smartTag></w:ins>"]
)


@settings(max_examples=60, deadline=None)
@given(runs=st.lists(st.tuples(TEXTS, FORMATS, LINKS), max_size=6), factor=st.integers(0, 3))
def test_any_runs_give_all_of_the_translation(runs: list[tuple[str, str, str]], factor: int) -> None:
    escaped = [(text.replace("&", "&amp;").replace("<", "&lt;"), form, link) for text, form, link in runs]
    xml = WORD.format(f"<w:p>{''.join(link.format(run(text, form)) for text, form, link in escaped)}</w:p>")
    assert translated("docx", xml, str) == xml
    lines: list[str] = []

    def translate(line: str) -> str:
        lines.append(" ".join(["x", "y", "z"][:factor]) or "w")
        return lines[-1]

    output = translated("docx", xml, translate)
    texts = "".join(re.findall(r"<w:t(?: [^>]*)?>([^<]*)</w:t>", output))
    assert sum(map(len, lines)) == 0 or all(line.replace(" ", "") in texts.replace(" ", "") for line in lines)
    assert output.count("<w:hyperlink>") == xml.count("<w:hyperlink>")
    assert output.count("<w:bookmarkEnd/>") == xml.count("<w:bookmarkEnd/>")


def test_all_other_members_stay() -> None:
    content = archive("odt", OPEN.format(""), ("styles.xml", b"<a/>"), ("Pictures/1.png", b"\0" * 99), ("b", b""))
    assert members(written(content, "odt")) == members(content)
    before, after = members(content), members(written(content, "odt", str.upper))
    assert [*before] == [*after]
    assert {name for name in before if before[name] != after[name]} == {"content.xml"}


def test_a_large_member_is_copied_in_blocks() -> None:
    file = read_file(archive("docx", WORD, ("media/a", bytes(16 << 20))), "docx", "in.docx")
    tracemalloc.start()
    try:
        file.write([part if isinstance(part, str) else part.line for part in file.document])
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def encrypted(content: bytes) -> bytes:
    """Return an archive whose members say that they have a password."""
    return content.replace(b"PK\x01\x02\x14\x03\x14\x00\x00", b"PK\x01\x02\x14\x03\x14\x00\x01")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"a dog",
            "in.docx: expected a zip archive; the file is damaged, or has another format (File is not a zip file)",
        ),
        (archive("docx", WORD)[:-40], "in.docx: expected a zip archive"),
        (archive("docx", WORD)[:100] + b"\0" * 9 + archive("docx", WORD)[109:], "in.docx: expected a zip archive"),
        (
            archive("docx", WORD, ("a", b"bcdefgh"), level=0).replace(b"bcd", b"bxd"),
            "the file is damaged, or has another",
        ),
        (archives.OLE + b"\0" * 99, "in.docx: expected a file without a password, and not of Word 97"),
        (encrypted(archive("docx", WORD)), "in.docx: expected a file without a password; save it again without"),
        (archive("odt", OPEN), "in.docx: expected an archive with word/document.xml; correct the extension"),
        (archive("docx", WORD, ("../../a", b"")), "in.docx: expected names within the archive, not '../../a'"),
        (archive("docx", WORD, ("/a", b"")), "expected names within the archive, not '/a'"),
        (archive("docx", WORD, ("C:\\a", b"")), "expected names within the archive"),
        (archive("docx", WORD, level=zipfile.ZIP_LZMA), "expected deflate in the archive"),
        (archive("docx", DOCTYPE), "in.docx: expected word/document.xml without a DOCTYPE; save the file again"),
        (archive("docx", "<a>"), "in.docx: expected XML in word/document.xml; the file is damaged (no element found"),
        (archive("docx", "<a>" * 600 + "</a>" * 600), "expected at most 500 nested elements in word/document.xml"),
        (archive("docx", '<?xml version="1.0" encoding="latin-1"?><a>é</a>'.encode("latin-1")), "in UTF-8"),
        (archive("docx", b"<a>" + b" " * archives.MOST_XML), "expected at most 16,777,216 bytes in word/document.xml"),
        (archive("docx", WORD, *((f"{i}", b"") for i in range(5_000))), "expected at most 5,000 files in the archive"),
    ],
    ids=range(17),
)
def test_another_file_is_one_mistake(content: bytes, message: str) -> None:
    with pytest.raises(UserError) as error:
        read_file(content, "docx", "in.docx")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_an_encrypted_opendocument_is_refused() -> None:
    content = archive("odt", b"\0\xff", ("META-INF/manifest.xml", b"<m><encryption-data/></m>"))
    with pytest.raises(UserError, match="in.odt: expected a file without a password"):
        read_file(content, "odt", "in.odt")


def test_an_archive_of_much_that_is_unpacked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_UNPACKED", 1_000)
    with pytest.raises(UserError, match="expected at most 1,000 bytes in the archive, unpacked"):
        read_file(archive("docx", WORD, ("a", b"\0" * 2_000)), "docx", "in.docx")


def test_all_members_with_text_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_XML", 1_000)
    header = ("word/header1.xml", b"<a>" + b" " * 600 + b"</a>")
    read_file(archive("docx", WORD, header), "docx", "in.docx")
    with pytest.raises(UserError, match=r"at most 1,000 bytes in word/document.xml and other XML with text, unpacked"):
        read_file(archive("docx", WORD, header, ("word/header2.xml", header[1])), "docx", "in.docx")


def test_the_tags_of_all_members_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_TAGS", 10)
    header = ("word/header1.xml", b"<a><b/><b/><b/></a>")
    read_file(archive("docx", "<a><b/><b/><b/></a>", header), "docx", "in.docx")
    with pytest.raises(UserError, match="in.docx: expected at most 10 tags in the XML with text; split the file"):
        read_file(archive("docx", "<a><b/><b/><b/><b/></a>", header), "docx", "in.docx")


RUN = "<w:r><w:t>a</w:t></w:r>"
WORST = {
    "runs": ("docx", f"<w:p>{RUN * 240}</w:p>"),
    "long paragraphs": ("docx", f"<w:p>{RUN * 400}</w:p>"),
    "links": ("docx", f"<w:p>{f'<w:h>{RUN}</w:h>' * 120}</w:p>"),
    "marks": ("docx", "<w:p>" + "<w:r><w:t>a</w:t><w:z/></w:r>" * 160 + "</w:p>"),
    "spans": ("odt", "<text:p>" + "<text:span>b c</text:span>" * 200 + "</text:p>"),
    "spaces": ("odt", "<text:p>" + "<text:s/>a" * 400 + "</text:p>"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WORST)
def test_as_many_tags_as_may_be_take_limited_time_and_memory(name: str) -> None:
    extension, paragraph = WORST[name]
    body = paragraph * ((archives.MOST_TAGS - 20) // paragraph.count("<"))
    content = archive(extension, {"docx": WORD, "odt": OPEN}[extension].replace("{}", body))
    ending, seconds, size = measured(partial(read_file, content, extension, "in"), 60)
    assert ending == "done" or "expected at most 100,000 texts" in ending, ending[:200]
    assert seconds < 10 and size < 200 << 20, (ending[:200], seconds, size)


@pytest.mark.parametrize("text", ["</x></y></z></q>", "a <b> c"])
def test_cdata_is_refused(text: str) -> None:
    content = archive("odt", OPEN.format(f"<text:p><![CDATA[{text}]]></text:p>"))
    with pytest.raises(UserError, match="in.odt: expected content.xml without CDATA sections; save the file again"):
        read_file(content, "odt", "in.odt")


@pytest.mark.parametrize("encoding", ["ISO-8859-1", "US-ASCII"])
def test_another_declared_encoding_is_refused(encoding: str) -> None:
    xml = WORD.format(f"<w:p>{run('cheese')}</w:p>")
    declared = xml.replace('"1.0"', f'"1.0" encoding="{encoding}"')
    with pytest.raises(UserError, match=f"expected word/document.xml in UTF-8, not {encoding}; save the file again"):
        read_file(archive("docx", declared), "docx", "in.docx")
    read_file(archive("docx", xml.replace('"1.0"', '"1.0" encoding="utf-8"')), "docx", "in.docx")


def field(text: str) -> str:
    begin, separate, end = (f'<w:r><w:fldChar w:fldCharType="{name}"/></w:r>' for name in ("begin", "separate", "end"))
    return f"{begin}<w:r><w:instrText>REF</w:instrText></w:r>{separate}{run(text)}{end}"


SIMPLE = f'<w:fldSimple w:instr="REF a">{run("1")}</w:fldSimple>'
CONTROL = f"<w:sdt><w:sdtPr/><w:sdtContent>{run('John')}</w:sdtContent></w:sdt>"


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        (f"{run('See Figure ')}{field('1')}{run(' now')}", ["See Figure", "1", "now"]),
        (f"{run('Page ')}{field('1')}{run(' of ')}{field('2')}", ["Page", "1", "of", "2"]),
        (f"{run('Dear ')}{CONTROL}{run(' ok')}", ["Dear", "John", "ok"]),
        (f"{run('See Table ')}{SIMPLE}{run(' now')}", ["See Table", "1", "now"]),
        (f"{SIMPLE}{run(' or more')}", ["1", "or more"]),
    ],
    ids=["field", "fields", "control", "simple field", "first simple field"],
)
def test_fields_and_controls_stay_where_they_are(source: str, lines: list[str]) -> None:
    xml = WORD.format(f"<w:p>{source}</w:p>")
    assert [part.line for part in lines_of(read_file(archive("docx", xml), "docx", "in").document)] == lines
    expected = re.sub(">([^<]+)</w:t>", lambda match: match[0].replace(match[1], match[1].upper()), xml)
    assert translated("docx", xml) == expected


TRACKED = "<w:b/><w:rPrChange><w:rPr><w:i/></w:rPr></w:rPrChange>"
IMAGE = '<w:drawing><w:b c="d"><e/></w:b></w:drawing>'
RUBY = f"<w:ruby><w:rubyPr/><w:rt>{run('r')}</w:rt><w:rubyBase>{run('b')}{run('c')}</w:rubyBase></w:ruby>"


@pytest.mark.parametrize(
    ("source", "line", "target"),
    [
        (
            "<w:r><w:t>Send an e</w:t><w:noBreakHyphen/><w:t>mail to all.</w:t></w:r>",
            "Send an e\u2011mail to all.",
            run("SEND AN E\u2011MAIL TO ALL."),
        ),
        ("<w:r><w:t>cat</w:t><w:softHyphen/><w:t>alog</w:t></w:r>", "catalog", None),
        (f"<w:r><w:t>a dog </w:t>{IMAGE}<w:t> sits</w:t></w:r>", "a dog sits", None),
        (f"<w:r><w:t>a dog</w:t>{IMAGE}</w:r>", "a dog", None),
        (f"{run('a dog ')}<w:r>{RUBY}</w:r>{run(' sits')}", "a dog sits", None),
        (f"<w:r>{RUBY}<w:t>a dog</w:t></w:r>", "a dog", None),
        (run("a dog", TRACKED), "a dog", run("A DOG", TRACKED)),
        (run("a ") + run("b", TRACKED) + run(" c d"), "a b c d", run("A ") + run("B", TRACKED) + run(" C D")),
    ],
    ids=["hyphen", "soft hyphen", "image", "last image", "ruby", "first ruby", "tracked", "tracked word"],
)
def test_a_run_with_more_than_text_is_translated(source: str, line: str, target: str | None) -> None:
    xml = WORD.format(f"<w:p>{source}</w:p>")
    (part,) = lines_of(read_file(archive("docx", xml), "docx", "in").document)
    assert part.line == line
    assert translated("docx", xml, str) == xml
    output = translated("docx", xml)
    assert target is None or output == WORD.format(f"<w:p>{target}</w:p>")
    assert all(output.count(element) == xml.count(element) for element in ("<w:softHyphen/>", IMAGE, RUBY))
    texts = re.findall("<w:t [^>]*>([^<]*)<", output.replace(RUBY, ""))
    assert "".join(texts).replace("  ", " ") == line.upper()


def test_many_words_with_ruby_take_little_time() -> None:
    """In a run that a text box cuts, each ruby element is read once."""
    xml = WORD.format(f"<w:p><w:r>{'<w:ruby></w:ruby>' * 10_000}<w:t>a</w:t><w:p></w:p></w:r>{run('b')}</w:p>")
    assert "B</w:t>" in translated("docx", xml)
