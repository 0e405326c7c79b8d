"""HTML: tags in are tags out, nesting is sound, and inline elements are around the right words."""

import random
import re
from collections import Counter
from dataclasses import replace

import pytest

from transduce.decoding.hypothesis import AlignedWord, Alignment
from transduce.serve.markup import VOID, html_document

TAG = re.compile(r"<!--.*?-->|</?[a-z][^<>]*>", re.DOTALL)


def reversal(line: str) -> tuple[str, Alignment]:
    """Return the words of a line in reverse order, and their alignment."""
    text, aligned = "", []
    for match in reversed([*re.finditer(r"\S+", line)]):
        text += " " if text else ""
        aligned.append(AlignedWord(match.group(), len(text), match.group(), match.start()))
        text += match.group()
    return text, tuple(aligned)


def translated(source: str, *, aligns: bool = True, rng: random.Random | None = None) -> str:
    """Return an HTML fragment with the words of each segment reversed.

    aligns: False gives no alignment. rng: for a wrong alignment, in which words are also missing.
    """
    output = []
    for part in html_document(source):
        if isinstance(part, str):
            output.append(part)
            continue
        text, alignment = reversal(part.line)
        if rng is not None:
            origins = [{"source": word.source, "source_start": word.source_start} for word in alignment]
            alignment = tuple(replace(word, **rng.choice(origins)) for word in alignment if rng.random() < 0.8)
        output.append(part.write(text, alignment if aligns else None))
    return "".join(output)


@pytest.mark.parametrize(
    ("source", "target"),
    [
        ("<p>a <b>b c</b> d</p>", "<p>d <b>c b</b> a</p>"),
        ("<b>a b</b>", "<b>b a</b>"),
        ("<p>a <b>b <i>c</i></b></p>", "<p><b><i>c</i> b</b> a</p>"),
        ("a b<br>c d", "b a<br>d c"),
        ("<ul><li>a b</li> <li>c</li></ul>", "<ul><li>b a</li> <li>c</li></ul>"),
        ("a &amp; b &lt;c", "&lt;c b &amp; a"),
        ("&amp;lt; a", "a &amp;lt;"),
        ("a < b", "b &lt; a"),
        (" \n<p> a\n b </p>\n", " \n<p> b a </p>\n"),
        ("<!-- a b --><p title='x y'>a b</p>", "<!-- a b --><p title='x y'>b a</p>"),
        ("a <code>x y</code> b", "<code>x y</code>b a"),
        ("a <img src=x> b", "<img src=x>b a"),
        ("<pre>a <b>b</b></pre>c d", "<pre>a <b>b</b></pre>d c"),
        ("<script>if (a < b) {}</script>a b", "<script>if (a < b) {}</script>b a"),
        ('<div translate="no">a <div>b</div> c</div>d e', '<div translate="no">a <div>b</div> c</div>e d'),
        ('a <span class="notranslate">x y</span> b', '<span class="notranslate">x y</span>b a'),
        ("<b>a b<p>c d</p></b>", "<b>b a<p>d c</p></b>"),
        ("a <b>b c", "a <b>c b"),
        ("<b>a <i>b</b> c</i>", "<b>a <i>b</b> c</i>"),
        ("", ""),
        ("<p></p>", "<p></p>"),
        ("<a href='x'>a</a><a href='y'>b</a>", "<a href='x'><a href='y'>ab</a></a>"),
    ],
)
def test_html(source: str, target: str) -> None:
    assert translated(source) == target


def test_without_alignment_inline_tags_enclose_the_segment() -> None:
    assert translated("<p>a <b>b</b> <i>c</i> d</p>", aligns=False) == "<p><b><i>d c b a</i></b></p>"
    assert translated("<p><b>a b</b></p>", aligns=False) == "<p><b>b a</b></p>"


def test_only_inner_tags_need_an_alignment() -> None:
    for source, needs in (("<b>a b</b>", False), ("a <b>b</b>", True), ("<img>a b", False), ("a <img> b", True)):
        (part,) = (part for part in html_document(source) if not isinstance(part, str))
        assert part.needs_alignment == needs, source


def fragment(rng: random.Random, depth: int = 0) -> str:
    """Return a random HTML fragment: mostly sound, with some damage."""
    pieces = []
    for _ in range(rng.randint(1, 5)):
        kind = rng.random()
        name = rng.choice("p div li b i a span em code".split())
        if kind < 0.45 or depth > 4:
            pieces.append(" ".join(rng.choice(["a", "b", "c.", "&amp;", "&lt;x&gt;", "ä", "\n"]) for _ in range(3)))
        elif kind < 0.85:
            pieces.append(f'<{name} id="{rng.randrange(9)}">{fragment(rng, depth + 1)}</{name}>')
        elif kind < 0.95:
            pieces.append(rng.choice(["<br>", "<img src='a b'>", "<!-- x -->", "<wbr/>", "<hr>"]))
        else:
            pieces.append(rng.choice([f"<{name}>", f"</{name}>", "<", "a < b", "<!--", "&"]))
    return rng.choice(["", " "]).join(pieces)


def is_sound(markup: str) -> bool:
    """Check that each opening tag has its closing tag, in the right order."""
    stack = []
    for tag in TAG.findall(markup):
        name = re.sub(r"[</>]", "", tag.split()[0])
        if tag.startswith("<!") or name in VOID or tag.endswith("/>"):
            continue
        if not tag.startswith("</"):
            stack.append(name)
        elif not stack or stack.pop() != name:
            return False
    return not stack


def count_of_empty_links(markup: str) -> int:
    """Return the number of links without a visible character, tags aside."""
    texts = re.findall(r"<a [^>]*>((?:(?!</?a[ >]).)*)</a>", markup, re.DOTALL)
    return sum(not TAG.sub("", text).strip() for text in texts)


@pytest.mark.parametrize("alignment", ["right", "none", "wrong"])
@pytest.mark.parametrize("count", [200, pytest.param(2_000, marks=pytest.mark.slow)])
def test_tags_in_are_tags_out_and_soundness_stays(count: int, alignment: str) -> None:
    rng = random.Random(count)
    for _ in range(count):
        source = fragment(rng)
        target = translated(source, aligns=alignment != "none", rng=rng if alignment == "wrong" else None)
        assert Counter(TAG.findall(target)) == Counter(TAG.findall(source)), source
        if is_sound(source):
            assert is_sound(target), (source, target)
        if is_sound(source):
            assert count_of_empty_links(target) <= count_of_empty_links(source), (source, target)


def test_deep_and_long_markup_is_quick() -> None:
    for source in ("<b>" * 3_000, "<b>" * 1_400 + "</b>" * 1_400, "a <img>" * 1_400, "<a '" * 2_500, "<!--" * 2_500):
        assert len(translated(source)) >= len(source)


def test_blank_segments_are_not_translated() -> None:
    document = html_document("<p> a </p><p> </p>&nbsp;<b></b>")
    assert [part.line for part in document if not isinstance(part, str)] == ["a"]
