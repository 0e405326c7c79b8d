"""Export a model folder as a Marian model in Hugging Face's form (`transduce.interop.marian`)."""

import tempfile
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from transduce.config.schema import Config
from transduce.console import in_markdown
from transduce.data.batches import collate
from transduce.data.sentencepiece_pair import UNKNOWN, SentencePieces
from transduce.data.vocabulary import BOS, CONTROLS, EOS, PAD, UNK, TokenizerLike
from transduce.errors import UserError
from transduce.interop.marian import OF_THE_VOCABULARY, marian_names
from transduce.interop.parity import TOLERANCE, describe_difference, own_log_probs, random_pairs, require_transformer
from transduce.storage.atomic_folder import encode_json, write_folder
from transduce.storage.model_folder import LoadedModel, load_model
from transduce.training.weights import weights


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
    ids = _marian_ids(loaded.tokenizer)
    files = {
        "config.json": encode_json(_marian_config(loaded.config, ids)),
        "generation_config.json": encode_json(_marian_generation(loaded.config, ids)),
        "model.safetensors": safetensors.torch.save(_exported(loaded, ids), {"format": "pt"}),
        **_tokenizer_files(loaded.tokenizer, ids),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        difference = _difference(loaded, ids, Path(folder))
    card = f"# A translation model\n\nExported by transduce from {in_markdown(model.absolute())}. {difference}\n"
    files["README.md"] = card.encode()
    write_folder(out, {name: [content] for name, content in files.items()})
    return difference


def _export_problems(loaded: LoadedModel) -> list[str]:
    """Return a line for each property of the model that MarianMTModel does not have."""
    require_transformer(loaded)
    model = loaded.config.model
    wrong = []
    if model.norm != "post":
        wrong.append(f"model.norm={model.norm!r}: expected 'post'")
    if model.positions not in ("interleaved", "halves"):
        wrong.append(f"model.positions={model.positions!r}: expected 'interleaved' or 'halves'")
    width = model.d_model / model.n_heads
    if {model.d_k or width, model.d_v or width} != {width}:
        wrong.append(f"model.d_k={model.d_k} and model.d_v={model.d_v}: expected d_model / n_heads={width:g}")
    return wrong


def _marian_ids(tokenizer: TokenizerLike) -> list[int]:
    """Return our id of each of Marian's ids. An imported model gets back the order of the OPUS-MT models."""
    if tokenizer.kind != "sentencepiece":
        return list(range(tokenizer.vocab_size))
    return [EOS, *range(len(CONTROLS), tokenizer.vocab_size), BOS]  # PAD and UNK are unused rows, BOS is Marian's <pad>


def _special_ids(ids: list[int]) -> dict[str, int]:
    """Return the ids in the configuration of a model. ids: the result of `_marian_ids`."""
    start = ids.index(BOS)
    pad = ids.index(PAD) if PAD in ids else start
    return {
        "pad_token_id": pad,
        "bos_token_id": start,
        "eos_token_id": ids.index(EOS),
        "decoder_start_token_id": start,
    }


def _marian_config(config: Config, ids: list[int]) -> dict[str, object]:
    """Return the content of Marian's config.json."""
    model = config.model
    encoder, decoder = model.depths
    sides = {"ffn_dim": model.d_ff, "attention_heads": model.n_heads}
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "vocab_size": len(ids),
        "decoder_vocab_size": len(ids),
        "d_model": model.d_model,
        "encoder_layers": encoder,
        "decoder_layers": decoder,
        **{f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in sides.items()},
        "activation_function": model.activation,
        "dropout": model.dropout,
        "max_position_embeddings": max(1024, config.data.max_tokens + config.search.max_extra_tokens),
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": model.tie_src_tgt,
        "tie_word_embeddings": model.tie_output,
        **_special_ids(ids),
        "forced_eos_token_id": None,
        "is_encoder_decoder": True,
        "dtype": "float32",
    }


def _marian_generation(config: Config, ids: list[int]) -> dict[str, object]:
    """Return the content of generation_config.json; its |Y|^alpha is the closest to the paper's length penalty."""
    return {
        "num_beams": config.search.beam_size,
        "length_penalty": config.search.alpha,
        "early_stopping": "never" if config.search.beam_size > 1 else False,
        "max_length": config.data.max_tokens + config.search.max_extra_tokens,
        "bad_words_ids": [[ids.index(control)] for control in (PAD, BOS, UNK) if control in ids],
        **_special_ids(ids),
    }


def _tokenizer_files(tokenizer: TokenizerLike, ids: list[int]) -> dict[str, bytes]:
    """Return the files of the tokenizer: the files of an OPUS-MT model if it was imported from one."""
    if isinstance(tokenizer, SentencePieces):
        names = {EOS: CONTROLS[EOS], BOS: CONTROLS[PAD], tokenizer.vocabulary.index(UNKNOWN): CONTROLS[UNK]}
        pieces = {names.get(ours, tokenizer.vocabulary[ours]): theirs for theirs, ours in enumerate(ids)}
        source, target = tokenizer.models()
        return {
            "source.spm": source,
            "target.spm": target,
            "vocab.json": encode_json(pieces),
            "tokenizer_config.json": encode_json({"tokenizer_class": "MarianTokenizer"}),
        }
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), CONTROLS, strict=True))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **names, "clean_up_tokenization_spaces": False}
    return {"tokenizer.json": tokenizer.to_json().encode(), "tokenizer_config.json": encode_json(settings)}


def _exported(loaded: LoadedModel, ids: list[int]) -> dict[str, Tensor]:
    """Return our parameters as Marian's tensors, by Marian's names."""
    config = loaded.config.model
    all_weights = weights(loaded.model).items()
    parameters = {name: values[ids] if name in OF_THE_VOCABULARY else values for name, values in all_weights}
    if config.positions == "interleaved":
        parameters = _sines_first(parameters, config.d_model)
    tensors = {}
    for ours, theirs in marian_names(config).items():  # attention without biases: Marian's are 0
        tensors[theirs] = parameters[ours] if ours in parameters else torch.zeros(config.d_model)
    if config.tie_src_tgt and not config.tie_output:  # Marian ties both or neither
        for side in ("encoder", "decoder"):
            tensors[f"model.{side}.embed_tokens.weight"] = tensors["model.shared.weight"].clone()
    bias = parameters.get("output.bias", torch.zeros(len(ids)))
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


def _difference(loaded: LoadedModel, ids: list[int], folder: Path) -> str:
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
    theirs_of = torch.full((loaded.tokenizer.vocab_size,), _special_ids(ids)["pad_token_id"])
    theirs_of[ids] = torch.arange(len(ids))
    inputs, tgt_in, tgt_out = (theirs_of[side] for side in (batch.src, batch.tgt_in, batch.tgt_out))
    with torch.inference_mode():
        output = exported(input_ids=inputs, attention_mask=batch.src_mask.long(), decoder_input_ids=tgt_in)
        log_probs = output.logits.log_softmax(-1).gather(2, tgt_out[:, :, None])[..., 0]
    theirs: np.ndarray = log_probs[batch.tgt_mask].numpy()
    ours = own_log_probs(loaded, src, tgt)
    return describe_difference("MarianMTModel", theirs, ours, TOLERANCE)
