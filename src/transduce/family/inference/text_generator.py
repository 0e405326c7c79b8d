"""Members that write text: an output for each text, by a search or a draw (section 6.1)."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec

from transduce.config.schema import SearchConfig
from transduce.data.text import is_blank
from transduce.decoding.hypothesis import Hypothesis
from transduce.decoding.options import DecodingKeywords, DecodingOptions, Sampling, sentence_seed, with_keywords
from transduce.decoding.segmentation import MAX_LINE_CHARACTERS, check_lines, excess
from transduce.errors import NotFiniteError, UserError
from transduce.family.hugging_face.folder import Member
from transduce.family.inference.application import Application
from transduce.family.inference.continuation import GREEDY
from transduce.family.inference.generation_settings import GenerationSettings, generation_settings

MAX_IDS = 100  # of a key in a folder, which is untrusted: a beam takes time for each end
# Options of translation only.
NEEDLESS = ("n_best", "mbr", "split", "tag", "alignment", "lookahead", "shortlist")
NEEDLESS += ("max_length", "loops", "numbers", "capitals", "placeholders")


@dataclass(frozen=True)
class GeneratedText:
    """The output for a text.

    score: log-probability over length penalty. finished: False if it was cut at its maximum length. problem: the reason
    for no output, or None.
    """

    text: str = ""
    score: float = 0.0
    finished: bool = True
    problem: str | None = None


class TextGenerator(Application, ABC):
    """A member that writes text.

    longest: maximum number of tokens of a text that it takes.
    """

    longest: int

    @cached_property
    def generation_settings(self) -> GenerationSettings:
        """The settings of the folder. Raises UserError for some that are not supported."""
        return generation_settings(self.member, self.folder)

    @abstractmethod
    def _search(
        self, ids: list[list[int]], settings: SearchConfig, sampling: Sampling | None, seeds: list[int]
    ) -> list[Hypothesis]:
        """Return the output for each list of ids. seeds: seeds of samples, one for each list."""
        ...

    @abstractmethod
    def _text(self, ids: list[int], output: Hypothesis) -> str:
        """Return the text of an output for `ids`."""
        ...

    def _ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, for which an output is searched."""
        return [encoding.ids for encoding in self._encode_texts(texts)]

    def _problem(self, text: str, ids: Sequence[int] | None) -> str | None:
        """Return the reason why a text has no output, or None. ids: None: it is too long to be encoded."""
        return excess(text, ids, self.longest)

    def _outputs(
        self,
        texts: Sequence[str],
        max_tokens: int | None,
        options: DecodingOptions,
        first_number: int,
        keywords: DecodingKeywords,
    ) -> list[GeneratedText]:
        """Return the output for each text, of at most `max_tokens`.

        options: a search or a draw; keywords replace some of them. Without one, the folder decides. first_number:
        number of the first text, on which its draw depends. A blank text has a blank output. Raises UserError for
        options that cannot be met.
        """
        check_lines(texts=texts)
        max_tokens = self.generation_settings.max_tokens if max_tokens is None else max_tokens
        if type(max_tokens) is not int or not 1 <= max_tokens <= 1 << 20:
            raise UserError(f"max_tokens={max_tokens!r}: expected an integer from 1 to {1 << 20:,}")
        options = with_keywords(options, keywords)
        for name in NEEDLESS:
            options.refuse([name], "for a model of the family; leave it out")
        options = self.generation_settings.options(options)
        if options.alpha is None and options.length_penalty != "none":
            options.refuse(["length_penalty"], "without alpha, which is 0; add alpha, such as 1")
        settings = options.resolve(self.generation_settings.defaults(GREEDY, max_tokens))
        outputs, inputs = [GeneratedText()] * len(texts), dict[int, list[int]]()
        short = [i for i, text in enumerate(texts) if len(text) <= MAX_LINE_CHARACTERS and not is_blank(text)]
        encodings = dict(zip(short, self._ids([texts[i] for i in short]), strict=True))
        for i, text in enumerate(texts):
            if is_blank(text):
                continue
            ids = encodings.get(i)
            if problem := self._problem(text, ids):
                outputs[i] = GeneratedText(finished=False, problem=problem)
            elif ids:
                inputs[i] = ids
        seeds = [sentence_seed(options.seed, first_number + i) for i in inputs]
        try:
            hypotheses = self._search([*inputs.values()], settings, options.sampling, seeds)
        except FloatingPointError as problem:
            expected = f"expected outputs that are finite numbers: {problem}; use another copy"
            raise NotFiniteError(f"{self.folder}: {expected}") from None
        for (i, ids), best in zip(inputs.items(), hypotheses, strict=True):
            outputs[i] = GeneratedText(self._text(ids, best), best.score, best.finished)
        return outputs


def ids_of(member: Member, key: str) -> list[int]:
    """Return the ids of a key such as eos_token_id in generation_config.json, or else in config.json.

    Raises UserError for other values than ids, and for more than MAX_IDS ids.
    """
    values = dict(member.settings)
    try:
        values |= msgspec.json.decode(member.files.get("generation_config.json", b"{}"), type=dict)
        value = values.get(key)
        ids = msgspec.convert([] if value is None else value if isinstance(value, list) else [value], list[int])
    except (ValueError, RecursionError) as problem:
        raise UserError(f"{key}: expected an id, or a list of ids ({problem}); use a whole folder") from None
    if len(ids) > MAX_IDS:
        expected = f"expected at most {MAX_IDS} in generation_config.json or config.json; leave the others out"
        raise UserError(f"{key}: {len(ids):,} ids: {expected}")
    return [each for each in dict.fromkeys(ids) if 0 <= each < member.settings["vocab_size"]]
