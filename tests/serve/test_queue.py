"""The queue: bounds, turns by request, deadlines, clients that leave, and sentences on which the model fails."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from support.serving import JSON, Reverser, Served, served

from transduce.decoding.hypothesis import Translation
from transduce.decoding.options import DecodingOptions
from transduce.serve.keys import Sender
from transduce.serve.models import TranslationModel
from transduce.serve.queue import SentenceQueue
from transduce.serve.refusal import Refusal
from transduce.serve.sentence import Sentence, finish
from transduce.serve.settings import Limits

MODEL = Reverser()
BODY = b'{"q": "a b", "source": "en", "target": "de"}'


def sentences(loop: asyncio.AbstractEventLoop, words: str, model: TranslationModel | None = None) -> list[Sentence]:
    """Return a sentence of two tokens for each word."""
    model = model or MODEL
    return [Sentence(model, word, DecodingOptions(), 2, loop.create_future()) for word in words.split()]


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def lines(queue: SentenceQueue, count: int, tokens: int = 99) -> str:
    return " ".join(sentence.line for sentence in taken(queue, count, tokens))


def taken(
    queue: SentenceQueue,
    count: int = 9,
    tokens: int = 99,
    models: Sequence[TranslationModel] = (MODEL,),
    waits: bool = False,
) -> list[Sentence]:
    """Take sentences as an engine does that has this room for each lane of these models."""
    rooms = {(id(model), is_short): (count, tokens) for model in models for is_short in (True, False)}
    return queue.take(lambda: rooms, waits=waits) or []


def test_requests_take_turns(loop: asyncio.AbstractEventLoop) -> None:
    queue = SentenceQueue(Limits())
    for words in ("a1 a2 a3 a4", "b1", "c1 c2"):
        queue.put(sentences(loop, words))
    assert lines(queue, 4) == "a1 b1 c1 a2"
    queue.put(sentences(loop, "d1"))
    assert lines(queue, 9) == "c2 d1 a3 a4"
    assert (queue.waiting_sentences, queue.waiting_tokens, lines(queue, 9)) == (0, 0, "")


def test_sentences_are_taken_for_which_their_model_has_room(loop: asyncio.AbstractEventLoop) -> None:
    queue = SentenceQueue(Limits())
    other = Reverser()
    full = Reverser()
    queue.put(sentences(loop, "a1 a2 a3"))
    queue.put(sentences(loop, "f1", full))
    queue.put(sentences(loop, "x1 x2", other))
    rooms = {(id(MODEL), True): (9, 3), (id(full), True): (9, 0), (id(other), True): (1, 99)}  # the last may be longer
    assert [sentence.line for sentence in queue.take(lambda: rooms, waits=False) or ()] == ["a1", "a2", "x1"]
    assert taken(queue, count=0, models=[MODEL, full, other]) == []
    assert [s.line for s in taken(queue, models=[MODEL, full, other])] == ["a3", "f1", "x2"]


def test_requests_of_many_sentences_or_tokens_are_long(loop: asyncio.AbstractEventLoop) -> None:
    queue, requests = SentenceQueue(Limits()), [sentences(loop, "a " * count) for count in (1, 8, 9)]
    for request in requests:
        queue.put(request)
    (many_tokens,) = sentences(loop, "a")
    many_tokens.n_tokens = 513
    queue.put([many_tokens])
    assert [request[0].is_short for request in requests] == [True, True, False] and not many_tokens.is_short
    long = queue.take(lambda: {(id(MODEL), True): (0, 0), (id(MODEL), False): (99, 999)}, waits=False)
    assert long is not None and len(long) == 10


def test_the_queue_is_bounded_in_sentences_and_tokens(loop: asyncio.AbstractEventLoop) -> None:
    queue = SentenceQueue(Limits(waiting_sentences=3, waiting_tokens=6))
    queue.put(sentences(loop, "a b"))
    with pytest.raises(Refusal, match="2 sentences are waiting, at most 3 may") as refusal:
        queue.put(sentences(loop, "c d"))
    assert (refusal.value.status, refusal.value.retry_after) == (429, 1)
    with pytest.raises(Refusal) as refusal:
        queue.put(sentences(loop, "c d e f"))
    assert refusal.value.status == 400  # it would never fit
    queue.put(sentences(loop, "c"))
    assert (queue.waiting_sentences, queue.waiting_tokens) == (3, 6)


def measured(queue: SentenceQueue, tokens_a_second: float, search_seconds: Sequence[float] = ()) -> None:
    """Let the queue know the speed of the lane of short requests."""
    queue._lanes[LANE].measure(tokens_a_second, 1.0, search_seconds)  # noqa: SLF001 - as an engine that was busy


LANE = (id(MODEL), True)


def test_work_that_is_not_done_in_time_is_refused_at_the_door(loop: asyncio.AbstractEventLoop) -> None:
    """Retry-After is the time until there would be room for it."""
    queue = SentenceQueue(Limits(deadline_seconds=20))  # 17 s of it may wait
    measured(queue, tokens_a_second=1)
    for _ in range(2):
        queue.put(sentences(loop, "a b c d"))  # 2 tokens each
    with pytest.raises(Refusal, match="what waits needs the 20 s of a request; try again in 7 s") as refusal:
        queue.put(sentences(loop, "a b c d"))
    assert (refusal.value.status, refusal.value.retry_after, queue.waiting_sentences) == (429, 7, 8)
    assert queue.retry_after == 16
    measured(queue, tokens_a_second=9)
    queue.put(sentences(loop, "a b c d"))


def test_the_last_sentence_waits_for_its_place_in_a_full_search(loop: asyncio.AbstractEventLoop) -> None:
    queue = SentenceQueue(Limits(deadline_seconds=20))
    measured(queue, tokens_a_second=1, search_seconds=[8.0])
    queue.put(sentences(loop, "a b c d e f g h"))  # 16 s, and 24 would be too late for one that waits
    assert queue.retry_after == 24
    with pytest.raises(Refusal, match="try again in 9 s"):
        queue.put(sentences(loop, "a"))


def test_a_request_that_alone_is_too_much_work_is_refused_until_the_speed_is_old(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = SentenceQueue(Limits(deadline_seconds=4))
    measured(queue, tokens_a_second=1)
    with pytest.raises(Refusal, match="expected work for 4 s, not for 6 s as now; send fewer texts") as refusal:
        queue.put(sentences(loop, "a b c"))
    assert refusal.value.status == 413
    now = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: now)
    queue.put(sentences(loop, "a b c"))


def test_a_request_in_danger_comes_before_newer_ones(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    queue = SentenceQueue(Limits(deadline_seconds=20))
    measured(queue, tokens_a_second=1)
    for words in ("a1 a2 a3", "b1 b2 b3"):
        queue.put(sentences(loop, words))
    assert lines(queue, 2) == "a1 b1"  # 12 s of work for 20 s
    now += 12
    assert lines(queue, 3) == "a2 a3 b2"  # 8 s of work for 8 s
    queue.put(sentences(loop, "c1"))
    now += 7  # 2 s of work for 1 s: b is late
    assert lines(queue, 9) == "c1 b3"


def test_senders_get_their_shares(loop: asyncio.AbstractEventLoop) -> None:
    queue = SentenceQueue(Limits())
    large, small = Sender(share=2), Sender()
    for words, sender in (("a1 a2 a3", large), ("b1 b2 b3 b4", small), ("c1 c2 c3", large)):
        queue.put(sentences(loop, words), sender)
    assert lines(queue, 6) == "a1 b1 c1 a2 b2 c2"
    queue.put(sentences(loop, "d1 d2"), Sender())
    assert lines(queue, 9) == "d1 a3 b3 c3 d2 b4"


def test_dropped_sentences_leave_the_queue(loop: asyncio.AbstractEventLoop) -> None:
    queue = SentenceQueue(Limits())
    first, second = sentences(loop, "a1 a2"), sentences(loop, "b1")
    queue.put(first)
    queue.put(second)
    (sentence,) = taken(queue, 1)
    queue.drop(first)
    assert not sentence.is_wanted
    assert (queue.waiting_sentences, queue.waiting_tokens, lines(queue, 9)) == (1, 2, "b1")


def test_a_closed_queue_lets_the_engine_finish(loop: asyncio.AbstractEventLoop) -> None:
    queue = SentenceQueue(Limits())
    queue.put(sentences(loop, "a"))
    queue.close()
    with pytest.raises(Refusal, match="shutting down"):
        queue.put(sentences(loop, "b"))
    assert [s.line for s in taken(queue, waits=True)] == ["a"]
    assert queue.take(dict, waits=True) is None


def test_results_of_one_step_wake_the_event_loop_once(
    loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = asyncio.new_event_loop()
    calls = list[object]()
    wake = loop.call_soon_threadsafe
    monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *call: (calls.append(call), wake(*call)))
    some, gone = sentences(loop, "a b c"), sentences(other, "d")
    other.close()
    results: list[Translation | Exception] = [
        Translation("x"),
        Refusal(500, "y", "model"),
        Translation("z"),
    ]
    some[2].result.cancel()  # its client left
    finish(dict(zip([*some, *gone], [*results, results[0]], strict=True)))
    loop.run_until_complete(asyncio.sleep(0))
    assert some[0].result.result() is results[0] and some[1].result.exception() is results[1]
    assert len(calls) == 1 and not gone[0].result.done()


def until(condition: Callable[[], bool]) -> None:
    for _ in range(500):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen")


def test_a_full_queue_answers_429_with_retry_after() -> None:
    model = Reverser()
    with served(model, waiting_sentences=1, deadline_seconds=0.3) as service:
        model.gate.clear()

        async def several() -> list[int]:
            answers = await asyncio.gather(*(service.request("POST", "/translate", BODY, JSON) for _ in range(5)))
            assert all("retry-after" in answer.headers for answer in answers)
            return sorted(answer.status for answer in answers)

        statuses = asyncio.run(several())
        assert statuses.count(429) >= 3 and set(statuses) == {429, 503}
        model.gate.set()
        assert service.queue.waiting_sentences == 0
        until(lambda: service.engine.running == 0)
        assert service.translate("a b").json == {"translatedText": "b a"}


def test_a_client_that_leaves_takes_its_sentences_along() -> None:
    model = Reverser()
    with served(model) as service:
        model.gate.clear()
        for _ in range(3):
            assert service.call("POST", "/translate", BODY, JSON, leaves=True).status == 0
        assert service.queue.waiting_sentences == 0
        assert service.value("cancelled_total") == 3
        model.gate.set()
        until(lambda: service.engine.running == 0)
        assert len(model.batches) <= 1
    assert [line["status"] for line in service.log] == [499] * 3


@pytest.mark.parametrize(
    ("problem", "status"), [(ValueError("secret"), 500), (MemoryError(), 503), (FloatingPointError("NaN"), 500)]
)
def test_a_sentence_on_which_the_model_fails_harms_only_itself(problem: Exception, status: int) -> None:
    model = Reverser("bad", problem)
    with served(model) as service:

        async def both() -> list[tuple[int, bytes]]:
            model.gate.clear()
            bodies = [BODY, BODY.replace(b"a b", b"bad"), BODY]
            tasks = [asyncio.ensure_future(service.request("POST", "/translate", body, JSON)) for body in bodies]
            await asyncio.sleep(0.05)
            model.gate.set()
            return [(answer.status, answer.body) for answer in await asyncio.gather(*tasks)]

        first, second, third = asyncio.run(both())
        assert first == third == (200, b'{"translatedText":"b a"}')
        assert second[0] == status and b"secret" not in second[1]
        assert service.translate("a b").status == 200


def test_a_waiting_single_sentence_is_next() -> None:
    """A request of 128 texts does not delay another one by its whole length."""
    model = Reverser()
    with served(model) as service:

        async def both() -> None:
            model.gate.clear()
            many = b'{"q": [%s], "source": "en", "target": "de"}' % b",".join([b'"m n"'] * 128)
            slow = asyncio.ensure_future(service.request("POST", "/translate", many, JSON))
            await asyncio.to_thread(until, lambda: service.engine.running == 64)
            single = asyncio.ensure_future(service.request("POST", "/translate", BODY, JSON))
            await asyncio.to_thread(until, lambda: service.queue.waiting_sentences == 64 + 1)
            model.gate.set()
            await asyncio.gather(slow, single)

        asyncio.run(both())
        assert [len(batch) for batch in model.batches] == [64, 1, 64] and model.batches[1] == ["a b"]


def test_no_text_key_or_header_is_in_log_or_metrics(capfd: pytest.CaptureFixture[str]) -> None:
    model = Reverser("failing")
    with served(model, keys=["canary-key"]) as service:
        exercise_with_canaries(service)
        metrics = service.metrics.text().decode()
    assert "canary" not in service.log_text + metrics + "".join(capfd.readouterr())
    assert len(service.log) >= 10


def exercise_with_canaries(service: Served) -> None:
    """Send requests, also failing ones, with the word canary in each place that a client can fill."""
    fields = {"source": "en", "target": "de", "api_key": "canary-key"}
    for q in ("canary", "canary failing", ["canary", 3]):
        service.post("/translate", q=q, **fields)
    service.post("/translate", q="a", source="canary", target="canary", api_key="canary-key")
    service.post("/translate", q="a", source="en", target="de", api_key="canary")
    service.post("/v2/translate", {"Authorization": "DeepL-Auth-Key canary"}, text=["canary"], target_lang="DE")
    service.call("POST", "/translate?q=canary&source=en&target=de&api_key=canary-key")
    service.call("GET", "/canary?canary", headers={"x-request-id": "canary canary", "user-agent": "canary"})
    service.call("POST", "/translate", b"canary", {"content-type": "canary"})
    service.call("POST", "/translate", b'{"canary', JSON)
    service.call("POST", "/translate", b"canary", leaves=True)


def test_a_request_id_that_is_plain_is_kept() -> None:
    with served() as service:
        assert service.call("GET", "/health", headers={"x-request-id": "A-1.b_2"}).headers["x-request-id"] == "A-1.b_2"
        assert len(service.call("GET", "/health", headers={"x-request-id": "a b"}).headers["x-request-id"]) == 16
    assert service.log[0]["id"] == "A-1.b_2" and service.log[0]["route"] == "/health"
