"""How a folder writes text unless the caller chooses: its generation_config.json, obeyed, or refused by name.

    do_sample            a draw with temperature, top_k, top_p and epsilon_cutoff, instead of a search
    num_beams            beam search with length_penalty, where there is no draw
    max_new_tokens, min_new_tokens, repetition_penalty, no_repeat_ngram_size

A draw or a beam size of the caller replaces the settings of the folder. max_length counts the prompt, too: the maximum
number of new tokens, which every call has, replaces it, as in transformers.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from transduce.config.schema import SearchConfig
from transduce.decoding.options import DecodingOptions, Sampling
from transduce.errors import UserError
from transduce.family.hugging_face.folder import Member

FILE = "generation_config.json"
MAX_TOKENS = 50
TOP_K = 50  # of a draw in transformers, where a folder has no other
# Settings that change an output and are not supported, with the values that change nothing.
UNSUPPORTED: Mapping[str, tuple[Any, ...]] = {
    "min_length": (0,),
    "num_return_sequences": (1,),
    "num_beam_groups": (1,),
    "diversity_penalty": (0,),
    "penalty_alpha": (0,),
    "encoder_repetition_penalty": (1,),
    "encoder_no_repeat_ngram_size": (0,),
    "guidance_scale": (1,),
    **dict.fromkeys(("renormalize_logits", "token_healing"), (False,)),
    **dict.fromkeys(("bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "sequence_bias"), ([], {})),
    **dict.fromkeys(("force_words_ids", "constraints", "stop_strings"), ([],)),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id", "exponential_decay_length_penalty"), ()),
    **dict.fromkeys(("watermarking_config", "dola_layers", "max_time"), ()),
}
UNSUPPORTED_DRAWS = {"typical_p": (1,), "eta_cutoff": (0,), "min_p": (0,), "top_h": (), "num_beams": (1,)}
UNSUPPORTED_BEAMS = {"early_stopping": (False,)}


class _Values(msgspec.Struct):
    """The settings that are supported. null counts as absent."""

    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    epsilon_cutoff: float | None = None
    num_beams: int | None = None
    length_penalty: float | None = None
    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None


@dataclass(frozen=True)
class GenerationSettings:
    """The settings of a folder. search: its beam search, or None. sampling: its draws, or None."""

    search: DecodingOptions | None = None
    sampling: Sampling | None = None
    max_tokens: int = MAX_TOKENS
    min_tokens: int = 0
    repetition_penalty: float = 1.0
    no_repeat_ngram: int = 0

    def options(self, options: DecodingOptions) -> DecodingOptions:
        """Return the options of a call, with the draw or the beam of the folder where the call has neither."""
        if options.sampling is not None or options.beam_size is not None:
            return options
        if self.search is None:
            return replace(options, sampling=self.sampling)
        alpha = self.search.alpha if options.alpha is None else options.alpha
        penalty = options.length_penalty or self.search.length_penalty
        return replace(options, beam_size=self.search.beam_size, alpha=alpha, length_penalty=penalty)

    def defaults(self, greedy: SearchConfig, max_tokens: int) -> SearchConfig:
        """Return the settings of a greedy search with the limits of the folder."""
        repetition = {"repetition_penalty": self.repetition_penalty, "no_repeat_ngram": self.no_repeat_ngram}
        return replace(greedy, max_extra_tokens=max_tokens, min_tokens=min(self.min_tokens, max_tokens), **repetition)


def generation_settings(member: Member, folder: Path | str, supported: Collection[str] = ()) -> GenerationSettings:
    """Return the settings of a folder. Raises UserError for one that would change an output and is not supported.

    A folder without the file has its settings in config.json, as older ones do. supported: keys of `UNSUPPORTED` that
    the caller obeys.
    """
    where = f"{folder}/{FILE if FILE in member.files else 'config.json'}"
    try:
        stored = (
            msgspec.json.decode(member.files[FILE], type=dict[str, Any]) if FILE in member.files else member.settings
        )
        values = msgspec.convert({key: stored.get(key) for key in _Values.__struct_fields__}, _Values)
    except (ValueError, RecursionError) as problem:
        raise UserError(f"{where}: expected the settings of a generation ({problem}); use another copy") from None
    _check(stored, {key: UNSUPPORTED[key] for key in UNSUPPORTED if key not in supported}, where)
    try:
        return _settings(stored, values, where)
    except UserError as problem:
        raise problem if str(problem).startswith(where) else UserError(f"{where}: {problem}") from None


def _settings(stored: Mapping[str, Any], values: _Values, where: str) -> GenerationSettings:
    search, sampling = None, None
    if values.do_sample:
        _check(stored, UNSUPPORTED_DRAWS, where)
        top_k, top_p = TOP_K if values.top_k is None else values.top_k, values.top_p
        temperature = 1.0 if values.temperature is None else values.temperature
        sampling = Sampling(temperature, top_k or None, None if top_p == 1 else top_p, values.epsilon_cutoff or None)
    elif (values.num_beams or 1) > 1:
        _check(stored, UNSUPPORTED_BEAMS, where)
        alpha = 1.0 if values.length_penalty is None else values.length_penalty
        search = DecodingOptions(beam_size=values.num_beams, length_penalty="power", alpha=alpha)
    return GenerationSettings(
        search,
        sampling,
        MAX_TOKENS if values.max_new_tokens is None else values.max_new_tokens,
        values.min_new_tokens or 0,
        1.0 if values.repetition_penalty is None else values.repetition_penalty,
        values.no_repeat_ngram_size or 0,
    )


def _check(stored: Mapping[str, Any], unsupported: Mapping[str, tuple[Any, ...]], where: str) -> None:
    for key, neutral in unsupported.items():
        value = stored.get(key)
        if value is not None and value not in neutral:
            expected = " or ".join(["no value", *map(repr, neutral)])
            raise UserError(f"{where}: {key}={value!r}: expected {expected}; remove it from a copy of the folder")
