"""The service: checked texts -> their translations, through the queue."""

import asyncio
import dataclasses
import functools
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.types import Receive

from transduce.decoding.hypothesis import Translation
from transduce.decoding.options import DecodingOptions, Split
from transduce.decoding.phrases.line_constraint import LineConstraint
from transduce.decoding.phrases.matching import PhraseList
from transduce.decoding.phrases.segment_constraints import FREE
from transduce.decoding.phrases.terms import NO_TERMS, Terms
from transduce.decoding.segmentation import encode_lines, excess
from transduce.serve.documents import Document, Part, filled, lines_of, plain_document, with_alignment
from transduce.serve.logs import Record
from transduce.serve.markup import html_document
from transduce.serve.metrics import Metrics
from transduce.serve.models import ServerModels, TranslationModel
from transduce.serve.phrases import check_terms, check_text
from transduce.serve.queue import NO_ROOM, SentenceQueue
from transduce.serve.refusal import Refusal, invalid
from transduce.serve.sentence import Sentence
from transduce.serve.settings import Limits
from transduce.serve.words import Confidences, confidences

ROOM_SECONDS = 0.25  # between two looks for room in the queue


@dataclass(frozen=True)
class TranslateCall:
    """What a request asks for: its texts, and the way to translate them.

    documents: of the texts, where they are parts of a file; empty: they are read from the texts.
    pairs: source and target of each text. alternatives: further translations of each text. split: None takes the
    server's setting. keeps_lines: False makes one line of each text. has_confidence: the answer has the
    confidence of each word. constraints: phrases of the translation of each text; empty: all are free. terms: of all
    texts, in addition to the server's, which they replace where both have a term. placeholders: see
    `DecodingOptions`; a server may keep them for all. waits_for_room: a full queue is no refusal, unless it stays full.
    """

    texts: Sequence[str]
    pairs: Sequence[tuple[str, str]]
    alternatives: int = 0
    is_html: bool = False
    split: Split | None = None
    keeps_lines: bool = True
    has_confidence: bool = False
    constraints: Sequence[LineConstraint] = ()
    terms: Terms = NO_TERMS
    placeholders: bool = False
    documents: Sequence[Document] = ()
    waits_for_room: bool = False


@dataclass(frozen=True)
class TextTranslation:
    """The translation of a text, its alternatives, the reason for which there is none, and the words' confidence.

    unmet: the phrases and the targets of terms that the translation lacks, the placeholders that it does not have as
    often as the text, and the forbidden phrases that it has. No alternative has more of them.
    doubts: see `Translation.doubts`. text_confidence: the lowest confidence of its sentences; None if it is unknown.
    """

    text: str
    alternatives: Sequence[str] = ()
    problem: Refusal | None = None
    confidence: Confidences = field(default_factory=list)
    unmet: Sequence[str] = ()
    doubts: Sequence[str] = ()
    text_confidence: float | None = None


@dataclass
class _Text:
    """A text on its way: its document, and the sentence of each part that is translated.

    problem: the reason for no translation.
    """

    document: Document
    sentences: list[Sentence] = field(default_factory=list)
    problem: Refusal | None = None

    @property
    def failure(self) -> Refusal | None:
        """Its problem, or the problem of its first sentence on which the model failed, once all have their results."""
        failures = (sentence.result.exception() for sentence in self.sentences)
        return self.problem or next((failure for failure in failures if isinstance(failure, Refusal)), None)

    @property
    def doubts(self) -> list[str]:
        """The reasons to doubt the translation of a sentence."""
        translations = (sentence.result.result() for sentence in self.sentences)
        return [*dict.fromkeys(doubt for translation in translations for doubt in translation.doubts)]

    @property
    def confidence(self) -> float | None:
        """The lowest confidence of a sentence; None if no sentence has one."""
        translations = (sentence.result.result() for sentence in self.sentences)
        return min((t.confidence for t in translations if t.confidence is not None), default=None)

    def written(self, number: int) -> str:
        """Return the text with alternative `number` of each sentence, or its best; 0 is the best."""
        pairs = zip(lines_of(self.document), self.sentences, strict=True)
        return "".join(filled(self.document, (_write(part, s.result.result(), number) for part, s in pairs)))

    def confidences(self) -> Confidences:
        """Return the pieces of the text, each with its confidence; None for what the model did not write."""
        of_parts = (confidences(s.result.result(), s.model.tokenizer) for s in self.sentences)
        return [piece for pieces in filled(self.document, of_parts, lambda text: [(text, None)]) for piece in pieces]


def _choice(output: Translation, number: int) -> Translation:
    """Return alternative `number` of a sentence, or its best."""
    choices: Sequence[Translation] = (output, *output.alternatives)
    return choices[number] if number < len(choices) else choices[0]


def _write(part: Part, output: Translation, number: int) -> str:
    choice = _choice(output, number)
    return part.write(choice.text, choice.alignment)


def _unmet(text: _Text, number: int, phrases: PhraseList) -> list[str]:
    """Return the phrases that a text does not meet with alternative `number`, and the terms that its sentences lack."""
    unmet = [*phrases.unmet(text.written(number))]
    for sentence in text.sentences:
        choice = _choice(sentence.result.result(), number)
        unmet += (Counter(choice.unmet) - Counter(phrases.unmet(choice.text))).elements()
    return unmet


class Service:
    """Models behind a queue, with the decoding options and the limits of a server."""

    def __init__(
        self, models: ServerModels, queue: SentenceQueue, metrics: Metrics, options: DecodingOptions, limits: Limits
    ) -> None:
        self.models = models
        self.queue = queue
        self.metrics = metrics
        self.options = options
        self.limits = limits
        self.max_alternatives = min(beam_size(model, options) for model in models.by_pair.values()) - 1

    async def translate(self, call: TranslateCall, request: Request, record: Record) -> list[TextTranslation]:
        """Return the translation of each text of a request.

        Raises Refusal if the queue is full or the deadline has passed, and `ClientLeft` when the client leaves.
        """
        work = self._work(call, record)
        try:
            if call.waits_for_room:
                await self._until_done(self._enter(work, record), request.receive)
            else:
                self._put(work, record)
            if work.sentences:
                results = asyncio.wait([sentence.result for sentence in work.sentences])
                await self._until_done(results, request.receive)
            translations = work.translations(call)
            self.metrics.failed_texts.inc(sum(translation.problem is not None for translation in translations))
            return translations
        finally:
            self.end(work, record)

    async def segments(self, work: "Work") -> AsyncIterator[tuple[int, str]]:
        """Yield the number of each part of the first text, and its translation, in order, as soon as it is there."""
        try:
            async with asyncio.timeout(self.limits.deadline_seconds):
                text = work.texts[0]
                sentences = iter(text.sentences)
                pending, index = "", 0
                for part in text.document:
                    if isinstance(part, str):
                        pending += part
                        continue
                    if index:
                        yield index - 1, pending
                        pending = ""
                    pending += _write(part, await next(sentences).result, 0)
                    index += 1
                yield max(0, index - 1), pending
        except TimeoutError:
            raise self._too_late() from None

    def start(self, call: TranslateCall, record: Record) -> "Work":
        """Put the sentences of a request into the queue.

        Raises Refusal if they do not fit, are too long, or have terms that the search cannot meet.
        """
        work = self._work(call, record)
        self._put(work, record)
        return work

    def _work(self, call: TranslateCall, record: Record) -> "Work":
        """Return the sentences of a request, and count them. Raises Refusal for what the search cannot do."""
        texts = list[_Text]()
        constraints = call.constraints or [FREE] * len(call.texts)
        documents = call.documents or [None] * len(call.texts)
        for text, pair, constraint, document in zip(call.texts, call.pairs, constraints, documents, strict=True):
            if pair[0] == pair[1]:
                texts.append(_Text([text]))
                continue
            if document is None:
                document = html_document(text) if call.is_html else plain_document(text, keeps_lines=call.keeps_lines)
            options = _options(self.options, self.models.tags[pair], call)
            model = self.models.by_pair[pair]
            if call.terms or call.placeholders:
                check_terms(model, options)
            terms = self.models.terms[pair].updated(call.terms)
            texts.append(_sentences(document, model, options, constraint, terms))
        work = Work(texts)
        record.texts += len(call.texts)  # of a file, each portion is added
        record.characters += sum(map(len, call.texts))
        record.source_tokens += sum(sentence.n_tokens for sentence in work.sentences)
        return work

    def _put(self, work: "Work", record: Record) -> None:
        if work.sentences:
            self.queue.put(work.sentences, record.sender)

    async def _enter(self, work: "Work", record: Record) -> None:
        """Put the sentences of a request into the queue as soon as there is room. Raises Refusal if there is none."""
        end = time.monotonic() + self.limits.deadline_seconds - ROOM_SECONDS
        while True:
            try:
                return self._put(work, record)
            except Refusal as refusal:
                if refusal.reason != NO_ROOM or time.monotonic() > end:
                    raise
            await asyncio.sleep(ROOM_SECONDS)

    async def _until_done(self, coroutine: Coroutine[Any, Any, object], receive: Receive) -> None:
        """Await a part of a request, up to the deadline and while watching whether the client leaves."""
        work = asyncio.ensure_future(coroutine)
        leaving = asyncio.ensure_future(_until_the_client_leaves(receive))
        try:
            await asyncio.wait(
                {work, leaving}, timeout=self.limits.deadline_seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if not work.done():
                raise ClientLeft if leaving.done() else self._too_late()
            work.result()
        finally:
            work.cancel()
            leaving.cancel()

    def _too_late(self) -> Refusal:
        message = f"no translation within {self.limits.deadline_seconds:g} s; try again later, or send a shorter text"
        return Refusal(503, message, "deadline", retry_after=self.queue.retry_after)

    def end(self, work: "Work", record: Record) -> None:
        """Drop what is not translated, and write times and counts into the record of the request."""
        self.queue.drop(work.sentences)
        successes = [
            s for s in work.sentences if s.result.done() and not s.result.cancelled() and not s.result.exception()
        ]
        record.target_tokens += sum(len(s.result.result().pieces) for s in successes)
        now = time.monotonic()
        if work.sentences:
            record.queue_ms += 1000 * max((s.taken_at or now) - s.put_at for s in work.sentences)
            record.decode_ms += 1000 * max((s.finished_at or now) - (s.taken_at or now) for s in work.sentences)


class ClientLeft(Exception):
    """The client has closed the connection before its answer."""


class Work:
    """The texts of a request on their way through the queue."""

    def __init__(self, texts: Sequence[_Text]) -> None:
        self.texts = texts
        self.sentences = [sentence for text in texts for sentence in text.sentences]

    def translations(self, call: TranslateCall) -> list[TextTranslation]:
        """Return the translation of each text, once all sentences have their results."""
        translations = []
        constraints = call.constraints or [FREE] * len(self.texts)
        for text, constraint in zip(self.texts, constraints, strict=True):
            if text.failure is not None:
                translations.append(TextTranslation("", problem=text.failure))
                continue
            phrases = constraint.phrases()
            best, unmet = text.written(0), _unmet(text, 0, phrases)
            others = {text.written(number): _unmet(text, number, phrases) for number in range(1, call.alternatives + 1)}
            different = [other for other, its in others.items() if other != best and not Counter(its) - Counter(unmet)]
            confidence = text.confidences() if call.has_confidence else []
            more = {"confidence": confidence, "text_confidence": text.confidence}
            translations.append(TextTranslation(best, different, unmet=unmet, doubts=text.doubts, **more))
        return translations


def _options(options: DecodingOptions, tag: str | None, call: TranslateCall) -> DecodingOptions:
    """Return the options of a request. options: of the server."""
    n_best = call.alternatives + 1 if call.alternatives else options.n_best
    placeholders = options.placeholders or call.placeholders
    return _replaced(options, tag=tag, n_best=n_best, split=call.split or options.split, placeholders=placeholders)


_replaced = functools.lru_cache(maxsize=256)(dataclasses.replace)  # the checks take 0.05 ms


def _sentences(
    document: Document, model: TranslationModel, options: DecodingOptions, constraint: LineConstraint, terms: Terms
) -> _Text:
    """Return the document with the sentences of its lines, or with the problem of a line that is too long."""
    loop = asyncio.get_running_loop()
    parts = lines_of(document)
    text = _Text(document)
    if constraint:
        try:
            check_text(constraint, document, model, options)
        except Refusal as refusal:
            return _Text([], problem=refusal)
    lines = [part.line for part in parts]
    for part, ids in zip(parts, encode_lines(lines, model.tokenizer), strict=True):
        if problem := excess(part.line, ids):
            return _Text([], problem=invalid(problem))
        n_tokens = len(ids or ()) + 1
        result = loop.create_future()
        of_part = with_alignment(options, [part], model)
        text.sentences.append(Sentence(model, part.line, of_part, n_tokens, result, constraint, terms))
    return text


async def _until_the_client_leaves(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def beam_size(model: TranslationModel, options: DecodingOptions) -> int:
    """Return the beam size with which `model` translates."""
    return options.resolve(model.config.search).beam_size


def check_texts(texts: Sequence[str], limits: Limits) -> None:
    """Raise Refusal for too many texts, or too long ones."""
    if len(texts) > limits.texts:
        raise invalid(f"Invalid request: request ({len(texts)} texts) exceeds limit ({limits.texts})")
    longest = max(map(len, texts), default=0)
    for count, most in ((longest, limits.text_characters), (sum(map(len, texts)), limits.request_characters)):
        if count > most:
            raise invalid(f"Invalid request: request ({count}) exceeds text limit ({most})")
