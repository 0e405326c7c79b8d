"""Export a model folder in Hugging Face's form, as Marian or as Pegasus (`transduce.interop.marian`).

`transformers.pipeline("translation")` of transformers 4 and `generate` of every version translate with the folder as it
is. config.json also has our configuration, so that an import gives back the model.
"""

import json
import tempfile
from functools import partial
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import Tensor

from transduce.config.files import to_json
from transduce.config.schema import Config, SearchConfig
from transduce.console import in_markdown
from transduce.data.batches import collate
from transduce.data.sentencepiece_pair import UNKNOWN
from transduce.data.vocabulary import BOS, CONTROLS, EOS, PAD, UNK, TokenizerLike
from transduce.errors import UserError
from transduce.interop.ctranslate2_files import position_rows
from transduce.interop.marian import MODEL_TYPES, OF_THE_VOCABULARY, marian_names, sines_first, with_order
from transduce.interop.parity import SentenceIds, check_package, compare, require_transformer, search_differences
from transduce.model.positions import sinusoids
from transduce.storage.atomic_folder import encode_json, write_folder
from transduce.storage.model_folder import LoadedModel, load_model
from transduce.training.weights import weights


def export_marian(model: Path, out: Path) -> str:
    """Write the model folder `model` in Hugging Face's form as `out`.

    Returns the difference of the two models, and a line for each setting of the search that transformers lacks.
    Raises UserError if neither Marian nor Pegasus can hold the model, ArithmeticError if its scores differ. In both
    cases it writes nothing.
    """
    if out.exists():
        raise UserError(f"{out}: expected a new folder; give another name")
    loaded = load_model(model)
    wrong = _export_problems(loaded)
    if wrong:
        lines = [f"{model}: expected a model that Marian or Pegasus can represent", *(f"  {p}" for p in wrong)]
        raise UserError("\n".join(lines))
    ids = _marian_ids(loaded.tokenizer)
    files = {
        "config.json": encode_json(_marian_config(loaded.config, ids)),
        "generation_config.json": encode_json(_marian_generation(loaded.config, ids)),
        "model.safetensors": safetensors.torch.save(_exported(loaded, ids), {"format": "pt"}),
        **_tokenizer_files(loaded, ids),
    }
    check_package("transformers", "export")
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        difference = compare(_class_name(loaded.config), loaded, partial(_log_probs, ids, Path(folder)))
    lines = [difference, *_search_differences(loaded.config.search)]
    files["README.md"] = _card(model, lines).encode()
    write_folder(out, {name: [content] for name, content in files.items()})
    return "\n".join(lines)


# Settings of our search, and what transformers does instead.
DIFFERENCES = {
    "lookahead": "transformers searches to the end",
    "repetition_penalty": "greedy search in transformers lowers the logits, not the log-probabilities",
}
REMEDY = "use transduce, or export with --to ctranslate2"


def _export_problems(loaded: LoadedModel) -> list[str]:
    """Return a line for each property of the model that neither Marian nor Pegasus has."""
    require_transformer(loaded)
    model = loaded.config.model
    wrong = []
    if model.norm == "pre" and not model.tie_src_tgt:  # transformers 4 would give both sides one matrix
        wrong.append(f"model.tie_src_tgt=False: expected True with model.norm='pre'; {REMEDY}")
    if model.positions not in ("interleaved", "halves"):
        wrong.append(f"model.positions={model.positions!r}: expected 'interleaved' or 'halves'; {REMEDY}")
    width = model.d_model / model.n_heads
    if {model.d_k or width, model.d_v or width} != {width}:
        wrong.append(
            f"model.d_k={model.d_k} and model.d_v={model.d_v}: expected d_model / n_heads={width:g}; use transduce"
        )
    return wrong


def _search_differences(search: SearchConfig) -> list[str]:
    """Return a line for each setting with which transformers may choose another output than our search."""
    lines = search_differences(search, DIFFERENCES)
    if search.length_penalty == "gnmt" and search.alpha and search.beam_size > 1:
        lines.append(
            f"search.length_penalty='gnmt': transformers divides by |Y|^{search.alpha:g} instead; for equal beams: "
            "transduce configure MODEL --set search.length_penalty=power"
        )
    return lines


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
        "architectures": [_class_name(config)],
        "model_type": MODEL_TYPES[model.norm],
        "vocab_size": len(ids),
        "decoder_vocab_size": len(ids),
        "d_model": model.d_model,
        "encoder_layers": encoder,
        "decoder_layers": decoder,
        **{f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in sides.items()},
        "activation_function": model.activation,
        "dropout": model.dropout,
        "max_position_embeddings": position_rows(config),
        "scale_embedding": True,
        "share_encoder_decoder_embeddings": model.tie_src_tgt,
        "tie_word_embeddings": model.tie_output,  # Pegasus ties all or nothing; it has no untied sides
        **_special_ids(ids),
        "forced_eos_token_id": None,
        "is_encoder_decoder": True,
        "dtype": "float32",
        "transduce": json.loads(to_json(config)),
    }


def _class_name(config: Config) -> str:
    """Return the class in transformers."""
    return "MarianMTModel" if config.model.norm == "post" else "PegasusForConditionalGeneration"


def _max_length(config: Config) -> int:
    """Return the most tokens of any output, with the first one, which only transformers counts."""
    longest = config.data.max_tokens + config.search.max_extra_tokens
    return 1 + min(longest, config.search.max_length or longest)


def _marian_generation(config: Config, ids: list[int]) -> dict[str, object]:
    """Return the content of generation_config.json: the settings with which transformers searches as we do.

    Its length penalty is |Y|^alpha, and counts EOS. With "never" it stops where our search does, when no output can
    become better.
    """
    search = config.search
    by_count = {"min_new_tokens": search.min_tokens, "no_repeat_ngram_size": search.no_repeat_ngram}
    return {
        "num_beams": search.beam_size,
        "length_penalty": 0.0 if search.length_penalty == "none" else search.alpha,
        "early_stopping": "never" if search.beam_size > 1 else False,
        "max_length": _max_length(config),
        "repetition_penalty": search.repetition_penalty,
        **{name: count for name, count in by_count.items() if count},
        "bad_words_ids": [[ids.index(control)] for control in (PAD, BOS, UNK) if control in ids],
        **_special_ids(ids),
    }


def _tokenizer_files(loaded: LoadedModel, ids: list[int]) -> dict[str, bytes]:
    """Return the files of the tokenizer: the files of an OPUS-MT model if it was imported from one."""
    tokenizer = loaded.tokenizer
    settings = {"model_max_length": position_rows(loaded.config), "clean_up_tokenization_spaces": False}
    if models := tokenizer.sentencepiece_models():
        names = {EOS: CONTROLS[EOS], BOS: CONTROLS[PAD], tokenizer.vocabulary.index(UNKNOWN): CONTROLS[UNK]}
        pieces = {names.get(ours, tokenizer.vocabulary[ours]): theirs for theirs, ours in enumerate(ids)}
        source, target = models
        return {
            "source.spm": source,
            "target.spm": target,
            "vocab.json": encode_json(pieces),
            "tokenizer_config.json": encode_json({"tokenizer_class": "MarianTokenizer", **settings}),
        }
    names = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token"), CONTROLS, strict=True))
    settings |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **names,
        "model_input_names": ["input_ids", "attention_mask"],
        "split_special_tokens": not tokenizer.tags,  # </s> in a text is text; for a tag it would be text, too
    }
    return {"tokenizer.json": tokenizer.to_json().encode(), "tokenizer_config.json": encode_json(settings)}


def _exported(loaded: LoadedModel, ids: list[int]) -> dict[str, Tensor]:
    """Return our parameters as Hugging Face's tensors, by its names."""
    config = loaded.config.model
    all_weights = weights(loaded.model).items()
    parameters = {name: values[ids] if name in OF_THE_VOCABULARY else values for name, values in all_weights}
    if config.positions == "interleaved":
        parameters = with_order(parameters, sines_first(config.d_model))
    tensors = {}
    for ours, theirs in marian_names(config).items():  # attention without biases: Marian's are 0
        tensors[theirs] = parameters[ours] if ours in parameters else torch.zeros(config.d_model)
    if config.tie_src_tgt and not config.tie_output:  # Marian ties both or neither
        for side in ("encoder", "decoder"):
            tensors[f"model.{side}.embed_tokens.weight"] = tensors["model.shared.weight"].clone()
    if config.norm == "pre":  # Pegasus reports a missing table, and computes the same
        table = sinusoids(position_rows(loaded.config), config.d_model, "halves")
        tensors |= {f"model.{side}.embed_positions.weight": table.clone() for side in ("encoder", "decoder")}
    bias = parameters.get("output.bias", torch.zeros(len(ids)))
    return {**tensors, "final_logits_bias": bias[None]}


def _log_probs(ids: list[int], folder: Path, src: SentenceIds, tgt: SentenceIds) -> np.ndarray:
    """Return the log-probability of every target token, by transformers. folder: of the export."""
    from transformers import AutoModelForSeq2SeqLM

    batch = collate(src, tgt)
    exported = AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    theirs_of = torch.full((max(ids) + 1,), _special_ids(ids)["pad_token_id"])
    theirs_of[ids] = torch.arange(len(ids))
    inputs, tgt_in, tgt_out = (theirs_of[side] for side in (batch.src, batch.tgt_in, batch.tgt_out))
    with torch.inference_mode():
        output = exported(input_ids=inputs, attention_mask=batch.src_mask.long(), decoder_input_ids=tgt_in)
        log_probs = output.logits.log_softmax(-1).gather(2, tgt_out[:, :, None])[..., 0]
    return log_probs[batch.tgt_mask].numpy()


def _card(model: Path, lines: list[str]) -> str:
    """Return README.md. lines: what the export found."""
    comparison = "\n".join(f"- {line}" for line in lines)
    return f"""---
library_name: transformers
pipeline_tag: translation
---

# A translation model

Exported by transduce from {in_markdown(model.absolute())}. Both programs scored the same random sentences:

{comparison}

With transformers, of any version:

    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained("THIS_FOLDER")
    model = AutoModelForSeq2SeqLM.from_pretrained("THIS_FOLDER")
    output = model.generate(**tokenizer("A text.", return_tensors="pt"))
    print(tokenizer.decode(output[0], skip_special_tokens=True))

With transformers 4, which has a pipeline for translation:

    from transformers import pipeline

    print(pipeline("translation", "THIS_FOLDER")("A text.")[0]["translation_text"])

Add num_beams=1 for greedy search. To use it in transduce: `transduce import huggingface THIS_FOLDER --out MODEL`.
"""
