"""Translation on a CPU compared with CTranslate2 and Hugging Face: the same weights, text and number of threads.

    python benchmarks/translate.py MODEL... --src test.en --ref test.de [--rounds 5] [--threads 2] [--level avx2]

The script exports each MODEL to both and installs them into their own environment (benchmarks/peers). Each side is a
process that has loaded its model and warmed up. The sides take turns, round by round, with the whole file. The time
includes reading and detokenising, not loading. Then each side translates single sentences.

- Best peer: the peer with the highest median of this run.
- "transduce int8,5": int8 with a lookahead of 5. Without a lookahead our search is exact. The peers end a search when
  as many hypotheses have ended as the beam has.
- Length penalty of the peers: length^0.6, the nearest to the paper's that they have.
- Hugging Face's Marian is post-norm. The weights of a pre-norm model go into its M2M100.
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
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from peers import RESULTS, Worker, command_line, export, in_turn, install, processor, write_results

PACKAGES = ("ctranslate2", "transformers", "torch", "safetensors", "tokenizers", "msgspec", "numpy")

# (lines, beam size) -> their translations
Translate = Callable[[Sequence[str], int], list[str]]

# ---- the sides, each in its own process --------------------------------------------------------------------------


def transduce(kind: str, folder: Path, threads: int) -> Translate:
    """Return our translation. kind: the precision, or precision and lookahead, such as "int8,5"."""
    import torch

    from transduce import load
    from transduce.model.cpu_backend import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(threads)
    precision, _, tokens = kind.partition(",")
    model, lookahead = load(folder, precision=precision), int(tokens) if tokens else None
    return lambda lines, beam: [best.text for best in model.translate(lines, beam_size=beam, lookahead=lookahead)]


def ctranslate2(kind: str, folder: Path, threads: int) -> Translate:
    """Return the translation of CTranslate2.

    kind: compute type, workers x threads of each, sentences in a batch, optional patience: "int8,2x1,32,0.5".
    """
    import ctranslate2 as peer

    from transduce.data.tokenizer import Tokenizer
    from transduce.data.vocabulary import CONTROLS, EOS

    compute, workers, batch, *patience = kind.split(",")
    inter, intra = (int(part) for part in workers.split("x"))
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    vocabulary, ids = tokenizer.vocabulary, {piece: i for i, piece in enumerate(tokenizer.vocabulary)}
    model = peer.Translator(str(folder), compute_type=compute, inter_threads=inter, intra_threads=intra)

    def translate(lines: Sequence[str], beam: int) -> list[str]:
        sources = [[vocabulary[token] for token in source] for source in tokenizer.encode_batch(lines)]
        outputs = model.translate_batch(
            sources,
            beam_size=beam,
            patience=float(patience[0]) if patience else 1.0,
            max_batch_size=int(batch),
            length_penalty=0.6,
            max_decoding_length=128,
        )
        return [
            tokenizer.decode([ids[piece] for piece in output.hypotheses[0] if piece != CONTROLS[EOS]])
            for output in outputs
        ]

    return translate


def huggingface(precision: str, folder: Path, threads: int) -> Translate:
    import torch
    from transformers import MarianMTModel

    from transduce.data.tokenizer import Tokenizer
    from transduce.data.vocabulary import BOS, EOS, PAD, UNK

    torch.set_num_threads(threads)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[precision]
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    is_marian = (folder / "generation_config.json").exists()
    model = MarianMTModel.from_pretrained(folder, dtype=dtype) if is_marian else pre_norm(folder).to(dtype)
    settings = {
        "bad_words_ids": [[PAD], [BOS], [UNK]],
        "do_sample": False,
        "pad_token_id": PAD,
        "eos_token_id": EOS,
        "decoder_start_token_id": BOS,
    }

    @torch.inference_mode()
    def translate(lines: Sequence[str], beam: int) -> list[str]:
        sources = [[*source, EOS] for source in tokenizer.encode_batch(lines)]
        order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))
        outputs = [""] * len(lines)
        for begin in range(0, len(order), 64):
            members = order[begin : begin + 64]
            width = len(sources[members[0]])
            src = torch.tensor([sources[i] + [PAD] * (width - len(sources[i])) for i in members])
            mask = (src != PAD).long()
            output = model.generate(
                input_ids=src,
                attention_mask=mask,
                num_beams=beam,
                max_new_tokens=width + 50,
                **settings,
                **({"early_stopping": True, "length_penalty": 0.6} if beam > 1 else {}),
            )
            for i, row in zip(members, output[:, 1:].tolist(), strict=True):
                outputs[i] = tokenizer.decode(row[: row.index(EOS)] if EOS in row else row)
        return outputs

    return translate


def pre_norm(folder: Path) -> Any:
    """Return the pre-norm model of `folder` as Hugging Face's M2M100, with our sinusoids and epsilon of the norms."""
    import torch
    from transformers import M2M100Config, M2M100ForConditionalGeneration

    from transduce.data.vocabulary import BOS, EOS, PAD
    from transduce.interop.marian import marian_names
    from transduce.storage.model_folder import load_model
    from transduce.training.weights import weights

    loaded = load_model(folder)
    ours, sizes = loaded.config.model, {}
    for side, depth in zip(SIDES, ours.depths, strict=True):
        sizes[f"{side}_layers"], sizes[f"{side}_ffn_dim"] = depth, ours.d_ff
        sizes[f"{side}_attention_heads"] = ours.n_heads
    assert ours.tie_src_tgt and ours.tie_output, "M2M100 has one matrix for embeddings and output"
    config = M2M100Config(
        vocab_size=ours.vocab_size,
        max_position_embeddings=2048,
        d_model=ours.d_model,
        activation_function=ours.activation,
        scale_embedding=True,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        decoder_start_token_id=BOS,
        **sizes,
    )
    model = M2M100ForConditionalGeneration(config).eval()
    names = marian_names(ours)
    names |= {f"{side}_norm.{kind}": f"model.{side}.layer_norm.{kind}" for side in SIDES for kind in ("weight", "bias")}
    mismatch = model.load_state_dict(
        {names[name]: values for name, values in weights(loaded.model).items()}, strict=False
    )
    tied = {"lm_head.weight", *(f"model.{side}.embed_tokens.weight" for side in SIDES)}
    assert not mismatch.unexpected_keys and {*mismatch.missing_keys} <= tied, mismatch
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = ours.norm_eps
    for side in (model.model.encoder, model.model.decoder):
        table = side.embed_positions.weights
        first = side.embed_positions.padding_idx + 1  # the row of the first position in their table
        table[first:] = loaded.model.positions(0, len(table) - first)
    return model


SIDES = ("encoder", "decoder")
LOOKAHEAD = re.compile(r"transduce \w+,\d+")
MAKERS = {"transduce": transduce, "ctranslate2": ctranslate2, "huggingface": huggingface}


def work(side: str, folder: Path, threads: int, src: Path, out: Path, clock: str) -> None:
    """Answer each command on standard input with the seconds that it took, one number or a list."""
    now = time.process_time if clock == "processor" else time.perf_counter
    program, kind = side.split(" ")
    translate = MAKERS[program](kind, folder, threads)
    lines = src.read_text(encoding="utf-8").splitlines()
    for beam in (4, 1):
        translate(lines[:8], beam)
    print("ready", flush=True)
    for command in sys.stdin:
        what, beam, count = command.split()
        if what == "file":
            began = now()
            lines = src.read_text(encoding="utf-8").splitlines()[: int(count)]
            out.write_text("\n".join(translate(lines, int(beam))) + "\n", encoding="utf-8")
            print(now() - began, flush=True)
        else:
            times = []
            for line in lines[: int(count)]:
                began = now()
                translate([line], int(beam))
                times.append(now() - began)
            print(json.dumps(times), flush=True)


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
    folders = {"transduce": model, "ctranslate2": export(model, "ctranslate2", folder)}
    norm = json.loads((model / "config.json").read_text(encoding="utf-8"))["model"]["norm"]
    folders["huggingface"] = export(model, "marian", folder) if norm == "post" else model
    sides = []
    for i, name in enumerate(args.sides or sides_of(args.threads)):
        program = name.split(" ")[0]
        out = folder / f"{i}.txt"
        clock = "processor" if args.processor_time else "wall"
        arguments = [name, str(folders[program]), str(args.threads), str(args.src), str(out), clock]
        interpreter = sys.executable if program == "transduce" else python
        sides.append(Side(Worker(name, [interpreter, __file__, "work", *arguments], args.threads), out))
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
    if sys.argv[1:2] == ["work"]:
        side, folder, threads, src, out, clock = sys.argv[2:]
        work(side, Path(folder), int(threads), Path(src), Path(out), clock)
    else:
        main()
