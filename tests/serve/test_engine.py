"""The engine: sentences that join and leave at every step, the time of models and requests, threads, failures."""

import asyncio
import json
import random
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support.random_models import CONFIG, random_model
from support.serving import JSON, Answer, Reverser, Served, served, until
from support.toy_task import Toy

import transduce
from transduce import Translator
from transduce.decoding.hypothesis import Translation
from transduce.decoding.options import DecodingOptions
from transduce.decoding.running_search import RunningSearch, SearchStep
from transduce.decoding.running_translation import RunningTranslation
from transduce.serve import engine
from transduce.serve.engine import Engine
from transduce.serve.queue import SentenceQueue
from transduce.serve.sentence import Sentence
from transduce.serve.settings import Limits
from transduce.storage.model_folder import LoadedModel


class Stepper(Reverser):
    """A model that writes a word of each line in a step.

    permits: one for each step that is allowed; None: all. steps: of each step its lines, in all searches.
    """

    clock = [0.0]

    def __init__(self, failing: str | None = None, steps: list[list[str]] | None = None) -> None:
        super().__init__(failing)
        self.parallel_searches = 1
        self.permits: threading.Semaphore | None = None
        self.steps: list[list[str]] = [] if steps is None else steps
        self.searches: list[StepperSearch] = []

    def running(self) -> "StepperSearch":
        self.searches.append(StepperSearch(self))
        return self.searches[-1]


class StepperSearch:
    """A search of a `Stepper`: of each sentence its line, and the words that are not written yet."""

    def __init__(self, model: Stepper) -> None:
        self.model = model
        self.lines: dict[Sentence, tuple[str, int]] = {}

    @property
    def room(self) -> tuple[int, int]:
        return 64 - len(self.lines), 2_048

    is_blocked = False

    def close(self) -> None:
        pass

    def __len__(self) -> int:
        return len(self.lines)

    def admit(self, key: Sentence, text: str, options: DecodingOptions, *phrases: object) -> None:
        if text == "refused":
            raise ValueError("secret")
        self.lines[key] = text, len(text.split())

    def drop(self, keys: Collection[Sentence]) -> None:
        for key in keys:
            self.lines.pop(key, None)

    def step(self) -> dict[Sentence, Translation | Exception]:
        if self.model.permits is not None:
            assert self.model.permits.acquire(timeout=30)
        self.model.steps.append([text for text, _ in self.lines.values()])
        self.model.clock[0] += len(self.lines)
        if any("defect" in text for text, _ in self.lines.values()):
            raise AssertionError("secret")
        outputs = dict[Sentence, Translation | Exception]()
        for key, (text, words) in list(self.lines.items()):
            self.lines[key] = text, words - 1
            if self.model.failing is not None and self.model.failing in text:
                outputs[key] = self.model.problem
            elif words == 1:
                outputs[key] = Translation(" ".join(reversed(text.split())))
        self.drop(outputs)
        return outputs


def body(text: str | Sequence[str], **fields: Any) -> bytes:
    return json.dumps({"q": text, "source": "en", "target": "de", **fields}).encode()


async def post(service: Served, text: str | Sequence[str], leaves: bool | asyncio.Event = False) -> Answer:
    return await service.request("POST", "/translate", body(text), JSON, leaves)


def test_a_new_request_joins_at_the_next_step_and_leaves_when_it_is_done() -> None:
    model = Stepper()
    permits = model.permits = threading.Semaphore(0)
    with served(model) as service:

        async def both() -> None:
            long = asyncio.ensure_future(post(service, "l " * 50))
            await until(lambda: service.engine.running == 1)
            permits.release(10)
            await until(lambda: len(model.steps) == 10)
            short = asyncio.ensure_future(post(service, "a b"))
            await until(lambda: service.queue.waiting_sentences == 1)
            permits.release(4)
            assert (await short).json == {"translatedText": "b a"}
            assert not long.done()
            permits.release(50)
            assert (await long).status == 200

        asyncio.run(both())
    assert len(model.steps) == 50 and sum("a b" in lines for lines in model.steps) == 2
    assert service.value("step_rows_count") == 50 and service.value("step_rows_sum") == 52


def test_a_sentence_whose_client_left_is_in_at_most_two_more_steps() -> None:
    """Goal R8, with 200 clients."""
    model = Stepper()
    permits = model.permits = threading.Semaphore(0)
    with served(model) as service:

        async def many() -> None:
            end = asyncio.Event()
            staying = asyncio.ensure_future(post(service, "s " * 2_000, end))
            for i in range(40):
                leave = asyncio.Event()
                leaving = [asyncio.ensure_future(post(service, f"{i}-leaves " * 500, leave)) for _ in range(5)]
                await until(lambda: service.queue.waiting_sentences + service.engine.running == 6)
                permits.release(3)
                await until(lambda n=6 * i + 3: service.engine.running == 6 and len(model.steps) == n)
                leave.set()
                assert [answer.status for answer in await asyncio.gather(*leaving)] == [0] * 5
                permits.release(3)
                await until(lambda n=6 * i + 6: service.engine.running == 1 and len(model.steps) == n)
                assert not any(text.startswith(f"{i}-") for lines in model.steps[6 * i + 5 :] for text in lines)
            end.set()
            await staying
            permits.release(2)
            await until(lambda: service.engine.running == 0)

        asyncio.run(many())
    assert service.value("cancelled_total") == 201


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time of the engine: each step of a `Stepper` takes a second for each of its lines."""
    seconds = [0.0]
    monkeypatch.setattr(engine, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    monkeypatch.setattr(Stepper, "clock", seconds)
    return seconds


def test_models_share_the_time(clock: list[float]) -> None:
    steps: list[list[str]] = []
    first, second = Stepper(steps=steps), Stepper(steps=steps)
    permits = first.permits = second.permits = threading.Semaphore(0)
    with served({("en", "de"): first, ("de", "en"): second}) as service:

        async def both() -> list[Answer]:
            english = asyncio.ensure_future(post(service, ["a " * 20] * 4))
            await until(lambda: service.engine.running == 4)
            other = service.request("POST", "/translate", body("x " * 20, source="de", target="en"), JSON)
            german = asyncio.ensure_future(other)
            await until(lambda: service.queue.waiting_sentences == 1)
            permits.release(100)
            return [await english, await german]

        assert [answer.status for answer in asyncio.run(both())] == [200, 200]
    names = "".join(lines[0][0] for lines in steps)
    assert names == "a" + "xxxxa" * 5 + "a" * 14


def test_a_short_request_has_as_much_time_as_a_long_one(clock: list[float]) -> None:
    """Goal R23: it waits for the present step of the long one, and for another when it has taken as long."""
    model = Stepper()
    permits = model.permits = threading.Semaphore(0)
    with served(model) as service:

        async def both() -> None:
            long = asyncio.ensure_future(post(service, ["l " * 30] * 64))
            await until(lambda: service.engine.running == 64)
            permits.release(10)
            await until(lambda: len(model.steps) == 10)
            short = asyncio.ensure_future(post(service, "a " * 80))
            await until(lambda: service.queue.waiting_sentences == 1)
            permits.release(200)
            assert (await short).status == (await long).status == 200

        asyncio.run(both())
    names = ["l" if len(lines) == 64 else lines[0][0] for lines in model.steps]
    assert "".join(names) == "l" * 11 + "a" * 65 + "l" + "a" * 15 + "l" * 18


def test_threads_take_equal_shares() -> None:
    model = Stepper()
    permits = model.permits = threading.Semaphore(0)
    with served(model, n_threads=2) as service:

        async def many() -> Answer:
            task = asyncio.ensure_future(post(service, ["a b"] * 40))
            await until(lambda: service.engine.running == 40)
            assert [len(search) for search in model.searches] == [0, 20, 0, 20]  # short and long requests
            permits.release(9)
            return await task

        assert asyncio.run(many()).json == {"translatedText": ["b a"] * 40}


def test_by_default_there_are_as_many_threads_as_all_models_gain_by(model: Translator) -> None:
    many, few = Stepper(), Stepper()
    many.parallel_searches, few.parallel_searches = 4, 3
    for models, count in (([many, few], 3), ([many, Reverser()], 1)):
        many.searches.clear()
        Engine(SentenceQueue(Limits()), models)
        assert len(many.searches) == 2 * count
    assert model.parallel_searches == 1 == torch.get_num_threads()


@pytest.mark.parametrize(("word", "kind"), [("bad", "ValueError"), ("refused", "ValueError")])
def test_a_text_on_which_the_model_fails_harms_only_itself(word: str, kind: str) -> None:
    model = Stepper("bad")
    problem = f"the model failed on this text: {kind}"
    with served(model) as service:

        async def several() -> list[Answer]:
            texts = ["a b", word, ["a b", word, "c d"], [word, word], "c d"]
            return await asyncio.gather(*(post(service, text) for text in texts))

        first, bad, mixed, all_bad, last = asyncio.run(several())
        assert first.json == {"translatedText": "b a"} and last.json == {"translatedText": "d c"}
        assert (bad.status, bad.json) == (500, {"error": problem})
        assert mixed.json == {"translatedText": ["b a", "", "d c"], "problems": [None, problem, None]}
        assert all_bad.status == 500 and service.value("rejected_total") == 2
        assert service.value("failed_texts_total") == 4
        answer = service.post("/v2/translate", text=["a b", word], source_lang="EN", target_lang="DE")
        assert (answer.status, answer.json) == (500, {"message": problem})
        answer = service.call("POST", "/translate", body(f"a b\n{word}"), {**JSON, "accept": "text/event-stream"})
        assert answer.body.decode().endswith(f'event: error\ndata: {{"error": "{problem}"}}\n\n')


def test_a_line_of_more_tokens_than_the_model_takes_is_refused() -> None:
    """Continuous batching, and an engine that translates whole lists."""
    model = Translator([random_model(replace(CONFIG, positions="learned", max_positions=45))])
    whole = Translator([LoadedModel(model.models[0], model.config, model.tokenizer)])
    whole.running = lambda: None  # pyright: ignore[reportAttributeAccessIssue]
    texts = ["a b", "a b c d e f g h i j " * 6]
    for other in (model, whole):
        with served(other) as service:
            assert service.translate(texts).json.keys() == {"translatedText", "doubts"}
            service.service.options = DecodingOptions(split="none")
            answer = service.translate(texts[1])
            message = "expected at most 44 tokens, not 109; split the line"
            assert (answer.status, answer.json) == (400, {"error": f"Invalid request: $.q: {message}"})
            answer = service.translate(texts)  # of which one can be translated
            assert (answer.status, answer.json["problems"]) == (200, [None, message])
            assert service.value("failed_texts_total") == 2


def test_a_defect_of_a_search_fails_its_sentences_and_no_later_one() -> None:
    model = Stepper()
    with served(model) as service:
        assert service.translate("defect").status == 500
        assert service.translate("a b").json == {"translatedText": "b a"}
        assert service.engine.running == 0 and len(model.searches) == 3


# ---- real models -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model(toy: Toy) -> Iterator[Translator]:
    yield transduce.load(toy.model, precision="auto")


@pytest.mark.parametrize("n_threads", [1, 2])
def test_every_answer_is_the_one_of_translate_while_clients_come_and_leave(
    model: Translator, toy: Toy, n_threads: int
) -> None:
    chance = random.Random(n_threads)
    lines = [chance.choice(toy.unseen) for _ in range(150)]
    expected = [translation.text for translation in model.translate(lines)]
    with served(model, n_threads=n_threads, waiting_sentences=5_000) as service:

        async def client(i: int) -> None:
            await asyncio.sleep(chance.random() * 0.5)
            texts = lines[i : i + chance.choice([1, 1, 3])]
            task = asyncio.ensure_future(post(service, texts))
            if chance.random() < 0.3:
                await asyncio.sleep(chance.random() * 0.05)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
            else:
                assert (await task).json == {"translatedText": expected[i : i + len(texts)]}

        async def all_clients() -> None:
            await asyncio.gather(*(client(i) for i in range(len(lines))))
            await until(lambda: service.engine.running == 0 and service.queue.waiting_sentences == 0)

        asyncio.run(all_clients())
        assert service.value("step_rows_sum") > 100


def test_alternatives_and_html_come_from_the_same_search(model: Translator, toy: Toy) -> None:
    line = next(line for line in toy.unseen if len(line.split()) == 5)
    best = model.translate([line], n_best=3)[0]
    with served(model) as service:

        async def several() -> list[Answer]:
            bodies = body(line, alternatives=2), body(f"<p>{line}</p>", format="html"), body(line)
            return await asyncio.gather(*(service.request("POST", "/translate", body, JSON) for body in bodies))

        with_others, html, plain = (answer.json for answer in asyncio.run(several()))
        others = [t.text for t in best.alternatives if t.text != best.text]
        assert with_others == {"translatedText": best.text, "alternatives": list(dict.fromkeys(others))}
        assert html == {"translatedText": f"<p>{best.text}</p>"} and plain == {"translatedText": best.text}


def test_an_ensemble_and_a_model_whose_states_cannot_join_are_served(toy: Toy, model: Translator) -> None:
    ensemble = transduce.load(toy.model, toy.model)
    alone = transduce.load(toy.model)
    backend = alone.running().search.backend
    backend.decoder = replace(backend.decoder, join=None)
    lines = toy.unseen[:20]
    for other in (ensemble, alone):
        expected = [translation.text for translation in other.translate(lines)]
        with served(other) as service:

            async def several(service: Served = service) -> list[Answer]:
                return await asyncio.gather(*(post(service, line) for line in lines))

            assert [answer.json["translatedText"] for answer in asyncio.run(several())] == expected


@pytest.mark.parametrize("n_threads", [1, 2])
def test_searches_that_need_a_model_alone_take_turns(toy: Toy, monkeypatch: pytest.MonkeyPatch, n_threads: int) -> None:
    """As on a GPU, whose recorded steps are of one search. Short and long requests have separate searches."""
    alone = transduce.load(toy.model)
    backend = alone.running().search.backend
    backend.decoder, backend.locks = replace(backend.decoder, join=None), [threading.Lock()]
    lines = toy.unseen[:24]
    expected = [translation.text for translation in alone.translate(lines)]
    step, steps = RunningSearch.step, []

    def counted(search: RunningSearch[Any]) -> SearchStep[Any]:
        steps.append(search.is_blocked)
        return step(search)

    monkeypatch.setattr(RunningSearch, "step", counted)
    with served(alone, n_threads=n_threads) as service:

        async def several() -> list[Answer]:
            texts = [lines[:12], *lines[:6], lines[12:], *lines[6:12]]
            return await asyncio.gather(*(post(service, text) for text in texts))

        answers = [answer.json["translatedText"] for answer in asyncio.run(several())]
        assert answers == [expected[:12], *expected[:6], expected[12:], *expected[6:12]]
    assert n_threads > 1 or not any(steps)  # a single thread makes no step in vain


def test_a_defect_of_a_search_that_has_a_model_alone_leaves_it_to_the_next(
    toy: Toy, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = transduce.load(toy.model)
    backend = alone.running().search.backend
    backend.decoder, backend.locks = replace(backend.decoder, join=None), [threading.Lock()]
    with served(alone) as service:
        monkeypatch.setattr(RunningTranslation, "drop", lambda self, keys: 1 / 0)
        assert service.translate(toy.unseen[0]).status == 500
        monkeypatch.undo()
        assert service.translate(toy.unseen[0]).json == {"translatedText": alone.translate(toy.unseen[:1])[0].text}


class SleepingSearch(StepperSearch):
    """A search of at most 16 sentences, whose step takes longer with more of them."""

    @property
    def room(self) -> tuple[int, int]:
        return 16 - len(self.lines), 2_048

    def step(self) -> dict[Sentence, Translation | Exception]:
        time.sleep(1e-3 + 2e-4 * len(self.lines))
        return super().step()


def test_with_too_many_requests_as_many_sentences_are_translated_as_without() -> None:
    """At three times of what the engine can do, nearly all sentences that it translates are in complete answers.

    The deadline is short, so one of three attempts may do it: other programs can stop this one for longer.
    """
    assert any(_share_under_load() > 0.6 for _ in range(3))


def _share_under_load() -> float:
    """Return the answers at three times of what the engine can do, divided by what it can do in this time."""
    model = Stepper()
    model.running = lambda: SleepingSearch(model)  # type: ignore[method-assign]
    with served(model, deadline_seconds=0.6) as service:
        rng = random.Random(1)

        async def send(statuses: list[int]) -> float:
            statuses.append((await post(service, ["w " * rng.randint(5, 15) for _ in range(30)])).status)
            return time.monotonic()

        async def seconds_of(n_requests: int, gap: float, statuses: list[int]) -> float:
            start, sending = time.monotonic(), []
            for number in range(n_requests):
                await asyncio.sleep(start + number * gap - time.monotonic())
                sending.append(asyncio.ensure_future(send(statuses)))
            return max(await asyncio.gather(*sending)) - start

        alone: list[int] = []
        seconds = asyncio.run(seconds_of(3, 0.0, alone)) / 3
        statuses: list[int] = []
        duration = asyncio.run(seconds_of(24, seconds / 3, statuses))
    assert alone == [200] * 3 and 429 in statuses
    return statuses.count(200) * seconds / duration
