"""Fill in the middle: the change of the texts, and models that learn from them or have learned."""

import json
import re
from collections import Counter
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
from tokenizers import Tokenizer, decoders, models, normalizers, trainers
from torch.nn import functional as F

from transduce.errors import UserError
from transduce.family.configs import GPT2Config, LlamaConfig
from transduce.family.fill_in_middle import Marks, training_ids
from transduce.family.gpt2 import GPT2
from transduce.family.hugging_face.folder import Member, write_member
from transduce.family.inference.continuation import continue_ids
from transduce.family.inference.language_model import LanguageModel
from transduce.family.inference.text_infiller import NAMES, TextInfiller
from transduce.family.llama import Llama

MARKS = Marks(prefix=900, suffix=901, middle=902, end=903)


def codes(text: str) -> list[int]:
    return [ord(character) for character in text]


def test_the_orders_are_those_of_the_paper() -> None:
    assert MARKS.prompt([1, 2], [3]) == [900, 1, 2, 901, 3, 902]
    assert MARKS.prompt([1, 2], [3], suffix_first=True) == [900, 901, 3, 902, 1, 2]


def restored(ids: list[int]) -> tuple[str, str]:
    """Return the order and the text of the ids of a training."""
    assert ids.pop() == 903
    if 900 not in ids:
        return "as it is", "".join(map(chr, ids))
    assert ids[0] == 900
    suffix, middle = ids.index(901), ids.index(902)
    if suffix == 1:
        return "SPM", "".join(map(chr, [*ids[middle + 1 :], *ids[2:middle]]))
    return "PSM", "".join(map(chr, [*ids[1:suffix], *ids[middle + 1 :], *ids[suffix + 1 : middle]]))


@pytest.mark.parametrize("text", ["", "a", "def f(x):\n  return x", "Zürich " * 100])
def test_every_order_has_the_whole_text(text: str) -> None:
    generator, orders = np.random.default_rng(1), Counter[str]()
    for _ in range(2_000):
        order, again = restored(training_ids(text, codes, MARKS, generator, rate=0.6, spm_rate=0.25))
        assert again == text
        orders[order] += 1
    assert orders["as it is"] / 2_000 == pytest.approx(0.4, abs=0.04)
    if len(text) > 100:  # without a prefix, the orders are the same
        assert orders["SPM"] / (orders["SPM"] + orders["PSM"]) == pytest.approx(0.25, abs=0.04)


def test_all_cuts_are_drawn() -> None:
    generator, lengths = np.random.default_rng(1), Counter[int]()
    for _ in range(2_000):
        ids = training_ids("abc", codes, MARKS, generator, rate=1, spm_rate=0)
        lengths[len(ids) - ids.index(902) - 2] += 1
    assert [round(16 * lengths[n] / 2_000) for n in range(4)] == [4, 6, 4, 2]  # of 4 x 4 pairs of cuts


@pytest.mark.slow
def test_a_model_learns_to_fill_places_from_both_sides() -> None:
    """A text counts from one number to another: where the middle begins is in the prefix, its end in the suffix."""
    torch.manual_seed(1)
    generator, marks = np.random.default_rng(1), Marks(12, 13, 14, 15)

    def text() -> str:
        start, end = sorted(generator.choice(12, size=2, replace=False))
        return "".join(map(chr, range(start, end + 1)))

    model = GPT2(
        GPT2Config(vocab_size=16, d_model=64, n_layers=2, n_heads=4, multi_query=True, max_positions=16, dropout=0.0)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.02, 500)
    for _ in range(500):
        rows = [training_ids(text(), codes, marks, generator, rate=0.9) for _ in range(32)]
        ids = torch.tensor([row + [marks.end] * (16 - len(row)) for row in rows])
        loss = F.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    model.eval()
    texts = [codes(text()) for _ in range(200)]
    for suffix_first in (False, True):
        prompts = [marks.prompt(ids[:1], ids[-1:], suffix_first=suffix_first) for ids in texts]
        outputs = continue_ids(model, prompts, [marks.end])
        assert sum(output.ids == ids[1:-1] for output, ids in zip(outputs, texts, strict=True)) >= 190


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
