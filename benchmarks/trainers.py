"""Training on a CPU as a user runs it: whole programs, each with its own data loading, batching, loop and logging.

    python benchmarks/trainers.py --train train.en train.de --valid valid.en valid.de [--size tiny] [--rounds 3]

The programs are `transduce train`, JoeyNMT's trainer, and Hugging Face's Seq2SeqTrainer with Marian. All get the same
text in the same pieces, a model of the same size, and batches of about the same number of tokens. They run in fp32, and
in bf16 if the program supports it on a CPU. The programs take turns with the same number of steps. The first third of
the steps warms up and does not count. The figure is target tokens a second, from the log of each program. The script
writes results/trainers.json.
"""

import argparse
import json
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from peers import RESULTS, command_line, in_turn, install, read_results, run, write_results
from train import JOEYNMT, PACKAGES, WITHOUT_DEPENDENCIES, configuration, marian_of

TRAINERS = ("accelerate", "sacrebleu", "subword-nmt", "sentencepiece", "tqdm", "sacremoses")  # their imports
SIDES = ("transduce fp32", "transduce bf16", "joeynmt fp32", "huggingface fp32", "huggingface bf16")


@dataclass(frozen=True)
class Work:
    """The input of every program."""

    folder: Path
    train: tuple[Path, Path]
    valid: tuple[Path, Path]
    size: str
    steps: int
    threads: int
    python: str  # the interpreter of the peers
    pairs: int  # the approximate number in a batch
    tgt_share: float  # target tokens divided by all tokens


def install_trainers() -> str:
    """Return the interpreter of the peers."""
    return install("train", [*PACKAGES, *JOEYNMT, *TRAINERS], without_dependencies=WITHOUT_DEPENDENCIES)


# ---- the programs: each function returns target tokens a second after the first third of its steps ---------------


def transduce(work: Work, precision: str, out: Path) -> float:
    data = configuration(work.size).data
    settings = [
        f"train.max_steps={work.steps}", f"train.log_every_steps={work.steps // 3}", f"train.precision={precision}",
        "train.evaluate_every_steps=1000000", "train.checkpoint_every_steps=1000000",
        f"data.vocab_size={data.vocab_size}", f"data.batch_tokens={data.batch_tokens}", "train.decay_steps=0",
    ]  # fmt: skip
    recipe = {"base": "vaswani2017-base", "tiny": "multi30k-tiny"}[work.size]
    command = [sys.executable, "-m", "transduce", "train", "--recipe", recipe, "--train", *map(str, work.train)]
    command += ["--valid", *map(str, work.valid), "--out", str(out)]
    run([*command, *(word for setting in settings for word in ("--set", setting))], work.threads)
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    speeds = [line["tokens_per_second"] for line in lines if "tokens_per_second" in line]
    return statistics.mean(speeds[1:]) * work.tgt_share


def joeynmt(work: Work, precision: str, out: Path) -> float:
    c = configuration(work.size)
    side = {
        "level": "word", "lowercase": False, "max_length": 512, "tokenizer_type": "none",
        "voc_file": str(work.folder / "vocabulary.txt"),
    }  # fmt: skip
    stack = {
        "type": "transformer", "num_layers": c.model.n_layers, "num_heads": c.model.n_heads,
        "embeddings": {"embedding_dim": c.model.d_model, "scale": True, "dropout": c.model.dropout},
        "hidden_size": c.model.d_model, "ff_size": c.model.d_ff, "dropout": c.model.dropout,
        "layer_norm": c.model.norm,
    }  # fmt: skip
    settings = {
        "name": "peer", "model_dir": str(out), "use_cuda": False, "fp16": False, "random_seed": 1,
        "data": {
            "train": str(work.folder / "train"), "dev": str(work.folder / "valid"), "dataset_type": "plain",
            "src": {"lang": "src", **side}, "trg": {"lang": "tgt", **side},
        },
        "testing": {"beam_size": 1, "batch_size": 8, "eval_metrics": []},
        "training": {
            "optimizer": "adam", "adam_betas": [0.9, 0.98], "scheduling": "noam",
            "learning_rate_warmup": 1_000, "learning_rate_min": 0,
            "label_smoothing": 0.1, "batch_size": c.data.batch_tokens, "batch_type": "token", "normalization": "tokens",
            "epochs": 100, "updates": work.steps, "logging_freq": work.steps // 3, "validation_freq": work.steps * 100,
            "overwrite": True, "print_valid_sents": [],
        },
        "model": {
            "initializer": "xavier_uniform", "embed_initializer": "xavier_uniform", "tied_embeddings": True,
            "tied_softmax": True, "encoder": stack, "decoder": stack,
        },
    }  # fmt: skip
    path = work.folder / "joeynmt.yaml"
    path.write_text(json.dumps(settings), encoding="utf-8")  # JSON is YAML
    command = [work.python, "-m", "joeynmt", "train", str(path), "--skip-test"]
    output = run(command, work.threads, work.folder)
    return statistics.mean([float(speed) for speed in re.findall(r"Tokens per Sec:\s+([\d.]+)", output)][1:])


def huggingface(work: Work, precision: str, out: Path) -> float:
    arguments = [precision, str(out), str(work.folder), work.size, str(work.steps), str(work.pairs)]
    return float(run([work.python, __file__, "huggingface", *arguments], work.threads).split()[-1])


def train_marian(precision: str, out: str, folder: str, size: str, steps: str, pairs: str) -> None:
    """Run Hugging Face's own trainer in the environment of the peers, and print target tokens a second."""
    import torch
    import transformers as hf

    vocabulary = len((Path(folder) / "vocabulary.txt").read_text(encoding="utf-8").splitlines())
    model = marian_of(replace(configuration(size).model, vocab_size=vocabulary))
    data = json.loads((Path(folder) / "ids.json").read_text(encoding="utf-8"))
    rows = [{"input_ids": src, "labels": tgt, "length": max(len(src), len(tgt))} for src, tgt in data]
    progress: list[tuple[float, int]] = []
    tokens = 0

    def collate(batch: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        nonlocal tokens
        src, tgt = ([torch.tensor(row[key]) for row in batch] for key in ("input_ids", "labels"))
        tokens += sum(map(len, tgt))
        pad = torch.nn.utils.rnn.pad_sequence
        ids = pad(src, batch_first=True)
        labels = pad(tgt, True, -100)
        tgt_in = model.prepare_decoder_input_ids_from_labels(labels)  # as in its DataCollatorForSeq2Seq
        return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels, "decoder_input_ids": tgt_in}

    class Watch(hf.TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            progress.append((time.perf_counter(), tokens))

    precisions = {"bf16": precision == "bf16"}
    arguments = hf.Seq2SeqTrainingArguments(
        out, max_steps=int(steps), per_device_train_batch_size=int(pairs), train_sampling_strategy="group_by_length",
        length_column_name="length", label_smoothing_factor=0.1, learning_rate=1e-4, use_cpu=True, save_strategy="no",
        report_to=[], remove_unused_columns=False, disable_tqdm=True, **precisions,
    )  # fmt: skip
    hf.Seq2SeqTrainer(model, arguments, data_collator=collate, train_dataset=rows, callbacks=[Watch()]).train()  # pyright: ignore
    (begin, before), (end, after) = progress[int(steps) // 3 - 1], progress[-1]
    print((after - before) / (end - begin))


PROGRAMS = {"transduce": transduce, "joeynmt": joeynmt, "huggingface": huggingface}

# ---- the run -----------------------------------------------------------------------------------------------------


def prepare(folder: Path, train: Sequence[Path], valid: Sequence[Path], size: str) -> tuple[int, float]:
    """Write the text in pieces and in ids for the peers. Return the pairs in a batch and the share of the target."""
    from transduce.data.text import read_lines
    from transduce.data.tokenizer import Tokenizer
    from transduce.data.vocabulary import EOS

    config = configuration(size).data
    lines = [line for path in train for line in read_lines(path)]
    tokenizer = Tokenizer.learn(lines, kind="bpe", vocab_size=config.vocab_size)
    texts = {}
    for name, paths in (("train", train), ("valid", valid)):
        for side, path in zip(("src", "tgt"), paths, strict=True):
            ids = tokenizer.encode_batch(list(read_lines(path)))
            texts[name, side] = ids
            pieces = [" ".join(tokenizer.pieces(line)) for line in ids]
            (folder / f"{name}.{side}").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    (folder / "vocabulary.txt").write_text("\n".join(tokenizer.vocabulary) + "\n", encoding="utf-8")
    pairs = list(zip(texts["train", "src"], texts["train", "tgt"], strict=True))
    (folder / "ids.json").write_text(json.dumps([([*src, EOS], [*tgt, EOS]) for src, tgt in pairs]))
    src_tokens, tgt_tokens = (sum(len(pair[side]) + 1 for pair in pairs) for side in (0, 1))
    return int(config.batch_tokens * len(pairs) / max(src_tokens, tgt_tokens)), tgt_tokens / (src_tokens + tgt_tokens)


def take_turns(args: argparse.Namespace, folder: Path) -> dict[str, list[float]]:
    """Return the target tokens a second of each side in each round."""
    python = install_trainers()
    train, valid = (tuple(path.absolute() for path in paths) for paths in (args.train, args.valid))
    pairs, tgt_share = prepare(folder, train, valid, args.size)
    work = Work(folder, train, valid, args.size, steps_of(args), args.threads, python, pairs, tgt_share)
    speeds: dict[str, list[float]] = {side: [] for side in args.sides}
    for number in range(args.rounds):
        for side in in_turn(args.sides, number):
            program, precision = side.split()
            speed = PROGRAMS[program](work, precision, folder / f"{program}-{precision}-{number}")
            speeds[side].append(speed)
            print(f"round {number + 1}: {side:18} {speed:8.0f} target tokens/s", file=sys.stderr)
    return speeds


def steps_of(args: argparse.Namespace) -> int:
    return args.steps or {"base": 12, "tiny": 90}[args.size]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, nargs=2, required=True)
    parser.add_argument("--valid", type=Path, nargs=2, required=True)
    parser.add_argument("--size", choices=["base", "tiny"], default="tiny")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=None, help="of each program in a round; 12 of base, 90 of tiny")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sides", nargs="+", default=list(SIDES))
    parser.add_argument("--out", type=Path, default=RESULTS / "trainers.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        speeds = take_turns(args, Path(folder))
    medians = {side: statistics.median(values) for side, values in speeds.items()}
    print("| program | target tokens/s, median | least | most |\n|---|---|---|---|")
    for side in sorted(speeds, key=lambda side: -medians[side]):
        print(f"| {side} | {medians[side]:.0f} | {min(speeds[side]):.0f} | {max(speeds[side]):.0f} |")
    ours = max(median for side, median in medians.items() if side.startswith("transduce"))
    ratio = ours / max(median for side, median in medians.items() if not side.startswith("transduce"))
    print(f"\nratio_trainers_{args.size} {ratio:.2f}")
    result = {
        f"ratio_trainers_{args.size}": round(ratio, 3), "target_tokens_per_second": speeds,
        "steps": steps_of(args), "threads": args.threads, "date": date.today().isoformat(),
        "command": command_line(),
    }  # fmt: skip
    write_results(args.out, {**read_results(args.out), args.size: result})


if __name__ == "__main__":
    if sys.argv[1:2] == ["huggingface"]:
        train_marian(*sys.argv[2:])
    else:
        main()
