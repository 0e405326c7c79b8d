"""Calls of the Python API: arguments of wrong types, copies of a translator, and models without finite output."""

import contextlib
import copy
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from support.toy_task import Toy, write_lines

import transduce
from transduce import (
    Config,
    DataConfig,
    DecodingOptions,
    ModelConfig,
    Sampling,
    SearchConfig,
    TrainConfig,
    UserError,
    evaluate,
)
from transduce.data.corpora import Corpus
from transduce.decoding.batched_search import SHORT_TURNS
from transduce.decoding.options import DEFAULTS
from transduce.errors import NotFiniteError
from transduce.storage.model_folder import load_model
from transduce.translate import Translator


@pytest.fixture(scope="module")
def model(toy: Toy) -> Translator:
    return transduce.load(toy.model)


# ---- lines -------------------------------------------------------------------------------------------------------

NOT_LINES = {
    "generator": lambda: (line for line in ["a b"]),
    "map": lambda: map(str, ["a b"]),
    "set": lambda: {"a b"},
    "dict": lambda: {"a b": 1},
    "array": lambda: np.array(["a b"]),
    "bytes": lambda: b"a b",
    "string": lambda: "a b",
    "None": lambda: None,
    "number": lambda: 3,
    "bytes in a list": lambda: [b"a b"],
    "None in a list": lambda: [None],
    "number in a list": lambda: [1.5],
    "list in a list": lambda: [["a b"]],
}


@pytest.mark.parametrize("lines", NOT_LINES.values(), ids=NOT_LINES)
def test_lines_that_are_no_list_of_strings_are_refused(model: Translator, lines: Callable[[], Any]) -> None:
    for call, name in (
        (lambda: model.translate(lines()), "lines"),
        (lambda: model.score(lines(), ["b"]), "src"),
        (lambda: model.score(["b"], lines()), "tgt"),
    ):
        with pytest.raises(
            UserError, match=rf"^{name}(: expected a list of strings, not|\[0\]=.*: expected a string, not)"
        ):
            call()
    if lines() is not None:
        with pytest.raises(UserError, match=r"^prefixes[:\[]"):
            model.translate(["a b"], prefixes=lines())


def test_an_open_file_is_refused_with_the_remedy(model: Translator, tmp_path: Path) -> None:
    with write_lines(tmp_path / "lines", ["a b"]).open(encoding="utf-8") as file:
        with pytest.raises(
            UserError, match=r"lines: expected a list of strings, not a TextIOWrapper; write list\(lines\)"
        ):
            model.translate(file)  # pyright: ignore[reportArgumentType]


def test_a_string_of_numpy_is_a_string(model: Translator) -> None:
    assert model.translate([*np.array(["a b"])]) == model.translate(("a b",)) == model.translate(["a b"])


@pytest.mark.parametrize("line", [None, b"a b", ["a b"], 3])
def test_attend_takes_two_strings(model: Translator, line: Any) -> None:
    with pytest.raises(UserError, match="^src=.*: expected a string"):
        model.attend(line)
    if line is not None:
        with pytest.raises(UserError, match="^tgt=.*: expected a string"):
            model.attend("a b", line)


# ---- options -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"n_best": 2.0}, "n_best=2.0: expected an integer"),
        ({"n_best": "2"}, "n_best='2': expected an integer"),
        ({"n_best": None}, "n_best=None: expected an integer"),
        ({"beam_size": "4"}, "beam_size='4': expected an integer or null"),
        ({"beam_size": True}, "beam_size=True: expected an integer"),
        ({"alpha": "1"}, "alpha='1': expected a number"),
        ({"alpha": 1j}, "alpha=1j: expected a number"),
        ({"lookahead": [1]}, r"lookahead=\[1\]: expected an integer"),
        ({"sampling": {"temperature": 1.0}}, "sampling={'temperature': 1.0}: expected a Sampling or null"),
        ({"sampling": 1.0}, "sampling=1.0: expected a Sampling"),
        ({"seed": 1.5, "sampling": Sampling()}, "seed=1.5: expected an integer"),
        ({"split": None}, "split=None: expected one of 'auto', 'none', 'long', 'sentences'"),
        ({"length_penalty": 1}, "length_penalty=1: expected one of"),
        ({"beam": 4}, "beam: expected a known option; did you mean 'beam_size'"),
        ({"temperature": 0.8}, r"temperature: expected a known option; give sampling=Sampling\(temperature=...\)"),
        ({"zzz": 1}, "zzz: expected a known option; use one of beam_size, "),
        ({"options": {"beam_size": 4}}, "options={'beam_size': 4}: expected a DecodingOptions"),
        ({"options": None}, "options=None: expected a DecodingOptions"),
        ({"first_number": "1"}, "first_number='1': expected an integer"),
        ({"beam_size": 2.5, "n_best": "a"}, "2 problems"),
    ],
)
def test_options_of_a_wrong_type_are_refused(model: Translator, keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        model.translate(["a b"], **keywords)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("a",), "temperature='a': expected a number"),
        ((None,), "temperature=None: expected a number"),
        ((1.0, 2.5), "top_k=2.5: expected an integer or null"),
        ((1.0, 0), "top_k=0: expected at least 1"),
        ((1.0, 1 << 70), "top_k=.*: expected at least 1, below"),
        ((1.0, None, "1"), "top_p='1': expected a number or null"),
        ((1.0, None, 1e-46), "top_p=1e-46: expected a number from 0.000001 to 1"),
        ((1.0, None, 1.5), "top_p=1.5: expected a number from 0.000001 to 1"),
        ((1.0, None, None, "1"), "epsilon='1': expected a number or null"),
        ((1.0, None, None, 0.0), "epsilon=0.0: expected a number from 0.000001 to 1"),
        ((1.0, None, None, 1.5), "epsilon=1.5: expected a number from 0.000001 to 1"),
        ((1e-40,), "temperature=1e-40: expected a number from 0.000001 to 1,000,000"),
        ((1e39,), "temperature=1e.39: expected a number from 0.000001 to 1,000,000"),
        ((float("nan"),), "temperature=nan: expected a number from 0.000001"),
    ],
)
def test_values_of_sampling_are_refused(values: tuple[Any, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Sampling(*values)


@pytest.mark.parametrize("sampling", [Sampling(1e-6), Sampling(1e6), Sampling(top_p=1e-6), Sampling(top_k=1 << 62)])
def test_the_limits_of_sampling_draw_a_translation(model: Translator, sampling: Sampling) -> None:
    (translation,) = model.translate(["a b c"], sampling=sampling)
    assert all(np.isfinite(translation.token_log_probs))


def test_numbers_of_numpy_are_numbers(model: Translator) -> None:
    options = DecodingOptions(beam_size=np.int32(3), alpha=np.float32(0.5), n_best=np.int64(2), seed=np.uint8(7))
    assert options == DecodingOptions(beam_size=3, alpha=0.5, n_best=2, seed=7)
    assert {type(options.beam_size), type(options.alpha), type(options.seed)} == {int, float}
    lines = ["a b c", "d"]
    assert model.translate(lines, options=options, first_number=np.int64(0)) == model.translate(
        lines, beam_size=3, alpha=0.5, n_best=2, seed=7
    )
    assert Sampling(np.float16(0.5), np.int8(3), np.float64(1)) == Sampling(0.5, 3, 1.0)
    config = Config(train=TrainConfig(max_steps=np.int64(5), lr_factor=np.float32(0.5)))
    assert (type(config.train.max_steps), type(config.train.lr_factor)) == (int, float)
    for section in (
        ModelConfig(d_model=np.int16(8)),
        DataConfig(max_tokens=np.int16(8)),
        SearchConfig(alpha=np.half(1)),
    ):
        assert all(type(value).__module__ != "numpy" for value in vars(section).values())


# ---- load, fit and Config ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [["model"], None, 3, b"model"])
def test_load_takes_paths(path: Any) -> None:
    with pytest.raises(UserError, match="^path=.*: expected a path"):
        transduce.load(path)


@pytest.mark.parametrize("section", ["model", "data", "train", "search"])
@pytest.mark.parametrize("value", [None, {}, "x", SearchConfig])
def test_a_section_of_a_config_has_its_class(section: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"^{section}=.*: expected a {section.title()}Config"):
        Config(**{section: value})


LINES = ["a line"] * 3_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"src": LINES, "tgt": LINES}, "src=.*: expected a list of Corpus, or the path of a text file; write lines in"),
        ({"src": None, "tgt": None}, "src=None: expected a list of Corpus, or the path of a text file"),
        ({"src": [Corpus(Path("a"))], "tgt": LINES}, "tgt=.*: must not be set with corpora in src"),
        ({"src": [Corpus(cast(Any, 3), Path("b"))], "tgt": None}, r"src\[0\]\.src=3: expected the path of a text file"),
        ({"src": [Corpus(Path("a"), None, cast(Any, "2"))], "tgt": None}, r"train\[0\]\.weight='2': expected a number"),
        ({"tgt": LINES}, "tgt=.*: expected the path of a text file; write lines into a file"),
        ({"minutes": "1"}, "minutes='1': expected a number"),
        ({"minutes": True}, "minutes=True: expected a number"),
        ({"valid": (LINES, LINES)}, r"valid\[0\]=.*: expected the path of a text file; write lines into a file"),
        ({"valid": 3}, "valid=3: expected two paths"),
        ({"valid": ("ab",)}, r"valid=\('ab',\): expected two paths"),
        ({"start_from": 3}, "start_from=3: expected a path"),
        ({"old_valid": 3}, "old_valid=3: expected two paths"),
        ({"valid": ("a", None)}, r"valid\[1\]=None: expected the path of a text file"),
        ({"out": None}, "out=None: expected a path"),
        ({"recipe": None}, "recipe=None: expected a name"),
        ({"recipe": LINES}, "recipe=.*: expected a name"),
        ({"settings": "train.max_steps=3"}, "settings: expected a list of strings, not one string"),
        ({"settings": {"train.max_steps": 3}}, "settings: expected a list of strings, not a dict"),
        ({"allow_change": [3]}, r"allow_change\[0\]=3: expected a string"),
    ],
)
def test_fit_refuses_arguments_of_a_wrong_type(arguments: dict[str, Any], message: str, tmp_path: Path) -> None:
    valid = {"src": "a.en", "tgt": "a.de", "valid": ("v.en", "v.de"), "out": tmp_path / "run"}
    with pytest.raises(UserError, match=f"^{message}") as problem:
        transduce.fit(**valid | arguments)
    assert len(str(problem.value)) < 250
    assert not [*tmp_path.iterdir()]


# ---- copies and threads ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_translator_can_be_copied_after_its_use(toy: Toy, precision: str) -> None:
    translator = transduce.load(toy.model, precision=precision)
    expected = translator.translate(["a b c", "d"], n_best=2)
    for other in (pickle.loads(pickle.dumps(translator)), copy.deepcopy(translator), copy.copy(translator)):  # noqa: S301
        assert other.translate(["a b c", "d"], n_best=2) == expected
    assert translator.translate(["a b c", "d"], n_best=2) == expected


def test_several_callers_leave_the_switch_interval_as_it_was() -> None:
    before, inside = sys.getswitchinterval(), threading.Barrier(3)

    def call() -> None:
        with SHORT_TURNS:
            inside.wait()
            assert sys.getswitchinterval() < before

    with contextlib.ExitStack() as stack:
        stack.enter_context(SHORT_TURNS)
        threads = [threading.Thread(target=call) for _ in range(2)]
        for thread in threads:
            thread.start()
        inside.wait()
    for thread in threads:
        thread.join()
    assert sys.getswitchinterval() == before


# ---- models without finite output --------------------------------------------------------------------------------


@pytest.fixture(params=["fp32", "bf16", "int8"])
def overflowing(request: pytest.FixtureRequest, toy: Toy) -> Iterator[Translator]:
    """A translator whose weights are finite and whose logits are not."""
    loaded = load_model(toy.model)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.mul_(1e30)
    yield Translator([loaded], precision=request.param)


def test_a_model_without_finite_output_is_named(overflowing: Translator, toy: Toy) -> None:
    calls = [
        lambda: overflowing.translate(["a b c"]),
        lambda: overflowing.translate(["a b c"], beam_size=1),
        lambda: overflowing.translate(["a b c"], sampling=Sampling()),
        lambda: overflowing.attend("a b c", "c b a"),
    ]
    if overflowing.precision != "int8":
        calls += [
            lambda: overflowing.score(["a b c"], ["c b a"]),
            lambda: evaluate.evaluate_model(overflowing, evaluate.TestSet(*toy.valid), DEFAULTS),
        ]
    for call in calls:
        with pytest.raises(NotFiniteError, match=f"^{toy.model}: expected outputs that are finite numbers: .*; use an"):
            call()


def test_int8_does_not_score(toy: Toy) -> None:
    with pytest.raises(UserError, match="precision='int8': expected fp32 or bf16 to score"):
        transduce.load(toy.model, precision="int8").score(["a"], ["b"])


# ---- long lines --------------------------------------------------------------------------------------------------


def test_a_long_line_of_a_test_set_is_named_as_in_its_file(model: Translator, tmp_path: Path) -> None:
    short, long = (
        write_lines(tmp_path / name, ["a", "", " ", "b", line]) for name, line in (("s", "c"), ("l", "c " * 9_000))
    )
    for test_set in (evaluate.TestSet(short, long), evaluate.TestSet(long, short)):
        with pytest.raises(UserError, match=f"^{long}:5: expected at most 8,192 tokens, not 9,000; split the line"):
            evaluate.evaluate_model(model, test_set, DEFAULTS)
