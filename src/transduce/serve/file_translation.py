"""The texts of a file on their way through the service, a portion after the other, and what is doubtful about them."""

from collections.abc import Iterator, Sequence

from starlette.requests import Request

from transduce.decoding.phrases.placeholders import damaged_placeholders
from transduce.serve.documents import Part
from transduce.serve.logs import Record
from transduce.serve.models import LanguagePair
from transduce.serve.service import Service, TextTranslation, TranslateCall

PORTION = 64  # texts of a file that are translated together; other requests take turns with them


async def translate_parts(
    service: Service, parts: Sequence[Part], pair: LanguagePair, request: Request, record: Record, *, placeholders: bool
) -> list[TextTranslation]:
    """Return the translation of each part. A portion waits for room in the queue.

    Raises Refusal if there is no room in time, and if the model fails on a part.
    """
    if pair[0] == pair[1]:
        return [TextTranslation(part.write(part.line, None)) for part in parts]
    translations = list[TextTranslation]()
    for portion in portions(parts, service.limits.request_characters // 10):
        texts, documents = [part.line for part in portion], [[part] for part in portion]
        pairs = [pair] * len(portion)
        call = TranslateCall(texts, pairs, placeholders=placeholders, documents=documents, waits_for_room=True)
        translations += await service.translate(call, request, record)
        if failure := next(
            (t.problem for t in translations[-len(portion) :] if t.problem and t.problem.status >= 500), None
        ):
            raise failure
    return translations


def portions(parts: Sequence[Part], most: int) -> Iterator[Sequence[Part]]:
    """Yield the parts in portions of at most PORTION, each complete where it has `most` characters."""
    first = count = 0
    for i, part in enumerate(parts, start=1):
        count += len(part.line)
        if count >= most or i - first == PORTION or i == len(parts):
            yield parts[first:i]
            first, count = i, 0


def doubtful_texts(
    parts: Sequence[Part], translations: Sequence[TextTranslation], min_confidence: float | None
) -> list[dict[str, object]]:
    """Return number and source of each text that a reader should look at, with the reasons.

    A damaged placeholder is a reason, also where the request did not ask to keep it.

    min_confidence: the confidence below which a translation is one of them; None: no confidence makes it one.
    """
    texts = list[dict[str, object]]()
    for number, (part, translation) in enumerate(zip(parts, translations, strict=True), start=1):
        confidence = 1.0 if translation.text_confidence is None else translation.text_confidence
        damaged = [] if translation.problem else damaged_placeholders(part.line, translation.text)
        reasons = {
            "problem": translation.problem and translation.problem.message,
            "unmetConstraints": [*dict.fromkeys([*translation.unmet, *damaged])],
            "doubts": [*translation.doubts],
            "textConfidence": confidence if confidence < (min_confidence or 0.0) else None,
        }
        if any(reason not in (None, []) for reason in reasons.values()):
            there = {name: reason for name, reason in reasons.items() if reason not in (None, [])}
            texts.append({"number": number, "text": part.line, **there})
    return texts
