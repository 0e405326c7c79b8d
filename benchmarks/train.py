"""Training on a CPU beside other programs' models: the same architecture, batches, loss and optimizer.

    python benchmarks/train.py --train train.en train.de [--size base] [--precision bf16] [--rounds 7] [--threads 2]

Sizes: base (vaswani2017-base with 10,000 pieces) and tiny (multi30k-tiny). Every side is a process of its own that
makes steps of the same batches when it is told to, in turn, data loading and optimizer included; the first round
warms up. Tokens are source and target tokens that are not padding. The peers: torch.nn.Transformer, Hugging Face's
Marian with its eager attention and with SDPA, and JoeyNMT's; all in one common loop, so that models are compared, not
trainers. The ceiling is a bf16 product of 2,048 x 512 by 512 x 2,048, measured in the same rounds. Writes
results/train.json.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / "benchmarks" / "peers" / "train"
PACKAGES = ("transformers", "torch", "safetensors", "tokenizers", "msgspec", "numpy")
JOEYNMT = ("tensorboard", "matplotlib", "pyyaml", "packaging")  # what its model imports, of all that it asks for
SIDES = ("transduce", "torch.nn", "marian eager", "marian sdpa", "joeynmt")
Step = Callable[[], tuple[int, int, float]]  # -> source tokens, target tokens, mean loss

# ---- what all sides share ----------------------------------------------------------------------------------------


def configuration(size: str) -> Any:
    from transduce.recipes import multi30k, vaswani2017

    if size == "tiny":
        return multi30k.tiny()
    base = vaswani2017.base()
    return replace(base, data=replace(base.data, vocab_size=10_000, batch_tokens=4_096))


def batches(config: Any, folder: Path, texts: Sequence[Path]) -> tuple[Iterator[Any], int]:
    """The stream of batches that training takes, and the number of pieces."""
    from transduce.data.batches import Batches, DataPosition
    from transduce.data.corpora import Corpus
    from transduce.data.text import read_lines
    from transduce.data.token_store import open_store
    from transduce.data.tokenizer import Tokenizer

    path = folder / "tokenizer.json"
    if not path.exists():
        lines = [line for text in texts for line in read_lines(text)]
        path.write_text(Tokenizer.learn(lines, kind="bpe", vocab_size=config.data.vocab_size).to_json())
    tokenizer = Tokenizer.load(path)
    store = open_store(folder / "data", [Corpus(*texts)], tokenizer)
    stream = Batches(store, tokenizer, config.data, seed=1).stream(DataPosition())
    return (micro_batches for micro_batches, _ in stream), tokenizer.vocab_size


# ---- the sides ---------------------------------------------------------------------------------------------------


def transduce(config: Any, stream: Iterator[Any], kind: str) -> Step:
    import torch

    from transduce.model.transformer import Transformer
    from transduce.training.gradients import Gradients, dropout_seed, update
    from transduce.training.optimizer import adam

    model = Transformer(config.model).train()
    optimizer = adam(model.parameters(), config.train.adam_beta2)
    for group in optimizer.param_groups:
        group["lr"] = 1e-4
    gradients = Gradients(model, config.train, torch.device("cpu"), print)
    steps = iter(range(1, 1 << 30))

    def step() -> tuple[int, int, float]:
        number = next(steps)
        gradient = gradients.of(next(stream), seed=dropout_seed(1, number))
        update(optimizer, number)
        optimizer.zero_grad()
        return gradient.src_tokens, gradient.tgt_tokens, gradient.loss / gradient.tgt_tokens

    return step


def peer(config: Any, stream: Iterator[Any], logits: Callable[[Any], Any], model: Any) -> Step:
    """A peer's model in the common loop: `logits` of a batch (B,T,V), smoothed cross entropy, fused Adam."""
    import torch
    from torch.nn import functional as F

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)
    bf16 = config.train.precision == "bf16"

    def step() -> tuple[int, int, float]:
        (batch,) = next(stream)
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            real = logits(batch)[batch.tgt_mask]
        targets = batch.tgt_out[batch.tgt_mask]
        loss = F.cross_entropy(real.float(), targets, label_smoothing=config.train.label_smoothing)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return int(batch.src_mask.sum()), len(targets), loss.item()

    return step


def torch_nn(config: Any, stream: Iterator[Any], kind: str) -> Step:
    import torch
    from torch import nn

    from transduce.model.positions import sinusoids

    c = config.model

    class Peer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(c.vocab_size, c.d_model)
            nn.init.normal_(self.embedding.weight, std=c.d_model**-0.5)
            shape = {"nhead": c.n_heads, "dim_feedforward": c.d_ff, "dropout": c.dropout, "norm_first": c.norm == "pre"}
            layers = {"num_encoder_layers": c.n_layers, "num_decoder_layers": c.n_layers}
            self.transformer = nn.Transformer(c.d_model, **shape, **layers, batch_first=True)
            self.positions = sinusoids(512, c.d_model)
            self.dropout = nn.Dropout(c.dropout)

        def embed(self, ids: Any) -> Any:
            return self.dropout(self.embedding(ids) * c.d_model**0.5 + self.positions[: ids.size(1)])

        def forward(self, batch: Any) -> Any:
            future = nn.Transformer.generate_square_subsequent_mask(batch.tgt_in.size(1)).isinf()
            padding = ~batch.src_mask
            hidden = self.transformer(
                self.embed(batch.src),
                self.embed(batch.tgt_in),
                tgt_mask=future,
                src_key_padding_mask=padding,
                memory_key_padding_mask=padding,
                tgt_is_causal=True,
            )
            return torch.nn.functional.linear(hidden, self.embedding.weight)

    model = Peer().train()
    return peer(config, stream, model, model)


def marian(config: Any, stream: Iterator[Any], kind: str) -> Step:
    from transformers import MarianConfig, MarianMTModel

    c = config.model
    shape = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", c.n_layers), ("attention_heads", c.n_heads), ("ffn_dim", c.d_ff))
    }
    theirs = MarianConfig(
        vocab_size=c.vocab_size, d_model=c.d_model, dropout=c.dropout, attention_dropout=0.0, activation_dropout=0.0,
        activation_function="relu", scale_embedding=True, share_encoder_decoder_embeddings=True, pad_token_id=0,
        eos_token_id=2, decoder_start_token_id=1, max_position_embeddings=512, use_cache=False,
        attn_implementation=kind, **shape,
    )  # fmt: skip
    model = MarianMTModel(theirs).train()

    def logits(batch: Any) -> Any:
        return model(
            input_ids=batch.src, attention_mask=batch.src_mask.long(), decoder_input_ids=batch.tgt_in
        ).logits  # fmt: skip

    return peer(config, stream, logits, model)


def joeynmt(config: Any, stream: Iterator[Any], kind: str) -> Step:
    import torch
    from torch import nn

    sys.modules.setdefault("importlib_metadata", types.ModuleType("importlib_metadata"))
    sys.modules["importlib_metadata"].version = lambda name: "0"  # pyright: ignore[reportAttributeAccessIssue]
    from joeynmt.decoders import TransformerDecoder
    from joeynmt.encoders import TransformerEncoder

    c = config.model
    shape = {
        "hidden_size": c.d_model, "ff_size": c.d_ff, "num_layers": c.n_layers, "num_heads": c.n_heads,
        "dropout": c.dropout, "emb_dropout": c.dropout, "layer_norm": c.norm,
    }  # fmt: skip
    encoder, decoder = TransformerEncoder(**shape), TransformerDecoder(**shape, vocab_size=c.vocab_size)
    embedding = nn.Embedding(c.vocab_size, c.d_model)
    nn.init.normal_(embedding.weight, std=c.d_model**-0.5)
    decoder.output_layer.weight = embedding.weight
    model = nn.ModuleList([encoder, decoder, embedding]).train()

    def logits(batch: Any) -> Any:
        src_mask, tgt_mask = batch.src_mask[:, None], torch.ones_like(batch.tgt_mask)[:, None]
        scale = c.d_model**0.5
        memory, hidden = encoder(embedding(batch.src) * scale, batch.src_mask.sum(1), src_mask)
        return decoder(embedding(batch.tgt_in) * scale, memory, hidden, src_mask, None, None, tgt_mask)[0]

    return peer(config, stream, logits, model)


MAKERS = {"transduce": transduce, "torch.nn": torch_nn, "marian": marian, "joeynmt": joeynmt}


def work(side: str, size: str, precision: str, threads: int, folder: Path, texts: Sequence[Path]) -> None:
    """For each line on standard input make that many steps; say how they were."""
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    config = configuration(size)
    stream, vocab_size = batches(config, folder, texts)
    config = replace(config, model=replace(config.model, vocab_size=vocab_size))
    config = replace(config, train=replace(config.train, precision=precision))
    program, _, kind = side.partition(" ")
    step = MAKERS[program](config, stream, kind)
    print("ready", flush=True)
    for command in sys.stdin:
        began = time.perf_counter()
        made = [step() for _ in range(int(command))]
        seconds, tokens = time.perf_counter() - began, sum(src + tgt for src, tgt, _ in made)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        found = {"tokens": tokens, "seconds": seconds, "loss": made[-1][2], "peak_mb": peak}
        print(json.dumps(found), flush=True)


def ceiling(threads: int) -> float:
    """GFLOP/s of a bf16 product of 2,048 x 512 by 512 x 2,048."""
    import torch

    torch.set_num_threads(threads)
    x, w = torch.randn(2_048, 512, dtype=torch.bfloat16), torch.randn(2_048, 512, dtype=torch.bfloat16)
    times = []
    for _ in range(30):
        began = time.perf_counter()
        torch.nn.functional.linear(x, w)
        times.append(time.perf_counter() - began)
    return 2 * 2_048 * 512 * 2_048 / statistics.median(times) / 1e9


# ---- the run -----------------------------------------------------------------------------------------------------


class Side:
    """A process that makes training steps when it is told to."""

    def __init__(self, name: str, python: str, arguments: Sequence[str]) -> None:
        path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": arguments[2], "HF_HUB_OFFLINE": "1"}
        command = [python, __file__, "work", name, *arguments]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.name = name
        self.process = subprocess.Popen(command, env=environment, text=True, **pipes)
        while (line := self._line()) != "ready":
            assert line, f"{name} ended; its message is above"

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def steps(self, count: int) -> dict[str, float]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{count}\n")
        self.process.stdin.flush()
        return json.loads(self._line())


def install() -> str:
    """The interpreter of the peers' environment, made when it is not there."""
    python = PEERS / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(PEERS)], check=True)
        pip = [str(python), "-m", "pip", "install", "-q"]
        subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), *PACKAGES, *JOEYNMT], check=True)
        subprocess.run([*pip, "--no-deps", "joeynmt==2.3.0"], check=True)
    return str(python)


def useful_flops(config: Any, src_tokens: float, tgt_tokens: float) -> float:
    """Multiplications and additions of a step's products, forward and backward, on tokens that are not padding.

    Attention's own products, under 2 % at these lengths, are left out.
    """
    c = config.model
    d, f, n = c.d_model, c.d_ff, c.n_layers
    per_src = n * (4 * d * d + 2 * d * f) + n * 2 * d * d  # the encoder, and keys and values for the decoder
    per_tgt = n * (6 * d * d + 2 * d * f) + d * c.vocab_size
    return 3 * 2 * (src_tokens * per_src + tgt_tokens * per_tgt)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, nargs=2, required=True)
    parser.add_argument("--size", choices=["base", "tiny"], default="base")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=None, help="a round; default: 2 of base, 20 of tiny")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sides", nargs="+", default=list(SIDES))
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "train.json")
    asked = parser.parse_args()
    steps = asked.steps or {"base": 2, "tiny": 20}[asked.size]
    peers = install()
    with tempfile.TemporaryDirectory() as folder:
        texts = [path.absolute() for path in asked.train]
        _, vocab_size = batches(configuration(asked.size), Path(folder), texts)
        arguments = [asked.size, asked.precision, str(asked.threads), folder, *map(str, texts)]
        sides = [Side(name, sys.executable if name == "transduce" else peers, arguments) for name in asked.sides]
        found: dict[str, list[dict[str, float]]] = {side.name: [] for side in sides}
        ceilings = []
        for number in range(asked.rounds + 1):
            ceilings.append(ceiling(asked.threads))
            for side in sides if number % 2 == 0 else reversed(sides):
                made = side.steps(steps)
                found[side.name] += [made] if number else []
                print(
                    f"round {number}: {side.name:14} {made['tokens'] / made['seconds']:8.0f} tokens/s", file=sys.stderr
                )
    speeds = {name: [one["tokens"] / one["seconds"] for one in made] for name, made in found.items()}
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    best = max(medians[name] for name in medians if name != "transduce")
    config = configuration(asked.size)
    config = replace(config, model=replace(config.model, vocab_size=vocab_size))
    flops = useful_flops(config, 0.5, 0.5) * medians["transduce"]  # of a token, half of them on either side
    name = f"ratio_{asked.precision}_base" if asked.size == "base" else f"ratio_{asked.precision}_tiny"
    result = {
        name: round(medians["transduce"] / best, 3),
        "share_of_ceiling": round(flops / 1e9 / statistics.median(ceilings), 3),
        "ceiling_gflops": round(statistics.median(ceilings), 1),
        "tokens_per_second": speeds,
        "peak_mb": {name: made[-1]["peak_mb"] for name, made in found.items()},
        "loss": {name: made[-1]["loss"] for name, made in found.items()},
        "threads": asked.threads,
        "date": date.today().isoformat(),
        "command": " ".join(Path(part).name for part in sys.argv),
    }
    print("| model | tokens/s, median | least | most | peak MB | last loss |\n|---|---|---|---|---|---|")
    for side in sorted(speeds, key=lambda side: -medians[side]):
        values, last = speeds[side], found[side][-1]
        row = f"| {side} | {medians[side]:.0f} | {min(values):.0f} | {max(values):.0f} "
        print(row + f"| {last['peak_mb']:.0f} | {last['loss']:.3f} |")
    print(f"\n{name} {result[name]}; {result['share_of_ceiling']:.0%} of {result['ceiling_gflops']} GFLOP/s in bf16")
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    kept = json.loads(asked.out.read_text(encoding="utf-8")) if asked.out.exists() else {}
    kept[f"{asked.size} {asked.precision}"] = result
    kept[name] = result[name]
    tiny = [
        kept[f"tiny {precision}"]["tokens_per_second"] for precision in ("bf16", "fp32") if f"tiny {precision}" in kept
    ]
    if tiny:  # each program in the precision that is its faster one
        medians = [(side, statistics.median(values)) for one in tiny for side, values in one.items()]
        ours, theirs = (max(m for side, m in medians if (side == "transduce") == us) for us in (True, False))
        kept["ratio_tiny"] = round(ours / theirs, 3)
    asked.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        side, size, precision, threads, folder, *texts = sys.argv[2:]
        work(side, size, precision, int(threads), Path(folder), [Path(text) for text in texts])
    else:
        main()
