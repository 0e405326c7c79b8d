"""BERT as a user has it: lines in; words, vectors or classes out."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

import torch
from tokenizers import Encoding
from torch import Tensor

from transduce.console import printable
from transduce.data.piece_bytes import content_of_piece
from transduce.data.text import is_blank
from transduce.decoding.batched_search import in_batches
from transduce.decoding.segmentation import MAX_LINE_CHARACTERS, check_lines, excess
from transduce.errors import NotFiniteError, UserError
from transduce.family.bert import Bert
from transduce.family.bert_heads import sentence_vectors
from transduce.family.hugging_face.folder import Member
from transduce.family.inference.application import Application
from transduce.family.inference.model_folder import MASK_NAME
from transduce.family.inference.sentence_settings import SentenceSettings, sentence_settings
from transduce.model.cpu_backend import faster_products

BATCH_TOKENS = 8_192
PLACES = 256  # masked places at a time: their logits are rows of the whole vocabulary
# oneDNN computes a product of fewer than 16 rows in another way, with other rounding (1e-7). torch leaves only products
# of more than 4,096 multiplications to it. Beyond both limits, a row does not depend on the others.
ROWS = 32
MULTIPLICATIONS = 4_096

Value = TypeVar("Value")


class WordPrediction(NamedTuple):
    """A word for a masked place, and its probability."""

    text: str
    probability: float


@dataclass(frozen=True)
class Answer(Generic[Value]):
    """The answer to a line. value: None for a line without text. problem: reason for no value, or None."""

    value: Value | None = None
    problem: str | None = None


class TextEncoder(Application):
    """A BERT with the tokenizer of its folder. Raises UserError for another member, or one without a tokenizer.

    Lines of one length are a batch, without padding. On a CPU, an answer does not depend on the other lines.
    Raises UserError for lines that are no list of strings, and NotFiniteError if an output of the model is not finite.
    """

    def __init__(self, member: Member, folder: Path | str = "the folder") -> None:
        super().__init__(member, folder)
        self.model = self.model_of(Bert, "a text encoder, BERT")
        self.n_positions = self.model.encoder.positions.num_embeddings
        n_special = self.tokenizer.num_special_tokens_to_add(False)
        if n_special >= self.n_positions:
            raise UserError(
                f"{folder}/tokenizer.json: expected fewer special tokens in a line than the {self.n_positions:,} "
                f"positions of the model, not {n_special:,}; use a whole folder"
            )

    @cached_property
    def sentence_settings(self) -> SentenceSettings:
        """The settings of `embed`. Raises UserError for a folder with others than are supported."""
        return sentence_settings(self.member, self.folder)

    def fill(self, lines: Sequence[str], n_best: int = 5) -> list[Answer[list[list[WordPrediction]]]]:
        """Return the `n_best` most likely words for each [MASK] of each line, the most likely first."""
        head, mask = self.model.words, self.tokenizer.token_to_id(MASK_NAME)
        if head is None:
            raise self._without("a head for masked words, as in BertForMaskedLM")
        if mask is None:
            raise self._without(f"the token {MASK_NAME} in its tokenizer.json")
        most = min(self.tokenizer.get_vocab_size(), self.model.encoder.embedding.num_embeddings)
        if type(n_best) is not int or not 1 <= n_best <= most:
            raise UserError(f"n_best={n_best!r}: expected an integer from 1 to {most:,}, the size of the vocabulary")

        def words(ids: Tensor, states: Tensor) -> list[list[list[WordPrediction]]]:
            is_masked = ids == mask
            of_places: list[list[WordPrediction]] = []
            for places in states[is_masked].split(PLACES):
                best = in_rows(head, places).softmax(dim=-1).topk(n_best, dim=-1)
                finite(best.values, self.folder)
                for values, numbers in zip(best.values.tolist(), best.indices.tolist(), strict=True):
                    of_places.append(list(map(WordPrediction, map(self._word, numbers), values)))
            places_left = iter(of_places)
            return [[next(places_left) for _ in range(count)] for count in is_masked.sum(dim=1).tolist()]

        answers = self._answers(lines, words)
        problem = f"expected {MASK_NAME} in the line; put it in place of a word"
        return [Answer(a.value, a.problem or (problem if a.value == [] else None)) for a in answers]

    def _word(self, number: int) -> str:
        """Return the text of a token. A special token has its name, and a part of a character its bytes: \\x9e."""
        text, piece = self._decode([number]).strip(), self.tokenizer.id_to_token(number) or ""
        is_part = "\ufffd" in text and "\ufffd" not in piece
        return printable(content_of_piece(piece).decode(errors="surrogateescape")).strip() if is_part else text or piece

    def embed(self, lines: Sequence[str]) -> list[Answer[Tensor]]:
        """Return a vector of length 1 for each line, (D,): the mean of the states of its tokens.

        A folder of sentence-transformers may have another pooling, and a maximum length (`sentence_settings`).
        """
        check_lines(lines=lines)
        settings = self.sentence_settings
        lines = [settings.text(line) for line in lines]
        longest = min(settings.max_tokens or self.n_positions, self.n_positions)
        return self._answers(lines, lambda _, x: list(sentence_vectors(x, settings.pooling).cpu()), longest)

    def classify(self, lines: Sequence[str]) -> list[Answer[dict[str, float]]]:
        """Return the probability of each class for each line, by its label, the most likely first."""
        pooler, classifier = self.model.pooler, self.model.classifier
        if pooler is None or classifier is None:
            raise self._without("a classifier, as in BertForSequenceClassification")

        def classes(_: Tensor, states: Tensor) -> list[dict[str, float]]:
            cost = states.size(-1) * min(states.size(-1), len(classifier.labels))
            logits = in_rows(lambda first: classifier(pooler(first)), states[:, :1], cost=cost)
            return classes_of(finite(logits, self.folder), classifier.labels)

        return self._answers(lines, classes)

    @torch.inference_mode()
    def _answers(
        self, lines: Sequence[str], values: Callable[[Tensor, Tensor], list[Value]], longest: int | None = None
    ) -> list[Answer[Value]]:
        """Return the answers to lines.

        values: function that returns the values of a batch from its ids (B,T) and states (B,T,D). longest: maximum
        number of tokens of a line; None: the positions of the model.
        """
        check_lines(lines=lines)
        longest = longest or self.n_positions
        self.tokenizer.enable_truncation(longest)
        is_long = [len(line) > MAX_LINE_CHARACTERS for line in lines]
        answers = [
            Answer[Value](None, excess(line, None) if long else None) for line, long in zip(lines, is_long, strict=True)
        ]
        numbers = [i for i, line in enumerate(lines) if not is_long[i] and not is_blank(line)]
        encodings = dict(zip(numbers, self._encode_texts([lines[i] for i in numbers]), strict=True))
        lengths = {i: len(encoding.ids) for i, encoding in encodings.items()}
        for i in [i for i, length in lengths.items() if not length]:
            answers[i] = Answer(None, "expected text, but the tokenizer drops all characters; change the line")
            del lengths[i]
        embedding = self.model.encoder.embedding.weight
        device, d_model = embedding.device, embedding.size(1)

        def values_of(members: Sequence[int]) -> list[Value]:
            ids = torch.tensor([encodings[i].ids for i in members], device=device)
            with faster_products(device):
                states = in_rows(self._encode, ids, ids.size(1), cost_of_attention(ids.size(1), d_model))
                finite(states.norm(dim=-1), self.folder)  # if it overflows, the vector of `embed` has the length 0
                return values(ids, states)

        for members, of_batch in in_batches(values_of, batches_of_one_length(lengths)):
            for i, value in zip(members, of_batch, strict=True):
                answers[i] = Answer(value, _cut_problem(encodings[i], longest))
        return answers

    def _encode(self, ids: Tensor) -> Tensor:
        return self.model.encoder(ids, torch.ones_like(ids, dtype=torch.bool))

    def _without(self, part: str) -> UserError:
        (architecture,) = self.member.settings.get("architectures") or ["a model"]
        return UserError(f"{self.folder}: expected {part}, not {architecture}; use a folder that has it")


def _cut_problem(encoding: Encoding, longest: int) -> str | None:
    """Return the problem of a line of which the model reads only the beginning."""
    if not encoding.overflowing:
        return None
    n_special = sum(encoding.special_tokens_mask)
    n_tokens = len(encoding.ids) + sum(len(part.ids) - n_special for part in encoding.overflowing)
    return f"expected at most {longest:,} tokens, not {n_tokens:,}, and the rest is not read; split the line"


def finite(values: Tensor, folder: Path | str) -> Tensor:
    """Return `values`, which the model of `folder` computed. Raises NotFiniteError if one of them is not finite."""
    if not values.isfinite().all():
        raise NotFiniteError(f"{folder}: expected outputs that are finite numbers; use another copy")
    return values


def classes_of(logits: Tensor, labels: Sequence[str]) -> list[dict[str, float]]:
    """Return the probability of each class by its label, the most likely first, for each row of logits (B,V).

    Of classes with equal labels, such as the two cranes of ImageNet, the most likely one counts.
    """
    rows = logits.softmax(dim=-1).sort(dim=-1, descending=True, stable=True)
    pairs = zip(rows.indices.tolist(), rows.values.tolist(), strict=True)
    answers = list[dict[str, float]]()
    for index, values in pairs:
        answers.append({})
        for i, p in zip(index, values, strict=True):
            answers[-1].setdefault(labels[int(i)], p)
    return answers


def in_rows(function: Callable[[Tensor], Tensor], x: Tensor, width: int = 1, cost: int = MULTIPLICATIONS) -> Tensor:
    """Return function(x), where each entry of `x` gives `width` rows of its matrix products.

    A few entries are repeated until they give ROWS rows, and until each product has more than MULTIPLICATIONS.
    cost: multiplications of a row in the smallest product (`cost_of_attention`, or width times classes).
    """
    least = max(ROWS, MULTIPLICATIONS // cost + 1)
    copies = -(-least // max(len(x) * width, 1))
    return function(torch.cat([x] * copies))[: len(x)] if copies > 1 else function(x)


def cost_of_attention(width: int, d_model: int) -> int:
    """Return the multiplications of a row in the smallest product of an encoder of `width` rows for each entry."""
    return min(width, d_model) * d_model


def batches_of_one_length(lengths: Mapping[int, int]) -> Iterator[list[int]]:
    """Yield the numbers of lines in batches of equal lengths, in their order. lengths: 1 or more tokens, by number."""
    by_length = defaultdict[int, list[int]](list)
    for number, length in lengths.items():
        by_length[length].append(number)
    for length, numbers in sorted(by_length.items()):
        n_rows = max(BATCH_TOKENS // length, 1)
        yield from (numbers[i : i + n_rows] for i in range(0, len(numbers), n_rows))
