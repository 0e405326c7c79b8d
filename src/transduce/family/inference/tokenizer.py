"""The tokenizer of a member: tokenizer.json of its folder, read by the library tokenizers."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Encoding, Tokenizer

from transduce.data import engine
from transduce.data.engine import library_errors
from transduce.errors import UserError
from transduce.family.hugging_face.folder import Member
from transduce.family.images.clip import Clip

OLDER_FILES = ("vocab.json", "vocab.txt", "spiece.model", "tokenizer.model")


def tokenizer_of(member: Member, folder: Path | str) -> Tokenizer:
    """Return the tokenizer of a member, without padding. A file of it may have set some."""
    content = member.files.get("tokenizer.json")
    if content is None:
        raise UserError(f"{folder}: expected tokenizer.json; {_remedy(member)}")
    expected = f"{folder}/tokenizer.json: expected a tokenizer"
    try:
        text = content.decode()
    except UnicodeDecodeError as problem:
        raise UserError(f"{expected} ({problem}); use another copy") from None
    with library_errors(expected):
        tokenizer = Tokenizer.from_str(text)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    encode_texts(tokenizer, [""], member, folder)  # its special tokens
    return tokenizer


def _remedy(member: Member) -> str:
    """Return the end of a message about a folder without tokenizer.json: how to make it of older files, if any."""
    folder = member.folder
    if folder is None or not any((folder / name).is_file() for name in OLDER_FILES):
        return "use a whole folder"
    path = str(folder)
    code = f"from transformers import AutoTokenizer as T; T.from_pretrained({path!r}).save_pretrained({path!r})"
    return f"make it of the older files: python -c {shlex.quote(code)}"


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[str], member: Member, folder: Path | str, *, add_special_tokens: bool = True
) -> list[Encoding]:
    """Return the tokens of each text. Raises UserError if the tokenizer cannot encode it for the member."""
    model, where = member.model, f"{folder}/tokenizer.json"
    n_rows = model.config.vocab_size if isinstance(model, Clip) else member.settings["vocab_size"]  # CLIP: in a part
    return engine.encode_texts(tokenizer, texts, n_rows, where, add_special_tokens=add_special_tokens)


def decode_ids(tokenizer: Tokenizer, ids: Sequence[int], folder: Path | str) -> str:
    """Return the text of ids. Raises UserError if the tokenizer cannot decode them."""
    with library_errors(f"{folder}/tokenizer.json: expected a tokenizer that decodes any ids"):
        return tokenizer.decode(ids)
