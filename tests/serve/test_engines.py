"""The engines behind the service give the answers of `translate`; so do models of older versions."""

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.http_load import Connection, run_clients
from support.serving import ServerProcess, server_process
from support.toy_task import ROOT, Toy, run_transduce, toy_lines

GOLDEN = ROOT / "tests" / "support" / "golden"


def answers(server: ServerProcess, lines: Sequence[str], clients: int = 16) -> list[str]:
    """Return the translation of each line, asked for by several clients at the same time."""
    texts = [""] * len(lines)

    async def client(number: int) -> None:
        connection = Connection(server.port)
        for i in range(number, len(lines), clients):
            reply = await connection.translate(lines[i])
            assert reply.status == 200, reply
            texts[i] = reply.json["translatedText"]
        connection.close()

    asyncio.run(run_clients(clients, client))
    return texts


@pytest.mark.slow
@pytest.mark.xdist_group("timing")
@pytest.mark.parametrize("options", [[], ["--precision", "int8"], ["--engine", "ctranslate2"]], ids=str)
def test_500_of_500_answers_equal_translate(toy: Toy, exported: Path, tmp_path: Path, options: list[str]) -> None:
    lines = sorted(set(toy_lines(7, 900)))[:500]
    model = exported if "ctranslate2" in options else toy.model
    result = run_transduce("translate", model, *options, stdin="\n".join([*lines, ""]).encode())
    with server_process(tmp_path, model, *options) as server:
        assert answers(server, lines) == result.out.decode().splitlines()
        server.stop_and_check()
    assert len(lines) == 500


def test_a_model_of_an_older_version_is_served_as_it_translated(tmp_path: Path) -> None:
    lines = (GOLDEN / "valid.src").read_text("utf-8").splitlines()
    expected = [json.loads(line) for line in (GOLDEN / "run.translations.jsonl").read_text("utf-8").splitlines()]
    with server_process(tmp_path, GOLDEN / "run" / "model", "--beam-size", 3) as server:
        assert answers(server, lines) == [output["text"] for output in expected]
        server.stop_and_check()


def test_ctranslate2_is_served_without_torch(exported: Path, tmp_path: Path) -> None:
    with server_process(tmp_path, exported) as server:
        assert answers(server, ["a b c"]) == ["c b a"]
        maps = Path(f"/proc/{server.process.pid}/maps").read_text()
        assert "libtorch" not in maps and "ctranslate2" in maps and os.getpid() != server.process.pid
        server.stop_and_check()
