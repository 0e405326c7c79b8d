"""Packages for Argos Translate: their SentencePiece model gives our pieces, and other models are refused."""

import itertools
import json
import random
import re
import unicodedata
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from support.random_models import CONFIG, random_model, save_to
from support.tokenizer_texts import FRAGMENTS, HOSTILE, sentences
from support.toy_task import CommandResult, Toy

from transduce import UserError
from transduce.config.schema import ModelConfig, SearchConfig
from transduce.data.subwords import MAX_WORD, document_of, fixed_pieces
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import json_of
from transduce.storage.model_folder import LoadedModel

sentencepiece = pytest.importorskip("sentencepiece", reason="needs transduce[export]")
ctranslate2 = pytest.importorskip("ctranslate2", reason="needs transduce[export]")

from transduce.interop.argos_export import export_argos  # noqa: E402
from transduce.interop.sentencepiece_export import has_other_bytes, sentencepiece_model  # noqa: E402

ENGLISH, GERMAN = ("en", "English"), ("de", "German")


# ---- the pieces --------------------------------------------------------------------------------------------------

SCRIPTS = [
    "aab",
    "abcab",
    "e\u0301a\u0308",
    "नमस्ते काम",
    "ภาษาไทยที่ แก้",
    "=-_.!?",
    "0123",
    "가각힣",
    "العربيّة",
    "東京都庁",
]


def hostile_lines(count: int, seed: int, gaps: tuple[str, ...] = ("", " ", "  ")) -> list[str]:
    """Return lines of fragments and of syllables of one script after the other, with `gaps` between them."""
    chance = random.Random(seed)
    lines = list[str]()
    while len(lines) < count:
        words = list[str]()
        for _ in range(chance.randint(1, 8)):
            alphabet = chance.choice(SCRIPTS)
            start = chance.randrange(len(alphabet))
            words.append(chance.choice([chance.choice(FRAGMENTS), alphabet[start:] * chance.randint(1, 4)]))
            words.append(chance.choice(gaps))
        lines.append("".join(words))
    return lines


@cache
def hostile_tokenizer(*, normalizes: bool) -> Tokenizer:
    """Return a tokenizer whose pieces have all scripts of the hostile lines."""
    return Tokenizer.learn([*hostile_lines(1_000, 1), *sentences(100)], vocab_size=1_500, normalizes=normalizes)


ANY = tuple(chr(code) for code in random.Random(3).sample([*range(1, 0xD800), *range(0xE000, 0x30000)], 2_000))


def differs_in_sentencepiece(line: str, *, normalizes: bool) -> bool:
    """Return True for what docs/interop.md names: long words, marks that follow no letter, and NUL or several marks."""
    kinds = "".join(unicodedata.category(character)[0] for character in line)
    is_of_marks = re.search(r"(^|[^LM])M+[LM]", kinds) is not None
    has_long_word = re.search(rf"[LM]{{{MAX_WORD},}}|N{{{MAX_WORD},}}|[^LN]{{{MAX_WORD},}}", kinds) is not None
    changes_marks = normalizes and "MM" in kinds and unicodedata.normalize("NFC", line) != line
    return has_long_word or is_of_marks or "\0" in line or changes_marks


@pytest.mark.parametrize("normalizes", [False, True])
def test_ten_thousand_hostile_lines_have_the_same_pieces(normalizes: bool) -> None:
    tokenizer = hostile_tokenizer(normalizes=normalizes)
    model = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model(tokenizer))
    candidates = [*HOSTILE, *hostile_lines(6_500, 2), *hostile_lines(6_500, 3, ANY)]
    lines = [line for line in candidates if not differs_in_sentencepiece(line, normalizes=normalizes)]
    assert len(lines) >= 10_000
    ours = [[tokenizer.vocabulary[token] for token in ids] for ids in tokenizer.encode_batch(lines)]
    assert model.encode(lines, out_type=str) == ours
    assert len({piece for pieces in ours for piece in pieces}) > 500
    texts = [tokenizer.decode(ids) for ids in tokenizer.encode_batch(lines[:1_000])]
    assert [model.decode_pieces(pieces) for pieces in ours[:1_000]] == texts


@pytest.mark.parametrize("seed", range(8))
def test_any_order_of_merges_gives_the_same_pieces(seed: int) -> None:
    chance = random.Random(seed)
    pieces, merges = [*"▁abc"], list[list[str]]()
    while len(merges) < 40:  # some make a piece that another merge makes, too, and some never apply
        merge = [chance.choice(pieces[1:]), chance.choice(pieces[1:])]
        if len("".join(merge)) <= 5 and merge not in merges:
            merges.append(merge)
            pieces.append("".join(merge))
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys([*fixed_pieces("bpe"), *pieces]))}
    tokenizer = Tokenizer(json_of(document_of("bpe", vocabulary, merges)))
    model = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model(tokenizer))
    lines = ["".join(letters) for letters in itertools.product("abc", repeat=7)]
    ours = [[tokenizer.vocabulary[token] for token in ids] for ids in tokenizer.encode_batch(lines)]
    assert model.encode(lines, out_type=str) == ours


def test_one_model_must_decode_the_bytes_of_both_languages() -> None:
    with_bytes = sentencepiece_model(hostile_tokenizer(normalizes=False))
    assert has_other_bytes(b"another", with_bytes) and not has_other_bytes(with_bytes, with_bytes)


# ---- the package -------------------------------------------------------------------------------------------------


def test_the_command_line_writes_a_package(toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]) -> None:
    out = tmp_path / "out" / "pt-de.argosmodel"
    process = cli("export", toy.model, "--to", "argos", "--languages", "pt-BR-de", "--out", out)
    assert process.code == 0 and "differ by" in process.err and process.out == b""
    with zipfile.ZipFile(out) as archive:
        archive.extractall(tmp_path)
    folder = tmp_path / "translate-pb_de"
    metadata = json.loads((folder / "metadata.json").read_bytes())
    assert (metadata["from_code"], metadata["from_name"], metadata["to_code"]) == ("pb", "Portuguese (BR)", "de")
    model = sentencepiece.SentencePieceProcessor(model_file=str(folder / "sentencepiece.model"))
    translator = ctranslate2.Translator(str(folder / "model"))
    (result,) = translator.translate_batch([model.encode("a b c d", out_type=str)], beam_size=4, length_penalty=0.2)
    assert model.decode_pieces(result.hypotheses[0]) == "d c b a"
    penalty = "search.length_penalty='gnmt' and search.alpha=0.6: Argos Translate divides by |Y|^0.2"
    assert process.err.splitlines()[1:] == [penalty]
    assert f"- {penalty}\n" in (folder / "README.md").read_text(encoding="utf-8")
    first = out.read_bytes()
    process = cli("export", toy.model, "--to", "argos", "--languages", "pt-BR-de", "--out", out)
    assert process.code == 2 and "expected a new file; give another name" in process.err and out.read_bytes() == first


def test_the_package_names_the_settings_that_argos_translate_ignores(tmp_path: Path) -> None:
    loaded = random_model(CONFIG)
    search = SearchConfig(beam_size=4, length_penalty="power", alpha=0.2)
    model = save_to(replace(loaded, config=replace(loaded.config, search=search)), tmp_path / "model")
    assert len(export_argos(model, tmp_path / "a.argosmodel", ENGLISH, GERMAN).splitlines()) == 1
    search = replace(search, beam_size=2, no_repeat_ngram=3)
    model = save_to(replace(loaded, config=replace(loaded.config, search=search)), tmp_path / "other")
    _, *lines = export_argos(model, tmp_path / "b.argosmodel", ENGLISH, GERMAN).splitlines()
    expected = [
        "search.no_repeat_ngram=3: Argos Translate does not have it",
        "search.beam_size=2: Argos Translate has 4",
    ]
    assert lines == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "argos"], "--languages: expected the languages of the model; add them, such as --languages en-de"),
        (["--to", "argos", "--languages", "en"], "expected two languages, such as en-de"),
        (["--to", "argos", "--languages", "en-pt-BR"], "expected languages without a region, not en-pt"),
        (["--to", "ctranslate2", "--languages", "en-de"], "--languages=en-de: must not be set with --to ctranslate2"),
        (
            ["--to", "argos", "--languages", "en-de", "--precision", "fp8"],
            "precision='fp8': expected one of fp32, int8",
        ),
    ],
)
def test_wrong_arguments_are_refused(
    arguments: list[str], message: str, toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult]
) -> None:
    process = cli("export", toy.model, "--out", tmp_path / "o.argosmodel", *arguments)
    assert process.code == 2 and message in process.err and not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (lambda: random_model(CONFIG, "wordpiece"), "data.tokenizer='wordpiece': expected 'bpe'"),
        (lambda: random_model(CONFIG, tags=("<2de>", "<2fr>")), "data.tags=<2de>,<2fr>: expected none"),
        (
            lambda: random_model(replace(CONFIG, positions="learned", max_positions=60)),
            "model.max_positions=60: expected 1,024",
        ),
        (
            lambda: random_model(ModelConfig(kind="recurrent", vocab_size=None, d_model=32, n_layers=2, dropout=0.0)),
            "model.kind='recurrent': expected 'transformer'",
        ),
    ],
)
def test_unsuitable_models_are_refused_by_name(create: Callable[[], LoadedModel], message: str, tmp_path: Path) -> None:
    model = save_to(create(), tmp_path / "model")
    with pytest.raises(UserError) as error:
        export_argos(model, tmp_path / "out.argosmodel", ENGLISH, GERMAN)
    assert str(error.value).startswith(message)
    assert "recurrent" in message or f"transduce serve {model} --from en --to de" in str(error.value)
    with pytest.raises(UserError, match=r"out: expected a name that ends with .argosmodel; use out.argosmodel"):
        export_argos(model, tmp_path / "out", ENGLISH, GERMAN)
    assert [*tmp_path.iterdir()] == [model]
