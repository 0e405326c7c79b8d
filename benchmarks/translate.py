"""Translation on a CPU compared with CTranslate2 and Hugging Face: the same weights, text and number of threads.

    python benchmarks/translate.py MODEL... --src test.en --ref test.de [--rounds 5] [--threads 2] [--level avx2]

The script exports each MODEL to both and installs them into their own environment (benchmarks/peers). Each side is a
process that has loaded its model and warmed up. The sides take turns, round by round, with the whole file. The time
includes reading and detokenising, not loading. Then each side translates single sentences.

- Best peer: the peer with the highest median of this run.
- "transduce int8,5": int8 with a lookahead of 5. Without a lookahead our search is exact. The peers end a search when
  as many hypotheses have ended as the beam has.
- Length penalty of the peers: length^0.6, the nearest to the paper's that they have.
- Hugging Face's Marian is post-norm. The weights of a pre-norm model go into its Pegasus.
- With --level, no program uses other instructions than those of a level of our kernels.
- With --processor-time, speeds and latencies are in processor time of all threads, for a busy machine.
- A ratio is of our best setting, or with "exact" of our default. The lowest ratios are over all models.
- The results are written into benchmarks/results/translate.json.
"""

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from peers import RESULTS, Worker, command_line, export, in_turn, install, processor, write_results

PACKAGES = ("ctranslate2", "transformers", "torch", "safetensors", "tokenizers", "msgspec", "numpy")

SIDES = Path(__file__).with_name("translate_sides.py")

# ---- instructions ------------------------------------------------------------------------------------------------

# For each level of ours: the instructions of CTranslate2, of oneDNN (which it and torch use), of MKL, and of torch.
INSTRUCTIONS = {
    "avx512_vnni": ("AVX512", "AVX512_CORE_VNNI", "AVX512", "avx512"),
    "avx512": ("AVX512", "AVX512_CORE", "AVX512", "avx512"),
    "avx_vnni": ("AVX2", "AVX2_VNNI", "AVX2", "avx2"),
    "avx2": ("AVX2", "AVX2", "AVX2", "avx2"),
    "portable": ("GENERIC", "SSE41", "SSE4_2", "default"),
}


def hold_to(level: str) -> None:
    """Let the processes that this one starts use the instructions of a level. CTranslate2's own variable is not enough.

    Its products are in oneDNN, which has a variable of its own.
    """
    names = "CT2_FORCE_CPU_ISA", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "ATEN_CPU_CAPABILITY"
    os.environ |= dict(zip(names, INSTRUCTIONS[level], strict=True), TRANSDUCE_CPU_LEVEL=level)


# ---- the run -----------------------------------------------------------------------------------------------------


def sides_of(threads: int) -> list[str]:
    ours = ["transduce fp32", "transduce int8", "transduce fp32,5", "transduce int8,5"]
    shapes = [f"{threads}x1,32", f"{threads}x1,64", f"{threads}x1,128", f"1x{threads},64"]
    theirs = [f"ctranslate2 {compute},{shape}" for compute in ("float32", "int8") for shape in shapes]
    return [*ours, *theirs, "huggingface fp32"]


LOOKAHEAD = re.compile(r"transduce \w+,\d+")

Speeds = dict[str, list[float]]  # for each side, sentences a second of each round


@dataclass(frozen=True)
class Side:
    """A worker and the file of its last translation."""

    worker: Worker
    out: Path

    @property
    def name(self) -> str:
        return self.worker.name


def start_sides(args: argparse.Namespace, model: Path, folder: Path) -> list[Side]:
    """Export the model for each program and start a worker for each side."""
    python = install("translate", PACKAGES)
    folders = {"transduce": model, **{form: export(model, form, folder) for form in ("ctranslate2", "huggingface")}}
    sides = []
    for i, name in enumerate(args.sides or sides_of(args.threads)):
        program = name.split(" ")[0]
        out = folder / f"{i}.txt"
        clock = "processor" if args.processor_time else "wall"
        arguments = [name, str(folders[program]), str(args.threads), str(args.src), str(out), clock]
        interpreter = sys.executable if program == "transduce" else python
        sides.append(Side(Worker(name, [interpreter, str(SIDES), *arguments], args.threads), out))
    return sides


def speeds(sides: Sequence[Side], beam: int, lines: int, rounds: int) -> Speeds:
    """Return the sentences a second of each side, for each round after the first, which warms up."""
    results: Speeds = {side.name: [] for side in sides}
    for number in range(rounds + 1):
        for side in in_turn(sides, number):
            speed = lines / float(side.worker.ask(f"file {beam} {lines}"))
            if number:
                results[side.name].append(speed)
            print(f"beam {beam}, round {number}: {side.name:28} {speed:8.1f} sentences/s", file=sys.stderr)
    return results


def best(results: Speeds, *, of: str) -> float:
    """Return the highest median of the sides whose names start with `of`, or 0 without any."""
    return max((statistics.median(values) for name, values in results.items() if name.startswith(of)), default=0.0)


def table(results: Speeds, title: str) -> str:
    rows = [f"| {title} | median | least | most |", "|---|---|---|---|"]
    for name, values in sorted(results.items(), key=lambda item: -statistics.median(item[1])):
        rows.append(f"| {name} | {statistics.median(values):.1f} | {min(values):.1f} | {max(values):.1f} |")
    return "\n".join(rows)


def speed_ratios(beam4: Speeds, greedy: Speeds) -> dict[str, float]:
    """Return our speed divided by the speed of the best peer, for each comparison whose sides ran."""
    ratios = {}
    for name, results, ours, peers in (
        ("ratio_int8_beam4_exact", beam4, "transduce int8", "ctranslate2 int8"),
        ("ratio_int8_beam4", beam4, "transduce int8,5", "ctranslate2 int8"),
        ("ratio_fp32_beam4_exact", beam4, "transduce fp32", "ctranslate2 float32"),
        ("ratio_fp32_beam4", beam4, "transduce fp32,5", "ctranslate2 float32"),
        ("ratio_int8_greedy", greedy, "transduce int8", "ctranslate2 int8"),
        ("ratio_fp32_greedy", greedy, "transduce fp32", "ctranslate2 float32"),
        ("ratio_huggingface_beam4_exact", beam4, "transduce fp32", "huggingface"),
        ("ratio_huggingface_beam4", beam4, "transduce fp32,5", "huggingface"),
        ("ratio_huggingface_greedy", greedy, "transduce fp32", "huggingface"),
    ):
        if ours in results and best(results, of=peers):
            ratios[name] = statistics.median(results[ours]) / best(results, of=peers)
    return ratios


Latencies = dict[str, tuple[float, float]]  # for each side, the median and the 95th percentile in ms


def latency_ratios(latencies: Latencies) -> dict[str, float]:
    """Return the median of the fastest peer divided by ours, for each comparison whose sides ran."""
    ratios = {}
    for name, ours, peers in (
        ("latency_ratio_exact", ("transduce fp32", "transduce int8"), "ctranslate2"),
        ("latency_ratio", ("transduce fp32,5", "transduce int8,5"), "ctranslate2"),
        ("latency_ratio_int8_exact", ("transduce int8",), "ctranslate2 int8"),
        ("latency_ratio_fp32_exact", ("transduce fp32",), "ctranslate2 float32"),
        ("latency_ratio_fp32", ("transduce fp32,5",), "ctranslate2 float32"),
    ):
        our_medians = [latencies[side][0] for side in ours if side in latencies]
        their_medians = [median for side, (median, _) in latencies.items() if side.startswith(peers)]
        if our_medians and their_medians:
            ratios[name] = min(their_medians) / min(our_medians)
    return ratios


def measure_latencies(sides: Sequence[Side], count: int) -> Latencies:
    """Return the latency of single sentences, over the first `count` sentences."""
    latencies = {}
    for side in sides:
        times = [1e3 * seconds for seconds in json.loads(side.worker.ask(f"alone 4 {count}"))]
        latencies[side.name] = statistics.median(times), statistics.quantiles(times, n=20)[-1]
    return latencies


def lines_changed_by_lookahead(outputs: dict[str, list[str]]) -> dict[str, int]:
    """Return how many lines differ between a setting and the same setting with a lookahead of 5."""
    return {
        name: sum(a != b for a, b in zip(outputs[name], outputs[f"{name},5"], strict=True))
        for name in outputs
        if f"{name},5" in outputs
    }


def print_tables(title: str, result: dict[str, Any]) -> None:
    print(f"\n## {title}\n")
    rates = result["sentences_per_second"]
    print(table(rates["beam4"], "beam 4, sentences/s"), "", table(rates["greedy"], "greedy, sentences/s"), sep="\n")
    print("\n| single sentences, beam 4, ms | median | 95 % | BLEU of the file |\n|---|---|---|---|")
    for name, (median, most) in sorted(result["latency_ms"].items(), key=lambda item: item[1]):
        print(f"| {name} | {median:.1f} | {most:.1f} | {result['bleu'][name]:.2f} |")
    print("\n" + "\n".join(f"{name} {value:.2f}" for name, value in result["ratios"].items()))
    for name, count in result["lines_changed_by_lookahead"].items():
        print(f"{name}: the lookahead changes {count} lines")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL")
    parser.add_argument("--src", type=Path, required=True)
    parser.add_argument("--ref", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--level", choices=INSTRUCTIONS, help="of our kernels, as in TRANSDUCE_CPU_LEVEL")
    parser.add_argument("--processor-time", action="store_true", help="measure the processor time of each process")
    parser.add_argument("--lines", type=int, default=None, help="the number of lines from the start of the file")
    parser.add_argument("--alone", type=int, default=100, help="the number of sentences translated one by one")
    parser.add_argument("--sides", nargs="+", default=None, help='such as "transduce int8"; default: all')
    parser.add_argument("--out", type=Path, default=RESULTS / "translate.json")
    return parser.parse_args()


def measure(args: argparse.Namespace, model: Path, references: Sequence[str]) -> dict[str, Any]:
    """Return the speeds, latencies and scores of all sides with the weights of one model."""
    from transduce.evaluation.metrics import bleu

    with tempfile.TemporaryDirectory() as folder:
        sides = start_sides(args, model, Path(folder))
        beam4 = speeds(sides, 4, len(references), args.rounds)
        outputs = {side.name: side.out.read_text(encoding="utf-8").split("\n")[:-1] for side in sides}
        exact = [side for side in sides if not LOOKAHEAD.fullmatch(side.name)]  # greedy search has no lookahead
        greedy = speeds(exact, 1, len(references), args.rounds)
        latencies = measure_latencies(sides, args.alone)
        for side in sides:
            side.worker.close()
    ratios = {**speed_ratios(beam4, greedy), **latency_ratios(latencies)}
    return {
        "ratios": {name: round(value, 3) for name, value in ratios.items()},
        "bleu": {name: bleu(output, references) for name, output in outputs.items()},
        "lines_changed_by_lookahead": lines_changed_by_lookahead(outputs),
        "sentences_per_second": {"beam4": beam4, "greedy": greedy},
        "latency_ms": latencies,
    }


def main() -> None:
    args = arguments()
    if args.level:
        hold_to(args.level)
    references = args.ref.read_text(encoding="utf-8").splitlines()[: args.lines]
    results = {f"{model.parent.name}/{model.name}": measure(args, model, references) for model in args.models}
    for model, result in results.items():
        print_tables(model, result)
    ratios = [result["ratios"] for result in results.values()]
    lowest = {name: min(ratio[name] for ratio in ratios) for name in ratios[0]}
    print(f"\nlowest ratios on {processor()}: {lowest}")
    facts = {"processor": processor(), "cores": os.cpu_count(), "threads": args.threads, "lines": len(references)}
    facts |= {"level": args.level, "clock": "processor" if args.processor_time else "wall"}
    facts |= {"date": date.today().isoformat(), "command": command_line()}
    write_results(args.out, {"lowest_ratios": lowest, **facts, "models": results})


if __name__ == "__main__":
    main()
