"""HTML as lines to translate. Tags, comments and attributes stay as they are, around the words that they belong to.

- Block elements and line breaks end a segment. Inline elements leave the text of their segment, and come back around
  the words of the translation that the cross-attention gives to theirs. Where there is no alignment, or where it would
  break the nesting or empty an element, they enclose the whole segment.
- `code`, `pre`, `ruby`, `script`, `style`, `textarea`, `svg`, `math` and elements with translate="no" or the class
  `notranslate` stay as they are, except what has translate="yes" within them.
- Such an element, an image, and an element without text are atoms. An atom that is joined to a word without white
  space is joined to the word that is there in the translation. Otherwise it has white space next to each word, and
  before or after marks as in the source, but none before closing marks that have taken the place of a word.
- Inline tags that are not matched within their segment end it, as block tags do. So what is not sound in the request
  stays as it is.
"""

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from transduce.data.text import is_blank
from transduce.serve.documents import Document, Part
from transduce.serve.markup_line import BREAK, CLOSING, Element, MarkupLine, Side, Syntax, limit
from transduce.serve.markup_tokens import MAX_DEPTH, Token, tokens_of

_SPACES = re.compile(r"[ \t\r\n\f]+")
MAX_TOKENS = 500  # of a segment; beyond, each tag ends a segment
HTML = Syntax(lambda text: html.escape(text, quote=False), shares=False)


def html_document(source: str) -> Document:
    """Return the segments of an HTML fragment, and the markup between them."""
    return [*markup_document(tokens_of(source), HTML)]


def markup_document(tokens: Iterable[Token], syntax: Syntax) -> Iterator[str | Part]:
    """Yield the segments of a text in a markup language, and the markup between them."""
    run: list[Token] = []
    for token in chain(tokens, [Token("block", "")]):
        if token.kind == "block" or len(run) > MAX_TOKENS:
            yield from _segments(run, syntax)
            run = []
        if token.kind != "block":
            run.append(token)
        elif token.raw:
            yield token.raw


def visible_text(source: str) -> str:
    """Return the text of an HTML fragment that is to be translated, without markup."""
    return " ".join(token.text for token in tokens_of(source) if token.kind == "text")


def _segments(run: Sequence[Token], syntax: Syntax) -> Document:
    """Return the segment of the tokens between two blocks; several if its inline tags do not match each other."""
    if _is_matched(run):
        return segment(run, syntax)
    document: list = []
    for token in run:
        document += segment([token], syntax) if token.kind in ("text", "break") else [token.raw]
    return document


def _is_matched(run: Sequence[Token]) -> bool:
    """Return True if each opening tag has its closing tag in the run. False also for tags beyond the limits."""
    stack: list[str] = []
    for token in run:
        if token.kind == "open":
            stack.append(token.name)
        elif token.kind == "close" and (not stack or stack.pop() != token.name):
            return False
        if len(stack) > MAX_DEPTH:
            return False
    return not stack and len(run) <= MAX_TOKENS


def segment(run: Sequence[Token], syntax: Syntax) -> Document:
    """Return the segment of tokens whose inline tags match, with the white space around it as it is."""
    raw = "".join(token.raw for token in run)
    before, after = (_outer_space(run[0]), _outer_space(run[-1], at_end=True)) if run else ("", "")
    run = _with_whole_atoms(_with_inner_breaks(run))
    line = ""
    breaks: list[tuple[int, str]] = []
    root = Element("", 0)
    stack = [root]
    for i, token in enumerate(run):
        if token.kind == "break":
            breaks.append((len(line) - line.endswith(" "), token.raw))
        if token.kind == "break" and token.text == BREAK:
            line = line.rstrip(" ")
            limit(root.children, len(line))
            line += BREAK
        elif token.kind in ("text", "break"):
            text = _SPACES.sub(" ", token.text)
            if text[:1] in CLOSING and i and run[i - 1].kind == "atom":
                line = line.rstrip(" ")  # the model reads the mark next to its word, as if there were no atom
                limit(root.children, len(line))
            line += text[1:] if line[-1:] in ("", " ", BREAK) and text[:1] == " " else text
        elif token.kind == "close":
            element = stack.pop()
            element.end, element.closing = len(line), token.raw
        else:
            element = Element(token.raw, len(line), len(line))
            stack[-1].children.append(element)
            if token.kind == "open":
                stack.append(element)
            elif token.kind == "atom":
                element.sides = _side(reversed(run[:i]), step=-1), _side(run[i + 1 :], step=1)
    if is_blank(line):
        return [raw] if raw else []
    source = raw[len(before) : len(raw) - len(after)]
    parts: list = [before, MarkupLine(line.rstrip(" "), root, source, syntax, breaks), after]
    return [part for part in parts if part]


def _with_inner_breaks(run: Sequence[Token]) -> list[Token]:
    """Return tokens with one break for several in a row, and a mark for each that is not between texts."""
    texts = [i for i, token in enumerate(run) if token.kind == "text" and not _is_space(token)]
    tokens: list[Token] = []
    for i, token in enumerate(run):
        if token.kind != "break":
            tokens.append(token)
        elif not texts or not texts[0] < i < texts[-1]:
            tokens.append(Token("mark", token.raw))
        elif tokens[-1].kind == "break":
            is_tab = BREAK in (tokens[-1].text, token.text)
            tokens[-1] = Token("break", tokens[-1].raw + token.raw, text=BREAK if is_tab else " ")
        else:
            tokens.append(token)
    return tokens


def _with_whole_atoms(run: Sequence[Token]) -> list[Token]:
    """Return tokens whose inline tags match, with an atom for each element without text, and for neighbouring atoms.

    White space at the edge of such an element goes out of it, where it is for a reader.
    """
    tokens: list[Token] = []
    places: list[int] = []
    for token in run:
        if token.kind == "open":
            places.append(len(tokens))
        if token.kind == "atom":
            _add_atom(tokens, token.raw)
        else:
            tokens.append(token)
        if token.kind != "close":
            continue
        place = places.pop()
        element = tokens[place:]
        texts = [i for i, token in enumerate(element) if token.kind == "text"]
        if all(_is_space(element[i]) for i in texts):
            atoms = [i for i, token in enumerate(element) if token.kind == "atom"] or [len(element)]
            before = [i for i in texts if i < atoms[0]]
            behind = [i for i in texts if i > atoms[-1]]
            tokens[place:] = [element[i] for i in before]
            _add_atom(tokens, "".join(token.raw for i, token in enumerate(element) if i not in before + behind))
            tokens += [element[i] for i in behind]
    return tokens


def _add_atom(tokens: list[Token], raw: str) -> None:
    """Append an atom, or extend the last one if only white space is between them."""
    n_spaces = next((n for n, token in enumerate(reversed(tokens)) if not _is_space(token)), len(tokens))
    place = len(tokens) - n_spaces - 1
    if place >= 0 and tokens[place].kind == "atom":
        tokens[place:] = [Token("atom", "".join(token.raw for token in tokens[place:]) + raw)]
    else:
        tokens.append(Token("atom", raw))


def _is_space(token: Token) -> bool:
    return token.kind == "text" and not token.text.strip()


def _side(tokens: Iterable[Token], step: int) -> Side:
    """Return what is next to an atom. tokens: of one side, the nearest first. step: -1 on the left, 1 on the right."""
    text = ""
    for token in tokens:
        if token.kind == "atom":
            break
        text += token.text[::step] if token.kind in ("text", "break") else ""
        if text.strip():
            break
    return Side(text[:1].isspace(), text.strip()[:1] or " ")


def _outer_space(token: Token, *, at_end: bool = False) -> str:
    if token.kind != "text":
        return ""
    stripped = token.raw.rstrip(" \t\r\n\f") if at_end else token.raw.lstrip(" \t\r\n\f")
    return token.raw[len(stripped) :] if at_end else token.raw[: len(token.raw) - len(stripped)]
