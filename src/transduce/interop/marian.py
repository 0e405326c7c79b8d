"""Import and export Marian models in Hugging Face's form: MarianMTModel, the class of the public OPUS-MT models.

Both programs compute the post-norm Transformer. These points differ in Marian:
- The positions have all sines first ("halves"). For a model with interleaved positions the export reorders the
  dimensions of the whole model.
- LayerNorm has eps 1e-5, and the length penalty is |Y|^alpha.
- Outputs start with the padding token. The import maps the token ids (`transduce.data.sentencepiece_pair`).
"""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from transduce.config.schema import Config, DataConfig, ModelConfig, SearchConfig
from transduce.config.validation import problems
from transduce.data.batches import collate
from transduce.data.sentencepiece_pair import UNKNOWN, SentencePieces, document
from transduce.data.vocabulary import BOS, CONTROLS, EOS, PAD, UNK
from transduce.errors import UserError
from transduce.interop.parity import TOLERANCE, describe_difference, own_log_probs, random_pairs, require_transformer
from transduce.model.transformer import Transformer
from transduce.storage.atomic_folder import encode_json, write_folder
from transduce.storage.model_folder import LoadedModel, load_model, save_model
from transduce.training.weights import set_weights, weights

EPS = 1e-5  # of Marian's LayerNorm; no configuration changes it
UNUSED_BIAS = -1e4  # output bias of unused ids, which gives them the probability 0

# ---- names -------------------------------------------------------------------------------------------------------


def marian_names(config: ModelConfig) -> dict[str, str]:
    """Return Marian's name of each of our parameters."""
    names = {"src_embedding.weight": "model.shared.weight"}
    if not config.tie_src_tgt:
        names["src_embedding.weight"] = "model.encoder.embed_tokens.weight"
        names["tgt_embedding.weight"] = "model.decoder.embed_tokens.weight"
    if not config.tie_output:
        names["output.weight"] = "lm_head.weight"
    if config.output_bias:
        names["output.bias"] = "final_logits_bias"
    parts = {"feed_forward.w_1": "fc1", "feed_forward.w_2": "fc2"}
    for letter, word in {"q": "q", "k": "k", "v": "v", "o": "out"}.items():
        parts[f"self_attention.w_{letter}"] = f"self_attn.{word}_proj"
    encoder = {**parts, "residuals.0.norm": "self_attn_layer_norm", "residuals.1.norm": "final_layer_norm"}
    decoder = {**parts, "residuals.0.norm": "self_attn_layer_norm", "residuals.1.norm": "encoder_attn_layer_norm"}
    decoder["residuals.2.norm"] = "final_layer_norm"
    for letter, word in {"q": "q", "k": "k", "v": "v", "o": "out"}.items():
        decoder[f"cross_attention.w_{letter}"] = f"encoder_attn.{word}_proj"
    for stack, parts_of_stack in {"encoder": encoder, "decoder": decoder}.items():
        for i in range(config.n_layers):
            for ours, theirs in parts_of_stack.items():
                for kind in ("weight", "bias"):
                    names[f"{stack}.{i}.{ours}.{kind}"] = f"model.{stack}.layers.{i}.{theirs}.{kind}"
    return names


# ---- import ------------------------------------------------------------------------------------------------------


def import_marian(folder: Path, out: Path) -> None:
    """Write the Marian model in `folder` as the model folder `out`.

    Raises UserError for a model that transduce would not compute the same way.
    """
    if out.exists():
        raise UserError(f"{out}: expected a new folder; give another name")
    _check_files(folder)
    settings = _json(folder / "config.json")
    generation = _json(folder / "generation_config.json") if (folder / "generation_config.json").exists() else {}
    ids = _json(folder / "vocab.json")
    wrong = _import_problems(folder, settings, ids)
    if wrong:
        raise UserError("\n".join([f"{folder}: expected a model that transduce can build", *(f"  {p}" for p in wrong)]))
    order = _order(settings, ids)
    pieces = [*CONTROLS, *(_piece(ids)[token] for token in order[4:] if token is not None)]
    source, target = ((folder / f"{side}.spm").read_bytes() for side in ("source", "target"))
    tokenizer = SentencePieces(document(source, target, pieces))
    config = _config({**settings, **generation}, len(order))
    model = Transformer(config.model)
    set_weights(model, _imported(_tensors(folder / "model.safetensors"), config.model, order, folder), folder)
    card = f"# A translation model\n\nImported from the Marian model in {folder.absolute()}.\n"
    save_model(out, weights(model), config, tokenizer, card)


FILES = ("config.json", "model.safetensors", "vocab.json", "source.spm", "target.spm")
# Required values of Marian's configuration; a missing key counts as the required value.
EXPECTED = {
    "model_type": "marian",
    "scale_embedding": True,
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
}
SAME = ("layers", "ffn_dim", "attention_heads")  # must be equal in encoder and decoder


def _import_problems(folder: Path, settings: Mapping[str, Any], ids: Mapping[str, Any]) -> list[str]:
    """Return a line for each property of a Marian model that transduce cannot build. ids: token id of each piece."""
    values = {key: settings.get(key, value) for key, value in EXPECTED.items()}
    wrong = [f"{key}={values[key]!r}: expected {value!r}" for key, value in EXPECTED.items() if values[key] != value]
    for key in SAME:
        sides = [settings.get(f"{side}_{key}") for side in ("encoder", "decoder")]
        if sides[0] != sides[1]:
            wrong.append(f"encoder_{key}={sides[0]} and decoder_{key}={sides[1]}: expected equal values")
    if settings.get("activation_function") not in ("swish", "silu", "relu"):
        wrong.append(f"activation_function={settings.get('activation_function')!r}: expected 'swish' or 'relu'")
    vocab_size = settings.get("vocab_size")
    if settings.get("decoder_vocab_size") not in (None, vocab_size) or (folder / "target_vocab.json").exists():
        wrong.append("vocab.json: expected one vocabulary for both languages, not one for each")
    start, pad = settings.get("decoder_start_token_id"), settings.get("pad_token_id")
    if pad != start:
        wrong.append(f"decoder_start_token_id={start}: expected pad_token_id={pad}")
    if sorted(ids.values()) != list(range(len(ids))) or len(ids) != vocab_size:
        wrong.append(f"vocab.json: expected the ids 0 to {vocab_size} - 1, each once, not {len(ids)} pieces")
    for key, piece in (("eos_token_id", "</s>"), ("pad_token_id", "<pad>")):
        if ids.get(piece) != settings.get(key):
            wrong.append(f"{key}={settings.get(key)}: expected {ids.get(piece)}, the id of {piece} in vocab.json")
    if "<unk>" not in ids:
        wrong.append("vocab.json: expected the piece <unk>")
    return wrong


def _check_files(folder: Path) -> None:
    """Raise UserError if a file of the model is missing, or the weights are a pickle."""
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing == ["model.safetensors"] and (folder / "pytorch_model.bin").exists():
        raise UserError(
            f"{folder}: expected model.safetensors, not pytorch_model.bin, a pickle, which can run code when it is "
            "read; convert it in an isolated environment: with transformers, "
            "MarianMTModel.from_pretrained(FOLDER).save_pretrained(FOLDER) writes model.safetensors"
        )
    if missing:
        raise UserError(f"{folder}: expected a Marian model with {', '.join(missing)}; use a complete copy")


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as problem:
        raise UserError(f"{path}: expected valid JSON ({problem}); use another copy") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a JSON object; use another copy")
    return content


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return {name: tensor.float() for name, tensor in safetensors.torch.load_file(path).items()}
    except (safetensors.SafetensorError, ValueError, KeyError) as problem:
        raise UserError(f"{path}: expected readable tensors ({problem}); use another copy") from None


def _piece(ids: Mapping[str, int]) -> dict[int, str]:
    return {i: UNKNOWN if piece == "<unk>" else piece for piece, i in ids.items()}


def _order(settings: Mapping[str, Any], ids: Mapping[str, int]) -> list[int | None]:
    """Return Marian's token id for each of ours; None for unused rows."""
    pad, eos = settings["pad_token_id"], settings["eos_token_id"]
    controls = {PAD: None, BOS: pad, EOS: eos, UNK: None}
    return [*(controls[i] for i in range(4)), *(i for i in range(len(ids)) if i not in (pad, eos))]


def _config(settings: Mapping[str, Any], vocab_size: int) -> Config:
    """Return Marian's settings as a configuration of ours. Raises UserError if they are not valid."""
    ties_weights = bool(settings.get("tie_word_embeddings", True))  # False overrides the sharing of embeddings below
    model = ModelConfig(
        vocab_size=vocab_size,
        d_model=settings["d_model"],
        n_layers=settings["encoder_layers"],
        n_heads=settings["encoder_attention_heads"],
        d_ff=settings["encoder_ffn_dim"],
        activation="relu" if settings["activation_function"] == "relu" else "swish",
        dropout=float(settings.get("dropout", 0.1)),
        norm_eps=EPS,
        positions="halves",
        tie_src_tgt=ties_weights and bool(settings.get("share_encoder_decoder_embeddings", True)),
        tie_output=ties_weights,
        output_bias=True,
    )
    alpha = float(settings.get("length_penalty", 1.0))
    search = SearchConfig(beam_size=settings.get("num_beams", 4), alpha=alpha, length_penalty="power")
    longest = settings.get("max_position_embeddings", 512)
    config = Config(model, DataConfig("sentencepiece", vocab_size=vocab_size, max_tokens=longest), search=search)
    if wrong := problems(config):
        raise UserError("config.json: expected a model that transduce can build; " + "; ".join(wrong))
    return config


def _imported(
    tensors: dict[str, Tensor], config: ModelConfig, order: list[int | None], folder: Path
) -> dict[str, Tensor]:
    """Return our parameters of Marian's tensors, by our names.

    order: from `_order`. Raises UserError if a tensor is missing, unused, or of another vocabulary size.
    """
    tensors.setdefault("final_logits_bias", torch.zeros(1, len(order) - 2))
    tensors["final_logits_bias"] = tensors["final_logits_bias"].reshape(-1)
    names = marian_names(config)
    ignored = {name for name in tensors if name.endswith("embed_positions.weight")}
    ignored |= {f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder") if config.tie_src_tgt}
    ignored |= {"lm_head.weight"} if config.tie_output else set()
    ignored |= {"model.shared.weight"} if not config.tie_src_tgt else set()
    unmatched = sorted((tensors.keys() - ignored) ^ set(names.values()))
    if unmatched:
        raise UserError(
            f"{folder}/model.safetensors: expected the tensors of config.json, but {unmatched[0]} is in only "
            "one of the two; use another copy"
        )
    parameters = {ours: tensors[theirs].contiguous() for ours, theirs in names.items()}
    for name in ("src_embedding.weight", "tgt_embedding.weight", "output.weight", "output.bias"):
        if name in parameters:
            if len(parameters[name]) != len(order) - 2:
                raise UserError(
                    f"{folder}/model.safetensors: expected a row of {names[name]} for each piece of vocab.json; "
                    "use another copy"
                )
            parameters[name] = _reordered(parameters[name], order, UNUSED_BIAS if name == "output.bias" else 0.0)
    return parameters


def _reordered(rows: Tensor, order: list[int | None], unused: float) -> Tensor:
    """Return `rows` in the order of our token ids. unused: the value of rows without an id of Marian's."""
    reordered = torch.full((len(order), *rows.shape[1:]), unused)
    pairs = [(ours, theirs) for ours, theirs in enumerate(order) if theirs is not None]
    reordered[[ours for ours, _ in pairs]] = rows[[theirs for _, theirs in pairs]]
    return reordered


# ---- export ------------------------------------------------------------------------------------------------------


def export_marian(model: Path, out: Path) -> str:
    """Write the model folder `model` in Hugging Face's form as `out`, and return the difference of the two models.

    Raises UserError if MarianMTModel cannot hold the model, ArithmeticError if its scores differ. In both cases it
    writes nothing.
    """
    if out.exists():
        raise UserError(f"{out}: expected a new folder; give another name")
    loaded = load_model(model)
    wrong = _export_problems(loaded)
    if wrong:
        raise UserError("\n".join([f"{model}: expected a model that Marian can represent", *(f"  {p}" for p in wrong)]))
    files = {
        "config.json": encode_json(_marian_config(loaded.config)),
        "generation_config.json": encode_json(_marian_generation(loaded.config)),
        "model.safetensors": safetensors.torch.save(_exported(loaded), {"format": "pt"}),
        "tokenizer.json": loaded.tokenizer.to_json().encode(),
        "tokenizer_config.json": encode_json(_marian_tokenizer()),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        difference = _difference(loaded, Path(folder))
    card = f"# A translation model\n\nExported by transduce from {model.absolute()}. {difference}\n"
    files["README.md"] = card.encode()
    write_folder(out, {name: [content] for name, content in files.items()})
    return difference


def _export_problems(loaded: LoadedModel) -> list[str]:
    """Return a line for each property of the model that MarianMTModel does not have."""
    require_transformer(loaded)
    model, wrong = loaded.config.model, []
    if model.norm != "post":
        wrong.append(f"model.norm={model.norm!r}: expected 'post'")
    if model.positions not in ("interleaved", "halves"):
        wrong.append(f"model.positions={model.positions!r}: expected 'interleaved' or 'halves'")
    width = model.d_model / model.n_heads
    if {model.d_k or width, model.d_v or width} != {width}:
        wrong.append(f"model.d_k={model.d_k} and model.d_v={model.d_v}: expected d_model / n_heads={width:g}")
    if loaded.tokenizer.kind == "sentencepiece":
        wrong.append("tokenizer='sentencepiece': expected a model trained by transduce; use the Marian folder")
    return wrong


def _marian_config(config: Config) -> dict[str, Any]:
    """Return the content of Marian's config.json."""
    model = config.model
    sides = {"layers": model.n_layers, "ffn_dim": model.d_ff, "attention_heads": model.n_heads}
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "vocab_size": model.vocab_size,
        "decoder_vocab_size": model.vocab_size,
        "d_model": model.d_model,
        **{f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in sides.items()},
        "activation_function": model.activation,
        "dropout": model.dropout,
        "max_position_embeddings": max(1024, config.data.max_tokens + config.search.max_extra_tokens),
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": model.tie_src_tgt,
        "tie_word_embeddings": model.tie_output,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
        "forced_eos_token_id": None,
        "is_encoder_decoder": True,
        "dtype": "float32",
    }


def _marian_generation(config: Config) -> dict[str, Any]:
    """Return the content of generation_config.json; its |Y|^alpha is the closest to the paper's length penalty."""
    return {
        "num_beams": config.search.beam_size,
        "length_penalty": config.search.alpha,
        "early_stopping": "never" if config.search.beam_size > 1 else False,
        "max_length": config.data.max_tokens + config.search.max_extra_tokens,
        "bad_words_ids": [[PAD], [BOS], [UNK]],
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
    }


def _marian_tokenizer() -> dict[str, Any]:
    """Return the content of tokenizer_config.json."""
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), CONTROLS, strict=True))
    return {"tokenizer_class": "PreTrainedTokenizerFast", **names, "clean_up_tokenization_spaces": False}


def _exported(loaded: LoadedModel) -> dict[str, Tensor]:
    """Return our parameters as Marian's tensors, by Marian's names."""
    config, parameters = loaded.config.model, weights(loaded.model)
    if config.positions == "interleaved":
        parameters = _sines_first(parameters, config.d_model)
    tensors = {}
    for ours, theirs in marian_names(config).items():  # attention without biases: Marian's are 0
        tensors[theirs] = parameters[ours] if ours in parameters else torch.zeros(config.d_model)
    if config.tie_src_tgt and not config.tie_output:  # Marian ties both or neither
        for side in ("encoder", "decoder"):
            tensors[f"model.{side}.embed_tokens.weight"] = tensors["model.shared.weight"].clone()
    bias = parameters.get("output.bias", torch.zeros(config.vocab_size or 0))
    return {**tensors, "final_logits_bias": bias[None]}


def _sines_first(parameters: dict[str, Tensor], d_model: int) -> dict[str, Tensor]:
    """Return the same model with the dimensions of the residual stream reordered: even ones, then odd ones."""
    order = torch.tensor([*range(0, d_model, 2), *range(1, d_model, 2)])
    reordered = {}
    for name, values in parameters.items():
        if name == "output.bias":
            reordered[name] = values
        elif ".norm." in name or name.split(".")[-2] in ("w_o", "w_2"):
            reordered[name] = values[order]
        elif name.endswith("bias"):
            reordered[name] = values
        else:
            reordered[name] = values[:, order].contiguous()
    return reordered


def _difference(loaded: LoadedModel, folder: Path) -> str:
    """Return a sentence on the difference between MarianMTModel's log-probabilities and ours.

    Raises ArithmeticError if one differs by more than `TOLERANCE`, UserError if transformers is not installed.
    """
    try:
        from transformers import MarianMTModel
    except ImportError as problem:
        raise UserError(
            f"the check of the export: expected the package transformers ({problem}); pip install 'transduce[export]'"
        ) from None
    src, tgt = random_pairs(loaded)
    batch = collate(src, tgt)
    exported = MarianMTModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        output = exported(input_ids=batch.src, attention_mask=batch.src_mask.long(), decoder_input_ids=batch.tgt_in)
        log_probs = output.logits.log_softmax(-1).gather(2, batch.tgt_out[:, :, None])[..., 0]
    theirs: np.ndarray = log_probs[batch.tgt_mask].numpy()
    ours = own_log_probs(require_transformer(loaded), src, tgt)
    return describe_difference("MarianMTModel", theirs, ours, TOLERANCE)
