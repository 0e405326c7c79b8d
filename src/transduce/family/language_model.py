"""Language models: members of the family that continue text."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

import msgspec

from transduce.config.validation import as_path
from transduce.data.text import is_blank
from transduce.decoding.options import DEFAULTS, DecodingKeywords, DecodingOptions, sentence_seed, with_keywords
from transduce.decoding.segmentation import MAX_LINE_CHARACTERS, check_lines, excess
from transduce.errors import UserError
from transduce.family.continuation import GREEDY, continue_ids
from transduce.family.gpt2 import GPT2
from transduce.family.llama import Llama
from transduce.family.tokenizer import tokenizer_of
from transduce.family.weights import Member, write_member

NEEDLESS = ("n_best", "mbr", "split", "tag", "alignment", "lookahead")  # options of translation alone


@dataclass(frozen=True)
class Continuation:
    """The continuation of a text.

    text: without the text itself, so that both together are the whole. score: log-probability over length penalty.
    finished: False if it was cut at its maximum length. problem: the reason for no continuation, or None.
    """

    text: str = ""
    score: float = 0.0
    finished: bool = True
    problem: str | None = None


class LanguageModel:
    """A member that continues text: the model, and the files of the folder that it comes from.

    Raises UserError for a member that does not, such as an encoder. folder: the origin of the member, for messages.
    """

    def __init__(self, member: Member, folder: Path | str = "the folder") -> None:
        if not isinstance(member.model, GPT2 | Llama):
            kind = member.settings.get("model_type")
            raise UserError(f"model_type={kind!r}: expected a model that continues text; use another, such as gpt2")
        self.member, self.model, self.folder = member, member.model, folder
        self.ends = _ends(member)

    def save(self, folder: str | Path) -> None:
        """Write a new folder in Hugging Face's form. Raises UserError if `folder` exists."""
        write_member(as_path("folder", folder), self.member)

    def continue_(self, text: str, *, max_tokens: int = 50, **keywords: Unpack[DecodingKeywords]) -> Continuation:
        """Return the continuation of one text. The arguments are those of `continue_texts`."""
        return self.continue_texts([text], max_tokens=max_tokens, **keywords)[0]

    def continue_texts(
        self,
        texts: Sequence[str],
        *,
        max_tokens: int = 50,
        options: DecodingOptions = DEFAULTS,
        first_number: int = 1,
        **keywords: Unpack[DecodingKeywords],
    ) -> list[Continuation]:
        """Return the continuation of each text. It does not depend on the other texts.

        max_tokens: of a continuation. options: a search, by default greedy, or a draw; keywords replace some of them.
        first_number: of the first text, on which its draw depends. A blank text has a blank continuation. A text that
        is too long for the model has a `problem`. Raises UserError for options that cannot be met.
        """
        check_lines(texts=texts)
        if type(max_tokens) is not int or not 1 <= max_tokens <= 1 << 20:
            raise UserError(f"max_tokens={max_tokens!r}: expected an integer from 1 to {1 << 20:,}")
        options = with_keywords(options, keywords)
        for name in NEEDLESS:
            options.refuse([name], "for a continuation; leave it out")
        settings = options.resolve(replace(GREEDY, max_extra_tokens=max_tokens))
        tokenizer, longest = tokenizer_of(self.member, self.folder), self.model.n_positions - 1
        continuations, prompts = [Continuation()] * len(texts), dict[int, list[int]]()
        for i, text in enumerate(texts):
            if is_blank(text):
                continue
            ids = tokenizer.encode(text).ids if len(text) <= MAX_LINE_CHARACTERS else None
            if problem := excess(text, ids, longest):
                continuations[i] = Continuation(finished=False, problem=problem)
            elif ids:
                prompts[i] = ids
        seeds = [sentence_seed(options.seed, first_number + i) for i in prompts]
        outputs = continue_ids(self.model, [*prompts.values()], self.ends, settings, options.sampling, seeds)
        for (i, prompt), output in zip(prompts.items(), outputs, strict=True):
            # Decoded together: alone, the first word would lose its space in some tokenizers.
            before, whole = tokenizer.decode(prompt), tokenizer.decode([*prompt, *output.ids])
            continuations[i] = Continuation(whole[len(before) :], output.score, output.finished)
        return continuations


def _ends(member: Member) -> list[int]:
    """Return the ids that end a text: those of generation_config.json, or of config.json."""
    values = dict(member.settings)
    try:
        values |= msgspec.json.decode(member.files.get("generation_config.json", b"{}"), type=dict)
        ids = values.get("eos_token_id")
        ends = msgspec.convert([] if ids is None else ids if isinstance(ids, list) else [ids], list[int])
    except (ValueError, RecursionError) as problem:
        raise UserError(f"eos_token_id: expected an id, or a list of ids ({problem}); use a whole folder") from None
    return [one for one in dict.fromkeys(ends) if 0 <= one < member.settings["vocab_size"]]
