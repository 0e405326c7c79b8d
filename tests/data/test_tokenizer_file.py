"""The file of a tokenizer: loading restores the tokenizer, and refuses damaged and foreign files."""

import copy
import hashlib
import json
import os
import pickle
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.tokenizer_texts import (
    FIXED,
    FRAGMENTS,
    HOSTILE,
    assert_lossless,
    in_a_new_process,
    learn,
    sentences,
)
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import models, pre_tokenizers, trainers

from transduce.data import tokenizer as tokenizer_module
from transduce.data.subwords import KINDS
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import EOS
from transduce.errors import UserError


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return learn(request.param)


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return learn("bpe")


def test_a_saved_tokenizer_loads_unchanged(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    assert hashlib.sha256(path.read_bytes()).hexdigest() == tokenizer.sha256
    copies = [Tokenizer.load(path), Tokenizer.load(str(path)), Tokenizer.from_json(tokenizer.to_json())]
    for other in [*copies, pickle.loads(pickle.dumps(tokenizer)), copy.deepcopy(tokenizer)]:  # noqa: S301
        assert (other.kind, other.vocab_size, other.sha256) == (tokenizer.kind, tokenizer.vocab_size, tokenizer.sha256)
        assert other.encode_batch(HOSTILE) == tokenizer.encode_batch(HOSTILE)
        assert_lossless(other, HOSTILE)


LOAD = """
import hashlib, sys
from support.tokenizer_texts import HOSTILE
from transduce.data.tokenizer import Tokenizer
tokenizer = Tokenizer.load(sys.argv[1])
tokenizer.save(sys.argv[1] + ".again")
ids = tokenizer.encode_batch(HOSTILE)
assert [tokenizer.decode(line) for line in ids] == HOSTILE
print(hashlib.sha256(repr(ids).encode()).hexdigest())
"""


def test_the_locale_has_no_effect(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    expected = hashlib.sha256(repr(tokenizer.encode_batch(HOSTILE)).encode()).hexdigest()
    assert in_a_new_process(LOAD, str(path), LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0") == expected
    assert path.read_bytes() == (tmp_path / "tokenizer.json.again").read_bytes()


def test_the_hugging_face_library_reads_the_file(tokenizer: Tokenizer) -> None:
    engine = LibraryTokenizer.from_str(tokenizer.to_json())
    for line in ("two dogs ▁ Straße 東\ue0001", " a  b "):
        encoding = engine.encode(line)
        assert encoding.ids == [*tokenizer.encode(line), EOS]
        assert engine.decode(encoding.ids) == line


def with_change(tokenizer: Tokenizer, change: Callable[[dict[str, Any]], object]) -> str:
    document = json.loads(tokenizer.to_json())
    change(document)
    return json.dumps(document)


def swap_controls(document: dict[str, Any]) -> None:
    vocabulary = document["model"]["vocab"]
    document["model"]["vocab"] = {"</s>": 0, "<s>": 1, "<pad>": 2} | {k: v for k, v in vocabulary.items() if v > 2}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d.pop("version"), "its version was not written by transduce"),
        (lambda d: d.update(version="2.0"), "its version was not written by transduce"),
        (lambda d: d.update(extra=1), "its extra was not written by transduce"),
        (lambda d: d.update(normalizer=None), "its normalizer was not written by transduce"),
        (lambda d: d.update(added_tokens=[]), "its added_tokens was not written by transduce"),
        (lambda d: d["model"].update(dropout=0.5), "its model was not written by transduce"),
        (lambda d: d["model"].update(type="Unigram"), "no model of type"),
        (lambda d: d["model"]["vocab"].update({"new": 10**6}), "do not count up"),
        (lambda d: d["model"]["vocab"].pop("<unk>"), "do not count up"),
        (swap_controls, "does not begin with the control"),
    ],
)
def test_a_file_not_written_by_transduce_is_refused(
    tokenizer: Tokenizer, change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    with pytest.raises(UserError, match=reason):
        Tokenizer.from_json(with_change(tokenizer, change), "tokenizer.json")


@pytest.mark.parametrize("merge", [["a"], ["a", "b", "c"], "a b", ["a", 1], ["a", "no such piece"], ["a", ["b"]], None])
def test_invalid_merges_are_refused(bpe: Tokenizer, merge: object) -> None:
    with pytest.raises(UserError, match="merges do not join"):
        Tokenizer.from_json(with_change(bpe, lambda document: document["model"]["merges"].append(merge)))


def test_repeated_merges_are_refused(bpe: Tokenizer) -> None:
    with pytest.raises(UserError, match="its merges repeat"):
        Tokenizer.from_json(with_change(bpe, lambda document: document["model"]["merges"].extend(bpe._merges)))


def test_the_tokenizer_of_another_program_is_refused() -> None:
    engine = LibraryTokenizer(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.Metaspace()
    engine.train_from_iterator(sentences(50), trainers.BpeTrainer(vocab_size=300, show_progress=False))
    with pytest.raises(UserError, match="begin with the control and byte pieces; use the tokenizer.json"):
        Tokenizer.from_json(engine.to_str())


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"[]", b"{}", b"3", b'"a"', b"\xff\xfe", b"\0" * 100, b"[" * 100_000, b"NaN", b"1" * 5000,
     b'{"model": 3}', b'{"model": {"type": ["BPE"]}}', b'{"model": {"type": "BPE", "vocab": []}}'],
)  # fmt: skip
def test_the_error_for_other_content_names_the_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        Tokenizer.load(path)
    assert str(path) in str(caught.value)


def test_the_error_for_an_unreadable_path_names_it(tmp_path: Path) -> None:
    big = tmp_path / "big.json"
    with big.open("wb") as file:
        file.truncate(tokenizer_module.MAX_FILE_BYTES + 1)
    os.mkfifo(tmp_path / "pipe")
    for special in (tmp_path / "pipe", Path("/dev/zero")):  # reading them would not end
        with pytest.raises(UserError, match=f"{special}: expected a tokenizer.json, but it is not a file"):
            Tokenizer.load(special)
    for path, reason in ((tmp_path / "missing", "No such file"), (tmp_path, "directory"), (big, "67,108,865 bytes")):
        with pytest.raises(UserError, match=reason) as caught:
            Tokenizer.load(path)
        assert str(path) in str(caught.value)


def damaged(content: bytes, chance: random.Random) -> bytes:
    start, length = chance.randrange(len(content)), chance.choice([0, 1, 1, 2, 10, 1000])
    return content[:start] + chance.randbytes(chance.choice([0, 1, 1, 2])) + content[start + length :]


WEIRD = [None, True, -1, 0.5, 10**400, "", "\ud800", "</s>", "▁", "(", "\\p{L", [], {}, [[]], {"type": "BPE"}]


def mutate(node: Any, chance: random.Random) -> Any:
    """Return a copy of some JSON with one node changed or removed."""
    if not isinstance(node, dict | list) or not node or chance.random() < 0.1:
        return chance.choice(WEIRD)
    node = copy.copy(node)
    key = chance.choice(list(node)) if isinstance(node, dict) else chance.randrange(len(node))
    if chance.random() < 0.1:
        del node[key]
    else:
        node[key] = mutate(node[key], chance)
    return node


def test_a_damaged_file_is_refused_or_harmless(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Damage within a piece gives another valid vocabulary. The SHA-256 in the manifest of a model detects it."""
    small = Tokenizer.learn(sentences(20), kind=tokenizer.kind, vocab_size=FIXED[tokenizer.kind] + 80)
    chance = random.Random(6)
    document = json.loads(small.to_json())
    path = tmp_path / "tokenizer.json"
    contents = [damaged(small.to_json().encode(), chance) for _ in range(300)]
    contents += [json.dumps(mutate(document, chance)).encode() for _ in range(300)]
    refusals = 0
    for content in contents:
        path.write_bytes(content)
        try:
            loaded = Tokenizer.load(path)
        except UserError:
            refusals += 1
        else:
            assert_lossless(loaded, ["two dogs. </s> Straße", *FRAGMENTS])
    assert refusals > 400


def test_a_sentencepiece_pair_without_a_model_is_refused() -> None:
    text = json.dumps({"format": "transduce sentencepiece pair", "target": "", "pieces": []})
    with pytest.raises(UserError, match="a pair of sentencepiece models .*`source`.*; import the model again"):
        Tokenizer.from_json(text)
