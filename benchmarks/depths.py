"""How much faster a shallow decoder translates: random weights of the base model's width, with several depths.

    python benchmarks/depths.py MODEL --src TEST.en [--depths 6,6 6,1 12,1] [--lines 200] [--tokens 20]
        [--precision int8] [--beam-size 4 1] [--rounds 5]

MODEL gives the tokenizer. All outputs have the same number of tokens. The models take turns on one thread.
Times are processor time, medians over the rounds. A speed is the median of the ratios to the first model in a round.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from transduce import Translator
from transduce.config.schema import Config, ModelConfig, SearchConfig, architecture
from transduce.data.tokenizer import Tokenizer
from transduce.evaluation.model_size import parameter_count
from transduce.model.build import build
from transduce.model.cpu_backend import keep_freed_memory
from transduce.storage.model_folder import LoadedModel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--src", type=Path, required=True)
    parser.add_argument("--depths", nargs="+", default=["6,6", "6,1", "12,1"], help="layers of encoder and decoder")
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=20, help="tokens of every output")
    parser.add_argument("--precision", nargs="+", default=["int8"], choices=["int8", "fp32", "bf16"])
    parser.add_argument("--beam-size", type=int, nargs="+", default=[4, 1])
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    lines = args.src.read_text("utf-8").splitlines()[: args.lines]
    tokenizer = Tokenizer.load(args.model / "tokenizer.json")
    models = [random_model(tokenizer, tuple(map(int, depths.split(","))), args.tokens) for depths in args.depths]
    print(f"{len(lines)} lines, outputs of {args.tokens} tokens, {tokenizer.vocab_size:,} pieces\n")
    print("| precision | beam | model | million parameters | seconds | speed |\n|---|---|---|---|---|---|")
    for precision in args.precision:
        translators = [Translator([model], precision=precision) for model in models]
        for beam_size in args.beam_size:
            compare(translators, lines, beam_size, args.rounds)


def random_model(tokenizer: Tokenizer, depths: Sequence[int], n_tokens: int) -> LoadedModel:
    """Return a model of the base model's width, whose outputs all have `n_tokens` tokens."""
    encoder, decoder = depths
    model = ModelConfig(vocab_size=tokenizer.vocab_size, n_layers=encoder, n_decoder_layers=decoder)
    search = SearchConfig(min_tokens=n_tokens, max_length=n_tokens, max_extra_tokens=n_tokens)
    torch.manual_seed(1)
    return LoadedModel(build(model).eval(), Config(model=model, search=search), tokenizer)


def compare(translators: Sequence[Translator], lines: Sequence[str], beam_size: int, rounds: int) -> None:
    """Print the time of each model, and its speed relative to the first one."""
    seconds = [list[float]() for _ in translators]
    for number in range(rounds + 1):
        for times, translator in zip(seconds, translators, strict=True):
            start = time.process_time()
            translator.translate(lines, beam_size=beam_size, loops="keep")
            if number:  # the first round warms up
                times.append(time.process_time() - start)
    for times, translator in zip(seconds, translators, strict=True):
        model = translator.config.model
        ratios = [first / own for first, own in zip(seconds[0], times, strict=True)]
        size = parameter_count(model, translator.tokenizer.vocab_size) / 1e6
        figures = f"{size:.1f} | {statistics.median(times):.2f} | {statistics.median(ratios):.2f}"
        span = f"({min(ratios):.2f} to {max(ratios):.2f})"
        name = architecture(translator.config)
        print(f"| {translator.precision} | {beam_size} | {name} | {figures} {span} |", flush=True)


if __name__ == "__main__":
    main()
