"""Source lines without the tags of a model (`data.tags`): the model then does not know the target language."""

from collections.abc import Iterable

from transduce.data.vocabulary import TokenizerLike

LISTED_TAGS = 5


def has_no_tag(lines: Iterable[str], tokenizer: TokenizerLike) -> bool:
    """Return True if the tokenizer has tags, and no line begins with one. Reads no line after the first with a tag."""
    return bool(tokenizer.tags) and not any(tokenizer.split_tag(line)[0] for line in lines)


def no_tag(name: str, tokenizer: TokenizerLike, remedy: str, lines: str = "no line") -> str:
    """Return the warning about a text without tags. name: name of the text. lines: which lines have none, in words."""
    tags = ", ".join(tokenizer.tags[:LISTED_TAGS]) + (", ..." if len(tokenizer.tags) > LISTED_TAGS else "")
    return f"{name}: expected a tag at the beginning of each source line, but {lines} has one of {tags}; {remedy}"
