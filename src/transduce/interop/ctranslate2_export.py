"""Export a model as a CTranslate2 folder, which translates without torch (`transduce.interop.ctranslate2_engine`).

    OUT/   model.bin, config.json, shared_vocabulary.json   CTranslate2's own files, for its other users too
           vmap.txt                                         also CTranslate2's: the shortlist, if the model has one
           transduce.json, tokenizer.json                   our configuration and tokenizer
           README.md, manifest.json                         as in every model folder

Before the export writes OUT, CTranslate2 and our model score the same random sentences (`transduce.interop.parity`).
"""

import re
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, cast, get_args

import numpy as np
import torch
from torch import nn

from transduce.config.files import to_json
from transduce.console import in_markdown
from transduce.data.vocabulary import BOS, CONTROLS, EOS, PAD, UNK
from transduce.decoding.shortlist.table import Shortlist
from transduce.errors import UserError
from transduce.interop.ctranslate2_engine import VOCABULARY_MAP, import_ctranslate2
from transduce.interop.ctranslate2_files import check_files, check_heads, position_rows
from transduce.interop.parity import INT8_TOLERANCE, SentenceIds, compare, require_transformer, search_differences
from transduce.model.attention import MultiHeadAttention
from transduce.model.transformer import DecoderLayer, EncoderLayer, Residual
from transduce.storage.atomic_folder import write_folder
from transduce.storage.model_folder import LoadedModel, load_model

StoredPrecision = Literal["fp32", "int8"]
_BARS = "in a beam, CTranslate2 leaves the tokens that it bars out of the softmax, so others are more likely"
# Settings of our search, and what CTranslate2 does instead.
DIFFERENCES = {
    "min_tokens": _BARS,
    "no_repeat_ngram": _BARS,
    "repetition_penalty": "CTranslate2 lowers the logits, not the log-probabilities",
    "lookahead": "CTranslate2 ends its search by another rule",
}
Spec = Any  # a part of a model of ctranslate2, which has no types

# ---- to CTranslate2 ----------------------------------------------------------------------------------------------


def export_ctranslate2(model: Path, out: Path, precision: str = "fp32") -> str:
    """Write the model folder `model` as a CTranslate2 folder `out`, and return the differences between the two models.

    The differences have a line for each setting of the search that CTranslate2 computes in another way.
    precision: precision of the weights on disk, "fp32" or "int8".
    Raises UserError if CTranslate2 cannot hold the model, and ArithmeticError if the scores of the exported model
    differ. In both cases it writes nothing.
    """
    if out.exists():
        raise UserError(f"{out}: expected a new folder; give another name")
    loaded = load_model(model)
    files, differences = ctranslate2_files(loaded, precision)
    differences += search_differences(loaded.config.search, DIFFERENCES)
    check_files(files, loaded.config, loaded.tokenizer, out)  # the engine would refuse other files
    ours = {
        "transduce.json": to_json(loaded.config).encode(),
        "tokenizer.json": loaded.tokenizer.to_json().encode(),
        "README.md": _card(model, precision, differences).encode(),
    }
    if loaded.shortlist is not None:
        ours[VOCABULARY_MAP] = vocabulary_map(loaded.shortlist, loaded.tokenizer.vocabulary)
    write_folder(out, {name: [content] for name, content in {**files, **ours}.items()})
    return "\n".join(differences)


def ctranslate2_files(loaded: LoadedModel, precision: str) -> tuple[dict[str, bytes], list[str]]:
    """Return the files of the model in CTranslate2, name to content, and the differences between the two models.

    Raises UserError and ArithmeticError as `export_ctranslate2` does.
    """
    if precision not in get_args(StoredPrecision):
        raise UserError(f"precision={precision!r}: expected one of {', '.join(get_args(StoredPrecision))}")
    ctranslate2 = import_ctranslate2()
    require_transformer(loaded)
    check_heads(loaded.config.model)
    with tempfile.TemporaryDirectory() as folder:
        files = _files(loaded, ctranslate2, Path(folder))
        theirs = partial(_log_probs, loaded, ctranslate2, files, "float32")
        differences = [compare("CTranslate2 in float32", loaded, theirs)]
        if precision == "int8":
            files = _files(loaded, ctranslate2, Path(folder), "int8")
            theirs = partial(_log_probs, loaded, ctranslate2, files, "int8_float32")
            differences.append(compare("CTranslate2 in int8_float32", loaded, theirs, INT8_TOLERANCE))
    return files, differences


def vocabulary_map(shortlist: Shortlist, pieces: Sequence[str]) -> bytes:
    """Return a shortlist as CTranslate2's vocabulary map: lines of a source piece, a tab, and target pieces.

    The line without a source piece has the common ones. The map cannot have pieces with a space, a tab or a line break.
    """
    writable = {i: piece for i, piece in enumerate(pieces) if i != PAD and not re.search(r"[ \t\n]", piece)}
    lines = {"": shortlist.common} | {piece: shortlist.candidates[i] for i, piece in writable.items()}
    texts = (
        f"{piece}\t{' '.join(writable[token] for token in ids.tolist() if token in writable)}\n"
        for piece, ids in lines.items()
    )
    return "".join(texts).encode()


def _files(
    loaded: LoadedModel, ctranslate2: ModuleType, folder: Path, quantization: str | None = None
) -> dict[str, bytes]:
    """Return the files that CTranslate2 writes for the model: name to content."""
    spec = spec_of(loaded, ctranslate2)
    spec.validate()
    spec.optimize(quantization=quantization)
    spec.save(str(folder))
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def spec_of(loaded: LoadedModel, ctranslate2: ModuleType) -> Spec:
    """Return the model as an object of CTranslate2, whose `validate` finds missing weights."""
    model = require_transformer(loaded)
    config = loaded.config.model
    specs = ctranslate2.specs
    activations = {"relu": specs.Activation.RELU, "swish": specs.Activation.SWISH}
    spec = specs.TransformerSpec.from_config(
        config.depths, config.n_heads, pre_norm=config.norm == "pre", activation=activations[config.activation]
    )
    positions = model.positions(0, position_rows(loaded.config)).detach().numpy()
    for side, stack in ((spec.encoder, model.encoder), (spec.decoder, model.decoder)):
        side.scale_embeddings = True  # times sqrt(d_model)
        side.position_encodings.encodings = positions
        for target, layer in zip(side.layer, stack, strict=True):
            _set_layer(target, cast(EncoderLayer | DecoderLayer, layer))
    if config.norm == "pre":
        _set_norm(spec.encoder.layer_norm, model.encoder_norm)
        _set_norm(spec.decoder.layer_norm, model.decoder_norm)
    spec.encoder.embeddings[0].weight = _array(model.src_embedding.weight)
    spec.decoder.embeddings.weight = _array(model.tgt_embedding.weight)
    _set_linear(spec.decoder.projection, [model.output])
    spec.config.layer_norm_epsilon = config.norm_eps
    spec.config.unk_token = CONTROLS[UNK]
    spec.config.bos_token = CONTROLS[BOS]
    spec.config.eos_token = CONTROLS[EOS]
    spec.config.decoder_start_token = CONTROLS[BOS]
    spec.config.add_source_eos = True
    pieces = loaded.tokenizer.vocabulary
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    return spec


def _set_layer(target: Spec, layer: EncoderLayer | DecoderLayer) -> None:
    """Copy a layer of the encoder, or one of the decoder, which also has cross-attention."""
    norms = [cast(Residual, residual).norm for residual in layer.residuals]
    _set_attention(target.self_attention, layer.self_attention, [["w_q", "w_k", "w_v"], ["w_o"]])
    if isinstance(layer, DecoderLayer):
        _set_attention(target.attention, layer.cross_attention, [["w_q"], ["w_k", "w_v"], ["w_o"]])
        _set_norm(target.attention.layer_norm, norms[1])
    _set_norm(target.self_attention.layer_norm, norms[0])
    _set_norm(target.ffn.layer_norm, norms[-1])
    _set_linear(target.ffn.linear_0, [layer.feed_forward.get_submodule("w_1")])
    _set_linear(target.ffn.linear_1, [layer.feed_forward.get_submodule("w_2")])


def _set_attention(target: Spec, attention: MultiHeadAttention, fused: Sequence[Sequence[str]]) -> None:
    for linear, names in zip(target.linear, fused, strict=True):
        _set_linear(linear, [attention.get_submodule(name) for name in names])


def _set_linear(target: Spec, layers: Sequence[nn.Module]) -> None:
    """Copy linear layers of one input as one layer, with their outputs concatenated."""
    target.weight = np.concatenate([_array(layer.get_parameter("weight")) for layer in layers])
    if all(layer.bias is not None for layer in layers):
        target.bias = np.concatenate([_array(layer.get_parameter("bias")) for layer in layers])


def _set_norm(target: Spec, norm: nn.Module) -> None:
    target.gamma = _array(norm.get_parameter("weight"))
    target.beta = _array(norm.get_parameter("bias"))


def _array(weight: torch.Tensor) -> np.ndarray:
    return weight.detach().cpu().numpy().copy()  # CTranslate2 quantises arrays in place


# ---- comparison with the original --------------------------------------------------------------------------------


def _log_probs(
    loaded: LoadedModel,
    ctranslate2: ModuleType,
    files: dict[str, bytes],
    compute_type: str,
    src: SentenceIds,
    tgt: SentenceIds,
) -> np.ndarray:
    """Return CTranslate2's log-probability of every target token."""
    translator = ctranslate2.Translator("the export", compute_type=compute_type, files=files)
    sides = [[[loaded.tokenizer.vocabulary[token] for token in ids] for ids in side] for side in (src, tgt)]
    results = translator.score_batch(*sides, max_input_length=0)
    return np.concatenate([result.log_probs for result in results])


def _card(model: Path, precision: str, differences: Sequence[str]) -> str:
    comparison = "\n".join(f"- {line}" for line in differences)
    origin = in_markdown(model.absolute())
    return f"""# A translation model for CTranslate2

The model of {origin}, with weights in {precision}. Both programs scored the same random sentences:

{comparison}

To use it without PyTorch: `pip install 'transduce[ctranslate2]'` and `transduce translate THIS_FOLDER < in.txt`.
CTranslate2's own API reads it too. It takes the pieces of tokenizer.json, and its length penalty is different.
"""
