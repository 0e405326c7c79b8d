"""What training and translation cost against length, batch and vocabulary; and a file of 20,000 lines.

    python benchmarks/scale.py [--quick] [--threads 1] [--out benchmarks/results/scale.json]

A small model (d_model 256, 3 + 3 layers, 4 heads, d_ff 1,024, 8,000 tokens) with random weights and random ids, in
fp32; every output is as long as its source, and searched with a beam of 4. Each row is a process of its own. Seconds
are those of the processor (medians), so that other work on the machine counts less. MB are the peak of what the process
holds, less what it held before the first step: gradients and Adam's moments are in them, weights are not. "grows as
n^": the exponent from one row to the next of a table. Writes results/scale.json.
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

ROOT = Path(__file__).resolve().parent.parent
LENGTHS = (8, 32, 128, 512, 2_048, 4_096)
VOCABULARIES = (1_000, 4_000, 16_000, 64_000)
TOKENS = 4_096  # of a batch on either side, where the length or the vocabulary changes
Cell = dict[str, Any]  # what: of WORK; length; batch: sentences; vocab_size

# ---- one row: in a process of its own ----------------------------------------------------------------------------


def configuration(vocab_size: int) -> Any:
    from transduce import Config, ModelConfig

    return Config(ModelConfig(vocab_size=vocab_size, d_model=256, n_layers=3, n_heads=4, d_ff=1_024))


def sources(cell: Cell) -> list[Any]:
    """`batch` random sentences of `length` tokens each, the end of sentence included."""
    import numpy as np

    rng = np.random.default_rng(1)
    return [rng.integers(4, cell["vocab_size"], cell["length"] - 1) for _ in range(cell["batch"])]


def training(cell: Cell) -> Callable[[], object]:
    """A whole step: forward, loss, backward, update."""
    import torch

    from transduce.data.batches import collate
    from transduce.model.transformer import Transformer
    from transduce.training.gradients import Gradients, update
    from transduce.training.optimizer import adam

    config = configuration(cell["vocab_size"])
    model = Transformer(config.model).train()
    optimizer = adam(model.parameters(), config.train.adam_beta2)
    gradients = Gradients(model, config.train, torch.device("cpu"), print)
    batch, steps = collate(sources(cell), sources(cell)), iter(range(1, 1 << 30))

    def step() -> None:
        number = next(steps)
        gradients.of([batch], seed=number)
        update(optimizer, number)
        optimizer.zero_grad()

    return step


def translation(cell: Cell) -> Callable[[], object]:
    """A search for outputs as long as their sources."""
    from transduce.config.schema import SearchConfig
    from transduce.decoding.backends import Backend
    from transduce.decoding.batched_search import search_all
    from transduce.decoding.cpu_transformer import PackedTransformer
    from transduce.model.transformer import Transformer

    model = PackedTransformer(Transformer(configuration(cell["vocab_size"]).model).eval(), "fp32")
    given = [ids.tolist() for ids in sources(cell)]
    ask = SearchConfig(beam_size=4, max_extra_tokens=1, min_tokens=1 << 20)  # never ends by itself
    return lambda: search_all(Backend([model]), given, ask)


def encoder(cell: Cell) -> Callable[[], object]:
    """The encoder alone: translating, with or without kernels of its own; in training; with the slow attention."""
    import torch

    from transduce.data.batches import pad
    from transduce.decoding.cpu_transformer import PackedTransformer
    from transduce.decoding.kernels import PLAIN
    from transduce.model.attention import fast_attention, reference_attention
    from transduce.model.transformer import Transformer

    model = Transformer(configuration(cell["vocab_size"]).model)
    src, mask = pad(sources(cell))
    if cell["how"] == "training":
        return lambda: model.train().encode(src, mask).sum().backward()
    packed = {"packed": None, "packed, kernels in torch": PLAIN}
    if cell["how"] in packed:
        encode: Any = PackedTransformer(model.eval(), "fp32", packed[cell["how"]]).encode
    else:
        attention = {"plain model": fast_attention, "the weights of eq. 1 held": reference_attention}[cell["how"]]
        encode = lambda src, mask: model.eval().encode(src, mask, attention)  # noqa: E731
    return torch.inference_mode()(lambda: encode(src, mask))


WORK = {"training": training, "translation": translation, "encoder": encoder}


def memory(key: str) -> float:
    """VmRSS, what this process holds, or VmHWM, the most it has held, in MB."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(key):
            return int(line.split()[1]) / 1024
    raise AssertionError(key)


def processor_seconds(step: Callable[[], object]) -> float:
    began = time.process_time()
    step()
    return time.process_time() - began


def measure(cell: Cell, threads: int, seconds: float) -> dict[str, float]:
    """Steps for about so many seconds, after one to warm up, if that was not longer than all of them."""
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    step = WORK[cell["what"]](cell)
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # VmHWM begins anew
    first = processor_seconds(step)
    taken: list[float] = []
    while sum(taken) < seconds and first < seconds:
        taken.append(processor_seconds(step))
    taken = taken or [first]
    return {"seconds": statistics.median(taken), "steps": len(taken), "mb": memory("VmHWM") - before}


# ---- the tables --------------------------------------------------------------------------------------------------


def tables(quick: bool) -> dict[str, tuple[str, list[Cell]]]:
    """For each table what changes in it, and its rows."""
    lengths, vocabularies, tokens = (LENGTHS, VOCABULARIES, TOKENS) if not quick else ((8, 32), (100, 400), 64)
    base = {"vocab_size": vocabularies[1] * 2, "batch": 1}
    found: dict[str, tuple[str, list[Cell]]] = {}
    for what in ("training", "translation"):
        one = {**base, "what": what}
        found[f"{what}: length, {tokens:,} tokens in all"] = (
            "length",
            [{**one, "length": n, "batch": tokens // n} for n in lengths],
        )
        found[f"{what}: length, one sentence"] = ("length", [{**one, "length": n} for n in lengths])
        batches = (1, 8, 64, 512) if not quick else (1, 4)
        found[f"{what}: sentences of 32 tokens"] = ("batch", [{**one, "length": 32, "batch": n} for n in batches])
        found[f"{what}: vocabulary, {tokens:,} tokens in sentences of 32"] = (
            "vocab_size",
            [{**one, "length": 32, "batch": tokens // 32, "vocab_size": n} for n in vocabularies],
        )
    ways = ("packed", "packed, kernels in torch", "plain model", "training", "the weights of eq. 1 held")
    long = [{**base, "what": "encoder", "length": lengths[-1], "how": how} for how in ways]
    found[f"encoder: one sentence of {lengths[-1]:,} tokens"] = ("how", long)
    return found


def in_a_process(*arguments: str, threads: int) -> str:
    """What this script prints when it is called so."""
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, __file__, *arguments]
    return subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, check=True).stdout


def run_tables(quick: bool, threads: int, seconds: float) -> dict[str, list[Cell]]:
    results: dict[str, list[Cell]] = {}
    measured: dict[str, Cell] = {}  # some rows are in two tables
    for title, (key, cells) in tables(quick).items():
        print(
            f"\n{title}\n\n| {key} | s | grows as n^ | ms for a token | MB | grows as n^ |\n|---|---|---|---|---|---|"
        )
        rows = results[title] = []
        for cell in cells:
            name = json.dumps(cell, sort_keys=True)
            if name not in measured:
                measured[name] = json.loads(in_a_process("cell", name, str(threads), str(seconds), threads=threads))
            rows.append({**cell, **measured[name]})
            print(line_of(rows, key), flush=True)
        if key == "how":
            n, heads = cells[0]["length"], 4
            print(f"\nThe weights of one layer, {heads} x {n:,} x {n:,} numbers: {heads * n * n * 4 / 2**20:,.0f} MB")
    return results


def line_of(rows: Sequence[Cell], key: str) -> str:
    """The last of `rows` as a line of a table."""
    row, grows = rows[-1], {"seconds": "", "mb": ""}
    if len(rows) > 1 and key != "how":
        for unit in grows:
            ratio = max(row[unit], 1e-9) / max(rows[-2][unit], 1e-9)
            grows[unit] = f"{math.log(ratio) / math.log(row[key] / rows[-2][key]):.2f}"
    each = 1e3 * row["seconds"] / (row["length"] * row["batch"])
    shown = row[key] if key == "how" else f"{row[key]:,}"
    return f"| {shown} | {row['seconds']:.3g} | {grows['seconds']} | {each:.3g} | {row['mb']:,.0f} | {grows['mb']} |"


# ---- a file of 20,000 lines --------------------------------------------------------------------------------------


def random_lines(count: int) -> list[str]:
    """Of 3 to 25 words; of the first 3,000, and so on, one that is very long; of 1,000 one that is blank."""
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
    """d_model 64, 2 + 2 layers, random weights, 1,000 pieces."""
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
    """What a process holds, in MB; 0 if it has ended."""
    try:
        fields = Path(f"/proc/{process.pid}/statm").read_text(encoding="utf-8").split()
    except OSError:
        return 0.0
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def run_file(count: int, threads: int) -> dict[str, Any]:
    """Translate `count` lines through the command line; what it held while each thousand of them was done."""
    lines = random_lines(count)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "in").write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        in_a_process("model", str(folder), threads=threads)
        command = [sys.executable, "-m", "transduce", "translate", str(folder / "model"), "--beam-size", "1"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": str(threads)}
        most: dict[int, float] = {}
        with (
            (folder / "in").open("rb") as given,
            (folder / "out").open("wb") as out,
            (folder / "out").open("rb") as seen,
        ):
            process = subprocess.Popen(command, stdin=given, stdout=out, env=environment)
            done = 0
            while process.poll() is None:
                done += seen.read().count(b"\n")
                most[done // 1_000] = max(most.get(done // 1_000, 0.0), resident(process))
                time.sleep(0.05)
        assert process.returncode == 0
        answers = (folder / "out").read_text(encoding="utf-8").split("\n")[:-1]
        sample = sorted(random.Random(2).sample(range(count), min(count, 200)))
        (folder / "sample").write_text(json.dumps([lines[i] for i in sample]), encoding="utf-8")
        alone = json.loads(in_a_process("translate", str(folder), threads=threads))
    assert len(answers) == count
    assert [i for i, answer in enumerate(answers) if not answer] == [i for i, line in enumerate(lines) if not line]
    in_place = sum(answers[i] == text for i, text in zip(sample, alone, strict=True))
    early = max(mb for thousand, mb in most.items() if thousand < 5)
    late = max(mb for thousand, mb in most.items() if thousand >= min(15, max(most)))
    print(f"\na file of {count:,} lines\n\n| lines done | the most MB held meanwhile |\n|---|---|")
    for thousand, mb in sorted(most.items()):
        print(f"| {1_000 * thousand:,} to {1_000 * thousand + 999:,} | {mb:.0f} |")
    print(
        f"\n{in_place} of {len(sample)} lines in their place; {late - early:+.1f} MB from the first quarter to the last"
    )
    return {"lines": count, "mb": most, "in_place": in_place, "sample": len(sample), "added_mb": late - early}


# ---- the run -----------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes and 1,500 lines: only to see that it runs")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="of processor time for each row, at least two steps")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "scale.json")
    asked = parser.parse_args()
    result = {
        "file": run_file(1_500 if asked.quick else 20_000, asked.threads),
        "tables": run_tables(asked.quick, asked.threads, 0.0 if asked.quick else asked.seconds),
        "threads": asked.threads,
        "date": date.today().isoformat(),
        "command": " ".join(Path(part).name for part in sys.argv),
    }
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


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
