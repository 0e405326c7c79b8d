"""Models in ONNX: the graphs compute the model, and the program beside them translates without torch."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.random_models import CONFIG, random_model, save_to
from support.toy_task import Toy

import transduce
from transduce import UserError
from transduce.cli.export import export
from transduce.data.tokenizer import Tokenizer
from transduce.interop.onnx_export import export_onnx

pytest.importorskip("onnxruntime", reason="needs transduce[onnx]")


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm": "pre", "activation": "swish", "output_bias": True, "positions": "tensor2tensor"},
        {"tie_src_tgt": False, "attention_bias": False, "n_encoder_layers": 1},
        {"tie_output": False, "d_k": 6, "d_v": 10, "n_decoder_layers": 1},
        {"tie_src_tgt": False, "tie_output": False, "positions": "learned", "max_positions": 80},
    ],
    ids=str,
)
def test_both_programs_score_the_same(changes: dict[str, Any], tmp_path: Path) -> None:
    loaded = random_model(replace(CONFIG, **changes), "wordpiece")
    assert "differ by" in export_onnx(save_to(loaded, tmp_path / "model"), tmp_path / "out")
    assert not (tmp_path / "out" / "translate.py").exists()  # it has no word pieces
    with pytest.raises(UserError, match="expected a new folder"):
        export_onnx(tmp_path / "model", tmp_path / "out")


def test_the_export_names_the_settings_that_its_program_lacks(tmp_path: Path) -> None:
    loaded = random_model(CONFIG)
    assert len(export_onnx(save_to(loaded, tmp_path / "model"), tmp_path / "out").splitlines()) == 1
    search = replace(loaded.config.search, no_repeat_ngram=3, repetition_penalty=1.2, max_length=9)
    changed = save_to(replace(loaded, config=replace(loaded.config, search=search)), tmp_path / "changed")
    _, *lines = export_onnx(changed, tmp_path / "other").splitlines()
    assert lines == [
        f"search.{name}: translate.py does not have it" for name in ("no_repeat_ngram=3", "repetition_penalty=1.2")
    ]
    assert all(f"- {line}\n" in (tmp_path / "other" / "README.md").read_text(encoding="utf-8") for line in lines)


RUN = """
import runpy, sys
runpy.run_path(sys.argv[1], run_name="__main__")
assert not {"torch", "transduce", "tokenizers"} & {*sys.modules}
"""


def translate(folder: Path, lines: list[str]) -> list[str]:
    """Return the lines that the program in the folder writes."""
    command = [sys.executable, "-c", RUN, str(folder / "translate.py")]
    process = subprocess.run(command, input="\n".join(lines).encode(), capture_output=True, check=True)
    return process.stdout.decode().split("\n")[:-1]


def test_the_program_in_the_folder_has_our_greedy_text(toy: Toy, tmp_path: Path) -> None:
    export(toy.model, tmp_path / "out", to="onnx")
    lines = [*toy.unseen, *toy.train[0].read_text(encoding="utf-8").splitlines()[:200]][:500]
    lines += ["", "a b ▁ \ue000 1", "Zürich, 漢字 😀 </s> <0x41>", "a" * 70 + " b"]
    ours = transduce.load(toy.model).translate(lines, beam_size=1, loops="keep", split="none", numbers="translate")
    assert translate(tmp_path / "out", lines) == [translation.text for translation in ours]
    assert len(translate(tmp_path / "out", ["a\rb", "c"])) == 2
    long = subprocess.run(
        [sys.executable, tmp_path / "out" / "translate.py"],
        input=b"\xef\xbb\xbfa\n" + b"\xc3\xa9 " * 999,
        capture_output=True,
    )
    assert long.stderr.startswith(b"lines [2]: expected fewer than 1,024 tokens") and long.returncode == 1
    program = (tmp_path / "out" / "translate.py").read_text(encoding="utf-8")
    assert len(program.splitlines()) <= 100


@pytest.mark.parametrize("normalizes", [False, True])
def test_its_tokenizer_is_ours(normalizes: bool) -> None:
    from transduce.interop.onnx_translate import JsonTokenizer as Theirs

    texts = ["a b c d", "the cat sat on the mat", "Zürich ist schön, 12 34!"]
    ours = Tokenizer.learn(texts, vocab_size=330, tags=("<2de>",), normalizes=normalizes)
    theirs = Theirs(json.loads(ours.to_json()))
    lines = [
        *texts,
        "",
        "<2de> the cat",
        "<2de>",
        "the <2de>",
        "x" * 150 + "1" * 70 + "!" * 70,
        "A\u0308 \u2028 \u00a0b",
    ]
    lines += ["\u200bcat\u00ad", "▁\ue000\ue0010", "१२ ½²é", "ไม่ 漢字 😀🏳️ </s>", "  two  spaces ", "\u0301a"]
    for line in lines:
        assert theirs.encode(line) == ours.encode(line), line
        assert theirs.decode(ours.encode(line)) == ours.decode(ours.encode(line))


def test_without_onnxruntime_the_message_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_to(random_model(CONFIG), tmp_path / "model")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.delitem(sys.modules, "transduce.interop.onnx_translate", raising=False)
    with pytest.raises(UserError, match=r"pip install 'transduce\[onnx\]'"):
        export_onnx(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
