"""The tokenizer of a member: tokenizer.json of its folder, read by the library tokenizers."""

from pathlib import Path

from tokenizers import Tokenizer

from transduce.errors import UserError
from transduce.family.weights import Member


def tokenizer_of(member: Member, folder: Path | str) -> Tokenizer:
    """Return the tokenizer of a member, without padding. A file of it may have set some."""
    content = member.files.get("tokenizer.json")
    if content is None:
        raise UserError(f"{folder}: expected tokenizer.json; use a whole folder")
    try:
        tokenizer = Tokenizer.from_str(content.decode())
    except Exception as problem:  # the library raises nothing more special
        raise UserError(f"{folder}/tokenizer.json: expected a tokenizer ({problem}); use another copy") from None
    most = max(tokenizer.get_vocab().values(), default=-1)
    n_rows = member.settings["vocab_size"]
    if most >= n_rows:
        raise UserError(
            f"{folder}/tokenizer.json: expected ids below vocab_size={n_rows:,}, not {most:,}; use a whole folder"
        )
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer
