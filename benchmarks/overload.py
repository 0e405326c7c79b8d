"""`transduce serve` with more requests than it can answer: what it still delivers, compared with its capacity.

    python benchmarks/overload.py MODEL --src test.en [--texts 40] [--words 195] [--seconds 60] [--loads 1.5 3]

Capacity: the sentences a second that two clients get, each with one request at a time. Then requests arrive by a
timetable, at a multiple of the capacity, and no client tries again. Delivered are the sentences of complete answers,
for each second from the first request to the last answer. The script also prints how long a refused client waits.
"""

import argparse
import http.client
import json
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

SERVE = [sys.executable, "-m", "transduce", "serve"]


@dataclass
class Answer:
    """Status, time of the answer, seconds since its request, and seconds to wait if it was refused."""

    status: int
    moment: float
    seconds: float
    retry_after: int | None


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("--src", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=40)
    parser.add_argument("--words", type=int, default=195)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--loads", type=float, nargs="+", default=[1.5, 3])
    arguments = parser.parse_args()
    words = arguments.src.read_text("utf-8").split()
    text = " ".join(words[: arguments.words])
    body = json.dumps({"q": [text] * arguments.texts, "source": "en", "target": "de"}).encode()
    command = [*SERVE, str(arguments.model), "--from", "en", "--to", "de", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as server:
        try:
            port = wait_for_port(server)
            threading.Thread(target=lambda: [None for _ in server.stderr or ()], daemon=True).start()
            measure(port, body, arguments)
        finally:
            server.terminate()


def wait_for_port(server: "subprocess.Popen[bytes]") -> int:
    assert server.stderr is not None
    for line in server.stderr:
        if match := re.search(rb"http://[\d.]+:(\d+) serves", line):
            return int(match[1])
    raise SystemExit("the server did not start")


def measure(port: int, body: bytes, arguments: argparse.Namespace) -> None:
    start = time.monotonic()
    answers: list[Answer] = []

    def client() -> None:
        while time.monotonic() < start + arguments.seconds:
            answers.append(send(port, body))
            time.sleep(answers[-1].retry_after or 0)

    run([threading.Thread(target=client) for _ in range(2)])
    capacity = report("2 clients", answers, start, arguments.texts)
    for load in arguments.loads:
        start, answers = time.monotonic(), []
        gap = arguments.texts / (load * capacity)
        times = [start + i * gap for i in range(int(arguments.seconds / gap) + 1)]
        run([threading.Thread(target=send_at, args=[moment, port, body, answers]) for moment in times])
        delivered = report(f"{load:g} x capacity", answers, start, arguments.texts)
        print(f"  {100 * delivered / capacity:.0f} % of the capacity")


def run(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def send_at(moment: float, port: int, body: bytes, answers: list[Answer]) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))
    answers.append(send(port, body))


def send(port: int, body: bytes) -> Answer:
    start = time.monotonic()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request("POST", "/translate", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    now = time.monotonic()
    seconds = answer.getheader("Retry-After")
    return Answer(answer.status, now, now - start, None if seconds is None else int(seconds))


def report(name: str, answers: list[Answer], start: float, n_texts: int) -> float:
    """Print a row, and return the sentences that were delivered in a second."""
    complete = [answer for answer in answers if answer.status == 200]
    end = max(answer.moment for answer in complete or answers)
    delivered = n_texts * len(complete) / (end - start)
    slowest = max((answer.seconds for answer in complete), default=0.0)
    refused = [answer for answer in answers if answer.status != 200]
    waits = [answer.retry_after or 0 for answer in refused] or [0]
    statuses = dict(Counter(answer.status for answer in answers))
    latest = max((answer.seconds for answer in refused), default=0.0)
    print(f"{name}: {delivered:.2f} sentences/s, {statuses}, slowest answer {slowest:.1f} s, ", end="")
    print(f"slowest refusal {latest:.2f} s, Retry-After {min(waits)} to {max(waits)} s", flush=True)
    return delivered


if __name__ == "__main__":
    main()
