"""Scores of a language model on a text: perplexity per token and per word, and bits per character.

    log p(line) = sum of log p(token | tokens before it in the line), over its tokens and the end of the line

Perplexity per token depends on the tokenizer. The other two do not, so they compare models with different tokenizers.
For them the end of a line counts as one word, and as one character: the model has to predict it too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from transduce.console import printable
from transduce.data.batches import indices_of, pad
from transduce.data.text import empty, is_blank, read_lines
from transduce.data.vocabulary import BOS, EOS, TokenizerLike
from transduce.decoding.batched_search import by_length
from transduce.decoding.segmentation import MAX_LINE_CHARACTERS, encode_lines, excess
from transduce.errors import NotFiniteError, UserError
from transduce.evaluate import perplexity
from transduce.family.inference.application import Application
from transduce.family.inference.language_model import LanguageModel
from transduce.family.inference.text_generator import ids_of
from transduce.family.inference.tokenizer import encode_texts, tokenizer_of
from transduce.family.text_model import TextModel
from transduce.model.devices import in_float64
from transduce.training.loss import token_log_probs


@dataclass(frozen=True)
class TextScores:
    """The scores of a model on a text, and the units of the text. Blank lines do not count.

    tokens, words, characters: numbers of these, with the ends of lines; spaces separate words. loss: nats per token.
    """

    lines: int
    tokens: int
    words: int
    characters: int
    loss: float
    perplexity: float
    word_perplexity: float
    bits_per_character: float

    def __str__(self) -> str:
        """Return the scores as text to read."""
        return "\n".join(
            [
                f"{self.lines:,} lines; the end of a line is one token, one word and one character",
                "",
                f"perplexity per token {self.perplexity:10.3f}  {self.tokens:,} tokens",
                f"perplexity per word  {self.word_perplexity:10.3f}  {self.words:,} words",
                f"bits per character   {self.bits_per_character:10.4f}  {self.characters:,} characters",
            ]
        )


def check_lines(lines: Sequence[str], tokenizer: TokenizerLike, longest: int, name: str) -> None:
    """Raise UserError for lines that `score_lines` cannot score.

    longest: maximum number of tokens of a line, without BOS and EOS. name: name of the text, for messages.
    """
    _refuse_blank(lines, name)
    for number, (line, ids) in enumerate(zip(lines, encode_lines(lines, tokenizer), strict=True), start=1):
        if problem := excess(line, ids, longest):
            raise UserError(f"{name}:{number}: {problem}")


def score_lines(model: TextModel, tokenizer: TokenizerLike, lines: Sequence[str]) -> TextScores:
    """Return the scores of a model with the tokenizer of its training, on lines that `check_lines` accepts."""
    texts = [line for line in lines if not is_blank(line)]
    return score_rows(model, [[BOS, *(ids or ()), EOS] for ids in encode_lines(texts, tokenizer)], texts)


def evaluate_text(model: LanguageModel, path: Path) -> TextScores:
    """Return the scores of a language model on the lines of a text.

    A line begins with `bos_token_id` of the model, and ends with its `eos_token_id`, if it has them. Raises UserError,
    before it computes anything, for a line that is longer than the model takes.
    """
    start, end = ids_of(model.member, "bos_token_id")[:1], model.ends[:1]
    longest = model.model.n_positions + 1 - len(start) - len(end)  # the last token is no input
    rows, texts = encoded_text(model, path, longest)
    return score_rows(model.model, [[*start, *ids, *end] for ids in rows], texts)


def encoded_text(model: Application, path: Path, longest: int) -> tuple[list[list[int]], list[str]]:
    """Return the tokens of each line of a text, without ends, and these lines; blank ones are left out.

    Raises UserError for a line of more than `longest` tokens, and for a text without a line that is not blank.
    """
    name, tokenizer = printable(path), tokenizer_of(model.member, model.folder)  # a new one, which is changed here
    tokenizer.encode_special_tokens = True  # the text </s> does not end a line
    rows, texts = list[list[int]](), list[str]()
    for number, line in enumerate(lines := list(read_lines(path)), start=1):
        if is_blank(line):
            continue
        ids = None
        if len(line) <= MAX_LINE_CHARACTERS:
            [encoding] = encode_texts(tokenizer, [line], model.member, model.folder, add_special_tokens=False)
            ids = encoding.ids
        if problem := excess(line, ids, longest):
            raise UserError(f"{name}:{number}: {problem}")
        rows.append(ids or [])
        texts.append(line)
    if not lines:
        raise empty(name, name)
    _refuse_blank(texts, name)
    return rows, texts


@torch.inference_mode()
def score_rows(model: TextModel, rows: Sequence[Sequence[int]], texts: Sequence[str]) -> TextScores:
    """Return the scores of `model`, in evaluation mode, on texts and their tokens, of which the first is only read.

    On a CPU, the score of a row does not depend on the other rows. Raises NotFiniteError if a log-probability is not
    finite.
    """
    device = model.output.weight.device
    arrays = [np.asarray(row, np.int64) for row in rows]

    def nats_of(members: Sequence[int]) -> float:
        ids, mask = pad([arrays[i][:-1] for i in members])
        truth, _ = pad([arrays[i][1:] for i in members])
        states = model.states(ids.to(device), model.no_past)[0].flatten(0, 1)
        real = indices_of(mask)
        log_probs = token_log_probs(states[real.to(device)], model.output.weight, truth.take(real).to(device))
        return -in_float64(log_probs).sum().item()

    nats = sum(of_batch for _, of_batch in by_length(nats_of, [len(row) for row in arrays], device))
    if not math.isfinite(nats):
        raise NotFiniteError("the model: expected log-probabilities that are finite numbers; use an earlier checkpoint")
    return scores_of(nats, texts, tokens=sum(len(row) - 1 for row in rows))


def scores_of(nats: float, texts: Sequence[str], *, tokens: int) -> TextScores:
    """Return the scores of texts that have `nats` of -log p together, in `tokens` with their ends."""
    words, characters = sum(len(text.split()) + 1 for text in texts), sum(len(text) + 1 for text in texts)
    return TextScores(
        len(texts),
        tokens,
        words,
        characters,
        loss=nats / tokens,
        perplexity=perplexity(nats / tokens),
        word_perplexity=perplexity(nats / words),
        bits_per_character=nats / characters / math.log(2),
    )


def _refuse_blank(lines: Sequence[str], name: str) -> None:
    if all(map(is_blank, lines)):
        raise UserError(f"{name}: expected a line that is not blank; give a text to evaluate on")
