"""Markdown (CommonMark with tables, strikethrough and footnotes). Code, addresses, tags and marks stay.

markdown-it-py says what each paragraph is and where its lines are. It gives inline markup no places, so each of its
inline rules is wrapped, to record from where to where it has read.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from transduce.errors import LineError, UserError
from transduce.serve.documents import Part
from transduce.serve.formats.plain import lines_of
from transduce.serve.markup import HTML, markup_document
from transduce.serve.markup_line import Syntax
from transduce.serve.markup_tokens import INLINE, VOID, Token, end_of_element, is_translated, text_token, tokens_of

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.parser_inline import RuleFuncInlineType
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token as BlockToken

MOST_TEXT = 1 << 20  # of a document; inline markup takes 5 us a character
MOST_CHARACTERS = 10_000  # of a paragraph
MOST_BRACKETS = 1_000  # of a paragraph; a link within links is read again for each of them
MOST_ALL_BRACKETS = 100_000  # of a document; a bracket takes up to 30 us
MOST_MARKS = 400_000  # of emphasis in a document; one takes up to 20 us
MOST_LEVELS = 100  # of lists and quotes within each other; a list and its item are two
MOST_INLINE_LEVELS = 20  # of links and images within each other; the time grows with it, and deeper ones are text
MOST_BLOCK_TOKENS = 200_000  # of a document, as the parser counts; one takes 350 bytes, and a paragraph has three
_FRONT_MATTER = re.compile(r"(---|\+\+\+)[ \t]*\r?\n(?:.*?\n)??\1[ \t]*(?:\r?\n|$)", re.DOTALL)  # YAML, TOML
_SPECIAL = re.compile(r"[\\`*\[\]<]|(?<!\w)_|_(?!\w)|&(?=#?\w+;)|^>|^[#+=-](?=[#=-]*(?:\s|$))", re.MULTILINE)
_NUMBER = re.compile(r"^(\d+)([.)])(?=\s|$)", re.MULTILINE)
_TASK = re.compile(r"\[[ xX]\]\s+")
_FOOTNOTE_MARK = re.compile(r"\[\^[^\]\s]+\]")
_TAG = re.compile(r"<(/?)([A-Za-z][A-Za-z0-9-]*)")
MARKDOWN = Syntax(lambda text: _NUMBER.sub(r"\1\\\2", _SPECIAL.sub(r"\\\g<0>", text)))
CELL = Syntax(lambda text: MARKDOWN.escape(text).replace("|", "\\|"))


class _Span(NamedTuple):
    """What an inline rule has read of a text. tokens: the numbers of its tokens in the state.

    label_end: of a link, the place of the bracket after its text.
    """

    rule: str
    start: int
    end: int
    tokens: range
    label_end: int


def read(text: str) -> Iterator[str | Part]:
    """Yield the texts of a document: of paragraphs, headings, items, cells of tables, and blocks of HTML."""
    limits = {
        "characters": (len(text), MOST_TEXT),
        "brackets": (text.count("["), MOST_ALL_BRACKETS),
        "marks of emphasis": (sum(map(text.count, "*_~")), MOST_MARKS),
    }
    for name, (count, most) in limits.items():
        if count > most:
            raise UserError(f"expected at most {most:,} {name} of Markdown, not {count:,}; split the file")
    parser = _parser(MOST_INLINE_LEVELS)
    matter = _FRONT_MATTER.match(text)
    place = matter.end() if matter else 0
    n_before = text.count("\n", 0, place)
    yield text[:place]
    body = text[place:]
    starts, ends = [place], list[int]()  # of the lines
    for line, end in lines_of(body):
        ends.append(starts[-1] + len(line))
        starts.append(ends[-1] + len(end))
    env: dict[str, Any] = {}
    is_cell = False
    for block in _blocks(body, env):
        if block.type not in ("html_block", "inline") or block.map is None or not block.content:
            is_cell = block.type in ("th_open", "td_open")
            continue
        if block.type == "inline":
            _check(block.content, n_before + block.map[0] + 1)
        begin, end = starts[block.map[0]], starts[block.map[1]]
        if block.type == "inline":
            lines = slice(*block.map)
            offsets = _offsets(
                text, place, block.content, [*zip(starts[lines], ends[lines], strict=True)], is_cell=is_cell
            )
            if offsets:
                yield text[place : offsets[0]]
                tokens = _tokens(text, block.content, offsets, parser, env)
                yield from markup_document(tokens, CELL if is_cell else MARKDOWN)
                place = offsets[-1]
        elif block.level == 0:
            yield text[place:begin]
            yield from markup_document(tokens_of(text[begin:end]), HTML)
            place = end
    yield text[place:]


def _check(content: str, number: int) -> None:
    """Raise LineError for a paragraph whose inline markup would take long. number: of its line."""
    if len(content) > MOST_CHARACTERS or content.count("[") > MOST_BRACKETS:
        limits = f"{MOST_CHARACTERS:,} characters and {MOST_BRACKETS:,} brackets"
        raise LineError(number, f"expected a paragraph of at most {limits}; split it")


READERS = {"md": read}


def _parser(most_levels: int) -> "MarkdownIt":
    try:
        from markdown_it import MarkdownIt
        from mdit_py_plugins.footnote import footnote_plugin
    except ImportError as problem:
        packages = "markdown-it-py and mdit-py-plugins"
        raise UserError(f"expected the packages {packages} ({problem}); pip install 'transduce[files]'") from None
    parser = MarkdownIt("commonmark", {"maxNesting": most_levels}).enable(["table", "strikethrough"])
    footnote_plugin(parser, inline=False, move_to_end=False)
    parser.inline.ruler.at("footnote_ref", _footnote_mark)
    parser.core.ruler.enableOnly(["normalize", "block"])
    parser.inline.ruler2.disable("fragments_join")  # so that each mark of emphasis keeps its token
    for name in {*parser.inline.ruler.get_active_rules()} - {"text"}:
        (rule,) = (each.fn for each in parser.inline.ruler.__rules__ if each.name == name)
        parser.inline.ruler.at(name, _recorded(name, rule))
    return parser


def _footnote_mark(state: "StateInline", silent: bool) -> bool:
    """Read the mark of a footnote, in place of the plugin's rule, which takes long for many open ones."""
    match = _FOOTNOTE_MARK.match(state.src, state.pos)
    if match is None:
        return False
    state.pos = match.end()
    return True


class _Blocks(list["BlockToken"]):
    """The tokens of a document's blocks.

    Raises UserError for too many, which would take much memory, and for too many levels, which the parser would skip.
    """

    def append(self, token: "BlockToken") -> None:
        if len(self) == MOST_BLOCK_TOKENS:
            most = f"{MOST_BLOCK_TOKENS // 3:,} paragraphs or cells, or {MOST_BLOCK_TOKENS // 5:,} items"
            raise UserError(f"expected at most {most}, of Markdown; split the file")
        if token.level + token.nesting >= MOST_LEVELS:
            raise UserError(f"expected at most {MOST_LEVELS} levels of lists and quotes in Markdown; nest them less")
        super().append(token)


def _blocks(text: str, env: dict[str, Any]) -> "list[BlockToken]":
    """Return the tokens of the blocks of a text."""
    from markdown_it.rules_core import StateCore

    parser = _parser(MOST_LEVELS)
    state = StateCore(text, parser, env)
    state.tokens = _Blocks()
    parser.core.process(state)
    return state.tokens


def _recorded(name: str, rule: "RuleFuncInlineType") -> "RuleFuncInlineType":
    """Return an inline rule that adds what it reads to `spans` in the environment of the parser."""

    def read_and_record(state: "StateInline", silent: bool) -> bool:
        start, n_tokens = state.pos, len(state.tokens)
        is_read = rule(state, silent)
        if is_read and not silent and state.src is state.env["content"]:  # not the text of an image
            label_end = state.md.helpers.parseLinkLabel(state, start, True) if name == "link" else -1
            state.env["spans"].append(_Span(name, start, state.pos, range(n_tokens, len(state.tokens)), label_end))
        return is_read

    return read_and_record


def _offsets(text: str, place: int, content: str, lines: list[tuple[int, int]], *, is_cell: bool) -> list[int]:
    """Return the place in `text` of each character of a block's content, and the end; nothing if they are not there.

    place: the end of the block before. lines: start and end of each line of the block.
    """
    offsets: list[int] = []
    for line, (start, end) in zip(content.split("\n"), lines, strict=False):
        find = text.find if is_cell else text.rfind  # a line of a paragraph ends its line, after the marks of blocks
        core = line.lstrip(" \t")  # the parser writes the tabs before it as spaces
        source = core.replace("|", "\\|") if is_cell else core
        found = find(source, max(place, start), end)
        if found < 0:
            return []
        place = found + len(source)
        offsets += [found] * (len(line) - len(core))
        offsets += [found + i + is_cell * core.count("|", 0, i + 1) for i in range(len(core))] + [place]
    return offsets


def _tokens(text: str, content: str, offsets: list[int], parser: "MarkdownIt", env: dict[str, Any]) -> Iterator[Token]:
    """Yield the tokens of a block. content, offsets: as in `_offsets`."""
    env |= {"content": content, "spans": []}
    tokens: list[BlockToken] = []
    parser.inline.parse(content, parser, env, tokens)
    place = 0
    if mark := _TASK.match(content):
        place = mark.end()
        yield Token("block", text[offsets[0] : offsets[place]])
    for start, end, token in sorted(_markup(content, env["spans"], tokens), key=lambda item: item[:2]):
        if start < place:  # within an atom
            continue
        if token.kind == "kept":
            end = end_of_element(content, token.name, (end, len(content)), set())
            token = Token("atom", "")
        if start > place:
            yield Token("text", text[offsets[place] : offsets[start]], text=content[place:start])
        token.raw = text[offsets[start] : offsets[end]]
        yield token
        place = end
    if place < len(content):
        yield Token("text", text[offsets[place] : offsets[-1]], text=content[place:])


def _markup(content: str, spans: list[_Span], tokens: "list[BlockToken]") -> Iterator[tuple[int, int, Token]]:
    """Yield start and end of all markup in the content of a block, with its token, which still lacks its source."""
    for rule, start, end, numbers, label_end in spans:
        source = content[start:end]
        if rule in ("emphasis", "strikethrough"):
            yield from _delimiters(start, end, [tokens[i] for i in numbers], 1 if rule == "emphasis" else 2)
        elif rule == "link":
            if content[label_end + 1 : end] in ("", "[]"):  # its text is the name of its address
                yield start, end, Token("atom", "")
            else:
                yield start, start + 1, Token("open", "", "link")
                yield label_end, end, Token("close", "", "link")
        elif rule == "newline":
            before = len(content[:start].rstrip(" "))
            is_hard = tokens[numbers[-1]].type == "hardbreak"
            yield before, end, Token("block" if is_hard else "break", "", text=" ")
        elif rule == "escape":
            is_break = source.startswith("\\\n")
            yield start, end, Token("block" if is_break else "text", "", text=source[1:])
        elif rule == "entity":
            yield start, end, text_token(source)
        elif rule == "html_inline":
            yield start, end, _tag_token(source)
        elif rule in ("image", "autolink", "footnote_ref") or rule == "backticks" and len(numbers):
            yield start, end, Token("atom", "")


def _delimiters(start: int, end: int, tokens: "list[BlockToken]", width: int) -> Iterator[tuple[int, int, Token]]:
    """Yield the marks of emphasis from `start` to `end`. tokens: one for each `width` characters, and text before."""
    count, rest = divmod(end - start, width)
    for i, token in enumerate(tokens[-count:] if not rest else ()):
        place = start + i * width
        if token.nesting > 0:  # of two marks, the second one opens and the first one closes
            yield place + width - len(token.markup), place + width, Token("open", "", token.tag)
        elif token.nesting < 0:
            yield place, place + len(token.markup), Token("close", "", token.tag)


def _tag_token(source: str) -> Token:
    """Return the token of a tag or comment; of the kind "kept" if all of its element stays as it is."""
    match = _TAG.match(source)
    name = match[2].lower() if match else ""
    is_void = name in VOID or source.endswith("/>")
    if match and not match[1] and not is_void and not is_translated(source, name):
        return Token("kept", "", name)
    if match is None or is_void or name not in INLINE:
        return Token("mark" if match is None else "atom", "")
    return Token("close" if match[1] else "open", "", name)
