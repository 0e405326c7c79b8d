"""Translation by a model exported to CTranslate2 (`transduce.interop.ctranslate2_export`), without torch.

It follows the rules of `transduce.translate` for blank, long and cut lines. CTranslate2 differs in these points:
- Its beam search stops at the first beam_size hypotheses that end, and ignores `search.lookahead`. Its length penalty
  is not the paper's. We request all its hypotheses without a penalty, and rank them by the penalty of the model.
- Banned tokens are left out of its softmax, so log-probabilities are slightly higher. So are the tokens that
  `search.no_repeat_ngram` and `search.min_tokens` bar, and `search.repetition_penalty` lowers the logits: outputs may
  differ. It returns no scores of single tokens.
- Its vocabulary map is a shortlist for a whole batch: an output may have pieces that another source suggests.
- It has positions for as many tokens as its table has rows: a longer line has a problem, and no output is longer.
- It samples by other rules, so this engine refuses to sample. Minimum Bayes risk takes its candidates from a beam.
"""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, Unpack

from transduce.config.files import from_json
from transduce.config.schema import Config, SearchConfig
from transduce.data.tokenizer import Tokenizer
from transduce.data.vocabulary import BOS, CONTROLS, EOS, PAD, TokenizerLike
from transduce.decoding.constraint import Constraint
from transduce.decoding.hypothesis import LENGTH_PENALTIES, Hypothesis, Translation
from transduce.decoding.options import DEFAULTS, DecodingKeywords, DecodingOptions, with_keywords
from transduce.decoding.segmentation import (
    check_lines,
    check_tag,
    in_small_letters,
    segments_of,
    with_positions,
    with_tag,
)
from transduce.decoding.translations import nearest_first, translations_of, without_loops
from transduce.errors import UserError
from transduce.interop.ctranslate2_files import check_files, position_rows
from transduce.storage.atomic_folder import check_folder, listed_files

VOCABULARY_MAP = "vmap.txt"  # of an export with a shortlist
FILES = ("model.bin", "config.json", "shared_vocabulary.json", "transduce.json", "tokenizer.json")
COMPUTE_TYPES = {None: "default", "fp32": "float32", "bf16": "bfloat16", "int8": "int8_float32", "auto": "auto"}


def import_ctranslate2() -> ModuleType:
    """Return the library CTranslate2, an optional package. Raises UserError if it is not installed."""
    try:
        import ctranslate2
    except ImportError as problem:
        raise UserError(
            f"CTranslate2: expected the package ctranslate2 ({problem}); pip install 'transduce[ctranslate2]'"
        ) from None
    return ctranslate2


def is_exported(path: Path) -> bool:
    """Return True if `path` is a folder for this engine, damaged or not."""
    return (path / "transduce.json").exists()


def check_options(options: DecodingOptions) -> None:
    """Raise UserError for options that CTranslate2 does not have."""
    options.refuse(["lookahead"], "with CTranslate2, which ends its search by another rule; leave it out")
    reason = "with CTranslate2, which meets no constraints; use --engine torch and the model before the export"
    options.refuse(["placeholders"], reason)
    if options.alignment:
        raise UserError(
            "alignment: must not be set with CTranslate2, whose attention is not read; use --engine torch and the "
            "model before the export"
        )
    if options.sampling is not None:
        raise UserError(
            "sampling: must not be set with CTranslate2; use --engine torch and the model before the export"
        )
    if options.draws is not None:
        raise UserError(
            f"mbr={options.mbr}: expected a beam size with CTranslate2, because this engine takes no samples; "
            "add a beam size, or use --engine torch and the model before the export"
        )


def load(path: Path, *, precision: str | None = None) -> "ExportedTranslator":
    """Load the model of an exported folder, with every byte verified.

    precision: "fp32", "bf16", "int8", or "auto" for the fastest; None takes the precision of the weights on disk.
    Raises UserError if the folder is not whole, if its files do not belong to one model, or if this machine cannot
    compute in `precision`.
    """
    if precision not in COMPUTE_TYPES:
        expected = ", ".join(name for name in COMPUTE_TYPES if name)
        raise UserError(f"precision={precision!r}: expected one of {expected}")
    if path.is_dir() and not is_exported(path):
        command = "transduce export MODEL --to ctranslate2 --out OUT"
        raise UserError(f"{path}: expected a model exported to CTranslate2; run {command}")
    ctranslate2 = import_ctranslate2()
    names = listed_files(path, kind="folder of an exported model", needed=FILES)
    check_folder(path)
    config = from_json((path / "transduce.json").read_bytes(), path / "transduce.json")
    tokenizer = Tokenizer.load(path / "tokenizer.json")
    check_files({name: path / name for name in FILES}, config, tokenizer, path)
    try:
        model = ctranslate2.Translator(str(path), compute_type=COMPUTE_TYPES[precision])
    except (ValueError, RuntimeError) as problem:
        raise UserError(
            f"{path}: expected a model that CTranslate2 can run with precision={precision!r}: {problem}"
        ) from None
    return ExportedTranslator(model, config, tokenizer, precision or "as exported", VOCABULARY_MAP in names)


class ExportedTranslator:
    """A model in CTranslate2, with its tokenizer and its search settings.

    `config.model.max_positions` is the number of rows of its table of positions, which CTranslate2 cannot extend.
    precision: of the computation, in words. has_map: the export has a vocabulary map. The other attributes say what
    this engine can do, for a service.
    """

    engine = "ctranslate2"
    kernels = "ctranslate2"
    takes_constraints = False
    calibration = None  # the confidence needs scores of single tokens
    parallel_searches = 1  # CTranslate2 has its own threads

    def __init__(
        self,
        model: Any,
        config: Config,
        tokenizer: TokenizerLike,
        precision: str = "as exported",
        has_map: bool = False,
    ) -> None:
        self.config = with_positions(config, position_rows(config))
        self.tokenizer = tokenizer
        self.precision = precision
        self.has_map = has_map
        self._model = model
        self._pieces = tokenizer.vocabulary
        self._ids = {piece: i for i, piece in enumerate(self._pieces)}

    def check_options(self, options: DecodingOptions) -> None:
        """Raise UserError for options that CTranslate2 does not have, or for which the export lacks something."""
        check_options(options)
        check_tag(options.tag, self.tokenizer)
        if options.shortlist and not self.has_map:
            command = "transduce shortlist MODEL --src TEXT --tgt TEXT"
            raise UserError(
                f"shortlist=True: expected an export with {VOCABULARY_MAP}; run {command}, and export MODEL again"
            )

    def translate(
        self,
        lines: Sequence[str],
        *,
        options: DecodingOptions = DEFAULTS,
        first_number: int = 0,
        **keywords: Unpack[DecodingKeywords],
    ) -> list[Translation]:
        """Translate each line as `translate.Translator.translate` does, with the differences named in this module.

        first_number has no effect: it selects random draws, and this engine refuses sampling.
        """
        check_lines(lines=lines)
        options = with_keywords(options, keywords)
        self.check_options(options)
        settings = options.resolve(self.config.search)
        lines = with_tag(lines, options.tag, self.tokenizer)
        segments, problems = segments_of(lines, self.tokenizer, self.config, options)
        segments = in_small_letters(segments, self.tokenizer, self.config, options)
        search = partial(self._search, n_best=options.n_candidates, uses_map=options.shortlist)
        hypotheses = without_loops(search, [segment.ids for segment in segments], settings, None, options.loops)
        if options.mbr is not None:
            hypotheses = nearest_first(hypotheses, self.tokenizer, options)
        return translations_of(lines, segments, hypotheses, problems, self.tokenizer)

    def running(self) -> None:
        """Return None: CTranslate2 gives no way into its search."""

    def _search(
        self,
        sources: Sequence[Sequence[int]],
        settings: SearchConfig,
        constraint: Constraint | None = None,
        *,
        n_best: int,
        uses_map: bool,
    ) -> list[list[Hypothesis]]:
        """Return the n_best outputs for each source, best first. constraint: None, because the engine takes none.

        uses_map: outputs have only the pieces that the vocabulary map has for the sources of their batch.

        CTranslate2 takes one maximum output length for a whole call. The maximum depends on the length of the source,
        so each call has sources of one length.
        """
        outputs: list[list[Hypothesis]] = [[] for _ in sources]
        longest = min(position_rows(self.config), settings.max_length or sys.maxsize)
        for length, members in _by_length(sources):
            most = min(length + settings.max_extra_tokens, longest)
            results = self._model.translate_batch(
                [[self._pieces[token] for token in sources[i]] for i in members],
                beam_size=settings.beam_size,
                num_hypotheses=settings.beam_size,
                length_penalty=0,
                max_batch_size=max(1, BATCH_TOKENS // ((length + 1) * settings.beam_size)),
                max_input_length=0,  # no limit
                max_decoding_length=most,
                no_repeat_ngram_size=settings.no_repeat_ngram,
                repetition_penalty=settings.repetition_penalty,
                min_decoding_length=min(settings.min_tokens, most),
                disable_unk=True,
                suppress_sequences=[[CONTROLS[PAD]], [CONTROLS[BOS]]],
                return_end_token=True,
                return_scores=True,
                use_vmap=uses_map,
            )
            for i, result in zip(members, results, strict=True):
                hypotheses = map(partial(self._hypothesis, settings), result.hypotheses, result.scores)
                outputs[i] = sorted(hypotheses, key=lambda h: (not h.finished, -h.score))[:n_best]
        return outputs

    def _hypothesis(self, settings: SearchConfig, pieces: Sequence[str], log_prob: float) -> Hypothesis:
        finished = pieces[-1:] == [CONTROLS[EOS]]
        ids = [self._ids[piece] for piece in (pieces[:-1] if finished else pieces)]
        score = log_prob / LENGTH_PENALTIES[settings.length_penalty](len(pieces), settings.alpha)
        return Hypothesis(ids, score, log_prob, [], finished)


BATCH_TOKENS = 8_192  # source tokens times beam in a batch


def _by_length(sources: Sequence[Sequence[int]]) -> list[tuple[int, list[int]]]:
    """Return the indices of the sources of each length, the longest first."""
    members: dict[int, list[int]] = {}
    for i in sorted(range(len(sources)), key=lambda i: -len(sources[i])):
        members.setdefault(len(sources[i]), []).append(i)
    return [*members.items()]
