"""The special tokens of a Whisper, and the rules for the tokens of an output (Radford et al. 2022, section 2.3)."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from tokenizers import Tokenizer
from torch import Tensor

from transduce.errors import UserError, nearest
from transduce.family.hugging_face.folder import Member
from transduce.family.inference.text_generator import ids_of

TASKS = ("transcribe", "translate")
NO_SPEECH = ("nospeech", "nocaptions")  # newer and older names of a token
ENGLISH_ONLY = 51_864  # tokens of the public models of one language, whose older folders do not say so
Values = Mapping[str, Any]


@dataclass(frozen=True)
class SpecialTokens:
    """The ids of the special tokens.

    start, end: of an output. languages, tasks: by name; empty where the model has one language. no_times: before an
    output without times; None where the model knows no times. first_time: of the first time, which all later ids are.
    language, task: of an output where the caller names none; a language of None is detected. no_speech: likely at the
    beginning of a window without speech; None where the folder has none.
    """

    start: int
    end: int
    languages: Mapping[str, int]
    tasks: Mapping[str, int]
    no_times: int | None
    first_time: int
    language: str | None
    task: str
    no_speech: int | None = None

    def prompt(self, language: str | None, task: str | None, *, with_times: bool) -> list[int]:
        """Return the ids before an output."""
        ids = [self.start]
        if self.languages and language is not None:
            ids += [self.languages[language], self.tasks[task or self.task]]
        return ids if with_times or self.no_times is None else [*ids, self.no_times]

    def check(self, language: str | None, task: str | None) -> None:
        """Raise UserError for a language or a task that the model does not have."""
        for name, value, known in (("language", language, self.languages), ("task", task, self.tasks)):
            if value is None or value in known:
                continue
            if not known:
                raise UserError(f"{name}={value!r}: must not be set for a model of one language; leave it out")
            expected = f"one of {', '.join(known)}" if len(known) < 5 else f"one of {len(known)} codes, such as 'en'"
            raise UserError(f"{name}={value!r}: expected {expected}{nearest(str(value), known)}")


def special_tokens(tokenizer: Tokenizer, member: Member, folder: Path | str) -> SpecialTokens:
    """Return the special tokens of a folder. Raises UserError if one is missing."""

    def id_of(name: str) -> int:
        token = tokenizer.token_to_id(f"<|{name}|>")
        if token is None or token >= member.settings["vocab_size"]:
            raise UserError(f"{folder}/tokenizer.json: expected the token <|{name}|>; use a whole folder")
        return token

    stored = settings_of(member, folder)
    names = [match[1] for match in map(re.compile(r"<\|(\w+)\|>").fullmatch, tokenizer.get_vocab()) if match]
    codes = [name for name in names if re.fullmatch(r"[a-z]{2,3}", name)]
    if not stored.get("is_multilingual", member.settings["vocab_size"] != ENGLISH_ONLY):
        codes = []
    ids = {name: id_of(name) for name in ("startoftranscript", "endoftext", *codes, *(TASKS if codes else ()))}
    languages = {code: ids[code] for code in sorted(codes, key=ids.__getitem__)}
    tasks = {task: ids[task] for task in TASKS if codes}
    no_times = id_of("notimestamps") if "notimestamps" in names else None
    first_time = member.settings["vocab_size"] if no_times is None else no_times + 1
    no_speech = next((id_of(name) for name in NO_SPEECH if name in names), None)
    language, task = _defaults(stored, languages, tasks)
    return SpecialTokens(
        ids["startoftranscript"], ids["endoftext"], languages, tasks, no_times, first_time, language, task, no_speech
    )


def settings_of(member: Member, folder: Path | str) -> Values:
    """Return the values of generation_config.json, and of config.json where it has none."""
    try:
        values = msgspec.json.decode(member.files.get("generation_config.json", b"{}"), type=dict[str, Any])
    except (ValueError, RecursionError) as problem:
        where = f"{folder}/generation_config.json"
        raise UserError(f"{where}: expected a JSON object ({problem}); use another copy") from None
    return {**member.settings, **values}


def _defaults(stored: Values, languages: Mapping[str, int], tasks: Mapping[str, int]) -> tuple[str | None, str]:
    """Return the language and the task of a folder, which older ones have as ids, `forced_decoder_ids`."""
    names = {token: name for name, token in (*languages.items(), *tasks.items())}
    pairs = stored.get("forced_decoder_ids")
    forced = [names.get(pair[1]) for pair in pairs if isinstance(pair, list) and len(pair) == 2] if pairs else []
    language = stored.get("language") or next((name for name in forced if name in languages), None)
    task = stored.get("task") or next((name for name in forced if name in tasks), None)
    language = str(language).removeprefix("<|").removesuffix("|>") if language else None
    return language if language in languages else None, str(task) if task in tasks else TASKS[0]


@dataclass(frozen=True)
class Rules:
    """Which tokens may come next in an output, by those before. A call is a change for `repetition.with_change`.

    barred: tokens that no output has. barred_first: the same at the beginning. with_times: an output has times.
    last_first: the latest time at the beginning, in steps of 20 ms; None: any.
    """

    tokens: SpecialTokens
    barred: Sequence[int]
    barred_first: Sequence[int]
    with_times: bool
    last_first: int | None

    def __call__(self, log_probs: Tensor, outputs: Sequence[Sequence[int]]) -> Tensor:
        """Return log-probabilities (N,V), -inf for tokens that must not follow the output so far of a row."""
        barred = [*self.barred, *(() if outputs[0] else self.barred_first)]
        log_probs = log_probs.index_fill(1, torch.tensor(barred, dtype=torch.int64).to(log_probs.device), -math.inf)
        if self.with_times:
            for row, output in zip(log_probs, outputs, strict=True):
                self._bar_by_times(row, output)
        return log_probs

    def _bar_by_times(self, row: Tensor, output: Sequence[int]) -> None:
        """Bar the tokens of a row (V,) that would break the order of times.

        An output begins with a time. Times come in pairs, except at the end, and never go back. A time comes next where
        all times together are more likely than the most likely other token.
        """
        end, first = self.tokens.end, self.tokens.first_time
        assert self.tokens.no_times is not None
        row[self.tokens.no_times] = -math.inf
        times = [token for token in output if token >= first]
        is_end_of_segment = len(output) > 1 and output[-1] >= first > output[-2]
        if not output:
            row[:first] = -math.inf
            if self.last_first is not None:
                row[first + self.last_first + 1 :] = -math.inf
        elif is_end_of_segment:
            row[:end] = -math.inf
        elif output[-1] >= first:
            row[first:] = -math.inf
        if times:
            row[first : times[-1] + (not is_end_of_segment)] = -math.inf
        if row[first:].logsumexp(dim=0) > row[:first].max():
            row[:first] = -math.inf


def rules_of(tokens: SpecialTokens, member: Member, folder: Path | str, *, with_times: bool) -> Rules:
    """Return the rules of a folder."""
    last_first = settings_of(member, folder).get("max_initial_timestamp_index")
    if last_first is not None and (type(last_first) is not int or last_first < 0):
        expected = "expected a number of steps of 20 ms, or null; use another copy"
        raise UserError(f"{folder}/generation_config.json: max_initial_timestamp_index={last_first!r}: {expected}")
    barred, barred_first = (ids_of(member, key) for key in ("suppress_tokens", "begin_suppress_tokens"))
    return Rules(tokens, barred, barred_first, with_times, last_first)
