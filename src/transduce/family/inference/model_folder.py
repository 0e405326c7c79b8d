"""A member that was trained here, RUN/model: usable as one from elsewhere, and written in Hugging Face's form."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transduce.data.labels import TextAndLabels
from transduce.data.paths import PathsAndText
from transduce.data.vocabulary import BOS, CONTROLS, EOS, PAD, UNK, TokenizerLike
from transduce.errors import UserError
from transduce.family.bert import Bert
from transduce.family.configs import SENTINELS
from transduce.family.hugging_face.folder import (
    CONVERSIONS,
    WITHOUT_CONVERSION,
    Member,
    conversion_of,
    read_json,
    read_member,
    write_member,
)
from transduce.family.hugging_face.settings import Settings
from transduce.storage.atomic_folder import encode_json
from transduce.storage.model_folder import LoadedModel, load_model

START = PAD  # before the target of a T5
MASK = UNK  # a token that no text has
MASK_NAME = "[MASK]"  # its name where a user writes it
ENDS_OF_WHISPER = {BOS: "<|startoftranscript|>", EOS: "<|endoftext|>"}  # before and after an output
MASKED_TASKS = ("masked_words", "diffusion")  # a text has both ends, and masks


def open_member(folder: Path) -> Member:
    """Return the member in a folder: a model folder of a training, or one in Hugging Face's form.

    Raises UserError for a folder that is damaged or not supported.
    """
    return member_of(load_model(folder)) if is_trained_here(folder) else read_member(folder)


def is_trained_here(folder: Path) -> bool:
    """Check whether a folder is a model folder of a training, and not one in Hugging Face's form."""
    path = folder / "config.json"
    return path.is_file() and "format_version" in read_json(path)


def member_of(loaded: LoadedModel) -> Member:
    """Return a model that was trained here as a member. Raises UserError for one that is not of the family."""
    kind = loaded.config.model.kind
    if kind == "bert_classifier":
        return _classifier(loaded)
    if kind not in CONVERSIONS and kind not in WITHOUT_CONVERSION:
        raise UserError(f"{loaded.name}: expected a model of the family, not model.kind={kind!r}; use another model")
    settings = {"model_type": kind, "vocab_size": loaded.config.model.vocab_size, "pad_token_id": PAD}
    if kind in CONVERSIONS:
        settings |= conversion_of(Settings({"model_type": kind}, loaded.name)).settings(loaded.model)
    task = loaded.config.train.task
    is_masked = task in MASKED_TASKS
    tokenizer = loaded.tokenizer.text if isinstance(loaded.tokenizer, PathsAndText) else loaded.tokenizer
    files = {
        "tokenizer.json": _tokenizer_file(tokenizer, task),
        "tokenizer_config.json": encode_json(_tokenizer_settings(loaded, is_masked=is_masked)),
    }
    if is_masked:
        return Member(loaded.model, settings | ({"mask_token_id": MASK} if task == "diffusion" else {}), files)
    ids = {"eos_token_id": EOS, **_start_ids(task)}
    files["generation_config.json"] = encode_json({**ids, "pad_token_id": PAD})
    return Member(loaded.model, settings | ids, files)


def _start_ids(task: str) -> dict[str, int]:
    """Return the setting for the id before an output."""
    if task == "speech":
        return {"decoder_start_token_id": BOS, "bos_token_id": BOS}
    return {"decoder_start_token_id": START} if task == "spans" else {"bos_token_id": BOS}


def _classifier(loaded: LoadedModel) -> Member:
    """Return a classifier as a member, with the files of the encoder that its training started from."""
    model, tokenizer = loaded.model, loaded.tokenizer
    if not isinstance(tokenizer, TextAndLabels) or not isinstance(model, Bert) or model.classifier is None:
        raise UserError(f"{loaded.name}: expected a classifier and its labels; use the files of one run")
    model.classifier.labels = (*tokenizer.labels,)
    files = {name: text.encode() for name, text in tokenizer.files.items()}
    return Member(model, conversion_of(Settings({"model_type": "bert"}, loaded.name)).settings(model), files)


def export_member(model: Path, out: Path) -> str:
    """Write the model folder `model` as a new folder in Hugging Face's form, and return a sentence on it."""
    if out.exists() or out.is_symlink():
        raise UserError(f"{out}: expected a new folder; give another name")
    member = member_of(load_model(model))
    write_member(out, member)
    return f"{out}: a model of type {member.settings['model_type']} in Hugging Face's form"


def _tokenizer_file(tokenizer: TokenizerLike, task: str) -> bytes:
    """Return tokenizer.json with the tokens before and after a text that it had in training.

    A text to continue has no EOS yet. One with masked words has both, and MASK has its name. A source of spans has only
    EOS, as in the file already, and there are sentinels.
    """
    content = json.loads(tokenizer.to_json())
    if task == "spans":
        content["added_tokens"] += _sentinels(tokenizer.vocab_size)
    elif task in ("speech", "ctc"):
        content["post_processor"] = None
        _rename(content, ENDS_OF_WHISPER if task == "speech" else {})
    else:
        _add_ends(content, is_masked=task in MASKED_TASKS)
    return (json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode()


def _sentinels(first: int) -> list[dict[str, Any]]:
    """Return the entries of the sentinels in a tokenizer.json, with ids from `first` on, and the names of T5.

    They are not special, so that an output shows them. In a text they take the spaces next to them.
    """
    flags = {"single_word": False, "lstrip": True, "rstrip": True, "normalized": False, "special": False}
    return [
        {"id": first + SENTINELS - 1 - i, "content": f"<extra_id_{i}>", **flags} for i in reversed(range(SENTINELS))
    ]


def _add_ends(content: dict[str, Any], *, is_masked: bool) -> None:
    """Put BOS before a text in a tokenizer.json. With `is_masked`, also EOS after it, and the name of MASK."""
    first, last = CONTROLS[BOS], CONTROLS[EOS]
    start, end = ({"SpecialToken": {"id": name, "type_id": 0}} for name in (first, last))
    sequences = [{"Sequence": {"id": side, "type_id": i}} for i, side in enumerate("AB")]
    ends = [end] if is_masked else []
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [start, sequences[0], *ends],
        "pair": [start, sequences[0], *ends, sequences[1], *ends],
        "special_tokens": {name: {"id": name, "ids": [i], "tokens": [name]} for i, name in ((BOS, first), (EOS, last))},
    }
    if is_masked:
        _name_mask(content)


def _name_mask(content: dict[str, Any]) -> None:
    """Call the token MASK, which no text has, [MASK] in a tokenizer.json. In a text it takes the spaces next to it."""
    _rename(content, {MASK: MASK_NAME})
    model = content["model"]
    model["unk_token"] = MASK_NAME if model["type"] == "WordPiece" else None
    content["added_tokens"][MASK] |= {"lstrip": True, "rstrip": True}


def _rename(content: dict[str, Any], names: Mapping[int, str]) -> None:
    """Give control tokens other names in a tokenizer.json. names: by id."""
    model, new = content["model"], {CONTROLS[i]: name for i, name in names.items()}
    model["vocab"] = {new.get(name, name): i for name, i in model["vocab"].items()}
    for i, name in names.items():
        content["added_tokens"][i] |= {"content": name}


def _tokenizer_settings(loaded: LoadedModel, *, is_masked: bool) -> dict[str, Any]:
    """Return the content of tokenizer_config.json."""
    names: dict[str, str] = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), CONTROLS, strict=True))
    if loaded.config.train.task == "speech":
        names.update(bos_token=ENDS_OF_WHISPER[BOS], eos_token=ENDS_OF_WHISPER[EOS])
    if is_masked:
        names.update(unk_token=MASK_NAME, mask_token=MASK_NAME, cls_token=CONTROLS[BOS], sep_token=CONTROLS[EOS])
    max_positions = loaded.config.model.max_positions
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **names,
        **({} if max_positions is None else {"model_max_length": max_positions}),
        "clean_up_tokenization_spaces": False,
    }
