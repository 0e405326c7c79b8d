"""A model as a CTranslate2 folder, which translates without torch (`transduce.interop.ctranslate2_engine`).

    OUT/   model.bin, config.json, shared_vocabulary.json   CTranslate2's own, which its other users read as well
           transduce.json, tokenizer.json                   our configuration and tokenizer
           README.md, manifest.json                         as in every model folder

What is written is tried: CTranslate2 scores random sentences with it, and our own model the same ones.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import nn

from transduce.config.files import to_json
from transduce.config.schema import ModelConfig
from transduce.data.batches import collate
from transduce.data.vocabulary import BOS, CONTROLS, EOS, UNK
from transduce.errors import UserError
from transduce.interop.ctranslate2_engine import import_ctranslate2
from transduce.model.attention import MultiHeadAttention
from transduce.model.transformer import DecoderLayer, EncoderLayer, Residual, Transformer
from transduce.storage.atomic_folder import write_folder
from transduce.storage.model_folder import LoadedModel, load_model
from transduce.training.loss import token_log_probs

Precision = Literal["fp32", "int8"]

# ---- to CTranslate2 ----------------------------------------------------------------------------------------------


def export_ctranslate2(model: Path, out: Path, precision: str = "fp32") -> str:
    """Write the model folder `model` as a CTranslate2 folder `out`, and return what was found when it was tried.

    precision: of the weights on disk. UserError if the model is one that CTranslate2 cannot hold, ArithmeticError if
    it computes something else; then nothing is written.
    """
    if precision not in get_args(Precision):
        raise UserError(f"precision is {precision!r}, expected one of {', '.join(get_args(Precision))}")
    if out.exists():
        raise UserError(f"{out} exists already; give the name of a new folder")
    ctranslate2 = import_ctranslate2()
    loaded = load_model(model)
    _refuse_other_heads(loaded.config.model)
    with tempfile.TemporaryDirectory() as folder:
        files = _files(loaded, ctranslate2, Path(folder))
        found = [_tried(loaded, ctranslate2, files, "float32", TOLERANCE)]
        if precision == "int8":
            files = _files(loaded, ctranslate2, Path(folder), "int8")
            found.append(_tried(loaded, ctranslate2, files, "int8_float32", INT8_TOLERANCE))
    ours = {
        "transduce.json": to_json(loaded.config).encode(),
        "tokenizer.json": loaded.tokenizer.to_json().encode(),
        "README.md": _card(model, precision, found).encode(),
    }
    write_folder(out, {name: [content] for name, content in {**files, **ours}.items()})
    return "\n".join(found)


def transformer_of(loaded: LoadedModel) -> Transformer:
    """The model, if it is a Transformer. UserError for its rivals, which other programs do not know."""
    if not isinstance(loaded.model, Transformer):
        raise UserError(f"model.kind={loaded.config.model.kind!r}: only a Transformer can be exported")
    return loaded.model


def _refuse_other_heads(model: ModelConfig) -> None:
    d_k, d_v = (width or model.d_model // model.n_heads for width in (model.d_k, model.d_v))
    if not d_k == d_v == model.d_model / model.n_heads:
        raise UserError(
            f"heads of d_k={d_k} and d_v={d_v}: CTranslate2 has only heads of d_model / n_heads="
            f"{model.d_model / model.n_heads:g}; this model runs with --engine torch alone"
        )


def _files(
    loaded: LoadedModel, ctranslate2: ModuleType, folder: Path, quantization: str | None = None
) -> dict[str, bytes]:
    """What CTranslate2's own classes write, by file name."""
    spec = spec_of(loaded, ctranslate2)
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(folder))
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


POSITIONS = 1_024  # rows of the table at least: CTranslate2 cannot make more of them


def spec_of(loaded: LoadedModel, ctranslate2: ModuleType) -> Any:
    """The model in the classes of CTranslate2, whose `validate` finds what was left out."""
    model, config, specs = transformer_of(loaded), loaded.config.model, ctranslate2.specs
    activations = {"relu": specs.Activation.RELU, "swish": specs.Activation.SWISH}
    spec = specs.TransformerSpec.from_config(
        config.n_layers, config.n_heads, pre_norm=config.norm == "pre", activation=activations[config.activation]
    )
    length = loaded.config.data.max_tokens + loaded.config.search.max_extra_tokens
    positions = model.positions(0, config.max_positions or max(length, POSITIONS)).detach().numpy()
    for side, stack in ((spec.encoder, model.encoder), (spec.decoder, model.decoder)):
        side.scale_embeddings = True  # times sqrt(d_model)
        side.position_encodings.encodings = positions
        for target, layer in zip(side.layer, stack, strict=True):
            _set_layer(target, layer)
    if config.norm == "pre":
        _set_norm(spec.encoder.layer_norm, model.encoder_norm)
        _set_norm(spec.decoder.layer_norm, model.decoder_norm)
    spec.encoder.embeddings[0].weight = _array(model.src_embedding.weight)
    spec.decoder.embeddings.weight = _array(model.tgt_embedding.weight)
    _set_linear(spec.decoder.projection, [model.output])
    spec.config.layer_norm_epsilon = config.norm_eps
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = CONTROLS[UNK], CONTROLS[BOS], CONTROLS[EOS]
    spec.config.decoder_start_token = CONTROLS[BOS]
    spec.config.add_source_eos = True
    pieces = loaded.tokenizer.vocabulary
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    return spec


def _set_layer(target: Any, layer: Any) -> None:
    """An encoder's layer, or a decoder's, which has one attention more."""
    assert isinstance(layer, EncoderLayer | DecoderLayer)
    norms = [residual.norm for residual in layer.residuals if isinstance(residual, Residual)]
    _set_attention(target.self_attention, layer.self_attention, [["w_q", "w_k", "w_v"], ["w_o"]])
    if isinstance(layer, DecoderLayer):
        _set_attention(target.attention, layer.cross_attention, [["w_q"], ["w_k", "w_v"], ["w_o"]])
        _set_norm(target.attention.layer_norm, norms[1])
    _set_norm(target.self_attention.layer_norm, norms[0])
    _set_norm(target.ffn.layer_norm, norms[-1])
    _set_linear(target.ffn.linear_0, [layer.feed_forward.get_submodule("w_1")])
    _set_linear(target.ffn.linear_1, [layer.feed_forward.get_submodule("w_2")])


def _set_attention(target: Any, attention: MultiHeadAttention, fused: Sequence[Sequence[str]]) -> None:
    for linear, names in zip(target.linear, fused, strict=True):
        _set_linear(linear, [attention.get_submodule(name) for name in names])


def _set_linear(target: Any, parts: Sequence[nn.Module]) -> None:
    """Linear layers of one input as one, their outputs one after the other."""
    target.weight = np.concatenate([_array(part.get_parameter("weight")) for part in parts])
    if all(part.bias is not None for part in parts):
        target.bias = np.concatenate([_array(part.get_parameter("bias")) for part in parts])


def _set_norm(target: Any, norm: nn.Module) -> None:
    target.gamma, target.beta = _array(norm.get_parameter("weight")), _array(norm.get_parameter("bias"))


def _array(weight: torch.Tensor) -> np.ndarray:
    return weight.detach().cpu().numpy().copy()  # CTranslate2 quantises in place


# ---- is it the same model? ---------------------------------------------------------------------------------------

TRIED = 32  # pairs of random sentences
TOLERANCE = 1e-3  # between log-probabilities of tokens; rounding makes some 1e-5
INT8_TOLERANCE = 2.0  # random tokens have log-probabilities of -10 to -30, and what is rounded to 8 bits shows there


def random_pairs(vocab_size: int, longest: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Sources and targets of 1 to `longest` tokens, any but the control tokens."""
    random = np.random.default_rng(1)
    lengths = random.integers(1, longest + 1, (2, TRIED))
    src, tgt = ([random.integers(len(CONTROLS), vocab_size, n) for n in side] for side in lengths)
    return src, tgt


@torch.inference_mode()
def own_log_probs(model: Transformer, src: list[np.ndarray], tgt: list[np.ndarray]) -> np.ndarray:
    """The log-probability of every token of every target, EOS included, one after the other; on the CPU."""
    batch = collate(src, tgt)
    decoded = model.decode(batch.tgt_in, model.encode(batch.src, batch.src_mask), batch.src_mask)
    hidden, targets = batch.real(decoded)
    return token_log_probs(hidden, model.output.weight, targets, model.output.bias).numpy()


def _tried(
    loaded: LoadedModel, ctranslate2: ModuleType, files: dict[str, bytes], compute_type: str, tolerance: float
) -> str:
    """How far CTranslate2's log-probabilities are from ours, in words. ArithmeticError if they are too far."""
    src, tgt = random_pairs(len(loaded.tokenizer.vocabulary), min(64, loaded.config.data.max_tokens - 1))
    theirs = ctranslate2.Translator("the export", compute_type=compute_type, files=files)
    sides = [[[loaded.tokenizer.vocabulary[token] for token in ids] for ids in side] for side in (src, tgt)]
    scored = theirs.score_batch(*sides, max_input_length=0)
    found = np.concatenate([result.log_probs for result in scored])
    return compared(f"CTranslate2 in {compute_type}", found, own_log_probs(transformer_of(loaded), src, tgt), tolerance)


def compared(what: str, found: np.ndarray, wanted: np.ndarray, tolerance: float) -> str:
    """The difference between log-probabilities in words; ArithmeticError if one is more than `tolerance`, or NaN."""
    largest, mean = np.abs(found - wanted).max(), np.abs(found - wanted).mean()
    words = f"{len(found):,} log-probabilities of tokens: they differ by {largest:.1e} at most, {mean:.1e} on average"
    if not largest <= tolerance:
        raise ArithmeticError(f"{what} computes something else than transduce. {words}, expected at most {tolerance}")
    return f"{what}, {words}"


def _card(model: Path, precision: str, found: Sequence[str]) -> str:
    tried = "\n".join(f"- {line}" for line in found)
    return f"""# A translation model for CTranslate2

The model of {model.absolute()}, weights in {precision}. Random sentences, scored by both programs:

{tried}

To use it without PyTorch: `pip install 'transduce[ctranslate2]'` and `transduce translate THIS_FOLDER < in.txt`.
CTranslate2's own API reads it, too; it wants the pieces of tokenizer.json, and its length penalty is another.
"""
