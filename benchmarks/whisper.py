r"""Transcription on a CPU compared with CTranslate2, the engine of faster-whisper: the same weights, sound and threads.

    python benchmarks/whisper.py [--size tiny] [--threads 1] [--rounds 5] [--tokens 100] [--sides SIDE...] \
        [--processor-time]

The weights are random, of a size of Whisper, tiny, base or small, with 51,865 tokens. The sound is 30 s of noise, one
window. Each side makes the features, encodes them, and writes 100 tokens by greedy search, without an end.
Each side is a process that has loaded the weights and warmed up. The sides take turns, round by round.

- CTranslate2: `ctranslate2.models.Whisper` with the folder that its converter makes, and the features of transduce.
- The time is the time of the whole call. With --processor-time it is the processor time, for a busy machine.
- Equal: whether the tokens equal the tokens of transduce in fp32.

The script adds to benchmarks/results/whisper.json. The packages come with `pip install '.[export]'`.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from peers import RESULTS, Worker, command_line, in_turn, processor, read_results, write_results

# The precisions of transduce and of CTranslate2, which has bfloat16 on few processors only.
PAIRS = {"fp32": "float32", "bf16": "float32", "int8": "int8"}
SIDES = [*(f"transduce {name}" for name in PAIRS), "ctranslate2 float32", "ctranslate2 int8"]
FIRST = ["endoftext", "startoftranscript", "en", "transcribe", "translate", "notimestamps"]
END, N_WORDS, VOCABULARY = 50_257, 50_257, 51_865
SECONDS, RATE = 30, 16_000
SIZES = {"tiny": (384, 4), "base": (512, 6), "small": (768, 12)}  # (d_model, layers of each side); 64 a head

Transcribe = Callable[[Any], list[int]]  # samples -> ids


# ---- the sides, each in its own process --------------------------------------------------------------------------


def transduce(precision: str, folder: Path, threads: int, n_tokens: int) -> Transcribe:
    from transduce.family.inference.transcriber import Transcriber
    from transduce.model.cpu_backend import keep_freed_memory

    keep_freed_memory()
    model = Transcriber.load(folder, precision=precision)
    ids_of_text = list[int]()
    decode = model._decode
    model._decode = lambda ids: ids_of_text.extend(ids) or decode(ids)  # what `transcribe` turns into text

    def transcribe(samples: Any) -> list[int]:
        ids_of_text.clear()
        model.transcribe(samples, language="en", times=False)
        return [*ids_of_text]

    return transcribe


def ctranslate2(precision: str, folder: Path, threads: int, n_tokens: int) -> Transcribe:
    import ctranslate2

    from transduce.family.sound.log_mel import log_mel

    converted = str(folder.parent / "ctranslate2")
    model = ctranslate2.models.Whisper(converted, compute_type=precision, intra_threads=threads, inter_threads=1)
    prompt = [END + FIRST.index(name) for name in ("startoftranscript", "en", "transcribe", "notimestamps")]

    def transcribe(samples: Any) -> list[int]:
        features = ctranslate2.StorageView.from_array(log_mel(samples)[None].numpy())
        # CTranslate2 writes at most half of max_length.
        options = {"beam_size": 1, "max_length": 2 * n_tokens, "suppress_tokens": [END]}
        (result,) = model.generate(features, [prompt], suppress_blank=False, **options)
        return result.sequences_ids[0][:n_tokens]

    return transcribe


def write_models(folder: Path, size: str, n_tokens: int) -> None:
    """Write random weights in Hugging Face's form with a tokenizer of numbers, and in the form of CTranslate2."""
    import torch
    import transformers
    from ctranslate2.converters.transformers import TransformersConverter
    from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
    from tokenizers.models import BPE

    torch.manual_seed(1)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*alphabet, *(f"token{i}" for i in range(N_WORDS - len(alphabet)))]
    tokenizer = Tokenizer(BPE(vocab={word: i for i, word in enumerate(words)}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(f"<|{name}|>", special=True) for name in FIRST])
    tokenizer.add_tokens([f"time{i}" for i in range(VOCABULARY - N_WORDS - len(FIRST))])
    d_model, n_layers = SIZES[size]
    sides = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in {"layers": n_layers, "attention_heads": d_model // 64, "ffn_dim": 4 * d_model}.items()
    }
    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(d_model=d_model, **sides))
    with torch.no_grad():
        model.model.decoder.embed_positions.weight.mul_(20)  # so that the tokens depend on their place
        model.model.decoder.embed_tokens.weight[END:] = 0  # so that each token is text
    ids = {f"<|{name}|>": END + i for i, name in enumerate(FIRST)}
    model.generation_config = transformers.GenerationConfig(
        eos_token_id=END,
        pad_token_id=END,
        decoder_start_token_id=END + 1,
        suppress_tokens=[END],
        begin_suppress_tokens=[],
        no_timestamps_token_id=ids["<|notimestamps|>"],
        lang_to_id={"<|en|>": ids["<|en|>"]},
        task_to_id={task: ids[f"<|{task}|>"] for task in ("transcribe", "translate")},
        is_multilingual=True,
        max_new_tokens=n_tokens,
    )
    model.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")
    fast.save_pretrained(folder)
    TransformersConverter(str(folder)).convert(str(folder.parent / "ctranslate2"))


def work(side: str, folder: Path, threads: int, n_tokens: int, clock: str) -> None:
    """Answer each line on standard input with the seconds of a call, and the ids."""
    import torch

    torch.set_num_threads(threads)
    program, precision = side.split(" ")
    transcribe = {"transduce": transduce, "ctranslate2": ctranslate2}[program](precision, folder, threads, n_tokens)
    now = time.process_time if clock == "processor" else time.perf_counter
    samples = 0.1 * torch.randn(SECONDS * RATE, generator=torch.Generator().manual_seed(2))
    transcribe(samples)
    print("ready", flush=True)
    for _ in sys.stdin:
        began = now()
        ids = transcribe(samples)
        print(json.dumps([now() - began, ids]), flush=True)


# ---- the run -----------------------------------------------------------------------------------------------------


def measure(args: argparse.Namespace, folder: Path) -> tuple[dict[str, list[float]], dict[str, list[int]]]:
    """Return the seconds of each side in each round, and its ids."""
    clock = "processor" if args.processor_time else "wall"
    arguments = [str(folder), str(args.threads), str(args.tokens), clock]
    workers = [Worker(side, [sys.executable, __file__, "work", side, *arguments], args.threads) for side in args.sides]
    seconds, ids = {side: list[float]() for side in args.sides}, dict[str, list[int]]()
    for number in range(args.rounds):
        for worker in in_turn(workers, number):
            time_of_call, ids[worker.name] = json.loads(worker.ask("go"))
            seconds[worker.name].append(time_of_call)
    for worker in workers:
        worker.close()
    return seconds, ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--processor-time", action="store_true", help="measure the processor time of each process")
    parser.add_argument("--sides", nargs="+", default=SIDES, choices=SIDES)
    parser.add_argument("--out", type=Path, default=RESULTS / "whisper.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "huggingface"
        write_models(folder, args.size, args.tokens)
        seconds, ids = measure(args, folder)
    expected = ids.get("transduce fp32", ids[args.sides[0]])
    print("| seconds | median | least | most | equal |\n|---|---|---|---|---|")
    for side, values in seconds.items():
        n_equal = sum(map(int.__eq__, ids[side], expected))
        assert len(ids[side]) == args.tokens, f"{side} wrote {len(ids[side])} tokens"
        print(f"| {side} | {statistics.median(values):.3f} | {min(values):.3f} | {max(values):.3f} | {n_equal} |")
    medians = {side: statistics.median(values) for side, values in seconds.items()}
    ratios = dict[str, float]()
    for name, of_peer in PAIRS.items():
        ours, theirs = f"transduce {name}", f"ctranslate2 {of_peer}"
        if ours in medians and theirs in medians:
            ratios[name] = round(medians[theirs] / medians[ours], 3)
            print(f"{name}: {ratios[name]:.2f} times as fast as CTranslate2")
    facts = {"processor": processor(), "cores": os.cpu_count(), "date": date.today().isoformat()}
    facts |= {"command": command_line(), "ratios": ratios, "seconds": seconds}
    name = f"{args.size}, {args.threads} thread{'s'[: args.threads > 1]}, {args.tokens} tokens"
    write_results(args.out, {**read_results(args.out), name: facts})


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        side, folder, threads, n_tokens, clock = sys.argv[2:]
        work(side, Path(folder), int(threads), int(n_tokens), clock)
    else:
        main()
