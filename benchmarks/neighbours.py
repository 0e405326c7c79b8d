"""The speed of training and translation next to programs that keep cores busy.

    python benchmarks/neighbours.py [--sizes demo tiny base] [--neighbours 0 1 2] [--rounds 3] [--threads 2]

A neighbour is a process in an endless loop. Sides of training: `halves`, each thread with a half of the batch, which is
what transduce does; and `operations`, all threads in each operation, which is the common way. The side of translation
translates lines in batches, one thread each. All take turns, with each number of neighbours, on random
tokens. The first round warms up. The tables have tokens or lines a second, medians of the rounds, and the share of the
speed without neighbours. The script writes the sizes that it measured to results/neighbours.json.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from typing import Any

from peers import RESULTS, Worker, command_line, in_turn, processor, write_results

SIDES = ("halves", "operations", "translation")
SECONDS = 6.0  # of a measurement, about
PIECES = {"demo": 1_000, "tiny": 6_000, "base": 10_000}
BATCH_TOKENS = {"demo": 2_000, "tiny": 2_048, "base": 4_096}  # of each side


def configuration(size: str) -> Any:
    from transduce.config.recipes import vaswani2017
    from transduce.config.recipes.studies import demo, multi30k

    config = {"demo": demo.demo, "tiny": multi30k.tiny, "base": vaswani2017.base}[size]()
    model = replace(config.model, vocab_size=PIECES[size])
    return replace(config, model=model, train=replace(config.train, precision="bf16"))


# ---- a side ------------------------------------------------------------------------------------------------------


def training(side: str, size: str) -> Callable[[], int]:
    """Return a step of training, which returns its number of tokens."""
    import numpy as np
    import torch

    from transduce.data.batches import collate
    from transduce.model.transformer import Transformer
    from transduce.train import TranslationTask
    from transduce.training import halves
    from transduce.training.gradients import Gradients, update
    from transduce.training.optimizer import adam

    if side == "operations":
        halves.count = lambda model, device: 1
    config = configuration(size)
    rng = np.random.default_rng(1)
    count = iter(range(1, 1 << 30))
    model = Transformer(config.model).train()
    optimizer = adam(model.parameters(), config.train.adam_beta2)
    gradients = Gradients(model, TranslationTask(), config.train, torch.device("cpu"), print)
    lengths = [int(rng.integers(8, 20)) for _ in range(8)]
    batches = []
    for length in lengths:
        n = BATCH_TOKENS[size] // (length + 1)
        batches.append(collate(*([rng.integers(4, PIECES[size], length) for _ in range(n)] for _ in range(2))))

    def step() -> int:
        number = next(count)
        gradient = gradients.of([batches[number % len(batches)]], seed=number)
        update(optimizer, number)
        optimizer.zero_grad()
        return gradient.src_tokens + gradient.tgt_tokens

    return step


def translation(size: str) -> Callable[[], int]:
    """Return a translation of a hundred lines by a random model, which returns their number."""
    import random

    from transduce.data.tokenizer import Tokenizer
    from transduce.model.build import build
    from transduce.storage.model_folder import LoadedModel
    from transduce.translate import Translator

    config, rng = configuration(size), random.Random(1)
    words = ["".join(rng.sample("abcdefghijklmnop", 4)) for _ in range(400)]
    lines = [" ".join(rng.sample(words, rng.randint(4, 12))) for _ in range(100)]
    tokenizer = Tokenizer.learn(lines, kind="bpe", vocab_size=600)
    model = replace(config.model, vocab_size=tokenizer.vocab_size)
    config = replace(config, model=model, search=replace(config.search, max_extra_tokens=10))
    translator = Translator([LoadedModel(build(model).eval(), config, tokenizer)])

    def translate() -> int:
        return len(translator.translate(lines))

    return translate


def work(side: str, size: str) -> None:
    """Answer each command, a number of seconds, with the amount of work a second."""
    do = translation(size) if side == "translation" else training(side, size)
    do()
    print("ready", flush=True)
    for command in sys.stdin:
        began, amount = time.perf_counter(), 0
        while time.perf_counter() - began < float(command):
            amount += do()
        print(amount / (time.perf_counter() - began), flush=True)


# ---- the run -----------------------------------------------------------------------------------------------------


@contextmanager
def busy_programs(count: int) -> Iterator[None]:
    """Keep `count` cores busy."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        time.sleep(0.3)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measure(args: argparse.Namespace, size: str) -> dict[str, dict[int, list[float]]]:
    """Return the speeds of each side with each number of neighbours, one for each round after the first."""
    workers = [Worker(side, [sys.executable, __file__, "work", side, size], args.threads) for side in args.sides]
    speeds: dict[str, dict[int, list[float]]] = {side: {n: [] for n in args.neighbours} for side in args.sides}
    for number in range(args.rounds + 1):
        for n in in_turn(args.neighbours, number):
            with busy_programs(n):
                for worker in in_turn(workers, number):
                    speed = float(worker.ask(str(SECONDS if number else 1)))
                    if number:
                        speeds[worker.name][n].append(speed)
    for worker in workers:
        worker.process.kill()
        worker.process.wait()
    return speeds


def print_table(size: str, speeds: dict[str, dict[int, list[float]]], neighbours: Sequence[int]) -> None:
    print(f"\n| {size} | " + " | ".join(f"{n} neighbours | share" for n in neighbours))
    print("|---" * (1 + 2 * len(neighbours)) + "|")
    for side, by_count in speeds.items():
        undisturbed = statistics.median(by_count[neighbours[0]])
        medians = [statistics.median(by_count[n]) for n in neighbours]
        print(f"| {side} | " + " | ".join(f"{speed:,.0f} | {speed / undisturbed:.2f}" for speed in medians) + " |")
    if {"halves", "operations"} <= speeds.keys():
        pairs = zip(*(speeds[side][neighbours[0]] for side in ("halves", "operations")), strict=True)
        print(f"halves / operations, alone: {statistics.median(a / b for a, b in pairs):.2f}")


def main() -> None:
    if sys.argv[1:2] == ["work"]:
        return work(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=[*PIECES], choices=[*PIECES])
    parser.add_argument("--sides", nargs="+", default=[*SIDES], choices=SIDES)
    parser.add_argument("--neighbours", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    path = RESULTS / "neighbours.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}  # other sizes stay
    facts = {"processor": processor(), "threads": args.threads, "date": date.today().isoformat()}
    for size in args.sizes:
        speeds = measure(args, size)
        print_table(size, speeds, args.neighbours)
        results[size] = {"per_second": speeds, **facts, "command": command_line()}
    write_results(path, results)
    print(json.dumps(facts))


if __name__ == "__main__":
    main()
