"""Training on a CPU compared with the models of other programs: the same architecture, batches, loss and optimizer.

    python benchmarks/train.py --train train.en train.de [--size base] [--precision bf16] [--rounds 7] [--threads 2]

Sizes: base (vaswani2017-base with 10,000 pieces) and tiny (multi30k-tiny). Each side has its own process. The sides
take turns with steps on the same batches, data loading and optimizer included. The first round warms up. Tokens are
source and target tokens without padding.

The peers are torch.nn.Transformer, Hugging Face's Marian with eager attention and with SDPA, and JoeyNMT. All peers run
in one common loop, so that the script compares models, not trainers. The ceiling is a bf16 product of 2,048 x 512 by
512 x 2,048, measured in the same rounds. The script writes results/train.json.
"""

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

from peers import RESULTS, Worker, command_line, in_turn, install, read_results, write_results

PACKAGES = ("transformers", "torch", "safetensors", "tokenizers", "msgspec", "numpy")
JOEYNMT = ("tensorboard", "matplotlib", "pyyaml", "packaging", "importlib-metadata")  # what its model imports
WITHOUT_DEPENDENCIES = ("joeynmt==2.3.0",)
SIDES = ("transduce", "torch.nn", "marian eager", "marian sdpa", "joeynmt")
TrainingStep = Callable[[], tuple[int, int, float]]  # -> source tokens, target tokens, mean loss

# ---- shared by all sides ----------------------------------------------------------------------------------------


def configuration(size: str) -> Any:
    from transduce.config.recipes import vaswani2017
    from transduce.config.recipes.studies import multi30k

    if size == "tiny":
        return multi30k.tiny()
    base = vaswani2017.base()
    return replace(base, data=replace(base.data, vocab_size=10_000, batch_tokens=4_096))


def batches(config: Any, folder: Path, texts: Sequence[Path]) -> tuple[Iterator[Any], int]:
    """Return the stream of batches of a training, and the number of pieces."""
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


def transduce(config: Any, stream: Iterator[Any], kind: str) -> TrainingStep:
    import torch

    from transduce.model.transformer import Transformer
    from transduce.train import TranslationTask
    from transduce.training.gradients import Gradients, dropout_seed, update
    from transduce.training.optimizer import adam

    model = Transformer(config.model).train()
    optimizer = adam(model.parameters(), config.train.adam_beta2)
    for group in optimizer.param_groups:
        group["lr"] = 1e-4
    gradients = Gradients(model, TranslationTask(), config.train, torch.device("cpu"), print)
    steps = iter(range(1, 1 << 30))

    def step() -> tuple[int, int, float]:
        number = next(steps)
        gradient = gradients.of(next(stream), seed=dropout_seed(1, number))
        update(optimizer, number)
        optimizer.zero_grad()
        return gradient.src_tokens, gradient.tgt_tokens, gradient.loss / gradient.tgt_tokens

    return step


def peer(config: Any, stream: Iterator[Any], logits: Callable[[Any], Any], model: Any) -> TrainingStep:
    """Return a step of a peer's model: `logits` of a batch (B,T,V), smoothed cross entropy, fused Adam."""
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


def torch_nn(config: Any, stream: Iterator[Any], kind: str) -> TrainingStep:
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


def marian(config: Any, stream: Iterator[Any], kind: str) -> TrainingStep:
    model = marian_of(config.model, attn_implementation=kind).train()

    def logits(batch: Any) -> Any:
        return model(
            input_ids=batch.src, attention_mask=batch.src_mask.long(), decoder_input_ids=batch.tgt_in
        ).logits  # fmt: skip

    return peer(config, stream, logits, model)


def marian_of(c: Any, **settings: Any) -> Any:
    """Return a MarianMTModel with the sizes of `c`, which has the names of transduce's ModelConfig.

    settings: of MarianConfig, instead of those that suit transduce's batches.
    """
    from transformers import MarianConfig, MarianMTModel

    shape = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (("layers", c.n_layers), ("attention_heads", c.n_heads), ("ffn_dim", c.d_ff))
    }
    usual = {
        "activation_function": "relu", "scale_embedding": True, "pad_token_id": 0, "eos_token_id": 2,
        "decoder_start_token_id": 1, "max_position_embeddings": 512, "use_cache": False,
    }  # fmt: skip
    sizes = {"vocab_size": c.vocab_size, "d_model": c.d_model, "dropout": c.dropout, **shape}
    return MarianMTModel(MarianConfig(**sizes, **(usual | settings)))


def joeynmt(config: Any, stream: Iterator[Any], kind: str) -> TrainingStep:
    import torch
    from joeynmt.decoders import TransformerDecoder
    from joeynmt.encoders import TransformerEncoder
    from torch import nn

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
    """For each number on standard input, make that many steps and print tokens, seconds, loss and peak memory."""
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
        steps = [step() for _ in range(int(command))]
        seconds = time.perf_counter() - began
        tokens = sum(src + tgt for src, tgt, _ in steps)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"tokens": tokens, "seconds": seconds, "loss": steps[-1][2], "peak_mb": peak}), flush=True)


def ceiling(threads: int) -> float:
    """Return the GFLOP/s of a bf16 product of 2,048 x 512 by 512 x 2,048."""
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


def useful_flops(config: Any, src_tokens: float, tgt_tokens: float) -> float:
    """Return the FLOPs of the products of a step, forward and backward, on tokens without padding.

    The products of attention itself, under 2 % at these lengths, do not count.
    """
    c = config.model
    d = c.d_model
    f = c.d_ff
    n = c.n_layers
    per_src = n * (4 * d * d + 2 * d * f) + n * 2 * d * d  # the encoder, and keys and values for the decoder
    per_tgt = n * (6 * d * d + 2 * d * f) + d * c.vocab_size
    return 3 * 2 * (src_tokens * per_src + tgt_tokens * per_tgt)


Rounds = dict[str, list[dict[str, float]]]  # for each side, the answers of its worker, a round each


def take_turns(args: argparse.Namespace, folder: str, texts: Sequence[Path]) -> tuple[Rounds, list[float]]:
    """Return the rounds of each side after the first, which warms up, and the ceiling in each round."""
    steps = args.steps or {"base": 2, "tiny": 20}[args.size]
    python = install("train", [*PACKAGES, *JOEYNMT], without_dependencies=WITHOUT_DEPENDENCIES)
    arguments = [args.size, args.precision, str(args.threads), folder, *map(str, texts)]
    workers = []
    for name in args.sides:
        interpreter = sys.executable if name == "transduce" else python
        workers.append(Worker(name, [interpreter, __file__, "work", name, *arguments], args.threads))
    rounds: Rounds = {worker.name: [] for worker in workers}
    ceilings = []
    for number in range(args.rounds + 1):
        ceilings.append(ceiling(args.threads))
        for worker in in_turn(workers, number):
            answer = json.loads(worker.ask(str(steps)))
            if number:
                rounds[worker.name].append(answer)
            speed = answer["tokens"] / answer["seconds"]
            print(f"round {number}: {worker.name:14} {speed:8.0f} tokens/s", file=sys.stderr)
    return rounds, ceilings


def summary(args: argparse.Namespace, rounds: Rounds, ceilings: Sequence[float], vocab_size: int) -> dict[str, Any]:
    """Return the figures of one size and precision as they are stored."""
    speeds = {side: [answer["tokens"] / answer["seconds"] for answer in answers] for side, answers in rounds.items()}
    medians = {side: statistics.median(values) for side, values in speeds.items()}
    best_peer = max(medians[side] for side in medians if side != "transduce")
    config = configuration(args.size)
    config = replace(config, model=replace(config.model, vocab_size=vocab_size))
    flops = useful_flops(config, 0.5, 0.5) * medians["transduce"]  # for a token: half of the tokens are on each side
    return {
        ratio_name(args): round(medians["transduce"] / best_peer, 3),
        "share_of_ceiling": round(flops / 1e9 / statistics.median(ceilings), 3),
        "ceiling_gflops": round(statistics.median(ceilings), 1),
        "tokens_per_second": speeds,
        "peak_mb": {side: answers[-1]["peak_mb"] for side, answers in rounds.items()},
        "loss": {side: answers[-1]["loss"] for side, answers in rounds.items()},
        "threads": args.threads,
        "date": date.today().isoformat(),
        "command": command_line(),
    }


def ratio_name(args: argparse.Namespace) -> str:
    return f"ratio_{args.precision}_{args.size}"


def print_table(result: dict[str, Any]) -> None:
    speeds = result["tokens_per_second"]
    print("| model | tokens/s, median | least | most | peak MB | last loss |\n|---|---|---|---|---|---|")
    for side in sorted(speeds, key=lambda side: -statistics.median(speeds[side])):
        values = speeds[side]
        row = f"| {side} | {statistics.median(values):.0f} | {min(values):.0f} | {max(values):.0f} "
        print(row + f"| {result['peak_mb'][side]:.0f} | {result['loss'][side]:.3f} |")


def ratio_of_faster_precisions(results: dict[str, Any]) -> float | None:
    """Return the ratio of tiny in which each program takes the precision that is faster for it. None without runs."""
    runs = [results[f"tiny {p}"]["tokens_per_second"] for p in ("bf16", "fp32") if f"tiny {p}" in results]
    if not runs:
        return None
    medians = [(side, statistics.median(values)) for run in runs for side, values in run.items()]
    ours = max(median for side, median in medians if side == "transduce")
    return round(ours / max(median for side, median in medians if side != "transduce"), 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, nargs=2, required=True)
    parser.add_argument("--size", choices=["base", "tiny"], default="base")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=None, help="in a round; default: 2 of base, 20 of tiny")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sides", nargs="+", default=list(SIDES))
    parser.add_argument("--out", type=Path, default=RESULTS / "train.json")
    args = parser.parse_args()
    texts = [path.absolute() for path in args.train]
    with tempfile.TemporaryDirectory() as folder:
        _, vocab_size = batches(configuration(args.size), Path(folder), texts)
        rounds, ceilings = take_turns(args, folder, texts)
    result = summary(args, rounds, ceilings, vocab_size)
    print_table(result)
    name = ratio_name(args)
    share = f"{result['share_of_ceiling']:.0%} of {result['ceiling_gflops']} GFLOP/s in bf16"
    print(f"\n{name} {result[name]}; {share}")
    results = read_results(args.out)
    results |= {f"{args.size} {args.precision}": result, name: result[name]}
    ratio = ratio_of_faster_precisions(results)
    write_results(args.out, results if ratio is None else {**results, "ratio_tiny": ratio})


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        side, size, precision, threads, folder, *texts = sys.argv[2:]
        work(side, size, precision, int(threads), Path(folder), [Path(text) for text in texts])
    else:
        main()
