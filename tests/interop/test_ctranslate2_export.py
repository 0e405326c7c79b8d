"""Models as CTranslate2 folders: they translate like ours, without torch, and unsuitable models are refused."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.calls import fork_transduce
from support.random_models import CONFIG, random_model, save_to
from support.toy_task import ROOT, Toy

import transduce
from transduce import UserError
from transduce.config.schema import ModelConfig
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import CONTROLS, PAD
from transduce.decoding.options import DecodingOptions
from transduce.decoding.shortlist.learning import learn_shortlist, read_ids
from transduce.decoding.shortlist.table import Shortlist
from transduce.storage.model_folder import LoadedModel, load_model, save_shortlist
from transduce.training.weights import weights
from transduce.translate import Translator

ctranslate2 = pytest.importorskip("ctranslate2", reason="needs transduce[export]")

from transduce.interop import ctranslate2_engine as engine  # noqa: E402
from transduce.interop import ctranslate2_export as export  # noqa: E402

LINES = ["a b c", "d", "", "f e d c b a", "j i", "  ", "a", "g h i j", "Zürich ist schön.", "b c d e f g h i j a b c"]


def export_of(loaded: LoadedModel, folder: Path, precision: str = "fp32") -> Path:
    export.export_ctranslate2(save_to(loaded, folder / "model"), folder / "out", precision)
    return folder / "out"


@pytest.fixture(scope="module")
def toy_export(toy: Toy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of the toy task, exported."""
    folder = tmp_path_factory.mktemp("export") / "toy"
    export.export_ctranslate2(toy.model, folder)
    return folder


# ---- equal translations ------------------------------------------------------------------------------------------

VARIANTS = {
    "the paper's": {},
    "word pieces": {},
    "pre-norm": {"norm": "pre"},
    "no bias, eps": {"attention_bias": False, "norm_eps": 1e-3},
    "halves": {"positions": "halves"},
    "tensor2tensor": {"positions": "tensor2tensor"},
    "learned": {"positions": "learned", "max_positions": 60},
    "nothing tied": {"tie_src_tgt": False, "tie_output": False},
    "embeddings tied": {"tie_output": False},
    "output tied": {"tie_src_tgt": False},
    "3 + 1 layers": {"n_layers": 3, "n_decoder_layers": 1},
    "1 + 3 layers": {"n_encoder_layers": 1, "n_decoder_layers": 3},
    "Marian's": {"positions": "halves", "activation": "swish", "output_bias": True, "norm_eps": 1e-5},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_architecture_translates_the_same(variant: str, tmp_path: Path) -> None:
    kind = "wordpiece" if variant == "word pieces" else "bpe"
    loaded = random_model(replace(CONFIG, **VARIANTS[variant]), kind)
    theirs = engine.load(export_of(loaded, tmp_path)).translate(LINES)
    ours = Translator([loaded]).translate(LINES)
    assert [t.text for t in theirs] == [t.text for t in ours]
    assert [t.pieces for t in theirs] == [t.pieces for t in ours]
    assert [t.finished for t in theirs] == [t.finished for t in ours]
    for a, b in zip(theirs, ours, strict=True):
        assert b.score <= a.score <= 0.9 * b.score  # higher: CTranslate2's softmax omits banned tokens


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_a_model_with_tags_translates_the_same(kind: str, tmp_path: Path) -> None:
    loaded = random_model(CONFIG, kind, tags=("<2de>", "<2fr>"))
    theirs, ours = engine.load(export_of(loaded, tmp_path)), Translator([loaded])
    for tag in loaded.tokenizer.tags:
        texts = [translation.text for translation in ours.translate(LINES, tag=tag)]
        assert [t.text for t in theirs.translate(LINES, tag=tag)] == texts
        written = [f"{tag} {line}" if line.strip() else line for line in LINES]
        assert [t.text for t in theirs.translate(written)] == texts
    with pytest.raises(UserError, match="use one of <2de>, <2fr>"):
        theirs.translate(LINES, tag="<2es>")
    with pytest.raises(UserError, match="use one of <2de>, <2fr>"):
        theirs.check_options(DecodingOptions(tag="<2es>"))


def test_a_trained_model_keeps_its_length_penalty(toy_export: Path, toy: Toy) -> None:
    ours, theirs = transduce.load(toy.model), engine.load(toy_export)
    lines = [*toy.unseen[:100], *LINES, "a b c d e f. " * 10]
    assert [t.text for t in theirs.translate(lines)] == [t.text for t in ours.translate(lines)]
    assert theirs.config.search == ours.config.search
    best = theirs.translate(["a b c d"], n_best=4)[0]
    assert len(best.alternatives) == 3
    assert [t.score for t in best.alternatives] == sorted((t.score for t in best.alternatives), reverse=True)
    assert best.score > best.alternatives[0].score
    assert best.score == pytest.approx(ours.translate(["a b c d"])[0].score, abs=1e-3)


@pytest.mark.parametrize("changes", [{}, {"positions": "learned", "max_positions": 60}], ids=str)
def test_a_line_that_is_too_long_for_the_positions_of_the_export_has_a_problem(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    """The table has 1,024 rows, or as many as the model has positions. EOS takes the last one."""
    loaded = random_model(replace(CONFIG, **changes))
    ours, theirs = Translator([loaded]), engine.load(export_of(loaded, tmp_path))
    most = (theirs.config.model.max_positions or 0) - 1
    assert most == changes.get("max_positions", 1_024) - 1
    (letter,) = {len(loaded.tokenizer.encode("a" * n)) - n for n in (20, 30)}
    lines = ["a b c", "a" * (most - letter), "a" * (most - letter + 1)]
    first, longest, too_long = theirs.translate(lines, split="none", loops="keep")
    assert too_long.text == ""
    assert too_long.problem == f"expected at most {most:,} tokens, not {most + 1:,}; split the line"
    expected = ours.translate(lines[:2], split="none", loops="keep", max_length=most + 1)
    assert [first.text, longest.text] == [translation.text for translation in expected]
    assert len(longest.pieces) == len(expected[1].pieces) == most + 1


def test_more_least_tokens_than_an_output_may_have_are_no_error(toy_export: Path) -> None:
    """Also in the second search of a loop, which has fewer tokens at most."""
    model = engine.load(toy_export)
    model.config = replace(model.config, search=replace(model.config.search, max_extra_tokens=50, min_tokens=45))
    (translation,) = model.translate(["a b"])
    assert len(translation.pieces) == 22 and translation.is_loop and not translation.finished


def test_a_shortlist_is_the_vocabulary_map(toy: Toy, toy_export: Path, tmp_path: Path) -> None:
    loaded = load_model(toy.model)
    size = loaded.tokenizer.vocab_size
    ids = read_ids(*toy.train, loaded.tokenizer, 500, 32)
    shortlist = learn_shortlist(*ids, size, size, n_candidates=2, n_common=0)
    shortlist.candidates[loaded.tokenizer.vocabulary.index("▁c")] = PAD  # so that it changes outputs
    save_shortlist(save_to(loaded, tmp_path / "model"), shortlist)
    export.export_ctranslate2(tmp_path / "model", tmp_path / "out")
    theirs, ours = engine.load(tmp_path / "out"), transduce.load(tmp_path / "model")
    lines = [*toy.unseen[:20], *(line for line in LINES if "Z" not in line)]
    expected = [translation.text for translation in ours.translate(lines, beam_size=1, shortlist=True)]
    alone = [
        theirs.translate([line], beam_size=1, shortlist=True)[0].text for line in lines
    ]  # a batch of one has one shortlist
    assert alone == expected != [translation.text for translation in theirs.translate(lines, beam_size=1)]
    assert len(theirs.translate(lines, shortlist=True)) == len(lines)
    with pytest.raises(UserError, match=r"^shortlist=True: expected an export with vmap.txt; run transduce shortlist "):
        engine.load(toy_export).translate(lines, shortlist=True)


def test_pieces_with_white_space_are_not_in_a_vocabulary_map() -> None:
    pieces = [*CONTROLS, "a", "\t", "b\n", "▁c", "\x0b"]
    candidates = np.array([[PAD, PAD]] * 4 + [[5, 7], [4, 4], [4, 4], [8, PAD], [PAD, PAD]], np.int32)
    content = export.vocabulary_map(Shortlist(np.arange(6, dtype=np.int32), candidates), pieces).decode()
    controls = "".join(f"{control}\t\n" for control in CONTROLS[1:])
    assert content == "\t<s> </s> <unk> a\n" + controls + "a\t▁c\n▁c\t\x0b\n\x0b\t\n"


def test_minimum_bayes_risk_takes_the_candidates_of_the_beam(toy_export: Path, toy: Toy) -> None:
    ours, theirs = transduce.load(toy.model), engine.load(toy_export)
    expected = ours.translate(LINES, mbr=2, beam_size=8)
    assert [t.text for t in theirs.translate(LINES, mbr=2, beam_size=8)] == [t.text for t in expected]
    (best,) = theirs.translate(["a b c d e"], mbr=8, beam_size=8, n_best=3)
    utilities = [t.utility or 0.0 for t in (best, *best.alternatives)]
    assert len(utilities) == 3 and utilities == sorted(utilities, reverse=True)
    with pytest.raises(UserError, match="mbr=8: expected a beam size with CTranslate2, because this engine takes no"):
        theirs.translate(LINES, mbr=8)
    with pytest.raises(UserError, match="sampling: must not be set with CTranslate2"):
        theirs.translate(LINES, mbr=8, sampling=transduce.Sampling())


def test_an_int8_export_is_smaller_and_translates_nearly_the_same(toy: Toy, tmp_path: Path) -> None:
    export.export_ctranslate2(toy.model, tmp_path / "out", "int8")
    small, large = (tmp_path / "out" / "model.bin").stat().st_size, (toy.model / "model.safetensors").stat().st_size
    assert small < large  # the table of positions is the largest part of so small a model
    lines = toy.unseen[:50]
    ours = [t.text for t in transduce.load(toy.model).translate(lines)]
    for precision in (None, "int8", "fp32"):
        theirs = [t.text for t in engine.load(tmp_path / "out", precision=precision).translate(lines)]
        assert sum(a == b for a, b in zip(theirs, ours, strict=True)) >= 48


def test_ctranslate2_itself_reads_the_folder(toy_export: Path, toy: Toy) -> None:
    tokenizer = Tokenizer.load(toy_export / "tokenizer.json")
    direct = ctranslate2.Translator(str(toy_export))
    pieces = [tokenizer.vocabulary[token] for token in tokenizer.encode("a b c")]
    ids = [tokenizer.vocabulary.index(piece) for piece in direct.translate_batch([pieces])[0].hypotheses[0]]
    assert tokenizer.decode(ids) == transduce.load(toy.model).translate(["a b c"])[0].text


def test_the_export_names_the_settings_of_the_search_that_differ(tmp_path: Path) -> None:
    loaded = random_model(CONFIG)
    model = save_to(loaded, tmp_path / "model")
    assert len(export.export_ctranslate2(model, tmp_path / "out").splitlines()) == 1
    search = replace(loaded.config.search, beam_size=4, repetition_penalty=1.2, lookahead=5, min_tokens=2)
    changed = save_to(replace(loaded, config=replace(loaded.config, search=search)), tmp_path / "changed")
    _, *lines = export.export_ctranslate2(changed, tmp_path / "other").splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "search.min_tokens=2", "search.repetition_penalty=1.2", "search.lookahead=5"
    ]  # fmt: skip
    assert lines[1].endswith(": CTranslate2 lowers the logits, not the log-probabilities")
    card = (tmp_path / "other" / "README.md").read_text(encoding="utf-8")
    assert all(f"- {line}\n" in card for line in lines)


# ---- without torch -----------------------------------------------------------------------------------------------


def test_it_translates_without_torch(toy_export: Path) -> None:
    program = "import sys\ntry:\n    from transduce.cli.main import main\n    main()\nfinally:\n"
    program += "    print(*[name for name in ('torch', 'transformers') if name in sys.modules], file=sys.stderr)"
    command = [sys.executable, "-c", program, "translate", str(toy_export)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.run(command, input=b"a b c\n\nd e\n", capture_output=True, env=environment, check=True)
    assert process.stdout == b"c b a\n\ne d\n"
    assert process.stderr.strip() == b""


def test_the_command_line_exports_and_translates(toy: Toy, tmp_path: Path) -> None:
    process = fork_transduce("export", toy.model, "--to", "ctranslate2", "--out", tmp_path / "out")
    assert process.code == 0 and b"" == process.out and "differ by" in process.err
    process = fork_transduce("translate", tmp_path / "out", "--engine", "ctranslate2", "--json", stdin=b"a b\n")
    translation = json.loads(process.out)
    assert translation["text"] == "b a" and translation["score"] < 0 and translation["token_log_probs"] == []
    second = fork_transduce("export", toy.model, tmp_path / "out", "--to", "ctranslate2")
    assert second.code == 2 and "expected a new folder; give another name" in second.err


# ---- refused models and options ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["MODEL", "--engine", "ctranslate2"], "transduce export MODEL --to ctranslate2"),
        (["OUT", "--engine", "torch"], "give the model before the export"),
        (["OUT", "OUT"], "expected one for CTranslate2"),
        (["OUT", "MODEL"], "expected one for CTranslate2"),
        (["OUT", "--temperature", "0.5"], "sampling: must not be set with CTranslate2; use --engine torch"),
        (["OUT", "--lookahead", "5"], "ends its search by another rule"),
        (["OUT", "--precision", "fp8"], "'fp8'"),
        (["OUT", "--beam-size", "0"], "transduce: --beam-size=0: expected 1 to "),
    ],
)
def test_unsupported_options_are_refused(arguments: list[str], message: str, toy_export: Path, toy: Toy) -> None:
    folders = {"MODEL": str(toy.model), "OUT": str(toy_export)}
    process = fork_transduce("translate", *[folders.get(word, word) for word in arguments], stdin=b"a b c\n")
    assert process.code == 2 and message in process.err and process.out == b""


def test_unsupported_models_and_precisions_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="d_k=4 and model.d_v=8"):
        export_of(random_model(replace(CONFIG, d_k=4)), tmp_path)
    rival = random_model(ModelConfig(kind="recurrent", vocab_size=None, d_model=32, n_layers=2, dropout=0.0))
    with pytest.raises(UserError, match="model.kind='recurrent': expected 'transformer'"):
        export_of(rival, tmp_path / "rival")
    with pytest.raises(UserError, match="precision='fp16': expected one of fp32, int8"):
        export_of(random_model(CONFIG), tmp_path, "fp16")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("fault", ["norm", "bias", "positions", "nan"])
def test_a_model_that_computes_other_figures_is_not_written(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = export.spec_of

    def wrong(loaded: LoadedModel, library: Any) -> Any:
        spec = right(loaded, library)
        if fault == "norm":
            spec.decoder.layer[1].ffn.layer_norm.gamma[3] += 0.1
        elif fault == "bias":
            spec.encoder.layer[0].self_attention.linear[0].bias[-1] += 0.1
        elif fault == "positions":
            spec.encoder.position_encodings.encodings = spec.encoder.position_encodings.encodings[1:]
        else:
            spec.decoder.projection.weight[7, 7] = float("nan")
        return spec

    monkeypatch.setattr(export, "spec_of", wrong)
    with pytest.raises(ArithmeticError, match="computes a different model"):
        export_of(random_model(CONFIG), tmp_path)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", engine.FILES)
def test_a_damaged_folder_is_refused(name: str, toy_export: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in toy_export.iterdir():
        content = bytearray(path.read_bytes())
        if path.name == name:
            content[len(content) // 2] ^= 1
        (copy / path.name).write_bytes(content)
    with pytest.raises(UserError, match=name):
        engine.load(copy)
    (copy / name).unlink()
    with pytest.raises(UserError):
        engine.load(copy)


def test_without_the_extra_the_message_says_what_to_install(toy_export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctranslate2", None)
    with pytest.raises(UserError, match=r"transduce\[ctranslate2\]"):
        engine.load(toy_export)


def test_the_export_does_not_change_the_model(toy: Toy, tmp_path: Path) -> None:
    loaded = load_model(toy.model)
    before = weights(loaded.model)
    export._files(loaded, engine.import_ctranslate2(), tmp_path, "int8")
    assert all(torch.equal(before[name], value) for name, value in weights(loaded.model).items())
