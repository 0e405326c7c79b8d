"""Files over HTTP: their texts in portions, what is doubtful about them, and the download."""

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.serving import JSON, Answer, Reverser, Served, served, until
from support.toy_task import CommandResult, Toy

import transduce
from transduce.decoding.hypothesis import Translation
from transduce.serve import downloads, file_translation
from transduce.serve import service as service_module
from transduce.serve.documents import lines_of
from transduce.serve.formats.files import read_file
from transduce.serve.refusal import Refusal


@pytest.fixture(scope="module")
def service() -> Iterator[Served]:
    with served() as service:
        yield service


BOUNDARY = {"content-type": "multipart/form-data; boundary=xx"}
FILLING = json.dumps({"q": ["a b"] * 64, "source": "en", "target": "de"}).encode(), JSON


def form_with(name: str, content: bytes, **fields: str) -> bytes:
    """Return a form with a file and other fields."""
    parts = [f'name="file"; filename="{name}"\r\n\r\n'.encode() + content]
    parts += [
        f'name="{key}"\r\n\r\n{value}'.encode() for key, value in {"source": "en", "target": "de", **fields}.items()
    ]
    return b"".join(b"--xx\r\nContent-Disposition: form-data; " + part + b"\r\n" for part in parts) + b"--xx--\r\n"


def upload(service: Served, name: str, content: bytes, **fields: str) -> Answer:
    """Return the answer to a form with a file and other fields."""
    return service.call("POST", "/translate_file", form_with(name, content, **fields), BOUNDARY)


SRT = b"1\n00:00:01,000 --> 00:00:02,000\n%s\n\n"


def test_a_file_is_translated_and_downloaded_once(service: Served) -> None:
    content = SRT % b"a <i>b</i>" + 99 * (SRT % b"c d & e")
    answer = upload(service, "../../C:\\x/film.SRT", content, source="auto")
    assert answer.status == 200, answer
    path = "/download_file/" + answer.json["translatedFileUrl"].rpartition("/download_file/")[2]
    assert re.fullmatch(r"/download_file/[0-9a-f]{32}\.srt", path)
    assert service.call("HEAD", path).status == 200, "a look leaves the file"
    download = service.call("GET", path)
    assert download.body == SRT % b"b <i>a</i>" + 99 * (SRT % b"e & d c")
    assert download.headers["content-disposition"] == "attachment; filename*=UTF-8''film_de.srt"
    assert service.call("GET", path).status == 404
    assert service.call("GET", "/download_file/..%2f..%2fetc%2fpasswd").status == 404


def test_the_log_counts_all_portions_of_a_file() -> None:
    with served() as service:
        assert upload(service, "a.txt", b"a b\n" * 150).status == 200
    (line,) = (line for line in service.log if line["route"] == "/translate_file")
    assert (line["texts"], line["characters"], line["source_tokens"]) == (150, 450, 450)


@pytest.mark.parametrize(
    ("name", "content", "fields", "message"),
    [
        ("a.exe", b"a", {}, "Invalid request: file: expected a name that ends with .txt"),
        ("", b"a", {}, "Invalid request: file: expected a name that ends with .txt"),
        ("a.docx", b"a", {}, "Invalid request: file: expected a zip archive"),
        ("a.txt", b"\xff", {}, "Invalid request: file:1: expected UTF-8"),
        ("a.txt", b"a b " * 125_001, {}, "Invalid request: file (500003 characters) exceeds limit (500000)"),
        ("a.txt", b"a", {"target": "xx"}, "xx is not supported"),
        ("a.txt", b"a", {"target": ""}, "Invalid request: missing target parameter"),
    ],
    ids=range(7),
)
def test_a_wrong_file_is_refused(
    service: Served, name: str, content: bytes, fields: dict[str, str], message: str
) -> None:
    answer = upload(service, name, content, **fields)
    assert answer.status == 400 and message in answer.json["error"], answer


@pytest.mark.parametrize("name", ["must", "must_not", "prefix", "terms", "mustnot", "Must", "must-not", "term"])
def test_phrases_with_a_file_are_refused(service: Served, name: str) -> None:
    value = '{"a": "x"}' if name == "terms" else "x"
    remedy = "send its texts to /translate, or start the server with --terms FILE"
    message = f"Invalid request: $.{name}: expected no must, must_not, prefix, terms with a file; {remedy}"
    answer = upload(service, "a.txt", b"a b", **{name: value})
    assert (answer.status, answer.json) == (400, {"error": message})


@pytest.mark.parametrize(
    ("name", "near"),
    [("min_confidenc", "min_confidence"), ("minConfidence", "min_confidence"), ("placeholder", "placeholders")],
)
def test_a_misspelt_field_of_a_file_is_refused(service: Served, name: str, near: str) -> None:
    message = f"Invalid request: $.{name}: expected one of placeholders, min_confidence; did you mean {near!r}?"
    answer = upload(service, "a.txt", b"a b", **{name: "1"})
    assert (answer.status, answer.json) == (400, {"error": message})


def test_other_fields_of_clients_with_a_file_are_ignored(service: Served) -> None:
    others = dict.fromkeys("api_key apiKey secret format alternatives q filename type".split(), "x")
    assert upload(service, "a.txt", b"a b", must="", terms="", **others).status == 200


def test_files_wait_for_a_limited_time_and_in_limited_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    files = downloads.Downloads()
    monkeypatch.setattr(downloads, "MOST_BYTES", 10)
    key = files.add("a.txt", "de", b"123456")
    with pytest.raises(Refusal, match="too many files wait for their download"):
        files.add("a.txt", "de", b"123456")
    later = time.monotonic() + 601
    monkeypatch.setattr(time, "monotonic", lambda: later)
    with pytest.raises(Refusal, match="File not found"):
        files.take(key)
    assert files.take(files.add("b.txt", "de", b"123456")).name == "b_de.txt"


def test_portions_of_a_file_end_at_a_number_of_texts_or_characters() -> None:
    lines = [*(["a" * 600] * 3), *(["b"] * 200), "c" * 5_000, "d"]
    parts = [part for part in lines_of(read_file("\n\n".join(lines).encode(), "txt", "file").document)]
    portions = [*file_translation.portions(parts, 1_000)]
    assert [part.line for portion in portions for part in portion] == lines
    assert [len(portion) for portion in portions] == [2, 64, 64, 64, 10, 1]


def test_more_files_at_a_time_are_refused() -> None:
    async def run() -> None:
        files = downloads.Downloads()
        async with AsyncExitStack() as stack:
            for _ in range(downloads.MOST_FILES):
                await stack.enter_async_context(files.work(9))
            with pytest.raises(Refusal, match="at the same time"):
                await stack.enter_async_context(files.work(9))
        async with files.work(9):
            pass

    asyncio.run(run())


class Slow(Reverser):
    """A model that takes 0.1 s for each batch."""

    def translate(self, lines: Any, **more: Any) -> list[Translation]:
        time.sleep(0.1)
        return super().translate(lines, **more)


@pytest.mark.parametrize("ends", ["late", "closed"])
def test_a_file_of_many_portions_ends_in_time_and_with_the_server(ends: str) -> None:
    """Each portion is in time. With a limit of 0.5 s for all of them, or at the end of the server, there is no more."""
    with served(Slow(), file_seconds=0.5 if ends == "late" else 60) as service:

        async def run() -> Answer:
            body = form_with("a.txt", b"a b\n\n" * 64 * 100)
            file = asyncio.ensure_future(service.request("POST", "/translate_file", body, BOUNDARY))
            if ends == "closed":
                await until(lambda: len(service.models.by_pair["en", "de"].batches) > 2)
                service.state.downloads.close()
            return await file

        start = time.monotonic()
        answer = asyncio.run(run())
        assert time.monotonic() - start < 5, "10 s for all portions"
        messages = {"late": "no translation of the file within 0.5 s", "closed": "the server is shutting down"}
        assert answer.status == 503 and messages[ends] in answer.json["error"], answer
        assert service.queue.waiting_sentences == 0
        later = upload(service, "a.txt", b"a b").status
        assert later == (200 if ends == "late" else 503)
        assert service.call("POST", "/translate", *FILLING).status == 200
    assert [line["status"] for line in service.log][:1] == [503]


# ---- as the command line -------------------------------------------------------------------------------------------


HTML = "<p>a <code>X</code> b c! d <i>e</i> <code>Y</code> f!</p>\n"
MARKDOWN = "a `X` b c! d *e* `Y` f!\n"


@pytest.mark.parametrize("fields", [{}, {"placeholders": "true"}])
@pytest.mark.parametrize(("name", "content"), [("a.html", HTML), ("a.md", MARKDOWN)])
def test_inline_elements_stay_in_their_sentences_as_on_the_command_line(
    toy: Toy, tmp_path: Path, cli: Callable[..., CommandResult], name: str, content: str, fields: dict[str, str]
) -> None:
    (tmp_path / name).write_text(content)
    target = tmp_path / f"out-{name}"
    command = ["--file", tmp_path / name, "--output", target, *(["--placeholders"] if fields else [])]
    assert cli("translate", toy.model, *command).code == 0
    expected = target.read_text()
    with served(transduce.load(toy.model)) as service:
        answer = upload(service, name, content.encode(), **fields)
        path = "/download_file/" + answer.json["translatedFileUrl"].rpartition("/download_file/")[2]
        assert service.call("GET", path).body.decode() == expected
        if name == "a.html":
            answer = service.translate(content, format="html", placeholders=bool(fields), alternatives=1)
            assert answer.json["translatedText"] == expected
    words = re.findall("[a-fXY]", re.sub("</?[a-z]+>", "", expected))
    assert sorted(words[:4]) == ["X", "a", "b", "c"] and sorted(words[4:]) == ["Y", "d", "e", "f"], expected


# ---- what is doubtful ----------------------------------------------------------------------------------------------


class Doubtful(Reverser):
    """A calibrated model: the confidence falls with the length. It cuts long lines."""

    calibration = True

    def translate(self, lines: Any, **more: Any) -> list[Translation]:
        outputs = super().translate(lines, **more)
        return [replace(t, confidence=1 / len(t.text), finished=len(t.text) < 9) for t in outputs]


def test_doubtful_texts_of_a_file_are_named() -> None:
    content = b"a b\n\na b c d e f\n\n12\n\na b c\n\n" + b"c " * 4_500
    with served(Doubtful()) as service:
        service.models.by_pair["en", "de"].tokenizer.encode_batch = lambda lines: [[0] * 2 * len(x) for x in lines]
        answer = upload(service, "a.txt", content).json["doubtfulTexts"]
        cut = {"number": 2, "text": "a b c d e f", "doubts": ["cut"]}
        problem = {"number": 5, "text": "c " * 4_499 + "c", "problem": "expected at most 8,192 tokens, not 17,998; "}
        answer[-1]["problem"] = answer[-1]["problem"].replace("split the line", "")
        assert answer == [cut, problem]
        unlikely = upload(service, "a.txt", content, min_confidence="0.25").json["doubtfulTexts"]
        assert [(text["number"], text.get("textConfidence")) for text in unlikely] == [(2, 1 / 11), (4, 0.2), (5, None)]
        assert upload(service, "a.txt", b"a b", min_confidence="0.3").json["doubtfulTexts"] == []
        schema = service.call("GET", "/openapi.json").json["components"]["schemas"]["File"]
        names = schema["properties"]["doubtfulTexts"]["items"]["properties"]
        assert {name for text in [*answer, *unlikely] for name in text} <= {*names}


class Forgetful(Reverser):
    """A model that lacks the target of each term "b", and a placeholder of the other lines if it is to keep them."""

    takes_constraints = True

    def translate(self, lines: Any, **more: Any) -> list[Translation]:
        outputs = super().translate(lines, **more)
        lacks = ("{n}",) if more["options"].placeholders else ()
        return [replace(t, unmet=("x",) if "b" in t.text else lacks) for t in outputs]


@pytest.mark.parametrize("placeholders", ["false", "true"])
def test_terms_and_placeholders_that_are_not_met_are_named(placeholders: str) -> None:
    with served(Forgetful()) as service:
        answer = upload(service, "a.txt", b"a b c\n\nc {n} d", placeholders=placeholders).json["doubtfulTexts"]
    term = {"number": 1, "text": "a b c", "unmetConstraints": ["x"]}
    placeholder = {"number": 2, "text": "c {n} d", "unmetConstraints": ["{n}"]}
    assert answer == ([term, placeholder] if placeholders == "true" else [term])


class Careless(Reverser):
    """Loses what is in braces."""

    def translate(self, lines: Sequence[str], **more: Any) -> list[Translation]:
        return super().translate([re.sub(r"{.*?}", "", line) for line in lines], **more)


def test_texts_that_lose_placeholders_are_named() -> None:
    with served(Careless()) as service:
        answer = upload(service, "a.txt", b"a {n} b\n\na b").json["doubtfulTexts"]
    assert answer == [{"number": 1, "text": "a {n} b", "unmetConstraints": ["{n}"]}]


@pytest.mark.parametrize("value", ["much", "1.5", "-0.1", "nan"])
def test_a_wrong_least_confidence_is_refused(service: Served, value: str) -> None:
    answer = upload(service, "a.txt", b"a b", min_confidence=value)
    assert answer.status == 400 and answer.json["error"].endswith("$.min_confidence: expected a number from 0 to 1")


def test_a_least_confidence_needs_a_calibration(service: Served) -> None:
    answer = upload(service, "a.txt", b"a b", min_confidence="0.5")
    assert answer.status == 400 and "expected a model with a calibration" in answer.json["error"]


# ---- a full queue --------------------------------------------------------------------------------------------------


async def fill(service: Served) -> list[asyncio.Task[Answer]]:
    """Send two requests of 64 sentences: the model, whose gate is closed, takes the first, and the second one waits."""
    requests = list[asyncio.Task[Answer]]()
    for is_full in (lambda: service.engine.running == 64, lambda: service.queue.waiting_sentences == 64):
        requests.append(asyncio.create_task(service.request("POST", "/translate", *FILLING)))
        await until(is_full)
    return requests


def test_a_file_waits_for_room_in_the_queue() -> None:
    """Other requests fill the queue when the file comes, and are refused while a portion of it waits."""
    model = Reverser()
    model.gate.clear()
    with served(model, waiting_sentences=64) as service:

        async def run() -> list[Answer]:
            others = await fill(service)
            assert (await service.request("POST", "/translate", *FILLING)).status == 429
            body = form_with("a.txt", b"a b\n\n" * 150)
            file = asyncio.ensure_future(service.request("POST", "/translate_file", body, BOUNDARY))
            await asyncio.sleep(2 * service_module.ROOM_SECONDS)
            assert not file.done()
            model.gate.set()
            return [await file, *[await other for other in others]]

        file, *others = asyncio.run(run())
        path = "/download_file/" + file.json["translatedFileUrl"].rpartition("/download_file/")[2]
        assert service.call("GET", path).body == b"b a\n\n" * 150
        assert [other.status for other in others] == [200, 200]
    (line,) = (line for line in service.log if line["route"] == "/translate_file")
    assert (line["status"], line["texts"]) == (200, 150)


def test_a_file_waits_for_a_limited_time_and_leaves_with_its_client() -> None:
    model = Reverser()
    model.gate.clear()
    with served(model, waiting_sentences=64, deadline_seconds=1) as service:

        async def run(leaves: bool) -> Answer:
            others = await fill(service)
            file = await service.request("POST", "/translate_file", form_with("a.txt", b"a"), BOUNDARY, leaves)
            await asyncio.gather(*others)
            return file

        late = asyncio.run(run(False))
        assert late.status == 429 and "Retry-After" in {name.title() for name in late.headers}
        assert asyncio.run(run(True)).status == 0
        model.gate.set()
    assert [line["status"] for line in service.log if line["route"] == "/translate_file"] == [429, 499]
