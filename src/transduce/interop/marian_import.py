"""Import a model in Hugging Face's form as a model folder (`transduce.interop.marian`).

It is a Marian model such as the OPUS-MT models, with their sentencepiece files, or one that `marian_export` wrote.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import safetensors
import safetensors.torch
import torch
from torch import Tensor

from transduce.config.files import from_json
from transduce.config.schema import Config, DataConfig, ModelConfig, SearchConfig
from transduce.config.validation import problems, type_name
from transduce.console import in_markdown
from transduce.data.sentencepiece_pair import UNKNOWN, SentencePieces, document, processor
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import BOS, CONTROLS, PAD, UNK, TokenizerLike
from transduce.errors import UserError
from transduce.interop.marian import EPS, MODEL_TYPES, OF_THE_VOCABULARY, marian_names, sines_first, with_order
from transduce.model.transformer import Transformer
from transduce.storage.model_folder import save_model
from transduce.training.weights import check_shapes, set_weights, weights

MarianSettings = Mapping[str, Any]  # the content of config.json
PieceIds = Mapping[str, int]  # the token id of each piece in Hugging Face's form
IdOrder = list[int | None]  # for each of our ids the id in Hugging Face's form; None for unused rows

UNUSED_BIAS = -1e4  # output bias of unused ids, which gives them the probability 0


def import_marian(folder: Path, out: Path) -> None:
    """Write the model in `folder` as the model folder `out`.

    Raises UserError for a model that transduce would not compute the same way.
    """
    if out.exists():
        raise UserError(f"{out}: expected a new folder; give another name")
    _check_files(folder)
    settings = _json(folder / "config.json")
    generation = _json(folder / "generation_config.json") if (folder / "generation_config.json").exists() else {}
    # In generation_config.json null means the default.
    settings |= {key: generation[key] for key in ("num_beams", "length_penalty") if generation.get(key) is not None}
    is_ours = _is_ours(folder)
    own = _own_tokenizer(folder / "tokenizer.json") if is_ours else None
    vocabularies = [{piece: i for i, piece in enumerate(own.vocabulary)}] if own else _vocabularies(folder)
    wrong = _type_problems(settings, vocabularies, is_ours=is_ours) or _import_problems(settings, vocabularies, is_ours)
    if wrong:
        raise UserError("\n".join([f"{folder}: expected a model that transduce can build", *(f"  {p}" for p in wrong)]))
    tokenizer = own or _sentence_pieces(folder, vocabularies)
    where = folder / "model.safetensors"
    tensors = _tensors(where, len(vocabularies[-1]))
    config = _config(settings, tensors, tokenizer, folder / "config.json")
    parameters = _imported(tensors, config.model, _orders(vocabularies, tokenizer), where)
    with torch.device("meta"):  # before memory is allocated for the sizes in config.json
        check_shapes(Transformer(config.model), {name: (*values.shape,) for name, values in parameters.items()}, where)
    model = Transformer(config.model)
    set_weights(model, parameters, where)
    card = f"# A translation model\n\nImported from the model in {in_markdown(folder.absolute())}.\n"
    save_model(out, weights(model), config, tokenizer, card)


FILES = ("config.json", "model.safetensors")
PIECES = ("vocab.json", "source.spm", "target.spm")
# Required values of the configuration; a missing key counts as the required value. Two more are in `_import_problems`.
EXPECTED = {"scale_embedding": True, "normalize_embedding": False, "static_position_embeddings": True}
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


def _vocabularies(folder: Path) -> list[PieceIds]:
    """Return the vocabulary of a Marian model, or the vocabularies of its source and its target."""
    return [_json(folder / name) for name in ("vocab.json", "target_vocab.json") if (folder / name).exists()]


def _own_tokenizer(path: Path) -> Tokenizer:
    """Return the tokenizer of a folder that `marian_export` wrote. Raises UserError for another kind of tokenizer."""
    tokenizer = Tokenizer.load(path)
    if not isinstance(tokenizer, Tokenizer):
        raise UserError(f"{path}: expected a tokenizer of subwords, not of {tokenizer.kind}; use another copy")
    return tokenizer


def _type_problems(settings: MarianSettings, vocabularies: Sequence[PieceIds], *, is_ours: bool) -> list[str]:
    """Return a line for each value of config.json that is missing or of a wrong type, and for wrong pieces."""
    types = {**REQUIRED, **{key: kind for key, (kind, _) in OPTIONAL.items() if key in settings}}
    wrong = []
    for key, kind in types.items():
        try:
            msgspec.convert(settings.get(key), kind)
        except msgspec.ValidationError:
            value = repr(settings[key]) if key in settings else "not in config.json"
            wrong.append(f"{key}={value}: expected {type_name(kind)}")
    if not all(type(token) is int for ids in vocabularies for token in ids.values()):
        wrong.append("vocab.json: expected an integer for each piece")
    reserved = {*CONTROLS, UNKNOWN} - {"</s>", "<unk>", "<pad>"}
    pieces = [] if is_ours else [piece for ids in vocabularies for piece in ids]
    unusable = [piece for piece in pieces if piece in reserved or not _is_text(piece)]
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


def _import_problems(settings: MarianSettings, vocabularies: Sequence[PieceIds], is_ours: bool) -> list[str]:
    """Return a line for each property of the model that transduce cannot build."""
    is_pre = settings.get("model_type") == MODEL_TYPES["pre"]
    expected = {**EXPECTED, "normalize_before": is_pre, "add_final_layer_norm": is_pre}
    values = {key: settings.get(key, value) for key, value in expected.items()}
    wrong = [f"{key}={values[key]!r}: expected {value!r}" for key, value in expected.items() if values[key] != value]
    if settings.get("model_type") not in MODEL_TYPES.values():
        wrong.append(f"model_type={settings.get('model_type')!r}: expected 'marian' or 'pegasus'")
    for key in SAME:
        sides = [settings[f"{side}_{key}"] for side in SIDES]
        if sides[0] != sides[1]:
            wrong.append(f"encoder_{key}={sides[0]} and decoder_{key}={sides[1]}: expected equal values")
    if settings["activation_function"] not in ("swish", "silu", "relu"):
        wrong.append(f"activation_function={settings['activation_function']!r}: expected 'swish' or 'relu'")
    pad = settings["pad_token_id"]
    start = BOS if is_ours else pad
    if settings["decoder_start_token_id"] != start:
        name = "bos" if is_ours else "pad"
        wrong.append(f"decoder_start_token_id={settings['decoder_start_token_id']}: expected {name}_token_id={start}")
    sizes = [settings["vocab_size"], settings.get("decoder_vocab_size") or settings["vocab_size"]]
    for ids, size, name in zip((vocabularies[0], vocabularies[-1]), sizes, ("vocab", "target_vocab"), strict=True):
        if sorted(ids.values()) != list(range(len(ids))) or len(ids) != size:
            wrong.append(f"{name}.json: expected the ids 0 to {size} - 1, each once, not {len(ids)} pieces")
        for key, piece in (("eos_token_id", "</s>"), ("pad_token_id", "<pad>")):
            if ids.get(piece) != settings[key]:
                wrong.append(f"{key}={settings[key]}: expected {ids.get(piece)}, the id of {piece} in {name}.json")
        if "<unk>" not in ids:
            wrong.append(f"{name}.json: expected the piece <unk>")
    if len(vocabularies) > 1 and settings.get("share_encoder_decoder_embeddings", True):
        wrong.append("share_encoder_decoder_embeddings=True: expected False with target_vocab.json")
    return wrong


def _is_ours(folder: Path) -> bool:
    """Check whether `marian_export` wrote the folder, and not with the files of an OPUS-MT model."""
    return (folder / "tokenizer.json").is_file() and not (folder / "vocab.json").exists()


def _check_files(folder: Path) -> None:
    """Raise UserError if a file of the model is missing, or the weights are a pickle."""
    needed = FILES if _is_ours(folder) else (*FILES, *PIECES)
    missing = [name for name in needed if not (folder / name).is_file()]
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


def _tensors(path: Path, output_size: int) -> dict[str, Tensor]:
    """Return the tensors in 32 bits, with an output bias (output_size,)."""
    try:
        tensors = safetensors.torch.load_file(path)
    except (safetensors.SafetensorError, ValueError, KeyError) as problem:
        raise UserError(f"{path}: expected readable tensors ({problem}); use another copy") from None
    tensors = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    bias = tensors.get("final_logits_bias", torch.zeros(output_size))
    return {**tensors, "final_logits_bias": bias.reshape(-1)}


def _sentence_pieces(folder: Path, vocabularies: Sequence[PieceIds]) -> SentencePieces:
    """Return the tokenizer of a Marian model. Its vocabulary has the pieces of the source, then those of the target."""
    pieces = [piece for ids in vocabularies for piece in sorted(ids, key=ids.__getitem__)]
    names = {"<unk>": UNKNOWN}
    ours = dict.fromkeys(names.get(piece, piece) for piece in pieces if piece not in ("</s>", "<pad>"))
    source, target = (_sentencepiece_model(folder / f"{side}.spm") for side in ("source", "target"))
    return SentencePieces(document(source, target, [*CONTROLS, *ours]))


def _orders(vocabularies: Sequence[PieceIds], tokenizer: TokenizerLike) -> tuple[IdOrder, IdOrder]:
    """Return the order of the rows of the source, and of the target."""
    if tokenizer.kind != "sentencepiece":
        order: IdOrder = [*range(tokenizer.vocab_size)]
        return order, order
    names = {CONTROLS[BOS]: "<pad>", UNKNOWN: "<unk>", CONTROLS[PAD]: "", CONTROLS[UNK]: ""}
    source, *_, target = ([ids.get(names.get(p, p)) for p in tokenizer.vocabulary] for ids in [*vocabularies] * 2)
    return source, target


def _config(settings: MarianSettings, tensors: Mapping[str, Tensor], tokenizer: TokenizerLike, where: Path) -> Config:
    """Return the settings as a configuration of ours. Raises UserError if they are not valid.

    `marian_export` stored its whole configuration. From there are the settings that Hugging Face's form lacks; what
    another program may have changed is as the tensors are.
    """
    stored = settings.get("transduce")
    ours = None if stored is None else from_json(json.dumps(stored), where)
    if ours and not (ours.translation_model and ours.translation_model.positions in ("interleaved", "halves")):
        raise UserError(
            f"{where}: expected the settings of a Transformer with sinusoids as transduce; use another copy"
        )
    values = {key: settings.get(key, default) for key, (_, default) in OPTIONAL.items()}
    is_tied = values["tie_word_embeddings"]  # False: the embeddings are separate, whatever other keys say
    encoder, decoder = (settings[f"{side}_layers"] for side in SIDES)
    attention_biases = [values for name, values in tensors.items() if name.endswith("_proj.bias")]
    model = ModelConfig(
        vocab_size=tokenizer.vocab_size,
        d_model=settings["d_model"],
        n_layers=encoder,
        n_decoder_layers=None if decoder == encoder else decoder,
        n_heads=settings["encoder_attention_heads"],
        d_ff=settings["encoder_ffn_dim"],
        activation="relu" if settings["activation_function"] == "relu" else "swish",
        dropout=float(values["dropout"]),
        norm="pre" if settings["model_type"] == MODEL_TYPES["pre"] else "post",
        norm_eps=ours.model.norm_eps if ours else EPS,
        positions=ours.model.positions if ours else "halves",
        attention_bias=ours is None or any(bias.any() for bias in attention_biases),
        tie_src_tgt=(is_tied and values["share_encoder_decoder_embeddings"]) or _are_equal(tensors, *EMBEDDINGS),
        tie_output=is_tied or _are_equal(tensors, EMBEDDINGS[1], "lm_head.weight"),
        output_bias=ours is None or bool(tensors["final_logits_bias"].any()),
    )
    search = SearchConfig(beam_size=values["num_beams"], alpha=float(values["length_penalty"]), length_penalty="power")
    longest = values["max_position_embeddings"]
    data = DataConfig("sentencepiece", vocab_size=tokenizer.vocab_size, max_tokens=longest)
    config = replace(ours, model=model) if ours else Config(model, data, search=search)
    if wrong := problems(config):
        raise UserError(f"{where}: expected a model that transduce can build; " + "; ".join(wrong))
    return config


EMBEDDINGS = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")


def _are_equal(tensors: Mapping[str, Tensor], name: str, other: str) -> bool:
    return name in tensors and other in tensors and torch.equal(tensors[name], tensors[other])


def _imported(
    tensors: dict[str, Tensor], config: ModelConfig, orders: tuple[IdOrder, IdOrder], where: Path
) -> dict[str, Tensor]:
    """Return our parameters from tensors in Hugging Face's form, by our names.

    where: the file, for messages. Raises UserError if a tensor is missing, unused, or has another vocabulary size.
    """
    names = marian_names(config)
    if config.tie_src_tgt and EMBEDDINGS[0] in tensors:
        tensors["model.shared.weight"] = tensors[EMBEDDINGS[0]]
    ignored = {name for name in tensors if name.endswith("embed_positions.weight")}
    ignored |= {*EMBEDDINGS} if config.tie_src_tgt else {"model.shared.weight"}
    ignored |= {"lm_head.weight"} if config.tie_output else set()
    ignored |= {"final_logits_bias"} if not config.output_bias else set()
    ignored |= {n for n in tensors if n.endswith("_proj.bias")} if not config.attention_bias else set()
    names = {ours: theirs for ours, theirs in names.items() if theirs not in ignored}
    unmatched = sorted((tensors.keys() - ignored) ^ set(names.values()))
    if unmatched:
        raise UserError(
            f"{where}: expected the tensors of config.json, but {unmatched[0]} is in only "
            "one of the two; use another copy"
        )
    parameters = {ours: tensors[theirs].contiguous() for ours, theirs in names.items()}
    for name in OF_THE_VOCABULARY:
        if name in parameters:
            order = orders[0 if name == "src_embedding.weight" else 1]
            if parameters[name].shape[:1] != (len(order) - order.count(None),):
                raise UserError(f"{where}: expected a row of {names[name]} for each piece; use another copy")
            parameters[name] = _reordered(parameters[name], order, UNUSED_BIAS if name == "output.bias" else 0.0)
    if config.positions == "interleaved":
        return with_order(parameters, sines_first(config.d_model).argsort())
    return parameters


def _reordered(rows: Tensor, order: IdOrder, unused: float) -> Tensor:
    """Return `rows` in the order of our token ids. unused: value of the rows that have no id in Hugging Face's form."""
    reordered = torch.full((len(order), *rows.shape[1:]), unused)
    pairs = [(ours, theirs) for ours, theirs in enumerate(order) if theirs is not None]
    reordered[[ours for ours, _ in pairs]] = rows[[theirs for _, theirs in pairs]]
    return reordered
