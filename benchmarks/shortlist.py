"""Translation with a vocabulary shortlist: what it covers, how much faster it is, and what it costs in BLEU and chrF.

    python benchmarks/shortlist.py MODEL --train TRAIN.en TRAIN.de --test TEST.en TEST.de [--lines 500]
        [--vocabulary 32000] [--candidates 20 50 100] [--common 1000] [--precision int8] [--beam-size 4] [--rounds 3]
    python benchmarks/shortlist.py EXPORT --test TEST.en TEST.de [--lines 500] ...

EXPORT is an export to CTranslate2 of a model with a shortlist, which is then a vocabulary map.

The shortlist is learned from the training text. `--vocabulary` gives the output matrix more rows, with random weights
and a bias of -40, so that the search does not take them: then the time is as with a larger vocabulary, and the outputs
are the same. Only a model that was trained with that vocabulary says what a shortlist covers there.

The searches take turns on one thread. Times are processor time, medians over the rounds; a gain is the median of the
ratios within a round.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import sacrebleu
import torch
from torch import nn

from transduce import Translation, Translator
from transduce.data.text import read_pairs
from transduce.decoding.shortlist.learning import learn_shortlist, read_ids
from transduce.decoding.shortlist.table import Shortlist
from transduce.interop import ctranslate2_engine
from transduce.model.cpu_backend import keep_freed_memory
from transduce.storage.model_folder import LoadedModel, load_model

HEAD = "| precision | beam | shortlist | seconds | gain | BLEU | chrF | changed |\n|---|---|---|---|---|---|---|---|"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--train", type=Path, nargs=2, help="needed for a model folder")
    parser.add_argument("--test", type=Path, nargs=2, required=True)
    parser.add_argument("--lines", type=int, default=500)
    parser.add_argument("--pairs", type=int, default=200_000, help="pairs to learn from")
    parser.add_argument("--vocabulary", type=int, help="rows of the output matrix; default: as in the model")
    parser.add_argument("--candidates", type=int, nargs="+", default=[20, 50, 100])
    parser.add_argument("--common", type=int, default=1_000)
    parser.add_argument("--precision", nargs="+", default=["int8"], choices=["int8", "fp32"])
    parser.add_argument("--beam-size", type=int, nargs="+", default=[4])
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    pairs = list(read_pairs(*args.test))[: args.lines]
    if ctranslate2_engine.is_exported(args.model):
        print(f"{len(pairs)} lines, CTranslate2\n\n{HEAD}")
        for precision in args.precision:
            translator = ctranslate2_engine.load(args.model, precision=precision)
            for beam_size in args.beam_size:
                compare({"none": translator, "map": translator}, pairs, beam_size, args.rounds, precision)
        return
    loaded = load_model(args.model)
    shortlists = learned(loaded, args.train, args.pairs, args.candidates, args.common)
    print_coverage(loaded, shortlists, pairs)
    loaded = widened(loaded, args.vocabulary or 0)
    print(f"\n{len(pairs)} lines, {loaded.model.output.out_features:,} rows of the output matrix\n")
    print(HEAD)
    for precision in args.precision:
        translators = {
            name: Translator([replace(loaded, shortlist=shortlist)], precision=precision)
            for name, shortlist in shortlists.items()
        }
        for beam_size in args.beam_size:
            compare(translators, pairs, beam_size, args.rounds, precision)


def learned(
    loaded: LoadedModel, text: Sequence[Path], n_pairs: int, candidates: Sequence[int], n_common: int
) -> dict[str, Shortlist | None]:
    """Return the shortlists by name, after "none"."""
    tokenizer = loaded.tokenizer
    src, tgt = read_ids(text[0], text[1], tokenizer, n_pairs, loaded.config.data.max_tokens)
    start = time.process_time()
    sizes = tokenizer.vocab_size, tokenizer.target.vocab_size
    largest = learn_shortlist(src, tgt, *sizes, n_candidates=max(candidates), n_common=n_common)
    print(f"learned from {len(src):,} pairs in {time.process_time() - start:.1f} s of processor time\n", flush=True)
    parts = {f"V' = {count}": Shortlist(largest.common, largest.candidates[:, :count].copy()) for count in candidates}
    return {"none": None, **parts}


def print_coverage(
    loaded: LoadedModel, shortlists: dict[str, Shortlist | None], pairs: Sequence[tuple[str, str]]
) -> None:
    """Print which share of the references the shortlists have."""
    sources = loaded.tokenizer.encode_batch([source for source, _ in pairs])
    references = loaded.tokenizer.target.encode_batch([reference for _, reference in pairs])
    print("| shortlist | mean pieces | reference pieces covered | whole references covered |\n|---|---|---|---|")
    for name, shortlist in shortlists.items():
        if shortlist is not None:
            common = {*shortlist.common.tolist()}
            lists = [common | {*shortlist.own(source).tolist()} for source in sources]
            hits = [[token in tokens for token in ids] for tokens, ids in zip(lists, references, strict=True)]
            pieces = sum(map(sum, hits)) / max(1, sum(map(len, hits)))
            whole = statistics.mean(map(all, hits))
            print(f"| {name} | {statistics.mean(map(len, lists)):,.0f} | {pieces:.1%} | {whole:.0%} |")


def widened(loaded: LoadedModel, n_rows: int) -> LoadedModel:
    """Return the model with at least `n_rows` rows in its output matrix; the new ones are never the most likely."""
    model = copy.deepcopy(loaded.model)
    old, n_new = model.output, n_rows - model.output.out_features
    if n_new <= 0:
        return loaded
    torch.manual_seed(1)
    model.output = nn.Linear(old.in_features, n_rows)
    with torch.no_grad():
        noise = torch.randn(n_new, old.in_features) * old.weight.std()
        bias = torch.zeros(old.out_features) if old.bias is None else old.bias
        model.output.weight.copy_(torch.cat([old.weight, noise]))
        model.output.bias.copy_(torch.cat([bias, torch.full((n_new,), -40.0)]))
    return replace(loaded, model=model.eval())


def compare(
    translators: Mapping[str, Translator | ctranslate2_engine.ExportedTranslator],
    pairs: Sequence[tuple[str, str]],
    beam_size: int,
    rounds: int,
    precision: str,
) -> None:
    """Print time and quality of each shortlist, and without a shortlist."""
    sources, references = [source for source, _ in pairs], [reference for _, reference in pairs]
    seconds = {name: list[float]() for name in translators}
    outputs = dict[str, list[Translation]]()
    for name, translator in translators.items():
        translator.translate(sources[:20], beam_size=beam_size, shortlist=name != "none")
    for _ in range(rounds):
        for name, translator in translators.items():
            start = time.process_time()
            outputs[name] = translator.translate(sources, beam_size=beam_size, shortlist=name != "none")
            seconds[name].append(time.process_time() - start)
    for name, of_name in seconds.items():
        gain = statistics.median(free / limited for free, limited in zip(seconds["none"], of_name, strict=True))
        texts = [translation.text for translation in outputs[name]]
        bleu = sacrebleu.corpus_bleu(texts, [references]).score
        chrf = sacrebleu.corpus_chrf(texts, [references]).score
        changed = sum(output.text != other.text for output, other in zip(outputs[name], outputs["none"], strict=True))
        figures = f"{statistics.median(of_name):.2f} | {gain:.2f} | {bleu:.2f} | {chrf:.2f} | {changed}"
        print(f"| {precision} | {beam_size} | {name} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
