"""`transduce serve` under load, compared with CTranslate2 behind the same HTTP layer, and with LibreTranslate itself.

    python benchmarks/serve.py MODEL --src test.en [--seconds 20] [--rounds 3] [--clients 1 8 32 64] [--open-seconds 60]

All sides have the same weights (int8, beam 4, one thread for each search), each in a separate process. They take
turns, round by round. Each request has one sentence. CPU time is the time of the server, without the clients.

- transduce: lookahead 5, one engine thread. "exact": without a lookahead. "2 threads": two engine threads.
  "2 processes": two servers, half of the clients at each.
- ctranslate2 N: CTranslate2 called with all that waits, in its batches of N sentences, behind our HTTP layer.
- ctranslate2 engine: `transduce serve --engine ctranslate2`.
- libretranslate: version 1.9.6 with its own server; its tokenizer and its splitter of sentences are replaced.
- file: `translate` on the lines as one file, in the same rounds.

Closed loop: N clients, each with one request at a time. Open loop: requests at random moments (Poisson) at a share of
the side's own capacity, which is its speed with the most clients; times count from the planned moment. An answer of a
transduce side that is not the file's is an error. The script writes benchmarks/results/serve.json.
"""

import argparse
import asyncio
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from peers import (
    RESULTS,
    ROOT,
    Worker,
    command_line,
    environment,
    export,
    in_turn,
    install,
    processor,
    read_results,
    write_results,
)

OURS = ["transduce", "transduce exact", "transduce 2 threads", "transduce 2 processes"]
SIDES = [*OURS, "ctranslate2 32", "ctranslate2 64", "ctranslate2 engine", "libretranslate"]
LIBRETRANSLATE = ("torch==2.13.0", "libretranslate==1.9.6", "msgspec", "safetensors", "tokenizers")
SHARES = (0.5, 0.8, 1.2)  # of the capacity, in the open loop
SERVES = ["--from", "en", "--to", "de", "--port"]
OPTIONS = {
    "transduce": ["--lookahead", "5", "--engine-threads", "1"],
    "transduce exact": ["--engine-threads", "1"],
    "transduce 2 threads": ["--lookahead", "5", "--engine-threads", "2"],
    "transduce 2 processes": ["--lookahead", "5", "--engine-threads", "1"],
}

# ---- the sides -------------------------------------------------------------------------------------------------------


@dataclass
class Side:
    """The processes of a server, and their ports. ready_seconds: from its start to the first translation."""

    name: str
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    ports: list[int] = field(default_factory=list)
    ready_seconds: float = 0.0

    def cpu_seconds(self) -> float:
        """Return the processor time of all processes until now."""
        ticks = 0
        for process in self.processes:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def memory_megabytes(self) -> float:
        """Return the memory that the processes have in use."""
        pages = sum(int(Path(f"/proc/{p.pid}/statm").read_text().split()[1]) for p in self.processes)
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def command_of(name: str, model: Path, exported: Path, port: int, work: Path) -> list[str]:
    """Return the command of a server."""
    ours = [sys.executable, "-m", "transduce", "serve"]
    other = str(ROOT / "benchmarks" / "serve_sides.py")
    if name in OPTIONS:
        return [*ours, str(model), *SERVES, str(port), "--precision", "int8", *OPTIONS[name]]
    if name == "ctranslate2 engine":
        return [*ours, str(exported), *SERVES, str(port), "--precision", "int8"]
    if name.startswith("ctranslate2"):
        return [sys.executable, other, "ctranslate2", str(exported), str(port), name.split()[1]]
    work.mkdir(parents=True)
    python = install("libretranslate", LIBRETRANSLATE, is_constrained=False)
    return [python, other, "libretranslate", str(exported), str(port), str(work)]


def start_side(name: str, model: Path, exported: Path, work: Path, line: str) -> Side:
    """Start the processes of a side one after another, and wait until each translates."""
    side = Side(name)
    for i in range(2 if name.endswith("processes") else 1):
        port = free_port()
        command = command_of(name, model, exported, port, work / f"{name}-{i}".replace(" ", "-"))
        start = time.perf_counter()
        log = open(work / f"{name}.log", "ab")  # noqa: SIM115 - the process has it
        side.processes.append(subprocess.Popen(command, env=environment(1), stdout=log, stderr=log))
        log.close()
        while not _translates(port, line):
            if side.processes[-1].poll() is not None or time.perf_counter() - start > 120:
                raise RuntimeError(f"{name} did not start: {(work / f'{name}.log').read_text()[-2000:]}")
            time.sleep(0.02)
        side.ready_seconds = time.perf_counter() - start
        side.ports.append(port)
    return side


def _translates(port: int, line: str) -> bool:
    head = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/translate", _body(line), head)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status == 200
    except OSError:
        return False


# ---- the clients -----------------------------------------------------------------------------------------------------


def _body(line: str) -> bytes:
    return json.dumps({"q": line, "source": "en", "target": "de"}).encode()


@dataclass
class Tally:
    """The answers of a measurement: statuses, times in seconds, and each different text of a line."""

    statuses: Counter[int] = field(default_factory=Counter)
    times: list[float] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)

    def add(self, line: str, status: int, text: str, seconds: float) -> None:
        self.statuses[status] += 1
        if status == 200:
            self.times.append(seconds)
            self.texts[line] = text


class Connection:
    """A connection that is kept."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.ends: Any = None

    async def translate(self, line: str) -> tuple[int, str]:
        """Return status and text of the answer; 0 if there is none."""
        body = _body(line)
        head = f"POST /translate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        try:
            if self.ends is None:
                self.ends = await asyncio.open_connection("127.0.0.1", self.port)
            reader, writer = self.ends
            writer.write(head.encode() + b"\r\n\r\n" + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = re.search(r"content-length: (\d+)", answer)
            content = await reader.readexactly(int(length[1]) if length else 0)
        except (OSError, EOFError):
            self.close()
            return 0, ""
        status = int(answer.split(" ", 2)[1])
        if "connection: close" in answer:
            self.close()
        return status, json.loads(content)["translatedText"] if status == 200 else ""

    def close(self) -> None:
        if self.ends is not None:
            self.ends[1].close()
            self.ends = None


async def closed_loop(side: Side, lines: Sequence[str], clients: int, seconds: float, seed: int) -> Tally:
    """Let each client send one request after another."""
    tally, end = Tally(), time.perf_counter() + seconds

    async def client(number: int) -> None:
        rng, connection = random.Random(f"{seed} {number}"), Connection(side.ports[number % len(side.ports)])
        while (start := time.perf_counter()) < end:
            line = rng.choice(lines)
            tally.add(line, *await connection.translate(line), time.perf_counter() - start)
        connection.close()

    await asyncio.gather(*(client(number) for number in range(clients)))
    return tally


async def open_loop(side: Side, lines: Sequence[str], rate: float, seconds: float, seed: int) -> Tally:
    """Send requests at random moments, `rate` a second, however many are under way."""
    tally = Tally()
    rng = random.Random(seed)
    idle = dict[int, list[Connection]]()
    start = time.perf_counter()
    moment = 0.0
    tasks = []

    async def one(port: int, planned: float, line: str) -> None:
        pool = idle.setdefault(port, [])
        connection = pool.pop() if pool else Connection(port)
        tally.add(line, *await connection.translate(line), time.perf_counter() - planned)
        pool.append(connection)

    while (moment := moment + rng.expovariate(rate)) < seconds:
        await asyncio.sleep(max(0.0, start + moment - time.perf_counter()))
        port = side.ports[len(tasks) % len(side.ports)]
        tasks.append(asyncio.ensure_future(one(port, start + moment, rng.choice(lines))))
    await asyncio.gather(*tasks)
    for connection in (connection for pool in idle.values() for connection in pool):
        connection.close()
    return tally


# ---- the run ---------------------------------------------------------------------------------------------------------


def percentiles(times: Sequence[float]) -> dict[str, float]:
    """Return p50, p95 and p99 in milliseconds."""
    if len(times) < 2:
        return dict.fromkeys(("p50", "p95", "p99"), float("nan"))
    cuts = statistics.quantiles(times, n=100)
    return {name: round(1e3 * cuts[place], 1) for name, place in (("p50", 49), ("p95", 94), ("p99", 98))}


def measure(side: Side, work: Any, expected: dict[str, str]) -> dict[str, Any]:
    """Run clients against a side. Return its speeds, times and statuses."""
    start, cpu = time.perf_counter(), side.cpu_seconds()
    tally = asyncio.run(work)
    seconds, cpu = time.perf_counter() - start, side.cpu_seconds() - cpu
    if side.name in OURS:
        key = "exact" if "exact" in side.name else "lookahead"
        wrong = [line for line, text in tally.texts.items() if text != expected[f"{key} {line}"]]
        assert not wrong, f"{side.name}: {len(wrong)} answers differ from the file, such as {wrong[0]!r}"
    n = tally.statuses[200]
    statuses = {str(status): count for status, count in tally.statuses.items()}
    speeds = {"per_cpu_second": n / max(cpu, 1e-9), "per_second": n / seconds}
    return {**speeds, **percentiles(tally.times), "statuses": statuses, "cpu_share": cpu / seconds}


def file_workers(model: Path, source: Path) -> dict[str, Worker]:
    script = str(ROOT / "benchmarks" / "serve_sides.py")
    settings = {"file exact": "", "file lookahead": "5"}
    return {
        name: Worker(name, [sys.executable, script, "file", str(model), str(source), lookahead], 1)
        for name, lookahead in settings.items()
    }


def run(args: argparse.Namespace, work: Path, stack: ExitStack) -> dict[str, Any]:
    """Start all sides, and measure them in turn."""
    lines = [line for line in args.src.read_text("utf-8").splitlines() if line.strip()][: args.lines]
    source = work / "lines"
    source.write_text("\n".join([*lines, ""]), encoding="utf-8")
    exported = export(args.model, "ctranslate2", work)
    expected: dict[str, str] = {}
    workers = file_workers(args.model, source)
    for worker in workers.values():
        stack.callback(worker.close)
    sides = []
    for name in args.sides:
        sides.append(start_side(name, args.model, exported, work, lines[0]))
        stack.callback(sides[-1].close)
        print(f"{name}: ready after {sides[-1].ready_seconds:.2f} s", flush=True)
    closed: dict[str, dict[str, list[Any]]] = {str(n): {side.name: [] for side in sides} for n in args.clients}
    files: dict[str, list[float]] = {name: [] for name in workers}
    for number in range(args.rounds):
        for name, worker in workers.items():
            _, cpu, texts = json.loads(worker.ask("go"))
            files[name].append(len(lines) / cpu)
            expected |= {f"{name.split()[1]} {line}": text for line, text in zip(lines, texts, strict=True)}
        for clients in args.clients:
            for side in in_turn(sides, number):
                loop = closed_loop(side, lines, clients, args.seconds, number)
                closed[str(clients)][side.name].append(measure(side, loop, expected))
    opened: dict[str, dict[str, Any]] = {}
    for side in [side for side in sides if args.open_seconds and side.name in args.open_sides]:
        capacity = statistics.median(tally["per_second"] for tally in closed[str(max(args.clients))][side.name])
        for share in SHARES:
            loop = open_loop(side, lines, share * capacity, args.open_seconds, 1)
            opened.setdefault(side.name, {})[str(share)] = measure(side, loop, expected)
    starts = {side.name: side.ready_seconds for side in sides}
    memory = {side.name: side.memory_megabytes() for side in sides}
    return {"closed": closed, "open": opened, "file": files, "ready_seconds": starts, "megabytes": memory}


def median(rounds: Sequence[dict[str, Any]], key: str) -> float:
    return statistics.median(tally[key] for tally in rounds)


def print_tables(results: dict[str, Any]) -> None:
    for clients, sides in results["closed"].items():
        print(f"\n| {clients} clients, closed loop | per CPU-second | per second | p50 ms | p95 ms | p99 ms |")
        print("|---|---|---|---|---|---|")
        for name, rounds in sides.items():
            values = [median(rounds, key) for key in ("per_cpu_second", "per_second", "p50", "p95", "p99")]
            print(f"| {name} | " + " | ".join(f"{value:.1f}" for value in values) + " |")
    for name, speeds in results["file"].items():
        print(f"{name}: {statistics.median(speeds):.1f} per CPU-second")
    print("\n| open loop | share of capacity | per second | p50 ms | p95 ms | p99 ms | statuses |")
    print("|---|---|---|---|---|---|---|")
    for name, shares in results["open"].items():
        for share, load in shares.items():
            times = " | ".join(f"{load[key]:.0f}" for key in ("p50", "p95", "p99"))
            print(f"| {name} | {share} | {load['per_second']:.1f} | {times} | {load['statuses']} |")


def ratios(results: dict[str, Any]) -> dict[str, float]:
    """Return our speed per CPU-second divided by the speed of the best peer of each kind, by the number of clients."""
    result = {}
    for clients, sides in results["closed"].items():
        speeds = {name: median(rounds, "per_cpu_second") for name, rounds in sides.items()}
        for kind in ("ctranslate2", "libretranslate"):
            peers = [speed for name, speed in speeds.items() if name.startswith(kind)]
            for ours in ("transduce", "transduce exact"):
                if peers and ours in speeds:
                    result[f"{ours} / {kind}, {clients} clients"] = round(speeds[ours] / max(peers), 2)
        for ours, file in (("transduce", "file lookahead"), ("transduce exact", "file exact")):
            if ours in speeds:
                result[f"{ours} / {file}, {clients} clients"] = round(
                    speeds[ours] / statistics.median(results["file"][file]), 2
                )
    return result


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, metavar="MODEL")
    parser.add_argument("--src", type=Path, required=True)
    parser.add_argument("--lines", type=int, default=500, help="of the file, from its start")
    parser.add_argument("--seconds", type=float, default=20, help="of each measurement in a closed loop")
    parser.add_argument("--open-seconds", type=float, default=60, help="of each in an open loop; 0 leaves them out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 8, 32, 64])
    parser.add_argument("--sides", nargs="+", default=SIDES, choices=SIDES)
    parser.add_argument("--open-sides", nargs="+", default=["transduce", "ctranslate2 64", "libretranslate"])
    parser.add_argument("--out", type=Path, default=RESULTS / "serve.json")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    with tempfile.TemporaryDirectory() as work, ExitStack() as stack:
        results = run(args, Path(work), stack)
    print_tables(results)
    results["ratios"] = ratios(results)
    print("\n" + "\n".join(f"{name}: {ratio}" for name, ratio in results["ratios"].items()))
    facts = {
        "processor": processor(),
        "cores": os.cpu_count(),
        "seconds": args.seconds,
        "date": date.today().isoformat(),
    }
    name = f"{args.model.parent.name}/{args.model.name}"
    write_results(args.out, {**read_results(args.out), name: {**facts, "command": command_line(), **results}})


if __name__ == "__main__":
    main()
