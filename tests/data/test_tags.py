"""Tags: one token at the beginning of a source line, in every kind of tokenizer, and ordinary text elsewhere."""

import json
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
from support.tokenizer_texts import HOSTILE, VOCAB_SIZE, assert_lossless, encode_dropout, learn, sentences
from tokenizers import Tokenizer as LibraryTokenizer

from transduce.config.schema import DataConfig
from transduce.data.batches import Batches, DataPosition
from transduce.data.corpora import Corpus
from transduce.data.token_store import open_store
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import EOS
from transduce.errors import UserError

TAGS = ["<2de>", "<2fr>"]
LINE = "the young dog runs over 12 red houses."
kinds = pytest.mark.parametrize("kind", ["bpe", "wordpiece"])


@cache
def tagged(kind: str) -> Tokenizer:
    """Learn the tokenizer of `learn` from lines with tags."""
    lines = (f"{TAGS[i // 2 % 2]} {line}" if i % 2 == 0 else line for i, line in enumerate(sentences(500)))
    return Tokenizer.learn(lines, kind=kind, vocab_size=VOCAB_SIZE[kind] + len(TAGS), tags=TAGS)


@kinds
def test_a_tag_before_a_line_is_one_token(kind: str) -> None:
    tokenizer = tagged(kind)
    rest = tokenizer.encode(LINE)
    for tag in TAGS:
        number = tokenizer.vocabulary.index(tag)
        assert tokenizer.encode(f"{tag} {LINE}") == [number, *rest]
        assert tokenizer.encode_batch([LINE, f"{tag} {LINE}", tag]) == [rest, [number, *rest], [number]]
        assert tokenizer.pieces([number]) == [tag]
        assert tokenizer.decode([number, *rest]) == LINE
        assert tokenizer.split_tag(f"{tag}  {LINE}") == (tag, f" {LINE}")


def test_bpe_dropout_keeps_a_tag() -> None:
    tokenizer = tagged("bpe")
    number, rest = tokenizer.vocabulary.index("<2fr>"), encode_dropout(tokenizer, LINE, p=1, key="1")
    assert encode_dropout(tokenizer, f"<2fr> {LINE}", p=1, key="1") == [number, *rest]
    assert len(rest) > len(tokenizer.encode(LINE))
    assert encode_dropout(tokenizer, f"<2fr> {LINE}", p=0, key="1") == tokenizer.encode(f"<2fr> {LINE}")


OTHERS = ["<2de>x", " <2de> a", "a <2de> b", "a <2de>", "<2es> a", "<2de>\ta", "<2DE> a", "<", "<2", "2de> a"]


@kinds
def test_a_tag_elsewhere_is_text(kind: str) -> None:
    tokenizer = tagged(kind)
    numbers = {tokenizer.vocabulary.index(tag) for tag in TAGS}
    assert not any(numbers & {*ids} for ids in tokenizer.encode_batch([*OTHERS, *HOSTILE]))
    assert_lossless(tokenizer, [*OTHERS, *HOSTILE])
    lines = [f"{tag} {line}" for tag in TAGS for line in ("a", *HOSTILE)]
    assert_lossless(tokenizer.target, [*lines, *TAGS, *OTHERS, *HOSTILE])
    assert not any(numbers & {*ids} for ids in tokenizer.target.encode_batch(lines))
    if kind == "bpe":
        assert not numbers & {*encode_dropout(tokenizer.target, lines[0], p=0.5, key="1")}


@kinds
def test_without_tags_the_characters_of_a_tag_are_text(kind: str) -> None:
    tokenizer = learn(kind)
    assert tokenizer.tags == [] and tokenizer.target is tokenizer
    assert_lossless(tokenizer, [f"<2de> {line}" for line in HOSTILE])


@kinds
def test_no_piece_is_learned_from_tags(kind: str) -> None:
    tokenizer, expected = tagged(kind), learn(kind)
    assert [piece for piece in tokenizer.vocabulary if piece not in TAGS] == expected.vocabulary
    assert tokenizer.tags == TAGS and len(tokenizer.vocabulary) == tokenizer.vocab_size == expected.vocab_size + 2
    pieces = tokenizer.pieces(tokenizer.encode(LINE))
    assert pieces == expected.pieces(expected.encode(LINE))


@kinds
def test_a_copy_of_a_tokenizer_has_the_tags(kind: str) -> None:
    tokenizer = tagged(kind)
    for copy in (Tokenizer.from_json(tokenizer.to_json()), deepcopy(tokenizer)):
        assert copy.tags == TAGS and copy.target.tags == []
        assert copy.encode(f"<2de> {LINE}") == tokenizer.encode(f"<2de> {LINE}")
    assert deepcopy(tokenizer.target).tags == []


@kinds
def test_the_library_encodes_a_tagged_line_in_the_same_way(kind: str) -> None:
    engine = LibraryTokenizer.from_str(tagged(kind).to_json())
    for line in (LINE, f"<2de> {LINE}"):
        assert engine.encode(line).ids == [*tagged(kind).encode(line), EOS]


def changed(change: str) -> str:
    document: dict[str, Any] = json.loads(tagged("bpe").to_json())
    added = document["added_tokens"]
    if change == "another word":
        added[4]["content"] = "<2es>"
    elif change == "no tag in the vocabulary":
        del document["model"]["vocab"]["<2fr>"]
    elif change == "flags":
        added[5]["rstrip"] = False
    elif change == "order":
        added[4:] = [added[5], added[4]]
    elif change == "a word that text spells":
        vocabulary = document["model"]["vocab"]
        document["model"]["vocab"] = {piece if piece != "<2fr>" else "xyz": i for piece, i in vocabulary.items()}
        added[5]["content"] = "xyz"
    else:
        document["added_tokens"] = {"a number": 3, "not an object": [*added, 3]}[change]
    return json.dumps(document)


@pytest.mark.parametrize(
    "change",
    [
        "another word",
        "no tag in the vocabulary",
        "flags",
        "order",
        "a word that text spells",
        "a number",
        "not an object",
    ],
)
def test_a_file_with_other_tags_is_refused(change: str) -> None:
    with pytest.raises(UserError, match="expected a tokenizer of transduce"):
        Tokenizer.from_json(changed(change))


def test_impossible_tags_are_refused() -> None:
    for tags in (["the"], ["<2de>", "<2de>"], ["</s>"], ["a b"]):
        with pytest.raises(UserError):
            Tokenizer.learn(["the dog"], vocab_size=300, tags=tags)


def test_training_keeps_tags_and_skips_pairs_without_a_source(tmp_path: Any) -> None:
    """The tag is the first token of each source, with BPE-dropout too, and only of the source."""
    tokenizer = tagged("bpe")
    src, tgt = tmp_path / "src", tmp_path / "tgt"
    src.write_text("".join(f"{TAGS[i % 2]} {'' if i == 3 else LINE}\n" for i in range(8)), "utf-8")
    tgt.write_text("<2de> ein Hund läuft\n" * 8, "utf-8")
    store = open_store(tmp_path / "store", [Corpus(src, tgt)], tokenizer)
    batches = Batches(store, tokenizer, DataConfig(batch_tokens=4_000, bpe_dropout=0.3), seed=1)
    assert batches.usable == 7
    numbers = [tokenizer.vocabulary.index(tag) for tag in TAGS]
    ((batch,), _) = next(batches.stream(DataPosition()))
    assert sorted(batch.pairs.tolist()) == [0, 1, 2, 4, 5, 6, 7]
    assert batch.src[:, 0].tolist() == [numbers[pair % 2] for pair in batch.pairs]
    assert not {*numbers} & {*batch.tgt_out.flatten().tolist()}
