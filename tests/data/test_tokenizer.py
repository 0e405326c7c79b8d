"""Tokens: nothing is lost, no text makes a control id, and the same input gives the same ids everywhere."""

import copy
import hashlib
import json
import os
import pickle
import random
import re
import statistics
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Engine
from tokenizers import models, pre_tokenizers, trainers

from transduce.data import bpe_dropout
from transduce.data import tokenizer as tokens
from transduce.data.subwords import KINDS, MAX_WORD
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import BOS, CONTROLS, EOS, PAD, UNK
from transduce.errors import UserError

FIXED = {"bpe": 4 + 256, "wordpiece": 4 + 2 * 256}
VOCAB_SIZE = {"bpe": 600, "wordpiece": 900}


def sentences(count: int, seed: int = 1) -> Iterator[str]:
    """English and German in turn."""
    chance = random.Random(seed)
    english = (
        "the a two young dogs dog runs running jumps over street near house, man woman's child plays 12 red".split()
    )
    german = (
        "der die zwei jungen Hunde Hund läuft springt über Straße Häuser, Mann Frau Kindergarten spielt 12 rote".split()
    )
    for _ in range(count):
        yield " ".join(chance.choices(english, k=chance.randint(3, 12))) + "."
        yield " ".join(chance.choices(german, k=chance.randint(3, 12))) + " ."


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer.learn(sentences(500), kind=request.param, vocab_size=VOCAB_SIZE[request.param])


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return Tokenizer.learn(sentences(500), kind="bpe", vocab_size=600)


# --- losslessness ----------------------------------------------------------------------------------------------------

FRAGMENTS = [
    *CONTROLS, "<0x41>", "<0x0A>", "<0xFF>", "<mask>", "[UNK]", "##", "@@", "▁", "▁▁", "\ue000", "\ue0000", "\ue0001",
    " ", "  ", "\t", "\n", "\r\n", "\0", "\x7f", "\u0085", "\u00a0", "\u2028", "\u3000", "\ufeff", "\u200b", "\u202e",
    "0", "1", "a", "the", "Straße", "dog.", "don't", "İıſß", "e\u0301\u0323", "\u0301", "ⅷ½٣", "ﬁ", "𝔘", "_", "—",
    "&amp;", "नमस्ते", "ภาษาไทย", "العربيّة", "עִבְרִית", "東京都", "한국어", "👩‍👩‍👧‍👦", "👍🏽", "🇩🇪",
    "\ufffd", "\ufffe", "\uffff", "\U0010ffff", "Ġ", "Ċ", "Â", "Ã",
]  # fmt: skip

HOSTILE = [
    "",
    *FRAGMENTS,
    *(f" {fragment} " for fragment in FRAGMENTS),
    *(f"a{fragment}b" for fragment in FRAGMENTS),
    "   three before, three after   ",
    "".join(map(chr, range(0x250))),
    "e" + "\u0301" * 300,
    *("x" * length for length in range(MAX_WORD - 2, MAX_WORD + 2)),
    *(character * 500 for character in "▁\ue000 7!東"),
]


def assert_lossless(tokenizer: Tokenizer, lines: list[str]) -> None:
    for line, ids in zip(lines, tokenizer.encode_batch(lines), strict=True):
        assert tokenizer.decode(ids) == line
        assert not ids or UNK < min(ids) <= max(ids) < tokenizer.vocab_size, line
        assert bool(ids) == bool(line)


def test_hostile_lines_come_back(tokenizer: Tokenizer) -> None:
    assert_lossless(tokenizer, HOSTILE)


def test_thousands_of_random_lines_come_back(tokenizer: Tokenizer) -> None:
    chance = random.Random(2)
    alphabets = [FRAGMENTS, "ab \u2581\ue00001<>/sx", [chr(code) for code in range(0x3000)]]
    assert_lossless(
        tokenizer, ["".join(chance.choices(chance.choice(alphabets), k=chance.randint(0, 12))) for _ in range(6000)]
    )


@settings(deadline=None, derandomize=True, max_examples=300)
@given(line=st.text() | st.lists(st.sampled_from(FRAGMENTS)).map("".join))
def test_any_line_comes_back(tokenizer: Tokenizer, line: str) -> None:
    assert_lossless(tokenizer, [line])


def test_a_line_of_a_megabyte_comes_back(tokenizer: Tokenizer) -> None:
    assert_lossless(tokenizer, ["x" * 300_000 + " " + "東" * 20_000 + "." * 300_000, "ab " * 100_000])


def test_one_line_is_a_batch_of_one(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode_batch(HOSTILE) == [tokenizer.encode(line) for line in HOSTILE]
    assert tokenizer.encode_batch([]) == []


@pytest.mark.parametrize("kind", KINDS)
def test_control_pieces_in_the_training_text_stay_text(kind: str) -> None:
    spelled = [f"{piece}x{piece}y a{piece} <0x41><0x42>b▁c" for piece in CONTROLS] * 50
    tokenizer = Tokenizer.learn(spelled, kind=kind, vocab_size=VOCAB_SIZE[kind])
    assert_lossless(tokenizer, spelled[:4] + HOSTILE)
    assert len(set(tokenizer.pieces(range(4, tokenizer.vocab_size))) & set(CONTROLS)) == 0


@pytest.mark.parametrize("line", ["\ud800", "a \udfff", "\udc80"])
def test_half_a_character_is_refused(tokenizer: Tokenizer, bpe: Tokenizer, line: str) -> None:
    for encode in (tokenizer.encode, lambda line: tokenizer.encode_batch(["a", line])):
        with pytest.raises(UserError, match=f"character {len(line)} of a line is .*surrogate"):
            encode(line)
    with pytest.raises(UserError, match="surrogate"):
        bpe.encode_dropout(line, p=0.1, key="k")
    with pytest.raises(UserError, match="surrogate"):
        Tokenizer.learn(["a", line], vocab_size=600)


# --- pieces and text -------------------------------------------------------------------------------------------------


@settings(deadline=None, derandomize=True, max_examples=300)
@given(data=st.data())
def test_any_ids_give_text(tokenizer: Tokenizer, data: st.DataObject) -> None:
    ids = data.draw(st.lists(st.integers(0, 300) | st.integers(0, tokenizer.vocab_size - 1)))
    line = tokenizer.decode(ids)
    line.encode()  # no surrogates
    assert line == tokenizer.decode([token for token in ids if token > UNK])
    assert len(tokenizer.pieces(ids)) == len(ids)


def test_bytes_that_are_not_utf8_become_replacement_characters(tokenizer: Tokenizer) -> None:
    byte = {piece: token for token, piece in enumerate(tokenizer.pieces(range(tokenizer.vocab_size)))}
    assert tokenizer.decode([byte["<0xFF>"]]) == "\ufffd"
    assert tokenizer.decode([byte["<0xE6>"], byte["<0x9D>"]]).strip("\ufffd") == ""
    assert tokenizer.decode([*tokenizer.encode("dog"), byte["<0xC3>"]]) == "dog\ufffd"


def test_control_ids_are_left_out_of_text(tokenizer: Tokenizer) -> None:
    assert (PAD, BOS, EOS, UNK) == (0, 1, 2, 3)
    assert tokenizer.decode([BOS, *tokenizer.encode(" two dogs"), UNK, EOS, PAD, PAD]) == " two dogs"
    assert tokenizer.decode([PAD, BOS, EOS, UNK]) == tokenizer.decode([]) == ""
    assert tokenizer.pieces([PAD, BOS, EOS, UNK]) == list(CONTROLS)


def test_pieces_are_readable(tokenizer: Tokenizer) -> None:
    assert tokenizer.pieces(tokenizer.encode("two dogs, der Hund")) == ["▁two", "▁dogs", ",", "▁der", "▁Hund"]
    assert "".join(tokenizer.pieces(tokenizer.encode("zwölf Straßen"))) in (
        "▁zwölf▁Straßen",
        "▁zw<0xC3><0xB6>lf▁Straßen",
    )
    assert tokenizer.pieces(tokenizer.encode("東"))[-3:] == ["<0xE6>", "<0x9D>", "<0xB1>"]


def test_letters_digits_and_punctuation_share_no_piece(tokenizer: Tokenizer) -> None:
    for piece in tokenizer.pieces(range(FIXED[tokenizer.kind], tokenizer.vocab_size)):
        whole = re.sub("<0x..>", "", piece).lstrip("▁")
        assert len({"letter" if c.isalpha() else "digit" if c.isdigit() else "other" for c in whole}) <= 1, piece


def test_no_word_is_long(tokenizer: Tokenizer) -> None:
    """What bounds the time of a line: both encoders look for pieces word by word."""
    for unit in ("x", "東", "7", "!", "🎉", "\u0301", "a\u0301"):
        line = unit * 20_000
        words = tokenizer._engine.pre_tokenizer.pre_tokenize_str(tokenizer._engine.normalizer.normalize_str(line))
        bytes_per_letter = 4 if tokenizer.kind == "wordpiece" else 1
        assert max(len(word) for word, _ in words) <= (MAX_WORD + 1) * bytes_per_letter
        assert len(words) <= len(line) / MAX_WORD + 2


# --- learning --------------------------------------------------------------------------------------------------------

LEARN = """
import sys
from test_tokenizer import VOCAB_SIZE, sentences
from transduce.data.tokenizer import Tokenizer
print(Tokenizer.learn(sentences(500), kind=sys.argv[1], vocab_size=VOCAB_SIZE[sys.argv[1]]).sha256)
"""


def in_a_new_process(program: str, *arguments: str, **environment: str) -> str:
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        check=True,
        encoding="utf-8",
    ).stdout.strip()


def test_the_same_lines_give_the_same_tokenizer(tokenizer: Tokenizer) -> None:
    lines = list(sentences(500))
    assert Tokenizer.learn(lines, kind=tokenizer.kind, vocab_size=VOCAB_SIZE[tokenizer.kind]).sha256 == tokenizer.sha256
    for seed, parallel, threads in (("1", "true", "2"), ("2", "false", "1")):
        settings = {"PYTHONHASHSEED": seed, "TOKENIZERS_PARALLELISM": parallel, "RAYON_NUM_THREADS": threads}
        assert in_a_new_process(LEARN, tokenizer.kind, **settings) == tokenizer.sha256


def test_the_first_ids_are_fixed(tokenizer: Tokenizer) -> None:
    pieces = list(json.loads(tokenizer.to_json())["model"]["vocab"])
    assert len(pieces) == tokenizer.vocab_size == len(set(pieces))
    assert pieces[:4] == list(CONTROLS)
    if tokenizer.kind == "bpe":
        assert pieces[4:260] == [f"<0x{byte:02X}>" for byte in range(256)]
    else:
        assert pieces[260:516] == ["▁" + letter for letter in pieces[4:260]]


def test_a_small_text_gives_fewer_pieces(tokenizer: Tokenizer) -> None:
    kind = tokenizer.kind
    assert tokenizer.vocab_size <= VOCAB_SIZE[kind]
    small = Tokenizer.learn(["ab ab ab"], kind=kind, vocab_size=5000)
    assert FIXED[kind] < small.vocab_size < FIXED[kind] + 10
    assert_lossless(small, HOSTILE)


@pytest.mark.parametrize("kind", KINDS)
def test_the_vocabulary_is_filled_exactly(kind: str) -> None:
    size = FIXED[kind] + 60
    assert Tokenizer.learn(sentences(500), kind=kind, vocab_size=size).vocab_size == size


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("vocab_size", [-1, 0, 4, 260])
def test_a_vocabulary_without_room_is_refused(kind: str, vocab_size: int) -> None:
    with pytest.raises(UserError, match=rf"data.vocab_size={vocab_size}: expected more than {FIXED[kind]}"):
        Tokenizer.learn(["a"], kind=kind, vocab_size=vocab_size)


def test_more_characters_than_pieces_are_refused_with_the_number_needed() -> None:
    lines = ["".join(map(chr, range(0x4E00, 0x4E00 + 200)))]
    with pytest.raises(UserError, match=r"data.vocab_size=300: expected at least 461, because the text has 201"):
        Tokenizer.learn(lines, vocab_size=300)
    assert Tokenizer.learn(lines, vocab_size=461).vocab_size == 461


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lines", [[], [""], ["", " ", "\t\u3000"]])
def test_no_text_is_refused(kind: str, lines: list[str]) -> None:
    with pytest.raises(UserError, match="no text to learn"):
        Tokenizer.learn(lines, kind=kind, vocab_size=1000)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(UserError, match="data.tokenizer='unigram': expected one of bpe, wordpiece"):
        Tokenizer.learn(["a"], kind="unigram", vocab_size=1000)


def test_a_fault_of_the_reader_comes_through() -> None:
    def lines() -> Iterator[str]:
        yield "a"
        raise UserError("train.de:2: expected UTF-8")

    with pytest.raises(UserError, match=r"train\.de:2"):
        Tokenizer.learn(lines(), vocab_size=1000)


def test_learning_does_not_keep_the_lines() -> None:
    tracemalloc.start()
    try:
        Tokenizer.learn((f"line {i % 7} " * 100 for i in range(20_000)), vocab_size=300)
        assert tracemalloc.get_traced_memory()[1] < 4_000_000  # the lines are 16 MB
    finally:
        tracemalloc.stop()


# --- BPE-dropout -----------------------------------------------------------------------------------------------------


def unremembered(bpe: Tokenizer) -> Tokenizer:
    return Tokenizer.from_json(bpe.to_json())


def test_without_dropout_our_encoder_is_the_library_s(bpe: Tokenizer) -> None:
    """Where no merge is dropped, the Python encoder itself gives what the library gives."""
    chance = random.Random(3)
    lines = [*HOSTILE, *sentences(300, seed=4), *("".join(chance.choices("thedogsr ,", k=40)) for _ in range(500))]
    for line in lines:
        assert bpe.encode_dropout(line, p=0.0, key="k") == bpe.encode(line)
        assert bpe.encode_dropout(line, p=1e-15, key="k") == bpe.encode(line)


def test_dropout_of_every_merge_leaves_characters(bpe: Tokenizer) -> None:
    for line in [*HOSTILE, *sentences(5)]:
        assert all(len(p) == 1 or p.startswith("<0x") for p in bpe.pieces(bpe.encode_dropout(line, p=1, key="k")))


def test_dropout_loses_nothing(bpe: Tokenizer) -> None:
    lines = HOSTILE + list(sentences(20))
    for i in range(40):
        for line in lines:
            ids = bpe.encode_dropout(line, p=(0.02, 0.1, 0.5, 1.0)[i % 4], key=f"1:{i}")
            assert bpe.decode(ids) == line
            assert not ids or min(ids) > UNK


def test_dropout_is_a_function_of_line_p_and_key(bpe: Tokenizer) -> None:
    line = next(sentences(1)) * 4
    ids = {key: bpe.encode_dropout(line, p=0.3, key=key) for key in map(str, range(30))}
    assert len(set(map(tuple, ids.values()))) > 25
    other = unremembered(bpe)
    assert ids == {key: other.encode_dropout(line, p=0.3, key=key) for key in reversed(list(ids))}


def test_what_is_remembered_changes_nothing(bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [*HOSTILE, *sentences(100)]

    def encoded() -> list[list[int]]:
        fresh = unremembered(bpe)
        return [fresh.encode_dropout(line, p=0.2, key=str(i)) for i, line in enumerate(lines)]

    usual = encoded()
    monkeypatch.setattr(bpe_dropout, "MEMO_ENTRIES", 3)
    assert encoded() == usual
    monkeypatch.setattr(bpe_dropout, "MEMO_LENGTH", 0)
    assert encoded() == usual


DROPOUT = """
import hashlib, sys
from test_tokenizer import sentences
from transduce.data.tokenizer import Tokenizer
tokenizer = Tokenizer.load(sys.argv[1])
ids = [tokenizer.encode_dropout(line, p=0.1, key=f"7:{i}") for i, line in enumerate(sentences(200))]
print(hashlib.sha256(repr(ids).encode()).hexdigest())
"""


def test_dropout_is_the_same_in_another_process(bpe: Tokenizer, tmp_path: Path) -> None:
    bpe.save(tmp_path / "tokenizer.json")
    ids = [bpe.encode_dropout(line, p=0.1, key=f"7:{i}") for i, line in enumerate(sentences(200))]
    expected = hashlib.sha256(repr(ids).encode()).hexdigest()
    for seed in ("1", "2"):
        assert in_a_new_process(DROPOUT, str(tmp_path / "tokenizer.json"), PYTHONHASHSEED=seed) == expected


def by_the_book(word: list[str], merges: dict[tuple[str, str], int], p: float, chance: random.Random) -> list[str]:
    """Algorithm 1 of Provilkov et al.: at each step every merge that is possible goes with probability p."""
    while True:
        pairs = [(merges[pair], i) for i, pair in enumerate(zip(word, word[1:], strict=False)) if pair in merges]
        left = [pair for pair in pairs if chance.random() >= p]
        if not left:
            return word
        _, i = min(left)
        word = [*word[:i], word[i] + word[i + 1], *word[i + 2 :]]


@pytest.mark.parametrize("p", [0.1, 0.5])
def test_dropout_is_distributed_as_in_the_paper(bpe: Tokenizer, p: float) -> None:
    """Mean and spread of the number of pieces of a word, and the share of its most frequent pieces."""
    merges = {(a, b): rank for rank, (a, b) in enumerate(json.loads(bpe.to_json())["model"]["merges"])}
    chance, runs = random.Random(5), 4000
    for word in ("Kindergarten", "running", "springt"):
        book = [tuple(by_the_book(list("▁" + word), merges, p, chance)) for _ in range(runs)]
        ours = [tuple(bpe.pieces(bpe.encode_dropout(word, p=p, key=str(i)))) for i in range(runs)]
        usual = tuple(bpe.pieces(bpe.encode(word)))
        measures: list[Callable[[tuple[str, ...]], float]] = [
            len,
            lambda pieces: len(pieces) ** 2,
            lambda pieces: len(pieces[0]),
            lambda pieces, usual=usual: pieces == usual,
        ]
        for measure in measures:
            a, b = list(map(measure, book)), list(map(measure, ours))
            error = ((statistics.variance(a) + statistics.variance(b)) / runs) ** 0.5
            assert abs(statistics.mean(a) - statistics.mean(b)) <= 4 * error


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_probability_that_is_none_is_refused(bpe: Tokenizer, p: float) -> None:
    with pytest.raises(UserError, match="expected 0 to 1"):
        bpe.encode_dropout("a", p=p, key="k")


def test_word_pieces_have_no_merges_to_drop() -> None:
    tokenizer = Tokenizer.learn(sentences(50), kind="wordpiece", vocab_size=600)
    with pytest.raises(UserError, match="data.bpe_dropout=0.1: expected 0, because"):
        tokenizer.encode_dropout("a", p=0.1, key="k")


# --- the file --------------------------------------------------------------------------------------------------------


def test_what_is_saved_is_what_is_loaded(tokenizer: Tokenizer, tmp_path: Path) -> None:
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
from test_tokenizer import HOSTILE
from transduce.data.tokenizer import Tokenizer
tokenizer = Tokenizer.load(sys.argv[1])
tokenizer.save(sys.argv[1] + ".again")
ids = tokenizer.encode_batch(HOSTILE)
assert [tokenizer.decode(line) for line in ids] == HOSTILE
print(hashlib.sha256(repr(ids).encode()).hexdigest())
"""


def test_the_locale_decides_nothing(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    expected = hashlib.sha256(repr(tokenizer.encode_batch(HOSTILE)).encode()).hexdigest()
    assert in_a_new_process(LOAD, str(path), LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0") == expected
    assert path.read_bytes() == (tmp_path / "tokenizer.json.again").read_bytes()


def test_the_library_reads_the_file_by_itself(tokenizer: Tokenizer) -> None:
    engine = Engine.from_str(tokenizer.to_json())
    for line in ("two dogs ▁ Straße 東\ue0001", " a  b "):
        encoding = engine.encode(line)
        assert encoding.ids == [*tokenizer.encode(line), EOS]
        assert engine.decode(encoding.ids) == line


def changed(tokenizer: Tokenizer, change: Callable[[dict[str, Any]], object]) -> str:
    document = json.loads(tokenizer.to_json())
    change(document)
    return json.dumps(document)


def swap_controls(document: dict[str, Any]) -> None:
    vocabulary = document["model"]["vocab"]
    document["model"]["vocab"] = {"</s>": 0, "<s>": 1, "<pad>": 2} | {k: v for k, v in vocabulary.items() if v > 2}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda d: d.pop("version"), "its version is foreign"),
        (lambda d: d.update(version="2.0"), "its version is foreign"),
        (lambda d: d.update(extra=1), "its extra is foreign"),
        (lambda d: d.update(normalizer=None), "its normalizer is foreign"),
        (lambda d: d.update(added_tokens=[]), "its added_tokens is foreign"),
        (lambda d: d["model"].update(dropout=0.5), "its model is foreign"),
        (lambda d: d["model"].update(type="Unigram"), "no model of type"),
        (lambda d: d["model"]["vocab"].update({"new": 10**6}), "do not count up"),
        (lambda d: d["model"]["vocab"].pop("<unk>"), "do not count up"),
        (swap_controls, "does not begin with the control"),
    ],
)
def test_a_file_that_differs_from_ours_is_refused(
    tokenizer: Tokenizer, change: Callable[[dict[str, Any]], object], reason: str
) -> None:
    with pytest.raises(UserError, match=reason):
        Tokenizer.from_json(changed(tokenizer, change), "tokenizer.json")


@pytest.mark.parametrize("merge", [["a"], ["a", "b", "c"], "a b", ["a", 1], ["a", "no such piece"], ["a", ["b"]], None])
def test_merges_that_lead_nowhere_are_refused(bpe: Tokenizer, merge: object) -> None:
    with pytest.raises(UserError, match="merges do not lead"):
        Tokenizer.from_json(changed(bpe, lambda document: document["model"]["merges"].append(merge)))


def test_the_tokenizer_of_another_program_is_refused() -> None:
    engine = Engine(models.BPE())
    engine.pre_tokenizer = pre_tokenizers.Metaspace()
    engine.train_from_iterator(sentences(50), trainers.BpeTrainer(vocab_size=300, show_progress=False))
    with pytest.raises(UserError, match="begin with the control and byte pieces; expected the tokenizer.json"):
        Tokenizer.from_json(engine.to_str())


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"null", b"[]", b"{}", b"3", b'"a"', b"\xff\xfe", b"\0" * 100, b"[" * 100_000, b"NaN", b"1" * 5000,
     b'{"model": 3}', b'{"model": {"type": ["BPE"]}}', b'{"model": {"type": "BPE", "vocab": []}}'],
)  # fmt: skip
def test_what_is_no_tokenizer_is_refused_by_name(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        Tokenizer.load(path)
    assert str(path) in str(caught.value)


def test_what_is_no_file_is_refused_by_name(tmp_path: Path) -> None:
    big = tmp_path / "big.json"
    with big.open("wb") as file:
        file.truncate(tokens.MAX_FILE_BYTES + 1)
    for path, reason in ((tmp_path / "missing", "No such file"), (tmp_path, "directory"), (big, "67,108,865 bytes")):
        with pytest.raises(UserError, match=reason) as caught:
            Tokenizer.load(path)
        assert str(path) in str(caught.value)


def damaged(content: bytes, chance: random.Random) -> bytes:
    start, length = chance.randrange(len(content)), chance.choice([0, 1, 1, 2, 10, 1000])
    return content[:start] + chance.randbytes(chance.choice([0, 1, 1, 2])) + content[start + length :]


WEIRD = [None, True, -1, 0.5, 10**400, "", "\ud800", "</s>", "▁", "(", "\\p{L", [], {}, [[]], {"type": "BPE"}]


def mutated(node: Any, chance: random.Random) -> Any:
    """The same JSON but for one node somewhere in it."""
    if not isinstance(node, dict | list) or not node or chance.random() < 0.1:
        return chance.choice(WEIRD)
    node = copy.copy(node)
    key = chance.choice(list(node)) if isinstance(node, dict) else chance.randrange(len(node))
    if chance.random() < 0.1:
        del node[key]
    else:
        node[key] = mutated(node[key], chance)
    return node


def test_a_damaged_file_is_refused_or_harmless(tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Damage within a learned piece is another vocabulary, not another text; the manifest of a model tells."""
    small = Tokenizer.learn(sentences(20), kind=tokenizer.kind, vocab_size=FIXED[tokenizer.kind] + 80)
    chance, document, path = random.Random(6), json.loads(small.to_json()), tmp_path / "tokenizer.json"
    contents = [damaged(small.to_json().encode(), chance) for _ in range(300)]
    contents += [json.dumps(mutated(document, chance)).encode() for _ in range(300)]
    refused = 0
    for content in contents:
        path.write_bytes(content)
        try:
            loaded = Tokenizer.load(path)
        except UserError:
            refused += 1
        else:
            assert_lossless(loaded, ["two dogs. </s> Straße", *FRAGMENTS])
    assert refused > 400
