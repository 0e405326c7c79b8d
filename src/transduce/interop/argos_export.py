"""Export a model as a package that Argos Translate and LibreTranslate install from a file.

OUT.argosmodel, a zip with one folder
    metadata.json, README.md
    model/               CTranslate2's files (`transduce.interop.ctranslate2_export`)
    sentencepiece.model  the tokenizer (`transduce.interop.sentencepiece_export`)
    minisbd/             the splitter of paragraphs (`transduce.interop.argos_sentences`)
"""

import io
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from transduce import __version__
from transduce.config.schema import Config, SearchConfig
from transduce.data.sentencepiece_pair import UNKNOWN
from transduce.data.vocabulary import TokenizerLike
from transduce.errors import UserError
from transduce.interop.argos_sentences import splitter
from transduce.interop.ctranslate2_export import ctranslate2_files
from transduce.interop.ctranslate2_files import expected_settings
from transduce.interop.parity import search_differences
from transduce.interop.sentencepiece_export import has_other_bytes, sentencepiece_model
from transduce.storage.atomic_folder import encode_json, write_file
from transduce.storage.model_folder import load_translation_model

BEAM_SIZE = 4  # of Argos Translate's search
ALPHA = 0.2  # of its length penalty
# Settings of our search, and what Argos Translate does instead.
DIFFERENCES: dict[str, str] = dict.fromkeys(
    ("min_tokens", "max_length", "no_repeat_ngram", "repetition_penalty", "lookahead"),
    "Argos Translate does not have it",
)
LONGEST_SOURCE = 1_024  # tokens of a sentence that Argos Translate gives the model
ENDING = ".argosmodel"
ARGOS_VERSION = "1.9.0"  # of Argos Translate that the package is for
PACKAGE_VERSION = "1000.0"  # above the versions of public packages: an update by one of them would replace the model

Language = tuple[str, str]  # code, such as en, and name, such as English
CODES = {"pt-br": "pb", "zh-hans": "zh", "zh-hant": "zt"}  # of Argos Translate, which has no hyphens


def export_argos(model: Path, out: Path, source: Language, target: Language, precision: str = "fp32") -> str:
    """Write the model folder `model` as the package `out`, and return the differences between the two models.

    The differences have a line for each setting of the search that Argos Translate ignores.
    Raises UserError if a package cannot hold the model, or if `out` exists or has another ending, and ArithmeticError
    if the scores of the exported model differ. In all cases it writes nothing.
    """
    if out.suffix != ENDING:
        raise UserError(f"{out}: expected a name that ends with {ENDING}; use {out.name}{ENDING}")
    if out.exists():
        raise UserError(f"{out}: expected a new file; give another name")
    codes = [_code_of(code) for code, _ in (source, target)]
    loaded = load_translation_model(model)
    wrong = _problems(loaded.config, loaded.tokenizer)
    if wrong:
        remedy = (
            f"serve it to LibreTranslate's clients with transduce serve {model} --from {source[0]} --to {target[0]}"
        )
        raise UserError("\n".join(f"{problem}; {remedy}" for problem in wrong))
    files, differences = ctranslate2_files(loaded, precision)
    differences += _search_differences(loaded.config.search)
    if loaded.tokenizer.kind == "sentencepiece":  # its encoder may give pieces that the vocabulary lacks
        files["config.json"] = encode_json({**expected_settings(loaded.config), "unk_token": UNKNOWN})
    metadata = {
        "package_version": PACKAGE_VERSION,
        "argos_version": ARGOS_VERSION,
        "from_code": codes[0],
        "from_name": source[1],
        "to_code": codes[1],
        "to_name": target[1],
    }
    content = {
        "metadata.json": encode_json(metadata),
        "README.md": _card(source, target, differences).encode(),
        "sentencepiece.model": sentencepiece_model(loaded.tokenizer),
        "minisbd/sentences.onnx": splitter(),
        **{f"model/{name}": file for name, file in files.items()},
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    write_file(out, _zipped(f"translate-{codes[0]}_{codes[1]}", content))
    return "\n".join(differences)


def _code_of(code: str) -> str:
    """Return a language code as Argos Translate has it. Raises UserError for a language with a region."""
    known = CODES.get(code.lower(), code.lower())
    if "-" in known:
        raise UserError(f"--languages: expected languages without a region, not {code}; name the language alone")
    return known


def _problems(config: Config, tokenizer: TokenizerLike) -> list[str]:
    """Return a line for each property of the model that a package cannot express."""
    model = config.model
    wrong = []
    if tokenizer.kind not in ("bpe", "sentencepiece"):
        wrong.append(f"data.tokenizer={tokenizer.kind!r}: expected 'bpe', the pieces of which SentencePiece can give")
    if (models := tokenizer.sentencepiece_models()) and has_other_bytes(*models):
        wrong.append("tokenizer.json: expected no byte pieces of the target, because Argos Translate has one tokenizer")
    if tokenizer.tags:
        wrong.append(f"data.tags={','.join(tokenizer.tags)}: expected none, because Argos Translate sends no tag")
    if (model.max_positions or LONGEST_SOURCE) < LONGEST_SOURCE:
        wrong.append(
            f"model.max_positions={model.max_positions}: expected {LONGEST_SOURCE:,}, the tokens that Argos Translate "
            "sends at most"
        )
    return wrong


def _search_differences(search: SearchConfig) -> list[str]:
    """Return a line for each setting with which Argos Translate may choose another output than our search."""
    lines = search_differences(search, DIFFERENCES)
    if search.beam_size != BEAM_SIZE:
        lines.append(f"search.beam_size={search.beam_size}: Argos Translate has {BEAM_SIZE}")
    if (search.length_penalty, search.alpha) != ("power", ALPHA):
        lines.append(
            f"search.length_penalty={search.length_penalty!r} and search.alpha={search.alpha:g}: Argos Translate "
            f"divides by |Y|^{ALPHA:g}"
        )
    return lines


def _zipped(folder: str, content: Mapping[str, bytes]) -> bytes:
    """Return a zip of one folder. The same content gives the same bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in content.items():
            entry = zipfile.ZipInfo(f"{folder}/{name}")
            entry.external_attr = 0o644 << 16  # may be read by all
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return file.getvalue()


def _card(source: Language, target: Language, differences: Sequence[str]) -> str:
    comparison = "\n".join(f"- {line}" for line in differences)
    return f"""# {source[1]} to {target[1]}

A translation model for Argos Translate and LibreTranslate, exported by transduce {__version__}. CTranslate2 and
transduce scored the same random sentences:

{comparison}
"""
