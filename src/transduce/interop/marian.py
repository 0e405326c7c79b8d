"""Marian models in Hugging Face's form, to and from: MarianMTModel, which the public OPUS-MT models are.

What both have in common is the mathematics of the post-norm Transformer. What differs:
- Their positions have all sines first ("halves"). Ours may interleave them; then the dimensions of the whole model are
  put in that order at export.
- Their LayerNorm has eps 1e-5, and their length penalty is |Y|^alpha.
- They begin with the padding token; their ids are mapped at import (`transduce.data.sentencepiece_pair`).
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
from transduce.interop.ctranslate2_export import TOLERANCE, compared, own_log_probs, random_pairs, transformer_of
from transduce.model.transformer import Transformer
from transduce.storage.atomic_folder import encode_json, write_folder
from transduce.storage.model_folder import LoadedModel, load_model, save_model
from transduce.training.weights import set_weights, weights

EPS = 1e-5  # of their LayerNorm, which no configuration changes
DEAD = -1e4  # the output bias of ids that nothing uses: their probability is 0

# ---- names -------------------------------------------------------------------------------------------------------


def their_names(config: ModelConfig) -> dict[str, str]:
    """Their name of each of our parameters."""
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
    """Write the Marian model in `folder` as the model folder `out`. UserError for whatever would not be the same."""
    if out.exists():
        raise UserError(f"{out} exists already; give the name of a new folder")
    _refuse_missing(folder)
    given = _json(folder / "config.json")
    asked = _json(folder / "generation_config.json") if (folder / "generation_config.json").exists() else {}
    ids = _json(folder / "vocab.json")
    found = _import_problems(folder, given, ids)
    if found:
        raise UserError("\n".join([f"{folder} cannot be imported:", *(f"  {line}" for line in found)]))
    order = _order(given, ids)
    pieces = [*CONTROLS, *(_piece(ids)[token] for token in order[4:] if token is not None)]
    source, target = ((folder / f"{side}.spm").read_bytes() for side in ("source", "target"))
    tokenizer = SentencePieces(document(source, target, pieces))
    config = _config({**given, **asked}, len(order))
    model = Transformer(config.model)
    set_weights(model, _imported(_tensors(folder / "model.safetensors"), config.model, order, folder), folder)
    card = f"# A translation model\n\nImported from the Marian model in {folder.absolute()}.\n"
    save_model(out, weights(model), config, tokenizer, card)


FILES = ("config.json", "model.safetensors", "vocab.json", "source.spm", "target.spm")
# What their configuration must say, where it says anything.
EXPECTED = {
    "model_type": "marian",
    "scale_embedding": True,
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
}
SAME = ("layers", "ffn_dim", "attention_heads")  # of encoder and decoder


def _import_problems(folder: Path, given: Mapping[str, Any], ids: Mapping[str, Any]) -> list[str]:
    said = {key: given.get(key, value) for key, value in EXPECTED.items()}
    found = [f"{key}={said[key]!r}: expected {value!r}" for key, value in EXPECTED.items() if said[key] != value]
    for key in SAME:
        if given.get(f"encoder_{key}") != given.get(f"decoder_{key}"):
            found.append(f"encoder_{key} and decoder_{key} differ; expected the same")
    if given.get("activation_function") not in ("swish", "silu", "relu"):
        found.append(f"activation_function={given.get('activation_function')!r}: expected 'swish' or 'relu'")
    vocab_size = given.get("vocab_size")
    if given.get("decoder_vocab_size") not in (None, vocab_size) or (folder / "target_vocab.json").exists():
        found.append("each language has a vocabulary of its own; expected one for both")
    if given.get("pad_token_id") != given.get("decoder_start_token_id"):
        found.append("outputs begin with another token than <pad>; expected pad_token_id=decoder_start_token_id")
    if sorted(ids.values()) != list(range(len(ids))) or len(ids) != vocab_size:
        found.append(f"vocab.json has {len(ids)} pieces, expected the ids 0 to {vocab_size} - 1, each once")
    for key, piece in (("eos_token_id", "</s>"), ("pad_token_id", "<pad>")):
        if ids.get(piece) != given.get(key):
            found.append(f"{key}={given.get(key)}, but vocab.json has {piece} as {ids.get(piece)}")
    if "<unk>" not in ids:
        found.append("vocab.json has no <unk>")
    return found


def _refuse_missing(folder: Path) -> None:
    missing = [name for name in FILES if not (folder / name).is_file()]
    if missing == ["model.safetensors"] and (folder / "pytorch_model.bin").exists():
        raise UserError(
            f"{folder} has its weights in pytorch_model.bin, a pickle, which may run code when it is read; convert it "
            "where that does no harm: MarianMTModel.from_pretrained(FOLDER).save_pretrained(FOLDER) of transformers "
            "writes model.safetensors"
        )
    if missing:
        raise UserError(f"{folder} is not a Marian model in Hugging Face's form: it has no {', '.join(missing)}")


def _json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as problem:
        raise UserError(f"{path} is not valid JSON ({problem}); use another copy") from None
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected a JSON object")
    return content


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        return {name: tensor.float() for name, tensor in safetensors.torch.load_file(path).items()}
    except (safetensors.SafetensorError, ValueError, KeyError) as problem:
        raise UserError(f"{path} holds no readable tensors ({problem}); use another copy") from None


def _piece(ids: Mapping[str, int]) -> dict[int, str]:
    return {i: UNKNOWN if piece == "<unk>" else piece for piece, i in ids.items()}


def _order(given: Mapping[str, Any], ids: Mapping[str, int]) -> list[int | None]:
    """Their id for each of ours; None for the rows that nothing uses."""
    pad, eos = given["pad_token_id"], given["eos_token_id"]
    controls = {PAD: None, BOS: pad, EOS: eos, UNK: None}
    return [*(controls[i] for i in range(4)), *(i for i in range(len(ids)) if i not in (pad, eos))]


def _config(given: Mapping[str, Any], vocab_size: int) -> Config:
    """Their settings as ours. UserError if they are impossible."""
    tied = bool(given.get("tie_word_embeddings", True))  # False: nothing is, whatever is said of sharing
    model = ModelConfig(
        vocab_size=vocab_size,
        d_model=given["d_model"],
        n_layers=given["encoder_layers"],
        n_heads=given["encoder_attention_heads"],
        d_ff=given["encoder_ffn_dim"],
        activation="relu" if given["activation_function"] == "relu" else "swish",
        dropout=float(given.get("dropout", 0.1)),
        norm_eps=EPS,
        positions="halves",
        tie_src_tgt=tied and bool(given.get("share_encoder_decoder_embeddings", True)),
        tie_output=tied,
        output_bias=True,
    )
    alpha = float(given.get("length_penalty", 1.0))
    search = SearchConfig(beam_size=given.get("num_beams", 4), alpha=alpha, length_penalty="power")
    longest = given.get("max_position_embeddings", 512)
    config = Config(model, DataConfig("sentencepiece", vocab_size=vocab_size, max_tokens=longest), search=search)
    if wrong := problems(config):
        raise UserError("config.json asks for what transduce cannot build: " + "; ".join(wrong))
    return config


def _imported(
    given: dict[str, Tensor], config: ModelConfig, order: list[int | None], folder: Path
) -> dict[str, Tensor]:
    """Our parameters of their tensors. UserError if one is missing, or one is there that nothing would use."""
    given.setdefault("final_logits_bias", torch.zeros(1, len(order) - 2))
    given["final_logits_bias"] = given["final_logits_bias"].reshape(-1)
    names = their_names(config)
    ignored = {name for name in given if name.endswith("embed_positions.weight")}
    ignored |= {f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder") if config.tie_src_tgt}
    ignored |= {"lm_head.weight"} if config.tie_output else set()
    ignored |= {"model.shared.weight"} if not config.tie_src_tgt else set()
    odd = sorted((given.keys() - ignored) ^ set(names.values()))
    if odd:
        raise UserError(f"{folder}/model.safetensors does not fit its configuration: {odd[0]} is in only one of them")
    tensors = {ours: given[theirs].contiguous() for ours, theirs in names.items()}
    for name in ("src_embedding.weight", "tgt_embedding.weight", "output.weight", "output.bias"):
        if name in tensors:
            if len(tensors[name]) != len(order) - 2:
                raise UserError(f"{folder}: {their_names(config)[name]} has not a row for each piece of vocab.json")
            tensors[name] = _reordered(tensors[name], order, DEAD if name == "output.bias" else 0.0)
    return tensors


def _reordered(rows: Tensor, order: list[int | None], dead: float) -> Tensor:
    made = torch.full((len(order), *rows.shape[1:]), dead)
    used = [(ours, theirs) for ours, theirs in enumerate(order) if theirs is not None]
    made[[ours for ours, _ in used]] = rows[[theirs for _, theirs in used]]
    return made


# ---- export ------------------------------------------------------------------------------------------------------


def export_marian(model: Path, out: Path) -> str:
    """Write the model folder `model` in Hugging Face's form as `out`, and return what was found when it was tried.

    UserError if it is a model that MarianMTModel cannot hold, ArithmeticError if that computes something else.
    """
    if out.exists():
        raise UserError(f"{out} exists already; give the name of a new folder")
    loaded = load_model(model)
    found = _export_problems(loaded)
    if found:
        raise UserError("\n".join([f"{model} cannot be exported to Marian:", *(f"  {line}" for line in found)]))
    files = {
        "config.json": encode_json(_their_config(loaded.config)),
        "generation_config.json": encode_json(_their_generation(loaded.config)),
        "model.safetensors": safetensors.torch.save(_exported(loaded), {"format": "pt"}),
        "tokenizer.json": loaded.tokenizer.to_json().encode(),
        "tokenizer_config.json": encode_json(_their_tokenizer(loaded.config)),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        words = _tried(loaded, Path(folder))
    files["README.md"] = f"# A translation model\n\nExported by transduce from {model.absolute()}. {words}\n".encode()
    write_folder(out, {name: [content] for name, content in files.items()})
    return words


def _export_problems(loaded: LoadedModel) -> list[str]:
    transformer_of(loaded)
    model, found = loaded.config.model, []
    if model.norm != "post":
        found.append(f"model.norm={model.norm!r}: Marian's is 'post'")
    if model.positions not in ("interleaved", "halves"):
        found.append(f"model.positions={model.positions!r}: expected 'interleaved' or 'halves'")
    if {model.d_k or model.d_model / model.n_heads, model.d_v or model.d_model / model.n_heads} != {
        model.d_model / model.n_heads
    }:
        found.append(f"model.d_k={model.d_k} and model.d_v={model.d_v}: Marian's are d_model / n_heads")
    if loaded.tokenizer.kind == "sentencepiece":
        found.append("it was imported from Marian; use that folder")
    return found


def _their_config(config: Config) -> dict[str, Any]:
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


def _their_generation(config: Config) -> dict[str, Any]:
    """Their |Y|^alpha is as near to the paper's penalty as they have."""
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


def _their_tokenizer(config: Config) -> dict[str, Any]:
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), CONTROLS, strict=True))
    return {"tokenizer_class": "PreTrainedTokenizerFast", **names, "clean_up_tokenization_spaces": False}


def _exported(loaded: LoadedModel) -> dict[str, Tensor]:
    """Our parameters as their tensors."""
    config, given = loaded.config.model, weights(loaded.model)
    if config.positions == "interleaved":
        given = _sines_first(given, config.d_model)
    made = {theirs: given[ours] for ours, theirs in their_names(config).items() if ours in given}
    for ours, theirs in their_names(config).items():
        if ours not in given:  # attention without biases
            made[theirs] = torch.zeros(config.d_model)
    if config.tie_src_tgt and not config.tie_output:  # then they tie nothing
        for side in ("encoder", "decoder"):
            made[f"model.{side}.embed_tokens.weight"] = made["model.shared.weight"].clone()
    bias = given.get("output.bias", torch.zeros(config.vocab_size or 0))
    return {**made, "final_logits_bias": bias[None]}


def _sines_first(given: dict[str, Tensor], d_model: int) -> dict[str, Tensor]:
    """The same model with the dimensions of the residual stream in another order: even ones, then odd ones."""
    order = torch.tensor([*range(0, d_model, 2), *range(1, d_model, 2)])
    made = {}
    for name, values in given.items():
        if name == "output.bias":
            made[name] = values
        elif ".norm." in name or name.split(".")[-2] in ("w_o", "w_2"):
            made[name] = values[order]
        elif name.endswith("bias"):
            made[name] = values
        else:
            made[name] = values[:, order].contiguous()
    return made


def _tried(loaded: LoadedModel, folder: Path) -> str:
    """How far its log-probabilities are from ours in words. ArithmeticError if they are too far."""
    try:
        from transformers import MarianMTModel
    except ImportError as problem:
        raise UserError(f"{problem}; what is exported is tried: pip install 'transduce[export]'") from None
    src, tgt = random_pairs(loaded.tokenizer.vocab_size, min(64, loaded.config.data.max_tokens - 1))
    batch = collate(src, tgt)
    theirs = MarianMTModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        made = theirs(input_ids=batch.src, attention_mask=batch.src_mask.long(), decoder_input_ids=batch.tgt_in)
        log_probs = made.logits.log_softmax(-1).gather(2, batch.tgt_out[:, :, None])[..., 0]
    found: np.ndarray = log_probs[batch.tgt_mask].numpy()
    return compared("MarianMTModel", found, own_log_probs(transformer_of(loaded), src, tgt), TOLERANCE)
