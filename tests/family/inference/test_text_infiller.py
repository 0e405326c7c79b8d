"""Fill in the middle: models that learn it here, and models in Hugging Face's form that have learned it."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.command_line import assert_mistake
from support.hugging_face import disturb
from support.small_members import TEXT, gpt2_folder, tokenizer_json
from support.toy_task import CommandResult, write_lines
from support.trainings import train, with_train
from tokenizers import Tokenizer, decoders, models, normalizers, trainers

from transduce.config.schema import Config, DataConfig, TrainConfig
from transduce.data.corpora import Corpus
from transduce.data.fill_in_middle import MiddleLast
from transduce.data.vocabulary import EOS
from transduce.errors import UserError
from transduce.family.configs import GPT2Config, LlamaConfig
from transduce.family.gpt2 import GPT2
from transduce.family.hugging_face.folder import Member, write_member
from transduce.family.inference.continuation import continue_ids
from transduce.family.inference.language_model import LanguageModel
from transduce.family.inference.text_infiller import NAMES, TextInfiller
from transduce.family.llama import Llama
from transduce.storage.model_folder import load_model

LETTERS = "abcdefghij"
ALPHABETS = [LETTERS[start:end] for start in range(8) for end in range(start + 3, 11)]
CONFIG = Config(
    GPT2Config(d_model=48, n_layers=2, n_heads=4, multi_query=True, max_positions=40, dropout=0.0),
    DataConfig(vocab_size=300, batch_tokens=800, max_tokens=40, fill_middle=0.8),
    TrainConfig(
        task="language_model",
        max_steps=300,
        warmup_steps=60,
        decay_steps=150,
        label_smoothing=0.0,
        use="last",
        evaluate_every_steps=150,
        checkpoint_every_steps=150,
    ),
)


def train_in(folder: Path, config: Config) -> Path:
    """Train on lines of successive letters, and return the folder of the model."""
    text = write_lines(folder / "text", [" ".join(letters) for letters in ALPHABETS if letters not in NEW] * 20)
    valid = write_lines(folder / "valid", [" ".join(letters) for letters in NEW])
    return train(config, train=[Corpus(text)], valid=[valid], out=folder / "run")


NEW = ALPHABETS[3::5]  # lines that the training text does not have


@pytest.mark.slow
def test_a_trained_model_fills_places_from_both_sides(cli: Callable[..., CommandResult], tmp_path: Path) -> None:
    """Where the middle begins is in the prefix, and its end in the suffix: from one side, few would be right."""
    folder = train_in(tmp_path, CONFIG)
    lines = [f"{letters[0]} <FILL_ME> {letters[-1]}" for letters in NEW]
    result = cli("continue", folder, "--infill", "--input", write_lines(tmp_path / "lines", lines))
    outputs = result.out.decode().splitlines()
    assert result.code == 0 and len(NEW) == 7
    assert sum(output == " ".join(letters) for output, letters in zip(outputs, NEW, strict=True)) >= 5
    plain = cli("continue", folder, "--input", write_lines(tmp_path / "beginnings", ["a b c"] * 2))
    assert plain.out.decode().splitlines()[0].startswith("a b c d e")  # it has also learned whole lines


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of one step, which has the tokens of a trained one."""
    config = with_train(CONFIG, max_steps=1, decay_steps=0, evaluate_every_steps=1, checkpoint_every_steps=1)
    return train_in(tmp_path_factory.mktemp("untrained"), config)


@pytest.mark.parametrize(("before", "after"), [("a b ", " f"), ("a b", "f"), ("", "b c"), ("a", ""), ("a  ", "  b")])
def test_a_prompt_is_what_the_training_writes(untrained: Path, before: str, after: str) -> None:
    """The ids of `MiddleLast` up to the mark of the middle, after the start of a line."""
    infiller = TextInfiller.load(untrained)
    assert infiller.ends == [EOS]
    (prompt,) = infiller._ids([f"{before}<FILL_ME>{after}"])
    tokenizer = load_model(untrained).tokenizer
    pieces = "".join(tokenizer.pieces(prompt)).replace("▁", " ")
    assert pieces == f"<s><fim_prefix>{' ' if before else ''}{before}<fim_suffix>{after}<fim_middle>"
    row, keys = np.array(tokenizer.encode(f"{before}c{after}")), np.arange(1_000, dtype=np.uint64)
    rows, _ = MiddleLast(tokenizer, 0.99).rows(([row] * len(keys), [row] * len(keys)), keys)
    assert prompt[1:] in [ids[: len(prompt) - 1].tolist() for ids in rows]


def test_the_exported_folder_fills_places(untrained: Path, cli: Callable[..., CommandResult], tmp_path: Path) -> None:
    assert cli("export", untrained, "--to", "huggingface", "--out", tmp_path / "folder").code == 0
    line = "a <FILL_ME> e"
    ours, theirs = TextInfiller.load(untrained), TextInfiller.load(tmp_path / "folder")
    assert theirs._ids([line]) == ours._ids([line])
    assert theirs.continue_(line, max_tokens=5) == ours.continue_(line, max_tokens=5)


# ---- folders -----------------------------------------------------------------------------------------------------


def starcoder_folder(folder: Path, names: tuple[str, ...] = NAMES["StarCoder"]) -> Path:
    """Write a small StarCoder, whose end of text is id 0."""
    torch.manual_seed(1)
    sizes = {"d_model": 24, "n_layers": 2, "n_heads": 4, "max_positions": 40, "dropout": 0.0}
    model = disturb(GPT2(GPT2Config(vocab_size=300, multi_query=True, **sizes)))
    files = {"tokenizer.json": tokenizer_json(special=[names[-1], *names[:-1]])}
    write_member(folder, Member(model, {"bos_token_id": 0, "eos_token_id": 0}, files))
    return folder


@pytest.mark.parametrize("model", ["StarCoder", "SantaCoder"])
def test_a_place_is_filled_by_what_is_around_it(model: str, tmp_path: Path) -> None:
    infiller = TextInfiller.load(starcoder_folder(tmp_path / "model", NAMES[model]))
    encode = infiller.tokenizer.encode
    before, after = "the man sits\n", " on a table"
    for suffix_first, prompt in (
        (False, [1, *encode(before).ids, 2, *encode(after).ids, 3]),
        (True, [1, 2, *encode(after).ids, 3, *encode(before).ids]),
    ):
        infiller.suffix_first = suffix_first
        output = infiller.continue_(f"{before}<FILL_ME>{after}", max_tokens=10)
        (expected,) = continue_ids(infiller.prepared_model, [prompt], [0])
        assert output.text and infiller.tokenizer.decode(expected.ids).startswith(output.text)
    plain = LanguageModel.load(tmp_path / "model").continue_("the man", max_tokens=10)
    assert infiller.continue_("the man", max_tokens=10) == plain


def test_two_places_are_a_problem_of_their_text_alone(tmp_path: Path) -> None:
    infiller = TextInfiller.load(starcoder_folder(tmp_path / "model"))
    outputs = infiller.continue_texts(["a <FILL_ME> b", "a <FILL_ME> b <FILL_ME>"], max_tokens=3)
    assert [output.problem for output in outputs] == [None, "expected one <FILL_ME>, not 2"]
    long = infiller.continue_(f"{'a b ' * 30}<FILL_ME> b")
    assert long.problem is not None and "expected at most 39 tokens" in long.problem


def test_a_model_without_the_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="tokenizer.json: expected the token <fim_prefix> .StarCoder. or"):
        TextInfiller.load(gpt2_folder(tmp_path / "gpt2"))


def test_the_command_prints_the_whole_line(cli: Callable[..., CommandResult], tmp_path: Path) -> None:
    folder, line = starcoder_folder(tmp_path / "model"), "the man <FILL_ME> on a table"
    source = write_lines(tmp_path / "lines", [line, "", line])
    middle = TextInfiller.load(folder).continue_(line, max_tokens=5).text
    result = cli("continue", folder, "--infill", "--max-tokens", 5, "--input", source)
    whole = re.sub(r"[\r\n]", " ", line.replace("<FILL_ME>", middle))
    assert (result.code, result.out.decode()) == (0, f"{whole}\n\n{whole}\n")
    assert cli("continue", folder, "--max-tokens", 5, "--input", source).out.startswith(line.encode())
    result = cli("continue", gpt2_folder(tmp_path / "gpt2"), "--infill", "--input", source)
    assert_mistake(result, "expected the token <fim_prefix>")


def code_llama_tokenizer() -> Tokenizer:
    """Return a tokenizer as CodeLlama has one in Hugging Face's folder: a space before each text."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])  # pyright: ignore[reportAttributeAccessIssue]
    tokenizer.decoder = decoders.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    special = ["<unk>", "<s>", "</s>", *NAMES["CodeLlama"]]
    trainer: Any = trainers.BpeTrainer(vocab_size=120, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    content = json.loads(tokenizer.to_str())
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    return Tokenizer.from_str(json.dumps(content))


@pytest.fixture(scope="module")
def code_llama(tmp_path_factory: pytest.TempPathFactory) -> TextInfiller:
    torch.manual_seed(1)
    sizes = {"d_model": 24, "n_layers": 2, "n_heads": 4, "d_ff": 40, "max_positions": 64}
    model = disturb(Llama(LlamaConfig(vocab_size=120, **sizes)))
    folder = tmp_path_factory.mktemp("code_llama") / "model"
    files = {"tokenizer.json": code_llama_tokenizer().to_str().encode()}
    write_member(folder, Member(model, {"bos_token_id": 1, "eos_token_id": 2}, files))
    return TextInfiller.load(folder)


@pytest.mark.parametrize(("before", "after"), [("two men", " sit"), ("a dog ", "on it"), ("", "a"), ("man", "")])
@pytest.mark.parametrize("suffix_first", [False, True])
def test_a_space_is_before_the_prefix_of_code_llama_and_none_before_the_suffix(
    code_llama: TextInfiller, before: str, after: str, suffix_first: bool
) -> None:
    code_llama.suffix_first = suffix_first
    (ids,) = code_llama._ids([f"{before}<FILL_ME>{after}"])
    prefix = f" {before}" if before else ""
    text = f"<PRE> <SUF>{after} <MID>{prefix}" if suffix_first else f"<PRE>{prefix} <SUF>{after} <MID>"
    tokens = "".join(code_llama.tokenizer.id_to_token(number) for number in ids)
    assert tokens == f"<s> {text}".replace(" ", "▁")


@pytest.mark.parametrize("suffix_first", [False, True])
def test_the_prompt_of_code_llama_is_that_of_hugging_face(code_llama: TextInfiller, suffix_first: bool) -> None:
    """Where the suffix begins with a space: transformers 5.23 adds one to others, and Meta's own code does not."""
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    model = json.loads(code_llama.tokenizer.to_str())["model"]
    theirs = transformers.CodeLlamaTokenizer(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]])
    code_llama.suffix_first = suffix_first
    (ids,) = code_llama._ids(["two men<FILL_ME> sit on it"])
    assert ids == theirs("two men", suffix=" sit on it", suffix_first=suffix_first).input_ids


def test_a_middle_ends_at_the_end_of_a_middle(code_llama: TextInfiller) -> None:
    assert code_llama.ends == [code_llama.tokenizer.token_to_id("▁<EOT>"), 2]
