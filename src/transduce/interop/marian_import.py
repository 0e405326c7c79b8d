"""Import a Marian model in Hugging Face's form as a model folder (`transduce.interop.marian`)."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from transduce.config.schema import Config, DataConfig, ModelConfig, SearchConfig
from transduce.config.validation import problems, type_name
from transduce.console import in_markdown
from transduce.data.sentencepiece_pair import UNKNOWN, SentencePieces, document, processor
from transduce.data.vocabulary import BOS, CONTROLS, EOS, PAD, UNK
from transduce.errors import UserError
from transduce.interop.marian import EPS, OF_THE_VOCABULARY, marian_names
from transduce.model.transformer import Transformer
from transduce.storage.model_folder import save_model
from transduce.training.weights import check_shapes, set_weights, weights

Settings = Mapping[str, Any]  # the content of config.json

UNUSED_BIAS = -1e4  # output bias of unused ids, which gives them the probability 0


def import_marian(folder: Path, out: Path) -> None:
    """Write the Marian model in `folder` as the model folder `out`.

    Raises UserError for a model that transduce would not compute the same way.
    """
    if out.exists():
        raise UserError(f"{out}: expected a new folder; give another name")
    _check_files(folder)
    settings = _json(folder / "config.json")
    generation = _json(folder / "generation_config.json") if (folder / "generation_config.json").exists() else {}
    # In generation_config.json null means the default.
    settings |= {key: generation[key] for key in ("num_beams", "length_penalty") if generation.get(key) is not None}
    ids = _json(folder / "vocab.json")
    wrong = _type_problems(settings, ids) or _import_problems(folder, settings, ids)
    if wrong:
        raise UserError("\n".join([f"{folder}: expected a model that transduce can build", *(f"  {p}" for p in wrong)]))
    order = _order(settings, ids)
    pieces = [*CONTROLS, *(_piece(ids)[token] for token in order[4:] if token is not None)]
    source, target = (_sentencepiece_model(folder / f"{side}.spm") for side in ("source", "target"))
    tokenizer = SentencePieces(document(source, target, pieces))
    config = _config(settings, len(order), folder / "config.json")
    where = folder / "model.safetensors"
    tensors = _imported(_tensors(where), config.model, order, where)
    with torch.device("meta"):  # before memory is allocated for the sizes in config.json
        check_shapes(Transformer(config.model), {name: (*values.shape,) for name, values in tensors.items()}, where)
    model = Transformer(config.model)
    set_weights(model, tensors, where)
    card = f"# A translation model\n\nImported from the Marian model in {in_markdown(folder.absolute())}.\n"
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
SIDES = ("encoder", "decoder")
SAME = ("ffn_dim", "attention_heads")  # must be equal in encoder and decoder
REQUIRED = {
    **dict.fromkeys(("vocab_size", "d_model", *(f"{side}_{key}" for side in SIDES for key in ("layers", *SAME))), int),
    **dict.fromkeys(("pad_token_id", "eos_token_id", "decoder_start_token_id"), int),
    "activation_function": str,
}
OPTIONAL = {  # type and default
    "dropout": (float, 0.1),
    "length_penalty": (float, 1.0),
    "num_beams": (int, 4),
    "max_position_embeddings": (int, 512),
    "share_encoder_decoder_embeddings": (bool, True),
    "tie_word_embeddings": (bool, True),
}


def _type_problems(settings: Settings, ids: Mapping[str, int]) -> list[str]:
    """Return a line for each value of config.json that is missing or of a wrong type, and for wrong pieces."""
    types = {**REQUIRED, **{key: kind for key, (kind, _) in OPTIONAL.items() if key in settings}}
    wrong = []
    for key, kind in types.items():
        try:
            msgspec.convert(settings.get(key), kind)
        except msgspec.ValidationError:
            value = repr(settings[key]) if key in settings else "not in config.json"
            wrong.append(f"{key}={value}: expected {type_name(kind)}")
    if not all(type(token) is int for token in ids.values()):
        wrong.append("vocab.json: expected an integer for each piece")
    reserved = {*CONTROLS, UNKNOWN} - {"</s>", "<unk>", "<pad>"}
    unusable = [piece for piece in ids if piece in reserved or not _is_text(piece)]
    if unusable:
        names = " and ".join(sorted(reserved))
        wrong.append(f"vocab.json: expected pieces that are text, other than {names}, not {unusable[0]!a}")
    return wrong


def _is_text(piece: str) -> bool:
    """Check that a piece can be stored as UTF-8: JSON can hold half of a character."""
    try:
        piece.encode()
    except UnicodeEncodeError:
        return False
    return True


def _import_problems(folder: Path, settings: Settings, ids: Mapping[str, int]) -> list[str]:
    """Return a line for each property of a Marian model that transduce cannot build. ids: token id of each piece."""
    values = {key: settings.get(key, value) for key, value in EXPECTED.items()}
    wrong = [f"{key}={values[key]!r}: expected {value!r}" for key, value in EXPECTED.items() if values[key] != value]
    for key in SAME:
        sides = [settings[f"{side}_{key}"] for side in SIDES]
        if sides[0] != sides[1]:
            wrong.append(f"encoder_{key}={sides[0]} and decoder_{key}={sides[1]}: expected equal values")
    if settings["activation_function"] not in ("swish", "silu", "relu"):
        wrong.append(f"activation_function={settings['activation_function']!r}: expected 'swish' or 'relu'")
    vocab_size = settings["vocab_size"]
    if settings.get("decoder_vocab_size") not in (None, vocab_size) or (folder / "target_vocab.json").exists():
        wrong.append("vocab.json: expected one vocabulary for both languages, not one for each")
    start = settings["decoder_start_token_id"]
    pad = settings["pad_token_id"]
    if pad != start:
        wrong.append(f"decoder_start_token_id={start}: expected pad_token_id={pad}")
    if sorted(ids.values()) != list(range(len(ids))) or len(ids) != vocab_size:
        wrong.append(f"vocab.json: expected the ids 0 to {vocab_size} - 1, each once, not {len(ids)} pieces")
    for key, piece in (("eos_token_id", "</s>"), ("pad_token_id", "<pad>")):
        if ids.get(piece) != settings[key]:
            wrong.append(f"{key}={settings[key]}: expected {ids.get(piece)}, the id of {piece} in vocab.json")
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


def _sentencepiece_model(path: Path) -> bytes:
    """Return the bytes of a sentencepiece model. Raises UserError if sentencepiece cannot use it."""
    content = path.read_bytes()
    try:
        processor(content)
    except ValueError as problem:
        raise UserError(f"{path}: expected a sentencepiece model ({problem}); use another copy") from None
    return content


def _tensors(path: Path) -> dict[str, Tensor]:
    try:
        tensors = safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, ValueError, KeyError) as problem:
        raise UserError(f"{path}: expected readable tensors ({problem}); use another copy") from None
    return {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}


def _piece(ids: Mapping[str, int]) -> dict[int, str]:
    return {i: UNKNOWN if piece == "<unk>" else piece for piece, i in ids.items()}


def _order(settings: Settings, ids: Mapping[str, int]) -> list[int | None]:
    """Return Marian's token id for each of ours; None for unused rows."""
    pad = settings["pad_token_id"]
    eos = settings["eos_token_id"]
    controls = {PAD: None, BOS: pad, EOS: eos, UNK: None}
    return [*(controls[i] for i in range(4)), *(i for i in range(len(ids)) if i not in (pad, eos))]


def _config(settings: Settings, vocab_size: int, where: Path) -> Config:
    """Return Marian's settings as a configuration of ours. Raises UserError if they are not valid."""
    values = {key: settings.get(key, default) for key, (_, default) in OPTIONAL.items()}
    ties_weights = values["tie_word_embeddings"]  # False: the embeddings are separate, whatever other keys say
    encoder, decoder = (settings[f"{side}_layers"] for side in SIDES)
    model = ModelConfig(
        vocab_size=vocab_size,
        d_model=settings["d_model"],
        n_layers=encoder,
        n_decoder_layers=None if decoder == encoder else decoder,
        n_heads=settings["encoder_attention_heads"],
        d_ff=settings["encoder_ffn_dim"],
        activation="relu" if settings["activation_function"] == "relu" else "swish",
        dropout=float(values["dropout"]),
        norm_eps=EPS,
        positions="halves",
        tie_src_tgt=ties_weights and values["share_encoder_decoder_embeddings"],
        tie_output=ties_weights,
        output_bias=True,
    )
    search = SearchConfig(beam_size=values["num_beams"], alpha=float(values["length_penalty"]), length_penalty="power")
    longest = values["max_position_embeddings"]
    config = Config(model, DataConfig("sentencepiece", vocab_size=vocab_size, max_tokens=longest), search=search)
    if wrong := problems(config):
        raise UserError(f"{where}: expected a model that transduce can build; " + "; ".join(wrong))
    return config


def _imported(
    tensors: dict[str, Tensor], config: ModelConfig, order: list[int | None], where: Path
) -> dict[str, Tensor]:
    """Return our parameters from Marian's tensors, by our names.

    order: the result of `_order`. where: the file, for messages. Raises UserError if a tensor is missing, unused, or
    has another vocabulary size.
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
            f"{where}: expected the tensors of config.json, but {unmatched[0]} is in only "
            "one of the two; use another copy"
        )
    parameters = {ours: tensors[theirs].contiguous() for ours, theirs in names.items()}
    for name in OF_THE_VOCABULARY:
        if name in parameters:
            if parameters[name].shape[:1] != (len(order) - 2,):
                raise UserError(
                    f"{where}: expected a row of {names[name]} for each piece of vocab.json; use another copy"
                )
            parameters[name] = _reordered(parameters[name], order, UNUSED_BIAS if name == "output.bias" else 0.0)
    return parameters


def _reordered(rows: Tensor, order: list[int | None], unused: float) -> Tensor:
    """Return `rows` in the order of our token ids. unused: value of the rows for which Marian has no id."""
    reordered = torch.full((len(order), *rows.shape[1:]), unused)
    pairs = [(ours, theirs) for ours, theirs in enumerate(order) if theirs is not None]
    reordered[[ours for ours, _ in pairs]] = rows[[theirs for _, theirs in pairs]]
    return reordered
