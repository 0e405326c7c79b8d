"""SIGTERM at any time, 50 times: while the model loads, and under load (slow test)."""

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.http_load import Connection
from support.serving import server_process
from support.toy_task import ROOT, Toy

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("timing")]
SECONDS = 10  # in which a server must end


@pytest.mark.parametrize(("engine", "times"), [("torch", 5), ("ctranslate2", 8)])
def test_a_server_that_loads_exits_with_0(toy: Toy, exported: Path, tmp_path: Path, engine: str, times: int) -> None:
    model = toy.model if engine == "torch" else exported
    rng = random.Random(1)
    for i in range(times):
        log = tmp_path / f"{i}.log"
        command = [sys.executable, "-m", "transduce", "serve", model, "--from", "en", "--to", "de", "--port", 0]
        with log.open("wb") as file:
            environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
            process = subprocess.Popen([*map(str, command)], stdout=file, stderr=file, env=environment)
        try:
            _wait_for_handler(process)
            time.sleep(rng.uniform(0, 4 if engine == "torch" else 0.5))
            start = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(SECONDS) == 0
            print(f"{engine}, loading: ended after {time.monotonic() - start:.2f} s")
            assert "Traceback" not in log.read_text()
        finally:
            process.kill()
            process.wait()


def _wait_for_handler(process: "subprocess.Popen[bytes]") -> None:
    """Wait until the process has a handler for SIGTERM, which is before it loads a model."""
    for _ in range(6_000):
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("SigCgt") and int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1:
                return
        assert process.poll() is None
        time.sleep(0.005)
    raise AssertionError("no handler for SIGTERM")


@pytest.mark.parametrize(("engine", "times"), [("torch", 6), ("ctranslate2", 12)])
def test_a_server_under_load_answers_what_it_accepted(
    toy: Toy, exported: Path, tmp_path: Path, engine: str, times: int
) -> None:
    for i in range(times):
        (folder := tmp_path / str(i)).mkdir()
        with server_process(folder, toy.model if engine == "torch" else exported) as server:
            requests: list[tuple[float, int]] = []  # the time of each, and the status of its answer
            rng = random.Random(i)

            async def client(requests: list[tuple[float, int]], rng: random.Random, port: int) -> None:
                connection = Connection(port)
                with contextlib.closing(connection):
                    while not requests or requests[-1][1] != 0:
                        start = time.monotonic()
                        reply = await connection.translate(rng.sample(toy.unseen, rng.choice([1, 1, 8, 64])))
                        requests.append((start, reply.status))

            async def all_of_it(requests: list[tuple[float, int]], rng: random.Random, port: int) -> float:
                clients = asyncio.gather(*(client(requests, rng, port) for _ in range(8)))
                await asyncio.sleep(rng.uniform(0.05, 0.6))
                signalled_at = time.monotonic()
                server.process.send_signal(signal.SIGTERM)  # noqa: B023
                await clients
                return signalled_at

            signalled_at = asyncio.run(all_of_it(requests, rng, server.port))
            assert server.process.wait(SECONDS) == 0
            assert time.monotonic() - signalled_at < SECONDS
            accepted = [status for start, status in requests if start < signalled_at - 0.01]
            print(f"{engine}, under load: {len(accepted)} requests, {time.monotonic() - signalled_at:.2f} s")
            assert set(accepted) == {200}
            assert "Traceback" not in server.log.read_text()
