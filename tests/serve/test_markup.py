"""HTML: tags in are tags out, nesting is sound, and inline elements are around the right words."""

import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest

from transduce.decoding.hypothesis import AlignedWord, Alignment
from transduce.serve.formats.subtitles import read_srt
from transduce.serve.markup import html_document
from transduce.serve.markup_tokens import VOID

TAG = re.compile(r"<!--.*?-->|</?[a-z][^<>]*>", re.DOTALL)


def reversal(line: str, *, keeps_order: bool = False) -> tuple[str, Alignment]:
    """Return the words of a line in reverse order, and the alignment of the words and punctuation marks."""
    text, aligned = "", []
    words = [*re.finditer(r"\S+", line)]
    for match in words if keeps_order else reversed(words):
        text += " " if text else ""
        for word in re.finditer(r"\w+|\W", match.group()):
            aligned.append(
                AlignedWord(word.group(), len(text) + word.start(), word.group(), match.start() + word.start())
            )
        text += match.group()
    return text, tuple(aligned)


def translated(source: str, *, aligns: bool = True, keeps_order: bool = False, rng: random.Random | None = None) -> str:
    """Return an HTML fragment with the words of each segment reversed.

    aligns: False gives no alignment. keeps_order: True leaves the words where they are.
    rng: for a wrong alignment, in which words are also missing.
    """
    output = []
    for part in html_document(source):
        if isinstance(part, str):
            output.append(part)
            continue
        text, alignment = reversal(part.line, keeps_order=keeps_order)
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
        ("a <code>x y</code> b", "<code>x y</code> b a"),
        ("a <img src=x> b", "<img src=x> b a"),
        ('<i translate="no">@x</i> a b', '<i translate="no">@x</i> b a'),
        ("a b <img>", "b a <img>"),
        ("a <code>x</code>, b", "b a <code>x</code>,"),
        ("a (<code>x</code>) b", "b (<code>x</code>) a"),
        ("a<img> b c", "c b a<img>"),
        ("a <i class=icon></i> <a href=y><img></a> b c", "c <i class=icon></i> <a href=y><img></a> b a"),
        ("a <b>b <img></b> c d", "d c <b>b <img></b> a"),
        ("a&nbsp;<code>x</code>&nbsp;b", "<code>x</code> b a"),
        ("a <b> </b> <b>&nbsp;<img></b> b", "<b></b> &nbsp;<b><img></b> b a"),
        ("a<!-- x --> b", "<!-- x -->b a"),
        ("ab<wbr>c d", "d ab<wbr>c"),
        ("<pre>a <b>b</b></pre>c d", "<pre>a <b>b</b></pre>d c"),
        ("<script>if (a < b) {}</script>a b", "<script>if (a < b) {}</script>b a"),
        ('<div translate="no">a <div>b</div> c</div>d e', '<div translate="no">a <div>b</div> c</div>e d'),
        ('a <span class="notranslate">x y</span> b', '<span class="notranslate">x y</span> b a'),
        ('<p class="notranslate-me">a b</p>', '<p class="notranslate-me">b a</p>'),
        ('<p title="see translate=no">a b</p>', '<p title="see translate=no">b a</p>'),
        ("""<p title='class="notranslate"'>a b</p>""", """<p title='class="notranslate"'>b a</p>"""),
        ('<p class="x NoTranslate">a b</p>', '<p class="x NoTranslate">a b</p>'),
        (
            "<div translate=no>a b<p translate=yes>c d</p>e f</div>",
            "<div translate=no>a b<p translate=yes>d c</p>e f</div>",
        ),
        (
            "a b <b class=notranslate>c d <i translate=yes>e f</i></b>",
            "b a <b class=notranslate>c d <i translate=yes>f e</i></b>",
        ),
        ("<code translate=yes>a b</code>", "<code translate=yes>b a</code>"),
        (
            "<div translate=no><style><b translate=yes></style>a b</div>",
            "<div translate=no><style><b translate=yes></style>a b</div>",
        ),
        ("a <ruby>b<rp>(</rp><rt>c<rp>)</rp></ruby> d", "<ruby>b<rp>(</rp><rt>c<rp>)</rp></ruby> d a"),
        ("<b>a b<p>c d</p></b>", "<b>b a<p>d c</p></b>"),
        ("a <b>b c", "a <b>c b"),
        ("<b>a <i>b</b> c</i>", "<b>a <i>b</b> c</i>"),
        ("", ""),
        ("<p></p>", "<p></p>"),
        ("<a href='x'>a b</a><a href='y'>c</a>", "<a href='x'><a href='y'>bc a</a></a>"),
        ("<a href='x'>a</a><a href='y'>b</a>", "<a href='x'>a</a><a href='y'>b</a>"),
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


@pytest.mark.parametrize(
    ("source", "text", "origins", "target"),
    [
        ("a <code>x</code>, and b", "A und B", "a and b", "A <code>x</code> und B"),
        ("(<code>x</code>) a b", "A B", "a b", "<code>x</code> A B"),
        ("a (<code>x</code>) b", "A B", "a b", "A <code>x</code> B"),
        ("a <code>x</code>'s b", "A B", "a b", "A <code>x</code> B"),
        ("a <b><img> b</b>", "B A", "b a", "<b><img> B</b> A"),
        ("<b><img> b</b> a", "A B", "a b", "A <b><img> B</b>"),
        ("a <code>x</code> b.", "A.", "a .", "A <code>x</code>."),
        ("a <code>x</code>, (b)", "A (B)", "a ( b )", "A <code>x</code> (B)"),
        ("a <code>x</code> b", "(A) B", "a a a b", "(A) <code>x</code> B"),
        ("a <code>x</code> b", "A (B)", "a b b b", "A <code>x</code> (B)"),
        ("a <code>x</code>s b", "A B", "a b", "A <code>x</code>B"),
        ("a<img> b", "A B", "a b", "A<img> B"),
        ("a <code>x</code>, and b", "甲和乙", "a and b", "甲 <code>x</code> 和乙"),
        ("a <code>x</code> b.", "甲。", "a .", "甲 <code>x</code>。"),
        ("a, <code>x</code> b", "甲，乙", "a , b", "甲，<code>x</code> 乙"),
        ("甲<code>x</code>乙", "A B", "甲乙 甲乙", "A <code>x</code> B"),
        ("甲<code>x</code>，丙", "丙丙", "丙 丙", "<code>x</code>丙丙"),
        ("甲<code>x</code>。", "A.", "甲 。", "A <code>x</code>."),
    ],
)
def test_an_atom_is_apart_from_words_unless_it_is_joined_to_one(
    source: str, text: str, origins: str, target: str
) -> None:
    """origins: of each word or mark of the text, the word of the line. A Chinese character is a word of the text."""
    (part,) = (part for part in html_document(source) if not isinstance(part, str))
    words = [*re.finditer(r"[\u3040-\u9fff]|\w+|[^\w\s]", text)]
    alignment = tuple(
        AlignedWord(word.group(), word.start(), origin, part.line.index(origin))
        for word, origin in zip(words, origins.split(), strict=True)
    )
    assert part.write(text, alignment) == target


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
@pytest.mark.parametrize("n_fragments", [200, pytest.param(2_000, marks=pytest.mark.slow)])
def test_tags_in_are_tags_out_and_soundness_stays(n_fragments: int, alignment: str) -> None:
    rng = random.Random(n_fragments)
    for _ in range(n_fragments):
        source = fragment(rng)
        target = translated(source, aligns=alignment != "none", rng=rng if alignment == "wrong" else None)
        assert Counter(TAG.findall(target)) == Counter(TAG.findall(source)), source
        if is_sound(source):
            assert is_sound(target), (source, target)
        if is_sound(source):
            assert count_of_empty_links(target) <= count_of_empty_links(source), (source, target)


KEPT = [
    '<span class="h-card" translate="no" id=%>@bob</span>',
    "<code id=%>x = 1</code>",
    "<img src=a id=%>",
    "<i class=icon id=%></i>",
    "<svg id=%><g/></svg>",
]


def mixture(rng: random.Random, ids: Iterator[int], depth: int = 0) -> str:
    """Return words, marks, links and kept elements, with or without white space between them."""
    pieces = []
    for _ in range(rng.randint(2, 6)):
        kind = rng.random()
        if kind < 0.45:
            pieces.append(rng.choice(["a", "bcd", "ef.", "(g)", "„h“", "&amp;", "ij, k"]))
        elif kind < 0.8:
            around = rng.choice(["{}", "{}", "{},", "({}", "{}."])
            pieces.append(around.format(rng.choice(KEPT).replace("%", str(next(ids)))))
        elif kind < 0.9 and depth < 3:
            pieces.append(f" <b>{mixture(rng, ids, depth + 1)}</b> ")
        else:
            pieces.append(rng.choice([",", "(", ")", "<!-- x -->", "<p>"]))
        pieces.append(rng.choice(["", " ", " ", "\n "]))
    return "".join(pieces[:-1])


def neighbours(markup: str) -> dict[str, tuple[str, str]]:
    """Return for each kept element the character before it and behind it, after a space if one is there; "" at edges.

    Such an edge is one of a block. The character of another kept element is > or <.
    """
    sides = {}
    for block in re.sub(r"</?b>|<!-- x -->", "", markup).split("<p>"):
        for match in re.finditer(r"<(?:img|(span|code|svg|i)) [^>]*id=(\d+)>(?(1).*?</\1>)", block):
            before, behind = block[: match.start()], block[match.end() :]
            sides[match[2]] = tuple(
                (" " if text[0].isspace() else "") + text.strip()[0] if text.strip() else ""
                for text in (before[::-1], behind)
            )
    return sides


@pytest.mark.parametrize(
    ("way", "n_fragments"),
    [("same order", 2_000), ("reverse order", 300), ("wrong alignment", 300), ("no alignment", 300)],
)
def test_white_space_around_kept_elements_is_that_of_the_source(way: str, n_fragments: int) -> None:
    """In another order an element has white space next to each word to which it is not joined in the source."""
    rng = random.Random(3)
    n_sides = 0
    for _ in range(n_fragments):
        source = mixture(rng, count())
        wrong = rng if way == "wrong alignment" else None
        target = translated(source, aligns=way != "no alignment", keeps_order=way == "same order", rng=wrong)
        has_segments = all(map(is_sound, source.split("<p>")))  # of blocks; else each text is one
        before, after = neighbours(source), neighbours(target)
        assert before.keys() == after.keys(), (source, target)
        for name, sides in before.items():
            for mark, of_source, actual in zip("(,", sides, after[name], strict=True):
                if way == "same order" and of_source and actual:
                    assert (of_source[0] == " ") == (actual[0] == " "), (name, source, target)
                elif of_source[:1] in (("", " ", mark) if has_segments else (" ",)):
                    assert not actual[:1].isalnum(), (name, source, target)
                n_sides += of_source[:1] == " "
    assert n_sides > n_fragments / 2


def test_deep_and_long_markup_is_quick() -> None:
    for source in (
        "<b>" * 3_000,
        "<b>" * 1_400 + "</b>" * 1_400,
        "a <img>" * 1_400,
        "<a '" * 2_500,
        "<!--" * 2_500,
        "<pre>" + "<!--" * 99_999,
    ):
        assert len(translated(source)) >= len(source)


def test_blank_segments_are_not_translated() -> None:
    document = html_document("<p> a </p><p> </p>&nbsp;<b></b>")
    assert [part.line for part in document if not isinstance(part, str)] == ["a"]


@pytest.mark.parametrize("unit", ["a", "a-", "a='b' ", "<a ", "<!--", '"'])
def test_a_long_tag_without_an_end_takes_little_time(unit: str) -> None:
    """Each pattern reads such a tag once, not once from each of its letters."""
    text = "x <" + unit * (40_000 // len(unit))
    cue = f"1\n00:00:01,000 --> 00:00:02,000\n{text}\n"
    start = time.process_time()
    for source, document in ((text, html_document(text)), (cue, read_srt(cue))):
        assert "".join(part if isinstance(part, str) else part.write(part.line, None) for part in document) == source
    assert time.process_time() - start < 3
