"""Argos Translate and LibreTranslate install a package of transduce from its file, and give its text.

pip installs both programs in a folder of the test, without the packages that this environment has.
"""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.other_programs import install
from support.toy_task import Toy, toy_lines

import transduce
from transduce.data.sentences import sentences

pytest.importorskip("sentencepiece", reason="needs transduce[export]")
pytest.importorskip("ctranslate2", reason="needs transduce[export]")

from transduce.interop.argos_export import export_argos  # noqa: E402

pytestmark = pytest.mark.slow

ARGOS = ["argostranslate==1.11.0", "stanza==1.10.1", "emoji"]
SPLITTER = ["minisbd==0.9.5", "onnxruntime", "flatbuffers"]
LIBRE = """
libretranslate==1.9.6 argos-translate-lt==1.12.1 argos-translate-files==1.4.4 apscheduler==3.11.2 tzlocal
beautifulsoup4==4.9.3 soupsieve lxml translatehtml pysrt chardet expiringdict==1.2.2 flask==2.2.5 werkzeug==2.3.8
itsdangerous==2.1.2 flask-babel==3.1.0 pytz flask-limiter==2.6.3 limits deprecated wrapt flask-swagger-ui==4.11.1
flask-swagger==0.2.14 six langdetect==1.0.9 lexilang==1.0.7 polib==1.1.1 prometheus-client==0.15.0 redis==4.4.4
async-timeout waitress==2.1.2
""".split()
TEXTS = [
    "Two dogs play. A cat sleeps! Does it? Yes.",
    'Dr. Smith met J. R. Smith, e.g. at 5 p.m. in May. He said "No." Then he left.',
    "Am 3. Oktober war es kalt. Das war z.B. 2005. Danach nicht.",
    "今日は。いい天気ですね！「はい。」そうです。",
    "  One line with   spaces.  And another one ... and on.  ",
    "https://example.com/a.B is a page. see there. Inc. and Co. are words.",
    "",
    " ",
]
PROGRAM = """
import json, sys
from argostranslate import package, translate
from minisbd import SBDetect

request = json.load(sys.stdin)
package.install_from_path(request["package"])
translation = translate.get_translation_from_codes("en", "de")
(installed,) = package.get_installed_packages()
splitter = SBDetect(str(next((installed.package_path / "minisbd").iterdir())), use_gpu=False)
lines = [translation.translate(line) for line in request["lines"]]
json.dump({"lines": lines, "sentences": [splitter.sentences(text) for text in request["texts"]]}, sys.stdout)
"""


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Path]]:
    """Return the folders of Argos Translate and of LibreTranslate, which both have a module `argostranslate`."""
    folder = tmp_path_factory.mktemp("programs")
    splitter = install(folder / "splitter", *SPLITTER)
    argos = install(folder / "argos", *ARGOS)
    libre = install(folder / "libre", *LIBRE)
    (libre / "pymupdf.py").touch()  # 116 MB for PDF files, which no test has
    return {"argos": [argos, splitter], "libre": [libre, splitter]}


def environment(folder: Path, paths: list[Path], **settings: str) -> dict[str, str]:
    """Return the environment of a program that keeps everything in `folder` and downloads nothing."""
    (folder / "index.json").write_text("[]")
    base = {name: value for name, value in os.environ.items() if not name.startswith(("ARGOS", "LT_", "XDG"))}
    own = {"HOME": str(folder), "ARGOS_PACKAGE_INDEX": f"{folder.as_uri()}/", "ARGOS_COMPUTE_TYPE": "float32"}
    no_network = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy")} | {"no_proxy": ""}
    return {**base, **own, **no_network, "PYTHONPATH": os.pathsep.join(map(str, paths)), **settings}


def lines_of(toy: Toy) -> list[str]:
    """Return 500 lines, also an empty one and long ones."""
    lines = [*toy.unseen[:200], "", *(f"{line}  {line}" for line in toy_lines(8, 10))]
    return [*lines, *toy_lines(7, 500 - len(lines))]


def package_of(toy: Toy, folder: Path) -> Path:
    out = folder / "en-de.argosmodel"
    export_argos(toy.model, out, ("en", "English"), ("de", "German"))
    return out


def test_argos_translate_gives_our_text_and_sentences(
    toy: Toy, programs: dict[str, list[Path]], tmp_path: Path
) -> None:
    lines = lines_of(toy)
    request = {"package": str(package_of(toy, tmp_path)), "lines": lines, "texts": TEXTS}
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps(request),
        env=environment(tmp_path, programs["argos"], ARGOS_BEAM_SIZE="1"),
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    answer = json.loads(process.stdout)
    ours = transduce.load(toy.model).translate(lines, beam_size=1, loops="keep", split="none", numbers="translate")
    assert answer["lines"] == [translation.text for translation in ours]
    expected = [[sentence.strip() for sentence, _ in sentences(text) if sentence.strip()] for text in TEXTS]
    assert answer["sentences"] == expected


def test_libretranslate_gives_our_text(toy: Toy, programs: dict[str, list[Path]], tmp_path: Path) -> None:
    package, lines = package_of(toy, tmp_path), lines_of(toy)
    with libretranslate(package, environment(tmp_path, programs["libre"]), tmp_path) as url:
        texts = json_of(f"{url}/translate", {"q": lines, "source": "en", "target": "de"})["translatedText"]
        names = {language["code"]: language["name"] for language in json_of(f"{url}/languages")}
    ours = transduce.load(toy.model).translate(lines, beam_size=4, alpha=0.2, split="none", numbers="translate")
    assert texts == [translation.text for translation in ours]
    assert names == {"en": "English", "de": "German"}


@contextmanager
def libretranslate(package: Path, variables: dict[str, str], folder: Path) -> Iterator[str]:
    """Install a package, start the server of LibreTranslate, and yield its address when it answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program = "import sys; from argostranslate.package import install_from_path; install_from_path(sys.argv.pop(1)); "
    program += "from libretranslate.main import main; main()"
    arguments = ["--load-only", "en,de", "--host", "127.0.0.1", "--port", str(port), "--disable-web-ui"]
    command = [sys.executable, "-c", program, str(package), *arguments]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, env=variables, cwd=folder, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            assert process.poll() is None, (folder / "log").read_text()
            try:
                json_of(f"{url}/languages")
                break
            except urllib.error.URLError:
                time.sleep(0.1)
        yield url
    finally:
        process.kill()
        process.wait()


def json_of(url: str, content: object = None) -> Any:
    """Return the answer to a GET, or to a POST of JSON content."""
    data = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        return json.load(answer)
