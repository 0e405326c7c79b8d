"""The cost of training and translation against length, batch and vocabulary, and a file of 20,000 lines.

    python benchmarks/scale.py [--quick] [--threads 1] [--out benchmarks/results/scale.json]

A small model (d_model 256, 3 + 3 layers, 4 heads, d_ff 1,024, 8,000 tokens) with random weights and random ids, in
fp32. Every output is as long as its source, with a beam of 4. Each row has its own process.

- Seconds: processor time (medians), so that other work on the machine matters less.
- MB: the peak memory of the process minus its memory before the first step. They include gradients and Adam's moments,
  not the weights.
- "grows as n^": the exponent from one row of a table to the next.

The script writes results/scale.json.
"""

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from peers import RESULTS, command_line, environment, write_results

LENGTHS = (8, 32, 128, 512, 2_048, 4_096)
VOCABULARIES = (1_000, 4_000, 16_000, 64_000)
TOKENS = 4_096  # of a batch on each side, in tables of length or vocabulary
Cell = dict[str, Any]  # what: of WORK; length; batch: sentences; vocab_size

# ---- one row, in its own process ---------------------------------------------------------------------------------


def configuration(vocab_size: int) -> Any:
    from transduce import Config, ModelConfig

    return Config(ModelConfig(vocab_size=vocab_size, d_model=256, n_layers=3, n_heads=4, d_ff=1_024))


def sources(cell: Cell) -> list[Any]:
    """Return `batch` random sentences of `length` tokens each, end of sentence included."""
    import numpy as np

    rng = np.random.default_rng(1)
    return [rng.integers(4, cell["vocab_size"], cell["length"] - 1) for _ in range(cell["batch"])]


def training(cell: Cell) -> Callable[[], object]:
    """Return a whole step: forward, loss, backward, update."""
    import torch

    from transduce.data.batches import collate
    from transduce.model.transformer import Transformer
    from transduce.train import TranslationTask
    from transduce.training.gradients import Gradients, update
    from transduce.training.optimizer import adam

    config = configuration(cell["vocab_size"])
    model = Transformer(config.model).train()
    optimizer = adam(model.parameters(), config.train.adam_beta2)
    gradients = Gradients(model, TranslationTask(), config.train, torch.device("cpu"), print)
    batch, steps = collate(sources(cell), sources(cell)), iter(range(1, 1 << 30))

    def step() -> None:
        number = next(steps)
        gradients.of([batch], seed=number)
        update(optimizer, number)
        optimizer.zero_grad()

    return step


def translation(cell: Cell) -> Callable[[], object]:
    """Return a search for outputs as long as their sources."""
    from transduce.config.schema import SearchConfig
    from transduce.decoding.backends import Backend
    from transduce.decoding.batched_search import search_all
    from transduce.decoding.cpu_transformer import CpuTransformer
    from transduce.model.transformer import Transformer

    model = CpuTransformer(Transformer(configuration(cell["vocab_size"]).model).eval(), "fp32")
    token_ids = [ids.tolist() for ids in sources(cell)]
    settings = SearchConfig(beam_size=4, max_extra_tokens=1, min_tokens=1 << 20)  # every output has the maximum length
    return lambda: search_all(Backend([model]), token_ids, settings)


def encoder(cell: Cell) -> Callable[[], object]:
    """Return only the encoder: in translation, with or without compiled kernels; in training; with slow attention."""
    import torch

    from transduce.data.batches import pad
    from transduce.decoding.cpu_transformer import CpuTransformer
    from transduce.decoding.kernels import PLAIN
    from transduce.model.attention import fast_attention, reference_attention
    from transduce.model.transformer import Transformer

    model = Transformer(configuration(cell["vocab_size"]).model)
    src, mask = pad(sources(cell))
    if cell["how"] == "training":
        return lambda: model.train().encode(src, mask).sum().backward()
    kernels = {"packed": None, "packed, kernels in torch": PLAIN}
    if cell["how"] in kernels:
        encode: Any = CpuTransformer(model.eval(), "fp32", kernels[cell["how"]]).encode
    else:
        attention = {"plain model": fast_attention, "the weights of eq. 1 held": reference_attention}[cell["how"]]
        encode = lambda src, mask: model.eval().encode(src, mask, attention)  # noqa: E731
    return torch.inference_mode()(lambda: encode(src, mask))


WORK = {"training": training, "translation": translation, "encoder": encoder}


def memory(key: str) -> float:
    """Return the memory of this process in MB. key: VmRSS, its memory now, or VmHWM, its peak."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    raise AssertionError(key)


def processor_seconds(step: Callable[[], object]) -> float:
    began = time.process_time()
    step()
    return time.process_time() - began


def measure(cell: Cell, threads: int, seconds: float) -> dict[str, float]:
    """Measure steps for about `seconds`, after a first one that warms up.

    A first step that takes longer than `seconds` is the only one, and counts.
    """
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    step = WORK[cell["what"]](cell)
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # resets VmHWM
    first = processor_seconds(step)
    times: list[float] = []
    while sum(times) < seconds and first < seconds:
        times.append(processor_seconds(step))
    times = times or [first]
    return {"seconds": statistics.median(times), "steps": len(times), "mb": memory("VmHWM") - before}


# ---- the tables --------------------------------------------------------------------------------------------------


def tables(quick: bool) -> dict[str, tuple[str, list[Cell]]]:
    """Return for each table the key that varies, and its rows."""
    lengths, vocabularies, tokens = (LENGTHS, VOCABULARIES, TOKENS) if not quick else ((8, 32), (100, 400), 64)
    base = {"vocab_size": vocabularies[1] * 2, "batch": 1}
    result: dict[str, tuple[str, list[Cell]]] = {}
    for what in ("training", "translation"):
        start = {**base, "what": what}
        result[f"{what}: length, {tokens:,} tokens in all"] = (
            "length",
            [{**start, "length": n, "batch": tokens // n} for n in lengths],
        )
        result[f"{what}: length, one sentence"] = ("length", [{**start, "length": n} for n in lengths])
        batches = (1, 8, 64, 512) if not quick else (1, 4)
        result[f"{what}: sentences of 32 tokens"] = ("batch", [{**start, "length": 32, "batch": n} for n in batches])
        result[f"{what}: vocabulary, {tokens:,} tokens in sentences of 32"] = (
            "vocab_size",
            [{**start, "length": 32, "batch": tokens // 32, "vocab_size": n} for n in vocabularies],
        )
    ways = ("packed", "packed, kernels in torch", "plain model", "training", "the weights of eq. 1 held")
    long = [{**base, "what": "encoder", "length": lengths[-1], "how": how} for how in ways]
    result[f"encoder: one sentence of {lengths[-1]:,} tokens"] = ("how", long)
    return result


def run_this_script(*arguments: str, threads: int) -> str:
    """Run this script with `arguments` and return its output."""
    command = [sys.executable, __file__, *arguments]
    return subprocess.run(command, env=environment(threads), text=True, stdout=subprocess.PIPE, check=True).stdout


def run_tables(quick: bool, threads: int, seconds: float) -> dict[str, list[Cell]]:
    results: dict[str, list[Cell]] = {}
    figures: dict[str, Cell] = {}  # some rows are in two tables
    for title, (key, cells) in tables(quick).items():
        print(
            f"\n{title}\n\n| {key} | s | grows as n^ | ms for a token | MB | grows as n^ |\n|---|---|---|---|---|---|"
        )
        rows = results[title] = []
        for cell in cells:
            name = json.dumps(cell, sort_keys=True)
            if name not in figures:
                figures[name] = json.loads(run_this_script("cell", name, str(threads), str(seconds), threads=threads))
            rows.append({**cell, **figures[name]})
            print(line_of(rows, key), flush=True)
        if key == "how":
            n, heads = cells[0]["length"], 4
            print(f"\nThe weights of one layer, {heads} x {n:,} x {n:,} numbers: {heads * n * n * 4 / 2**20:,.0f} MB")
    return results


def line_of(rows: Sequence[Cell], key: str) -> str:
    """Return the last of `rows` as a line of a table."""
    row, grows = rows[-1], {"seconds": "", "mb": ""}
    if len(rows) > 1 and key != "how":
        for unit in grows:
            ratio = max(row[unit], 1e-9) / max(rows[-2][unit], 1e-9)
            grows[unit] = f"{math.log(ratio) / math.log(row[key] / rows[-2][key]):.2f}"
    per_token = 1e3 * row["seconds"] / (row["length"] * row["batch"])
    label = row[key] if key == "how" else f"{row[key]:,}"
    return (
        f"| {label} | {row['seconds']:.3g} | {grows['seconds']} | {per_token:.3g} | {row['mb']:,.0f} | {grows['mb']} |"
    )


# ---- a file of 20,000 lines --------------------------------------------------------------------------------------


def random_lines(count: int) -> list[str]:
    """Return lines of 3 to 25 words. One line in 3,000 is very long, and one in 1,000 is blank."""
    rng = random.Random(1)
    syllables = [a + b for a in "bdfgklmnprst" for b in "aeiou"]
    words = ["".join(rng.choices(syllables, k=rng.randint(1, 3))) for _ in range(3_000)]
    lines = []
    for i in range(count):
        if i % 1_000 == 500:
            lines.append("")
            continue
        length = 400 if i % 3_000 == 700 else rng.randint(3, 25)
        lines.append(" ".join(rng.choices(words, k=length)).capitalize() + ".")
    return lines


def save_small_model(folder: Path, lines: Sequence[str]) -> Path:
    """Write a model of d_model 64, 2 + 2 layers, 1,000 pieces and random weights."""
    import torch

    from transduce import Config, ModelConfig, SearchConfig, Transformer
    from transduce.data.tokenizer import Tokenizer
    from transduce.storage.model_folder import save_model
    from transduce.training.weights import weights

    torch.manual_seed(1)
    tokenizer = Tokenizer.learn(lines[:2_000], kind="bpe", vocab_size=1_000)
    model = ModelConfig(vocab_size=tokenizer.vocab_size, d_model=64, n_layers=2, n_heads=4, d_ff=256)
    config = Config(model, search=SearchConfig(max_extra_tokens=2))
    save_model(folder / "model", weights(Transformer(model)), config, tokenizer, "# Random weights\n")
    return folder / "model"


def resident(process: subprocess.Popen[bytes]) -> float:
    """Return the resident memory of a process in MB, or 0 if it has ended."""
    try:
        fields = Path(f"/proc/{process.pid}/statm").read_text(encoding="utf-8").split()
    except OSError:
        return 0.0
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def run_file(count: int, threads: int) -> dict[str, Any]:
    """Translate `count` lines through the command line, and check order and memory.

    Returns the peak memory during each thousand lines, and how many lines of a sample are at their place.
    """
    lines = random_lines(count)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "in").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        run_this_script("model", str(folder), threads=threads)
        peaks = translate_file(folder, threads)
        outputs = (folder / "out").read_text(encoding="utf-8").split("\n")[:-1]
        sample = sorted(random.Random(2).sample(range(count), min(count, 200)))
        (folder / "sample").write_text(json.dumps([lines[i] for i in sample]), encoding="utf-8")
        single = json.loads(run_this_script("translate", str(folder), threads=threads))
    assert len(outputs) == count
    assert [i for i, output in enumerate(outputs) if not output] == [i for i, line in enumerate(lines) if not line]
    in_place = sum(outputs[i] == text for i, text in zip(sample, single, strict=True))
    early = max(mb for thousand, mb in peaks.items() if thousand < 5)
    late = max(mb for thousand, mb in peaks.items() if thousand >= min(15, max(peaks)))
    print(f"\na file of {count:,} lines\n\n| lines translated | peak MB |\n|---|---|")
    for thousand, mb in sorted(peaks.items()):
        print(f"| {1_000 * thousand:,} to {1_000 * thousand + 999:,} | {mb:.0f} |")
    print(f"\n{in_place} of {len(sample)} lines in place; {late - early:+.1f} MB from the first quarter to the last")
    return {"lines": count, "mb": peaks, "in_place": in_place, "sample": len(sample), "added_mb": late - early}


def translate_file(folder: Path, threads: int) -> dict[int, float]:
    """Translate folder/in to folder/out. Return the peak memory in MB for each thousand of lines."""
    command = [sys.executable, "-m", "transduce", "translate", str(folder / "model"), "--beam-size", "1"]
    peaks: dict[int, float] = {}
    with (
        (folder / "in").open("rb") as source,
        (folder / "out").open("wb") as target,
        (folder / "out").open("rb") as progress,
    ):
        process = subprocess.Popen(command, stdin=source, stdout=target, env=environment(threads))
        lines = 0
        while process.poll() is None:
            lines += progress.read().count(b"\n")
            peaks[lines // 1_000] = max(peaks.get(lines // 1_000, 0.0), resident(process))
            time.sleep(0.05)
    assert process.returncode == 0
    return peaks


# ---- the run -----------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes and 1,500 lines, as a check of the script")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="of processor time for each row, at least two steps")
    parser.add_argument("--out", type=Path, default=RESULTS / "scale.json")
    args = parser.parse_args()
    result = {
        "file": run_file(1_500 if args.quick else 20_000, args.threads),
        "tables": run_tables(args.quick, args.threads, 0.0 if args.quick else args.seconds),
        "threads": args.threads,
        "date": date.today().isoformat(),
        "command": command_line(),
    }
    write_results(args.out, result)


if __name__ == "__main__":
    if sys.argv[1:2] == ["cell"]:
        print(json.dumps(measure(json.loads(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4]))))
    elif sys.argv[1:2] == ["model"]:
        save_small_model(Path(sys.argv[2]), (Path(sys.argv[2]) / "in").read_text(encoding="utf-8").split("\n"))
    elif sys.argv[1:2] == ["translate"]:
        from transduce import load

        sample = json.loads((Path(sys.argv[2]) / "sample").read_text(encoding="utf-8"))
        translator = load(Path(sys.argv[2]) / "model")
        print(json.dumps([translator.translate([line], beam_size=1)[0].text for line in sample]))
    else:
        main()
