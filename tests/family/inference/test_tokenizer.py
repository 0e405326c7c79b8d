"""A tokenizer.json that others wrote: whatever the library tokenizers makes of it, the user gets a UserError."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.small_encoders import bert_folder
from support.small_members import gpt2_folder, t5_folder

import transduce
from transduce import UserError
from transduce.data.engine import library_errors
from transduce.data.labels import TextAndLabels
from transduce.family.inference.language_model import LanguageModel
from transduce.family.inference.text_encoder import TextEncoder
from transduce.family.tasks.text_scores import evaluate_text

TEXT = "a cow runs"


def edit(folder: Path, **changes: Any) -> Path:
    """Change the tokenizer.json in a folder."""
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def before_text(number: int, count: int = 1) -> dict[str, Any]:
    """Return a post-processor that puts `count` tokens of one id before a text."""
    sequences = [{"Sequence": {"id": side, "type_id": 0}} for side in "AB"]
    return {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "q", "type_id": 0}}] * count + sequences[:1],
        "pair": sequences,
        "special_tokens": {"q": {"id": "q", "ids": [number], "tokens": ["q"]}},
    }


def only(**model: Any) -> dict[str, Any]:
    """Return a tokenizer with a model and nothing else."""
    return {"model": model, "added_tokens": [], "post_processor": None}


ENCODES = "expected a tokenizer that encodes any text"
HOSTILE = {
    "panic": ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}}, "Cannot parse"),
    "word": (only(type="WordLevel", vocab={"a": 0}, unk_token="?"), ENCODES),
    "piece": (only(type="Unigram", vocab=[["a", -1.0]], unk_id=None), ENCODES),
    "start": (
        only(type="WordPiece", vocab={"a": 0}, unk_token="?", max_input_chars_per_word=9, continuing_subword_prefix=""),
        ENCODES,
    ),
    "id": ({"post_processor": before_text(99_999)}, "expected ids below vocab_size=[0-9]+, not 99,999; use a whole"),
}
USES: dict[str, tuple[Callable[[Path], Path], Callable[[Path], Any]]] = {
    "continue": (gpt2_folder, lambda folder: LanguageModel.load(folder).continue_(TEXT, max_tokens=1)),
    "evaluate": (gpt2_folder, lambda folder: evaluate_text(LanguageModel.load(folder), folder / "config.json")),
    "generate": (t5_folder, lambda folder: transduce.family.load(folder).generate(TEXT, max_tokens=1)),
    "embed": (
        lambda folder: bert_folder(folder, "pooler"),
        lambda folder: TextEncoder.load(folder).embed(["a", TEXT]),
    ),
    "finetune": (
        lambda folder: bert_folder(folder, "pooler"),
        lambda folder: TextAndLabels(
            {"tokenizer.json": (folder / "tokenizer.json").read_text()}, ["x", "y"], vocab_size=20
        ).encode(TEXT),
    ),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_tokenizer_is_refused(tmp_path: Path, use: str, case: str) -> None:
    make, work = USES[use]
    changes, message = HOSTILE[case]
    folder = edit(make(tmp_path / "model"), **changes)
    with pytest.raises(UserError, match=f"tokenizer.json.*{message}"):
        work(folder)


def test_special_tokens_alone_do_not_fill_an_encoder(tmp_path: Path) -> None:
    folder = edit(bert_folder(tmp_path / "model", "pooler"), post_processor=before_text(2, count=24))
    with pytest.raises(UserError, match="expected fewer special tokens in a line than the 24 positions .*, not 24"):
        TextEncoder.load(folder)
    edit(folder, post_processor=before_text(2, count=23))
    [answer] = TextEncoder.load(folder).embed(["a"])
    assert answer.value is not None and answer.problem is None


@pytest.mark.parametrize("problem", [KeyboardInterrupt, SystemExit, MemoryError, TypeError])
def test_an_exception_that_is_not_of_the_library_passes(problem: type[BaseException]) -> None:
    with pytest.raises(problem), library_errors("a message"):
        raise problem
