"""Folders in Hugging Face's form: read and written, and refused where they are damaged or not supported."""

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from support.small_encoders import bert_folder
from support.small_members import gpt2_folder, small_gpt2, t5_folder, vit_folder

import transduce
from transduce import UserError
from transduce.family.hugging_face.folder import read_member, write_member
from transduce.family.inference.model_folder import export_member

IDS = torch.tensor([[5, 9, 2, 7]])


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gpt2_folder(tmp_path_factory.mktemp("original") / "gpt2")


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "gpt2"))


def edit_config(folder: Path, **changes: Any) -> None:
    values = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({key: value for key, value in values.items() if value is not ...}))


def edit_tensors(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    edit(tensors)
    safetensors.torch.save_file(tensors, folder / "model.safetensors")


def write_index(folder: Path, **names: str | int) -> None:
    """Make two files of tensors with an index. names: other files of single tensors."""
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    of_files = {f"model-{i}.safetensors": [*sorted(tensors)][i::2] for i in range(2)}
    for file, of_file in of_files.items():
        safetensors.torch.save_file({name: tensors[name] for name in of_file}, folder / file)
    index = {name: file for file, of_file in of_files.items() for name in of_file} | names
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def assert_same_model(folder: Path) -> None:
    assert torch.equal(transduce.family.load(folder).model(IDS), small_gpt2()(IDS))


# ---- both ways -----------------------------------------------------------------------------------------------------


def test_a_written_model_is_read_again(folder: Path, tmp_path: Path) -> None:
    assert_same_model(folder)
    transduce.family.load(folder).save(tmp_path / "copy")
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        assert (tmp_path / "copy" / name).read_bytes() == (folder / name).read_bytes()
    with pytest.raises(UserError, match="expected a new folder"):
        transduce.family.load(folder).save(tmp_path / "copy")


def their_model(name: str) -> Any:
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    kind = name.partition("For")[0].removesuffix("Model").removesuffix("LMHead")
    config = getattr(transformers, f"{kind}Config")
    sizes = {"vocab_size": 300, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    if kind == "T5":
        sizes = {"vocab_size": 300, "d_model": 16, "num_layers": 2, "num_heads": 4, "d_kv": 4, "d_ff": 20}
    elif kind == "ViT":
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 8, "patch_size": 4}
    extra = {"bos_token_id": 0, "eos_token_id": 0} if name.startswith("GPT2") else {}
    return getattr(transformers, name)(config(**sizes, **extra)).eval()


ARCHITECTURES = """
GPT2LMHeadModel OpenAIGPTLMHeadModel BertModel BertForMaskedLM BertForPreTraining T5ForConditionalGeneration
ViTForImageClassification
""".split()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_hugging_face_opens_what_we_write(name: str, tmp_path: Path) -> None:
    theirs = their_model(name)
    theirs.save_pretrained(tmp_path / "theirs")
    write_member(tmp_path / "ours", read_member(tmp_path / "theirs"))
    again, info = type(theirs).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(info.values())
    config = type(theirs).from_pretrained(tmp_path / "theirs").config
    values, expected = again.config.to_dict(), config.to_dict() | {"_name_or_path": str(tmp_path / "ours")}
    assert {key: values.get(key) for key in expected} == expected
    tensors = theirs.state_dict()
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in again.state_dict().items())


def test_hugging_face_opens_the_tokenizer_of_what_we_write(folder: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    transduce.family.load(folder).save(tmp_path / "copy")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "copy")
    assert tokenizer.decode(tokenizer("two young dogs")["input_ids"]) == "two young dogs"
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "copy")
    torch.testing.assert_close(model(IDS).logits, small_gpt2()(IDS))
    assert model.config.eos_token_id == 0


def test_a_copy_keeps_every_file_but_other_weights_and_links_to_elsewhere(folder: Path, tmp_path: Path) -> None:
    kept = ("chat_template.jinja", "preprocessor_config.json", "1_Pooling/config.json", "2_Dense/model.safetensors")
    left_out = ("pytorch_model.bin", "onnx/model.onnx", ".git/config")
    for name in (*kept, *left_out):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("{}")
    (tmp_path / "private").write_text("key")
    (folder / "link").symlink_to(tmp_path / "private")
    transduce.family.load(folder).save(tmp_path / "copy")
    names = {path.relative_to(tmp_path / "copy").as_posix() for path in (tmp_path / "copy").rglob("*")}
    assert names >= {*kept} and not names & {*left_out, "link"}
    assert (tmp_path / "copy" / "2_Dense" / "model.safetensors").read_text() == "{}"


def test_hugging_face_s_parts_of_a_large_model_are_read(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    config = transformers.GPT2Config(
        n_embd=16, n_layer=2, n_head=4, vocab_size=50, n_positions=20, bos_token_id=0, eos_token_id=0
    )
    theirs = transformers.GPT2LMHeadModel(config).eval()
    theirs.save_pretrained(tmp_path, max_shard_size="6KB")
    assert len([*tmp_path.glob("model-*.safetensors")]) > 2
    torch.testing.assert_close(transduce.family.load(tmp_path).model(IDS), theirs(IDS).logits)


def test_an_index_and_links_lead_to_the_files_of_tensors(folder: Path, tmp_path: Path) -> None:
    write_index(folder)
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    for path in [*folder.glob("*")]:  # as in Hugging Face's cache
        path.rename(blobs / path.name)
        path.symlink_to(f"../blobs/{path.name}")
    assert_same_model(folder)


def test_a_file_without_the_prefix_and_with_masks_and_a_copy_is_read(folder: Path) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        for name in [*tensors]:
            tensors[name.removeprefix("transformer.")] = tensors.pop(name)
        tensors["h.0.attn.bias"] = torch.ones(1, 1, 40, 40, dtype=torch.uint8)
        tensors["h.1.attn.masked_bias"] = torch.tensor(-1e4)
        tensors["lm_head.weight"] = tensors["wte.weight"].clone()

    edit_tensors(folder, edit)
    assert_same_model(folder)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_weights_of_any_floating_type_become_fp32(folder: Path, dtype: torch.dtype) -> None:
    edit_tensors(folder, lambda tensors: tensors.update({name: x.to(dtype) for name, x in tensors.items()}))
    model = transduce.family.load(folder).model
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    torch.testing.assert_close(model(IDS), small_gpt2()(IDS), rtol=0.2, atol=0.2)


def test_a_tied_matrix_stays_tied(folder: Path) -> None:
    model = transduce.family.load(folder).model
    assert model.output.weight is model.embedding.weight


# ---- refusals ------------------------------------------------------------------------------------------------------


def remove(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def config(**changes: Any) -> Callable[[Path], object]:
    return lambda folder: edit_config(folder, **changes)


def tensors(edit: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], object]:
    return lambda folder: edit_tensors(folder, edit)


def bytes_of(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"x": torch.ones(1)}, folder / "pytorch_model.bin")


WTE, LN = "transformer.wte.weight", "transformer.ln_f.bias"
REFUSALS = {
    "no config": (remove("config.json"), "config.json: expected a file, but it is missing"),
    "config is a list": (bytes_of("config.json", b"[1]"), "config.json: expected a JSON object"),
    "config is deep": (bytes_of("config.json", b'{"a":' + b"[" * 100_000), "config.json: expected a JSON object"),
    "config is binary": (bytes_of("config.json", b"\xff\xfe{"), "config.json: expected a JSON object"),
    "config is long": (bytes_of("config.json", b" " * 2_000_000), "config.json: expected at most 1,048,576 bytes"),
    "no kind": (config(model_type=...), "model_type=None: expected one of gpt2, openai-gpt, gpt_bigcode, llama"),
    "unknown kind": (config(model_type="mt5"), "model_type='mt5': expected one of .*; use a model of one of these"),
    "kind is a list": (config(model_type=["gpt2"]), "model_type=.'gpt2'.: expected one of gpt2"),
    "quantized": (config(quantization_config={"bits": 4}), "expected weights that are not quantized"),
    "another activation": (config(activation_function="relu"), "activation_function='relu': expected 'gelu_new' or"),
    "cross-attention": (config(add_cross_attention=True), "add_cross_attention=True: expected False"),
    "scaled by layer": (config(scale_attn_by_inverse_layer_idx=True), "inverse_layer_idx=True: expected False"),
    "untied": (config(tie_word_embeddings=False), "tie_word_embeddings=False: expected True"),
    "no size": (config(n_embd=...), r"n_embd=\(absent\): expected an integer from 1"),
    "size is text": (config(n_embd="24"), "n_embd='24': expected an integer"),
    "size is true": (config(n_layer=True), "n_layer=True: expected an integer"),
    "size is negative": (config(n_positions=-1), "n_positions=-1: expected an integer from 1"),
    "size is huge": (config(vocab_size=10**30), "vocab_size=10+: expected an integer from 1 to"),
    "many layers": (config(n_layer=10**7), "n_layer=10000000: expected at most 1,000"),
    "wide": (config(n_embd=1 << 20), "c_attn.bias has the shape"),
    "heads": (config(n_head=5), "n_embd=24: expected a multiple of n_head=5"),
    "eps": (config(layer_norm_epsilon=-1), "layer_norm_epsilon=-1: expected a number from 0"),
    "other sizes": (config(n_inner=7), r"mlp.c_fc.bias has the shape \(96,\), not \(7,\)"),
    "no tensors": (remove("model.safetensors"), "expected model.safetensors; save the model as safetensors"),
    "pickle": (pickled, r"expected model.safetensors, and no pickle is read \(pytorch_model.bin\)"),
    "missing": (tensors(lambda t: t.pop(LN)), "transformer.ln_f.bias is missing"),
    "unknown": (tensors(lambda t: t.update(lm_heat=torch.ones(1))), "lm_heat is no part of the model; did you mean"),
    "twice": (tensors(lambda t: t.update({"wte.weight": t[WTE] + 1})), "is there twice"),
    "other copy": (
        tensors(lambda t: t.update({"lm_head.weight": t[WTE] + 1})),
        "lm_head.weight is not trans",
    ),
    "shape": (tensors(lambda t: t.update({WTE: t[WTE][1:].clone()})), r"the shape \(299, 24\), not \(300, 24\)"),
    "type": (tensors(lambda t: t.update({LN: t[LN].long()})), "ln_f.bias has the type I64, not one of F64, F32"),
    "nan": (tensors(lambda t: t[LN].fill_(float("nan"))), "expected finite numbers in transformer.ln_f.bias"),
    "infinite in fp32": (tensors(lambda t: t.update({LN: t[LN].double() + 1e300})), "expected finite numbers in trans"),
    "long header": (bytes_of("model.safetensors", b"\xff" * 7 + b"\0{}"), "expected a header of at most"),
    "empty": (bytes_of("model.safetensors", b""), "expected readable tensors"),
    "index outside": (
        lambda f: write_index(f, **{LN: "../gpt2/model-0.safetensors"}),
        "expected names of files in the",
    ),
    "index absolute": (
        lambda f: write_index(f, **{LN: "/etc/passwd"}),
        "names of files .*, not '/etc/passwd'",
    ),
    "index hidden": (lambda f: write_index(f, **{LN: ".x.safetensors"}), "expected names of files in the folder"),
    "index number": (lambda f: write_index(f, **{LN: 7}), "expected names of files in the folder, not 7"),
    "index other file": (
        lambda f: write_index(f, **{LN: "model-7.safetensors"}),
        "the tensors that model.safetensors.in",
    ),
    "no file": (lambda f: (write_index(f), remove("model-1.safetensors")(f)), "model-1.safetensors: .*it is missing"),
    "index wrong file": (lambda f: write_index(f, **{LN: "model-0.safetensors", WTE: "model-0.safetensors"}), "names"),
    "tokenizer is long": (lambda f: os.truncate(f / "tokenizer.json", 1 << 27), "expected at most 67,108,864 bytes"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_folder_is_refused_in_words(folder: Path, case: str) -> None:
    change, message = REFUSALS[case]
    change(folder)
    with pytest.raises(UserError, match=message) as problem:
        transduce.family.load(folder)
    assert "; " in str(problem.value) and "\n" not in str(problem.value)


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (
            gpt2_folder,
            {"n_layer": 900},
            "n_layer=900: expected at most [0-9]+, the number of tensors in the folder; use",
        ),
        (t5_folder, {"num_layers": 900}, "num_layers=900: expected at most [0-9]+, the number of tensors"),
        (t5_folder, {"num_decoder_layers": 900}, "num_decoder_layers=900: expected at most [0-9]+"),
        (
            lambda folder: bert_folder(folder, "pooler", "classifier"),
            {"id2label": ..., "num_labels": 1 << 24},
            "num_labels=16777216: expected at most [0-9]+, the most rows of a tensor in the folder; use",
        ),
        (
            vit_folder,
            {"id2label": ..., "num_labels": 1 << 24},
            "num_labels=16777216: expected at most [0-9]+, the most",
        ),
    ],
)
def test_sizes_that_the_tensors_do_not_show_are_refused_before_the_model_is_built(
    tmp_path: Path, make: Callable[[Path], Path], changes: dict[str, Any], message: str
) -> None:
    """1,000 layers of a T5 take 18 s, and 2^24 labels 1.6 GB."""
    edit_config(folder := make(tmp_path / "model"), **changes)
    with pytest.raises(UserError, match=message):
        transduce.family.load(folder)


def test_a_path_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="expected a folder with config.json"):
        transduce.family.load(tmp_path / "gpt2")
    with pytest.raises(UserError, match="folder=7: expected a path"):
        transduce.family.load(7)  # pyright: ignore[reportArgumentType]


def test_a_pipe_is_not_read(folder: Path) -> None:
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with pytest.raises(UserError, match="config.json: expected a file; "):
        transduce.family.load(folder)


def test_a_link_to_itself_is_refused(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("config.json")
    with pytest.raises(UserError, match="config.json: expected a file, not a link to itself; use a whole folder"):
        transduce.family.load(folder)


def test_only_a_model_of_transduce_is_exported(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not one in Hugging Face's form; `transduce continue`, .* take it as it is"):
        export_member(folder, tmp_path / "out")


def test_a_cut_or_damaged_file_of_tensors_is_refused_or_has_other_values(folder: Path) -> None:
    """Nothing but a UserError comes out of any file."""
    path, rng = folder / "model.safetensors", random.Random(1)
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    for size in [*range(16), *(rng.randrange(header + 99) for _ in range(20)), len(content) - 1]:
        path.write_bytes(content[:size])
        with pytest.raises(UserError):
            read_member(folder)
    n_refused = 0
    for _ in range(60):
        damaged = bytearray(content)
        damaged[rng.randrange(header)] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            read_member(folder)
        except UserError:
            n_refused += 1
    assert n_refused > 40


def test_a_written_folder_is_whole_or_not_there(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    member = read_member(folder)
    monkeypatch.setattr("transduce.family.hugging_face.folder.TENSORS", "config.json/below_a_file")
    with pytest.raises(OSError):
        write_member(tmp_path / "copy", member)
    assert not (tmp_path / "copy").exists()
