"""Translation on a CPU beside CTranslate2 and Hugging Face: the same weights, text and number of threads.

    python benchmarks/translate.py MODEL --src test.en --ref test.de [--rounds 5] [--threads 2]

Exports MODEL to both, installs them into a virtual environment of its own (benchmarks/peers), and lets every side
translate the whole file in turn, round by round, each in a process that has been started and warmed up before. Reading
and detokenising are part of the time, loading is not. Then each translates single sentences. Best peer: the one with
the highest median of this run. "transduce int8,5" is int8 with a lookahead of 5, without one our search is exact; the
others end theirs when as many hypotheses as the beam has places have ended. Their penalty is length^0.6, the nearest
that they have to the paper's. Hugging Face's Marian is post-norm; a pre-norm model takes the weights of its M2M100.
The ratios are those of our best setting, and "exact" ones of our default. Writes benchmarks/results/translate.json.
"""

import argparse
import json
import os
import platform
import re
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
PEERS = ROOT / "benchmarks" / "peers" / "translate"
PACKAGES = ("ctranslate2", "transformers", "torch", "safetensors", "tokenizers", "msgspec", "numpy")

# (lines, beam size) -> their translations
Translate = Callable[[Sequence[str], int], list[str]]

# ---- the sides, each in a process of its own ---------------------------------------------------------------------


def transduce(kind: str, folder: Path, threads: int) -> Translate:
    """kind: precision, or precision and lookahead, as in "int8,5"."""
    import torch

    from transduce import load
    from transduce.model.cpu_backend import keep_freed_memory

    keep_freed_memory()
    torch.set_num_threads(threads)
    precision, _, tokens = kind.partition(",")
    model, lookahead = load(folder, precision=precision), int(tokens) if tokens else None
    return lambda lines, beam: [best.text for best in model.translate(lines, beam_size=beam, lookahead=lookahead)]


def ctranslate2(kind: str, folder: Path, threads: int) -> Translate:
    """kind: compute type, workers x threads of each, sentences a batch, maybe patience, as in "int8,2x1,32,0.5"."""
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
        found = model.translate_batch(
            sources,
            beam_size=beam,
            patience=float(patience[0]) if patience else 1.0,
            max_batch_size=int(batch),
            length_penalty=0.6,
            max_decoding_length=128,
        )
        return [
            tokenizer.decode([ids[piece] for piece in one.hypotheses[0] if piece != CONTROLS[EOS]]) for one in found
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
    exported = (folder / "generation_config.json").exists()
    model = MarianMTModel.from_pretrained(folder, dtype=dtype) if exported else pre_norm(folder).to(dtype)
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
            made = model.generate(
                input_ids=src,
                attention_mask=mask,
                num_beams=beam,
                max_new_tokens=width + 50,
                **settings,
                **({"early_stopping": True, "length_penalty": 0.6} if beam > 1 else {}),
            )
            for i, row in zip(members, made[:, 1:].tolist(), strict=True):
                outputs[i] = tokenizer.decode(row[: row.index(EOS)] if EOS in row else row)
        return outputs

    return translate


def pre_norm(folder: Path) -> Any:
    """The pre-norm model of `folder` as Hugging Face's M2M100, whose sinusoids and norms are put in order by hand."""
    import torch
    from transformers import M2M100Config, M2M100ForConditionalGeneration

    from transduce.data.vocabulary import BOS, EOS, PAD
    from transduce.interop.marian import marian_names
    from transduce.storage.model_folder import load_model
    from transduce.training.weights import weights

    loaded = load_model(folder)
    ours, sizes = loaded.config.model, {}
    for side in ("encoder", "decoder"):
        sizes[f"{side}_layers"], sizes[f"{side}_ffn_dim"] = ours.n_layers, ours.d_ff
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
    left = model.load_state_dict({names[name]: values for name, values in weights(loaded.model).items()}, strict=False)
    tied = {"lm_head.weight", *(f"model.{side}.embed_tokens.weight" for side in SIDES)}
    assert not left.unexpected_keys and {*left.missing_keys} <= tied, left
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = ours.norm_eps
    for side in (model.model.encoder, model.model.decoder):
        table = side.embed_positions.weights
        first = side.embed_positions.padding_idx + 1  # the number that they give to the first position
        table[first:] = loaded.model.positions(0, len(table) - first)
    return model


SIDES = ("encoder", "decoder")
LOOKAHEAD = re.compile(r"transduce \w+,\d+")
MAKERS = {"transduce": transduce, "ctranslate2": ctranslate2, "huggingface": huggingface}


def work(side: str, folder: Path, threads: int, src: Path, out: Path) -> None:
    """Answer commands on standard input, a line each: how long it took, in seconds, or a list of them."""
    program, kind = side.split(" ")
    translate = MAKERS[program](kind, folder, threads)
    lines = src.read_text(encoding="utf-8").splitlines()
    for beam in (4, 1):
        translate(lines[:8], beam)
    print("ready", flush=True)
    for command in sys.stdin:
        what, beam, count = command.split()
        if what == "file":
            began = time.perf_counter()
            lines = src.read_text(encoding="utf-8").splitlines()[: int(count)]
            out.write_text("\n".join(translate(lines, int(beam))) + "\n", encoding="utf-8")
            print(time.perf_counter() - began, flush=True)
        else:
            times = []
            for line in lines[: int(count)]:
                began = time.perf_counter()
                translate([line], int(beam))
                times.append(time.perf_counter() - began)
            print(json.dumps(times), flush=True)


class Side:
    """A process that translates when it is told to."""

    def __init__(self, name: str, python: str, folder: Path, threads: int, src: Path, out: Path) -> None:
        self.name, self.out = name, out
        command = [python, __file__, "work", name, str(folder), str(threads), str(src), str(out)]
        path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=environment, text=True, **pipes)
        self.answer("ready")

    def answer(self, expected: str = "") -> str:
        assert self.process.stdout is not None
        while line := self.process.stdout.readline().strip():
            if not expected or line == expected:
                return line
        raise RuntimeError(f"{self.name} ended; its message is above")

    def ask(self, what: str, beam: int, count: int) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what} {beam} {count}\n")
        self.process.stdin.flush()
        return self.answer()


# ---- the run -----------------------------------------------------------------------------------------------------


def install() -> str:
    """The interpreter of the peers' environment, made when it is not there."""
    python = PEERS / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(PEERS)], check=True)
        pip = [str(python), "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), *PACKAGES]
        subprocess.run(pip, check=True)
    return str(python)


def export(model: Path, to: str, folder: Path) -> Path:
    out = folder / to
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "transduce", "export", str(model), "--to", to, "--out", str(out)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": path})
    if not (out / "tokenizer.json").exists():
        (out / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    return out


def sides_of(threads: int) -> list[str]:
    ours = ["transduce fp32", "transduce int8", "transduce fp32,5", "transduce int8,5"]
    shapes = [f"{threads}x1,32", f"{threads}x1,64", f"{threads}x1,128", f"1x{threads},64"]
    theirs = [f"ctranslate2 {compute},{shape}" for compute in ("float32", "int8") for shape in shapes]
    return [*ours, *theirs, "huggingface fp32"]


def speeds(sides: Sequence[Side], beam: int, lines: int, rounds: int) -> dict[str, list[float]]:
    """Sentences a second of each side, round by round after one that is not counted."""
    found: dict[str, list[float]] = {side.name: [] for side in sides}
    for number in range(rounds + 1):
        for side in sides if number % 2 == 0 else reversed(sides):
            speed = lines / float(side.ask("file", beam, lines))
            found[side.name] += [speed] if number else []
            print(f"beam {beam}, round {number}: {side.name:28} {speed:8.1f} sentences/s", file=sys.stderr)
    return found


def best(found: dict[str, list[float]], *, of: str) -> float:
    """The highest median of the sides whose names begin with `of`; 0 without any."""
    return max((statistics.median(values) for name, values in found.items() if name.startswith(of)), default=0.0)


def table(found: dict[str, list[float]], title: str) -> str:
    rows = [f"| {title} | median | least | most |", "|---|---|---|---|"]
    for name, values in sorted(found.items(), key=lambda item: -statistics.median(item[1])):
        rows.append(f"| {name} | {statistics.median(values):.1f} | {min(values):.1f} | {max(values):.1f} |")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--src", type=Path, required=True)
    parser.add_argument("--ref", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lines", type=int, default=None, help="only so many lines of the file")
    parser.add_argument("--alone", type=int, default=100, help="sentences translated one by one")
    parser.add_argument("--sides", nargs="+", default=None, help='such as "transduce int8"; by default all')
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "translate.json")
    asked = parser.parse_args()
    references = asked.ref.read_text(encoding="utf-8").splitlines()[: asked.lines]
    from transduce.evaluation.metrics import bleu

    peers = install()
    with tempfile.TemporaryDirectory() as temporary:
        work_folder = Path(temporary)
        folders = {"transduce": asked.model, "ctranslate2": export(asked.model, "ctranslate2", work_folder)}
        norm = json.loads((asked.model / "config.json").read_text(encoding="utf-8"))["model"]["norm"]
        folders["huggingface"] = export(asked.model, "marian", work_folder) if norm == "post" else asked.model
        sides = []
        for i, name in enumerate(asked.sides or sides_of(asked.threads)):
            program = name.split(" ")[0]
            python = sys.executable if program == "transduce" else peers
            sides.append(Side(name, python, folders[program], asked.threads, asked.src, work_folder / f"{i}.txt"))
        beam4 = speeds(sides, 4, len(references), asked.rounds)
        outputs = {side.name: side.out.read_text(encoding="utf-8").split("\n")[:-1] for side in sides}
        scores = {name: bleu(output, references) for name, output in outputs.items()}
        without = [side for side in sides if not LOOKAHEAD.fullmatch(side.name)]  # greedy search has no use for one
        greedy = speeds(without, 1, len(references), asked.rounds)
        alone = {side.name: [1e3 * t for t in json.loads(side.ask("alone", 4, asked.alone))] for side in sides}
        latencies = {
            name: (statistics.median(times), statistics.quantiles(times, n=20)[-1]) for name, times in alone.items()
        }
    ratios = {}
    for name, found, mine, peers in (
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
        if mine in found and best(found, of=peers):
            ratios[name] = statistics.median(found[mine]) / best(found, of=peers)
    medians = {name: median for name, (median, _) in latencies.items()}
    for name, mine, peers in (
        ("latency_ratio_exact", ("transduce fp32", "transduce int8"), "ctranslate2"),
        ("latency_ratio", ("transduce fp32,5", "transduce int8,5"), "ctranslate2"),
        ("latency_ratio_fp32_exact", ("transduce fp32",), "ctranslate2 float32"),
        ("latency_ratio_fp32", ("transduce fp32,5",), "ctranslate2 float32"),
    ):
        ours = [medians[side] for side in mine if side in medians]
        theirs = [median for side, median in medians.items() if side.startswith(peers)]
        if ours and theirs:
            ratios[name] = min(theirs) / min(ours)
    print(table(beam4, "beam 4, sentences/s"), "", table(greedy, "greedy, sentences/s"), sep="\n")
    print("\n| one sentence alone, beam 4, ms | median | 95 % | BLEU of the file |\n|---|---|---|---|")
    for name, (median, most) in sorted(latencies.items(), key=lambda item: item[1]):
        print(f"| {name} | {median:.1f} | {most:.1f} | {scores[name]:.2f} |")
    print("\n" + "\n".join(f"{name} {value:.2f}" for name, value in ratios.items()))
    changed = {
        name: sum(a != b for a, b in zip(outputs[name], outputs[f"{name},5"], strict=True))
        for name in outputs
        if f"{name},5" in outputs
    }
    for name, count in changed.items():
        print(f"{name}: the lookahead changes {count} of {len(references)} lines")
    result = {
        **{name: round(value, 3) for name, value in ratios.items()},
        "bleu_fp32": scores.get("transduce fp32"),
        "bleu_int8": scores.get("transduce int8"),
        "bleu": scores,
        "lines_changed_by_lookahead": changed,
        "sentences_per_second": {"beam4": beam4, "greedy": greedy},
        "latency_ms": latencies,
        "lines": len(references),
        "threads": asked.threads,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "date": date.today().isoformat(),
        "command": " ".join(Path(part).name for part in sys.argv),
    }
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        side, folder, threads, src, out = sys.argv[2:]
        work(side, Path(folder), int(threads), Path(src), Path(out))
    else:
        main()
