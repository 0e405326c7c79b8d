"""BERT from lines to words, vectors and classes."""

import json
import random
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from support.little_memory import LittleMemory
from support.small_encoders import LABELS, WORDS, bert_folder, small_bert, tokenizer_json
from support.small_members import gpt2_folder
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel
from torch import Tensor
from torch.nn import functional as F

from transduce.errors import NotFiniteError, UserError
from transduce.family.bert import Bert, BertEncoder
from transduce.family.bert_heads import sentence_vectors
from transduce.family.configs import BertConfig
from transduce.family.hugging_face.folder import Member, read_member
from transduce.family.inference.text_encoder import TextEncoder, cost_of_attention, in_rows
from transduce.model.cpu_backend import faster_products


def encoder_of(*heads: str, tokenizer: bytes | None = None) -> TextEncoder:
    model = small_bert(*heads)
    files = {"tokenizer.json": tokenizer_json() if tokenizer is None else tokenizer}
    return TextEncoder(Member(model, {"vocab_size": len(WORDS), "architectures": ["BertModel"]}, files), "folder")


def random_lines(count: int) -> list[str]:
    generator = random.Random(1)
    words = [*WORDS[4:], "unknown"]
    return [" ".join(generator.choices(words, k=generator.randint(1, 20))) for _ in range(count)]


def test_an_answer_does_not_depend_on_the_other_lines() -> None:
    """Bit for bit, also for lines of few tokens, and for few masks."""
    encoder, lines = encoder_of("words", "pooler", "classifier"), random_lines(80)
    for answers in (encoder.fill, encoder.classify):
        alone = [answers([line])[0] for line in lines]
        assert answers(lines) == alone
        assert answers(lines[::-1]) == alone[::-1]
    together = encoder.embed(lines)
    for line, answer in zip(lines, together, strict=True):
        (alone,) = encoder.embed([line])
        assert answer.value is not None and alone.value is not None
        assert torch.equal(answer.value, alone.value)


def test_lines_that_do_not_fit_into_memory_together_are_halved() -> None:
    encoder, lines = encoder_of("words", "pooler", "classifier"), ["a dog runs ."] * 100
    with LittleMemory(30) as memory:
        assert encoder.classify(lines) == encoder.classify(lines[:1]) * 100
    assert max(memory.sizes) == 100


@pytest.mark.parametrize("d_model", [8, 16, 32, 64])
def test_a_narrow_classifier_gives_the_same_probabilities_in_any_batch(d_model: int) -> None:
    """Bit for bit: the product with two classes is the smallest one."""
    torch.manual_seed(1)
    config = BertConfig(vocab_size=len(WORDS), d_model=d_model, n_layers=1, n_heads=2, max_positions=24)
    model = Bert(config, heads=("pooler", "classifier"), labels=["good", "bad"]).eval()
    settings = {"vocab_size": len(WORDS), "architectures": ["BertForSequenceClassification"]}
    encoder = TextEncoder(Member(model, settings, {"tokenizer.json": tokenizer_json()}))
    chance = random.Random(1)
    lines = [" ".join(chance.choices(WORDS[5:], k=20)) for _ in range(150)]
    together = encoder.classify(lines)
    assert all(encoder.classify([lines[i]])[0] == together[i] for i in range(0, 150, 15))


@pytest.mark.parametrize("length", [2, 4, 8])
@torch.inference_mode()
def test_a_narrow_model_has_the_same_states_in_any_batch(length: int) -> None:
    """Bit for bit: the products within attention are small."""
    torch.manual_seed(1)
    encoder, ids = (
        BertEncoder(BertConfig(vocab_size=20, d_model=16, n_layers=1, n_heads=2)).eval(),
        torch.randint(20, (300, length)),
    )

    def states(ids: Tensor) -> Tensor:
        with faster_products(ids.device):
            return in_rows(lambda x: encoder(x, x >= 0), ids, length, cost_of_attention(length, 16))

    together = states(ids)
    assert all(torch.equal(states(ids[:count]), together[:count]) for count in (1, 3, 20))


def test_answers_are_those_of_the_model() -> None:
    encoder = encoder_of("words", "pooler", "classifier")
    model = encoder.model
    line, ids = "A [MASK] sleeps.", torch.tensor([[2, 5, 4, 11, 18, 3]])
    states = model.encoder(ids, torch.ones_like(ids, dtype=torch.bool))
    assert model.words is not None and model.pooler is not None and model.classifier is not None

    ((words,),) = [answer.value or [] for answer in encoder.fill([line], n_best=3)]
    expected = model.words(states[0, 2]).softmax(dim=-1).topk(3)
    assert [word.text for word in words] == [WORDS[i] for i in expected.indices.tolist()]
    assert [word.probability for word in words] == pytest.approx(expected.values.tolist(), rel=1e-4)

    vector = encoder.embed([line])[0].value
    assert vector is not None
    torch.testing.assert_close(vector, sentence_vectors(states)[0], atol=1e-6, rtol=0)

    classes = encoder.classify([line])[0].value or {}
    probabilities = model.classifier(model.pooler(states))[0].softmax(dim=-1).tolist()
    assert classes == pytest.approx(dict(zip(LABELS, probabilities, strict=True)), rel=1e-4)
    assert list(classes.values()) == sorted(classes.values(), reverse=True)


def test_each_mask_of_a_line_has_its_words_in_order() -> None:
    encoder = encoder_of("words")
    both = encoder.fill(["the [MASK] sleeps on a [MASK]", "a [MASK]"], n_best=2)
    assert [len(answer.value or []) for answer in both] == [2, 1]
    assert all(len(words) == 2 for answer in both for words in answer.value or [])


def test_more_masks_than_a_slice_have_all_their_words(monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, lines = encoder_of("words"), ["a [MASK] [MASK]"] * 5
    expected = encoder.fill(lines)
    monkeypatch.setattr("transduce.family.inference.text_encoder.PLACES", 3)
    assert encoder.fill(lines) == expected


def test_blank_lines_and_lines_without_a_mask_have_no_words() -> None:
    blank, spaces, without = encoder_of("words").fill(["", " \t", "a dog"])
    assert (blank.value, blank.problem) == (spaces.value, spaces.problem) == (None, None)
    assert (without.value, without.problem) == ([], "expected [MASK] in the line; put it in place of a word")


def test_lines_without_a_visible_character_are_blank() -> None:
    """Whether the tokenizer of BERT makes tokens of them or not."""
    encoder = encoder_of("words", "pooler", "classifier")
    for answers in (encoder.fill, encoder.embed, encoder.classify):
        assert [(answer.value, answer.problem) for answer in answers(["\x01", "\u200b", "\u2028"])] == [
            (None, None)
        ] * 3


def test_a_line_without_tokens_has_a_problem() -> None:
    """A tokenizer of BERT drops U+FFFD, and one without a post-processor adds no special tokens."""
    encoder = encoder_of("words", tokenizer=tokenizer_json(marks=False))
    for answers in (encoder.fill, encoder.embed):
        without, (alone,) = answers(["\ufffd", "a [MASK]"]), answers(["\ufffd"])
        assert without[0] == alone and without[1].value is not None
        assert alone.value is None
        assert alone.problem == "expected text, but the tokenizer drops all characters; change the line"


def test_the_end_of_a_long_line_is_not_read() -> None:
    encoder = encoder_of()
    long, short = encoder.embed(["dog " * 30, "dog " * 22])
    assert long.problem == "expected at most 24 tokens, not 32, and the rest is not read; split the line"
    assert short.problem is None and short.value is not None and long.value is not None
    assert torch.equal(long.value, short.value)
    very_long = encoder.embed(["a" * 600_000])[0]
    assert very_long.value is None
    assert very_long.problem == "expected at most 524,288 characters, not 600,000; split the line"


def test_a_tokenizer_that_cuts_and_pads_does_neither() -> None:
    line = "the big dog sleeps on the small mat"
    plain, padded = (encoder_of(tokenizer=tokenizer_json(cuts=cuts)).embed(["a", line]) for cuts in (False, True))
    for one, other in zip(plain, padded, strict=True):
        assert one.value is not None and other.value is not None
        assert other.problem is None and torch.equal(one.value, other.value)


@pytest.mark.parametrize(
    ("name", "value", "methods"),
    [
        ("encoder.embedding.weight", 3e38, ("fill", "embed", "classify")),
        ("encoder.layers.1.residuals.1.norm.weight", 1e20, ("embed",)),  # finite states, whose length is not
        ("words.norm.weight", 3e38, ("fill",)),
        ("classifier.linear.weight", 3e38, ("classify",)),
    ],
)
def test_outputs_that_are_not_finite_are_refused(name: str, value: float, methods: tuple[str, ...]) -> None:
    encoder = encoder_of("words", "pooler", "classifier")
    with torch.no_grad():
        encoder.model.get_parameter(name).mul_(value)
    for method in methods:
        with pytest.raises(NotFiniteError, match="^folder: expected outputs that are finite numbers; use another copy"):
            getattr(encoder, method)(["a [MASK]"])


def test_a_head_or_a_mask_that_is_missing_is_refused() -> None:
    with pytest.raises(
        UserError, match="^folder: expected a head for masked words, as in BertForMaskedLM, not BertModel"
    ):
        encoder_of("pooler").fill([])
    with pytest.raises(UserError, match="^folder: expected a classifier, as in BertForSequenceClassification"):
        encoder_of("pooler").classify([])
    with pytest.raises(UserError, match=r"^folder: expected the token \[MASK\] in its tokenizer.json"):
        encoder_of("words", tokenizer=tokenizer_json(mask="<mask>")).fill([])
    for n_best in (21, "3", 2.0):
        with pytest.raises(UserError, match="^n_best=.*: expected an integer from 1 to 20, the size of the vocabulary"):
            encoder_of("words").fill([], n_best=cast(int, n_best))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("a dog", "lines: expected a list of strings, not one string"),
        (iter(["a dog"]), r"lines: expected a list of strings, not a list_iterator; write list\(lines\)"),
        (["a", None], r"lines\[1\]=None: expected a string, not a NoneType"),
        (["a", "b\ud800"], r"character 2 of lines\[1\]: expected a character, not .*surrogate"),
    ],
)
def test_lines_that_are_not_a_list_of_texts_are_refused(lines: Any, message: str) -> None:
    encoder = encoder_of("words", "pooler", "classifier")
    for answers in (encoder.fill, encoder.embed, encoder.classify):
        with pytest.raises(UserError, match=message):
            answers(lines)


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [
        (b"", "folder: expected tokenizer.json; use a whole folder"),
        (b"{}", "folder/tokenizer.json: expected a tokenizer"),
        (b"\xff", "folder/tokenizer.json: expected a tokenizer"),
    ],
)
def test_a_tokenizer_that_does_not_fit_is_refused(tokenizer: bytes, expected: str, tmp_path: Path) -> None:
    folder = bert_folder(tmp_path / "folder", "pooler", tokenizer=tokenizer)
    with pytest.raises(UserError, match=f"^{expected}"):
        TextEncoder(read_member(folder), "folder")


def test_words_are_text_and_tokens_without_text_have_a_name(tmp_path: Path) -> None:
    engine = Tokenizer.from_str(tokenizer_json().decode())
    vocabulary = engine.get_vocab()
    pieces = {"a": "▁lo", "the": "<0x9E>", "dog": "<0x41>"}
    engine.model = WordLevel({pieces.get(word, word): i for word, i in vocabulary.items()}, unk_token="[UNK]")
    engine.decoder = decoders.Sequence([decoders.Metaspace(), decoders.ByteFallback()])
    folder = bert_folder(tmp_path / "folder", "words", tokenizer=engine.to_str().encode())
    (answer,) = TextEncoder.load(folder).fill(["[MASK]"], n_best=20)
    assert answer.value is not None
    texts = {word.text for word in answer.value[0]}
    assert texts >= {"lo", "\\x9e", "A", "[UNK]", "cat"} and not texts & {"▁lo", "<0x41>", ""}


def test_a_part_of_a_character_is_its_bytes(tmp_path: Path) -> None:
    """The pieces of GPT-2's tokenizers have a letter for each byte."""
    engine = Tokenizer.from_str(tokenizer_json().decode())
    pieces = {"a": "Ġlo", "the": "ŀ", "dog": "ĠÃ", "cat": "Ã¤"}
    vocabulary = {pieces.get(word, word): i for word, i in engine.get_vocab().items()}
    engine.model, engine.decoder = WordLevel(vocabulary, unk_token="[UNK]"), decoders.ByteLevel()
    folder = bert_folder(tmp_path / "folder", "words", tokenizer=engine.to_str().encode())
    (answer,) = TextEncoder.load(folder).fill(["[MASK]"], n_best=20)
    assert answer.value is not None
    assert {word.text for word in answer.value[0]} >= {"lo", "\\x9e", "\\xc3", "ä", "[UNK]"}


@pytest.mark.parametrize("name", [pytest.param("vocab.txt", marks=pytest.mark.slow), "vocab.json"])
def test_a_folder_with_older_files_of_a_tokenizer_says_how_to_make_one(name: str, tmp_path: Path) -> None:
    folder = bert_folder(tmp_path / "my folder", "words", tokenizer=b"")
    (folder / name).write_text("\n".join(WORDS))
    with pytest.raises(UserError, match="expected tokenizer.json; make it of the older files: python -c ") as problem:
        TextEncoder.load(folder)
    if name == "vocab.txt" and find_spec("transformers"):
        command = shlex.split(str(problem.value).partition("older files: python ")[2])
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
        assert TextEncoder.load(folder).fill(["a [MASK]"])[0].value


def test_a_token_beyond_the_rows_is_refused_when_a_line_has_it(tmp_path: Path) -> None:
    tokenizer = tokenizer_json().replace(b'"##s":19', b'"##s":20')
    encoder = TextEncoder.load(bert_folder(tmp_path / "folder", "words", tokenizer=tokenizer))
    assert encoder.fill(["a [MASK] runs"], n_best=20)[0].value
    with pytest.raises(UserError, match=r"tokenizer.json: expected ids below vocab_size=20, not 20; use a whole"):
        encoder.embed(["dogs"])


def test_an_encoder_without_a_pooler_embeds_and_is_written(tmp_path: Path) -> None:
    folder = bert_folder(tmp_path / "one")
    encoder = TextEncoder.load(folder)
    encoder.save(tmp_path / "two")
    first, second = (each.embed(["a dog"])[0].value for each in (encoder, TextEncoder.load(tmp_path / "two")))
    assert first is not None and second is not None and torch.equal(first, second)
    with pytest.raises(UserError, match="expected a classifier"):
        encoder.classify(["a dog"])


def sentence_encoder(parent: Path, **files: Any) -> TextEncoder:
    """Return an encoder with files of sentence-transformers: modules, pooling, bert and prompts."""
    folder = bert_folder(parent / "sentences", "pooler")
    (folder / "1_Pooling").mkdir()
    names = {"modules": "modules", "pooling": "1_Pooling/config", "bert": "sentence_bert_config"}
    for name, content in files.items():
        (folder / f"{names.get(name, 'config_sentence_transformers')}.json").write_text(json.dumps(content))
    return TextEncoder.load(folder)


def modules(*kinds: str) -> list[dict[str, str]]:
    paths = {"Transformer": "", "Pooling": "1_Pooling"}
    return [{"type": f"sentence_transformers.models.{kind}", "path": paths.get(kind, f"2_{kind}")} for kind in kinds]


POOLING = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False, "word_embedding_dimension": 48}


@pytest.mark.parametrize("pooling", [POOLING, {"pooling_mode": "cls"}])
def test_the_vectors_of_a_folder_of_sentence_transformers_are_its_own(pooling: Any, tmp_path: Path) -> None:
    bert = {"max_seq_length": 4, "do_lower_case": False}
    encoder = sentence_encoder(
        tmp_path, modules=modules("Transformer", "Pooling", "Normalize"), pooling=pooling, bert=bert
    )
    ids = torch.tensor([[2, 5, 7, 3]])
    state = encoder.model.encoder(ids, ids > 0)[:, 0].detach()
    (answer,) = encoder.embed(["a dog runs fast"])
    assert answer.value is not None and answer.problem is not None
    torch.testing.assert_close(answer.value, F.normalize(state)[0], atol=1e-6, rtol=0)
    assert answer.problem.startswith("expected at most 4 tokens, not 6")
    assert encoder.embed(["a dog"])[0].problem is None


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"modules": modules("Transformer", "Pooling", "Dense")}, "modules.json: Dense in '2_Dense': expected Transfo"),
        ({"pooling": {**POOLING, "pooling_mode_max_tokens": True}}, "pooling_mode=cls_token and max_tokens: expected"),
        ({"pooling": {"pooling_mode_cls_token": False}}, "pooling_mode=none: expected one of mean, cls"),
        ({"bert": {"max_seq_length": "all"}}, "max_seq_length='all': expected 3 or more"),
        (
            {"prompts": {"prompts": {"q": "query: "}, "default_prompt_name": "q"}},
            "default_prompt_name='q': expected nu",
        ),
        ({"modules": {}}, "modules.json: expected a file of sentence-transformers"),
    ],
)
def test_what_would_change_a_vector_is_obeyed_or_refused(files: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        sentence_encoder(tmp_path, **files).embed([])


def test_a_folder_is_read_and_written(tmp_path: Path) -> None:
    folder = bert_folder(tmp_path / "one", "pooler", "classifier")
    encoder = TextEncoder.load(folder)
    encoder.save(tmp_path / "two")
    again = TextEncoder.load(str(tmp_path / "two"))
    assert encoder.classify(["a dog"]) == again.classify(["a dog"])


def test_a_member_without_an_encoder_of_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="model_type='gpt2': expected a text encoder, BERT; use `transduce continue`"):
        TextEncoder.load(gpt2_folder(tmp_path / "gpt2"))
