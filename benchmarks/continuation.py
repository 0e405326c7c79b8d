"""Continuation of text on a CPU compared with Hugging Face: the same weights, prompts and number of threads.

    python benchmarks/continuation.py [--threads 1] [--rounds 3] [--tokens 64] [--sides SIDE...]

The weights are random, of the size of GPT-2 small: 12 layers of 768, 50,257 tokens. A batch has 16 prompts of 32 random
ids, or with --uneven of 1 to 32. Each gets 64 tokens more by greedy search, without an end. Each side is a process that
has loaded the weights and warmed up. The sides take turns, round by round. The time is the time of the whole call.

- Hugging Face: `generate` of transformers, with its cache, in fp32, in bf16, and in torch's dynamic int8 of all linear
  layers. Uneven prompts are padded on the left.
- Speeds are tokens a second. With --processor-time they are tokens a second of processor time, for a busy machine.
- Equal continuations: the share of the prompts whose continuation equals the one of transduce in fp32.

The script adds to benchmarks/results/continuation.json. transformers comes with `pip install '.[export]'`.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from peers import RESULTS, Worker, command_line, in_turn, processor, read_results, write_results

SIDES = [f"transduce {precision}" for precision in ("fp32", "bf16", "int8")]
SIDES += [f"huggingface {precision}" for precision in ("fp32", "bf16", "int8")]
VOCABULARY = 50_257

# (prompts, new tokens of each) -> the new ids
Continue = Callable[[Sequence[Sequence[int]], int], list[list[int]]]


# ---- the sides, each in its own process --------------------------------------------------------------------------


def transduce(precision: str, folder: Path) -> Continue:
    from dataclasses import replace

    from transduce.family import load
    from transduce.family.inference.continuation import GREEDY, continue_ids
    from transduce.model.cpu_backend import keep_freed_memory

    keep_freed_memory()
    model = load(folder, precision=precision).prepared_model

    def continue_(prompts: Sequence[Sequence[int]], n_tokens: int) -> list[list[int]]:
        outputs = continue_ids(model, prompts, [], replace(GREEDY, max_extra_tokens=n_tokens))
        return [output.ids for output in outputs]

    return continue_


def huggingface(precision: str, folder: Path) -> Continue:
    import torch
    from torch import nn
    from transformers import GPT2LMHeadModel
    from transformers.pytorch_utils import Conv1D

    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    model: Any = GPT2LMHeadModel.from_pretrained(folder, dtype=dtype)
    if precision == "int8":
        for parent in [*model.modules()]:
            for name, layer in [*parent.named_children()]:
                if isinstance(layer, Conv1D):
                    n_inputs, n_outputs = layer.weight.shape
                    linear = nn.Linear(n_inputs, n_outputs)
                    linear.weight, linear.bias = nn.Parameter(layer.weight.T.contiguous()), layer.bias
                    setattr(parent, name, linear)
        model = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)

    @torch.inference_mode()
    def continue_(prompts: Sequence[Sequence[int]], n_tokens: int) -> list[list[int]]:
        width = max(map(len, prompts))
        ids = torch.tensor([[0] * (width - len(prompt)) + [*prompt] for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        settings = {"do_sample": False, "use_cache": True, "pad_token_id": 0, "eos_token_id": None}
        output = model.generate(ids, attention_mask=mask, max_new_tokens=n_tokens, min_new_tokens=n_tokens, **settings)
        return output[:, width:].tolist()

    return continue_


def write_weights(folder: Path) -> None:
    """Write a folder with random weights in Hugging Face's form."""
    import torch

    from transduce.family.configs import GPT2Config
    from transduce.family.gpt2 import GPT2
    from transduce.family.hugging_face.folder import Member, write_member

    torch.manual_seed(1)
    write_member(folder, Member(GPT2(GPT2Config(vocab_size=VOCABULARY, d_model=768, n_layers=12, n_heads=12)), {}, {}))


def make_prompts(count: int, length: int, *, is_uneven: bool) -> list[list[int]]:
    """Return prompts of random ids; uneven ones have 1 to `length` ids."""
    import torch

    torch.manual_seed(2)
    lengths = torch.randint(1, length + 1, (count,)).tolist() if is_uneven else [length] * count
    return [torch.randint(VOCABULARY, (length,)).tolist() for length in lengths]


def work(side: str, folder: Path, threads: int, clock: str) -> None:
    """Answer each command on standard input, prompts and a number of tokens, with the seconds and the new ids."""
    import torch

    torch.set_num_threads(threads)
    program, precision = side.split(" ")
    continue_ = {"transduce": transduce, "huggingface": huggingface}[program](precision, folder)
    now = time.process_time if clock == "processor" else time.perf_counter
    continue_([[1, 2], [3, 4]], 2)
    print("ready", flush=True)
    for command in sys.stdin:
        prompts, n_tokens = json.loads(command)
        began = now()
        ids = continue_(prompts, n_tokens)
        print(json.dumps([now() - began, ids]), flush=True)


# ---- the run -----------------------------------------------------------------------------------------------------


def measure(args: argparse.Namespace, folder: Path) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return the tokens a second of each side in each round, and its share of equal continuations."""
    clock = "processor" if args.processor_time else "wall"
    arguments = [str(folder), str(args.threads), clock]
    workers = [Worker(side, [sys.executable, __file__, "work", side, *arguments], args.threads) for side in args.sides]
    prompts = make_prompts(args.prompts, args.length, is_uneven=args.uneven)
    speeds, outputs = {side: list[float]() for side in args.sides}, dict[str, list[list[int]]]()
    for number in range(args.rounds):
        for worker in in_turn(workers, number):
            seconds, outputs[worker.name] = json.loads(worker.ask(json.dumps([prompts, args.tokens])))
            speeds[worker.name].append(len(prompts) * args.tokens / seconds)
            print(f"round {number}: {worker.name:20} {speeds[worker.name][-1]:8.1f} tokens/s", file=sys.stderr)
    for worker in workers:
        worker.close()
    expected = outputs.get("transduce fp32", outputs[args.sides[0]])
    equal = {side: sum(map(list.__eq__, ids, expected)) / len(prompts) for side, ids in outputs.items()}
    return speeds, equal


def ratios_of(speeds: dict[str, list[float]]) -> dict[str, float]:
    """Return our median speed divided by Hugging Face's in fp32, and by its best, for each of our sides."""
    medians = {side: statistics.median(values) for side, values in speeds.items()}
    theirs = {side: median for side, median in medians.items() if side.startswith("huggingface")}
    ratios = dict[str, float]()
    for side in medians.keys() - theirs.keys():
        name = side.removeprefix("transduce ")
        if "huggingface fp32" in theirs:
            ratios[f"{name}_to_fp32"] = medians[side] / theirs["huggingface fp32"]
        if theirs:
            ratios[f"{name}_to_best"] = medians[side] / max(theirs.values())
    return {name: round(value, 3) for name, value in sorted(ratios.items())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--length", type=int, default=32, help="ids of a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="new tokens of a prompt")
    parser.add_argument("--uneven", action="store_true", help="prompts of 1 to --length ids")
    parser.add_argument("--processor-time", action="store_true", help="measure the processor time of each process")
    parser.add_argument("--sides", nargs="+", default=SIDES, choices=SIDES)
    parser.add_argument("--out", type=Path, default=RESULTS / "continuation.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "gpt2"
        write_weights(folder)
        speeds, equal = measure(args, folder)
    print("| tokens/s | median | least | most | equal continuations |\n|---|---|---|---|---|")
    for side, values in speeds.items():
        figures = f"{statistics.median(values):.1f} | {min(values):.1f} | {max(values):.1f}"
        print(f"| {side} | {figures} | {equal[side]:.0%} |")
    ratios = ratios_of(speeds)
    print("\n" + "\n".join(f"{name} {value:.2f}" for name, value in ratios.items()))
    facts = {"processor": processor(), "cores": os.cpu_count(), "date": date.today().isoformat()}
    facts |= {"command": command_line(), "ratios": ratios, "tokens_per_second": speeds, "equal": equal}
    name = f"{args.threads} thread{'s'[: args.threads > 1]}, {'uneven' if args.uneven else 'even'} prompts"
    write_results(args.out, {**read_results(args.out), name: facts})


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        side, folder, threads, clock = sys.argv[2:]
        work(side, Path(folder), int(threads), clock)
    else:
        main()
