"""The peers of quality_per_minute.py: trainings of given minutes, with settings of their own documentation.

    python benchmarks/quality_sides.py SIDE TEXT FOLDER SEED THREADS MINUTES...

It runs in the environment of the peers, where transduce is not installed. TEXT has train, valid and test, each as .src
and .tgt. For each of MINUTES it writes FOLDER/MINUTES.json (the minutes and steps of the training) and then
FOLDER/MINUTES.txt (translations of the test text). What is there already is not made again. The clock starts with
the first step: learning subwords, reading the text and translating do not count.

**JoeyNMT** 2.3.0. "A small Transformer model" of its demo, github.com/joeynmt/joeynmt/blob/main/notebooks, with joint
BPE of 4,000 merges on raw text; layers, schedule and beam are also in its configs/transformer_iwslt14_deen_bpe.yaml,
from which the interval of validation is. Its rate falls when the validation score stops rising, not towards an end.
So one training has a checkpoint after each of the minutes.

**transformers**. Its documentation trains no translation model from scratch. For it, a maintainer points to the script
examples/legacy/seq2seq/train_distil_marian_enro.sh (github.com/huggingface/transformers/issues/4583): rate, warm-up,
batch, lengths, label smoothing. Subwords, activation and beam are those of the Marian models that it loads
(huggingface.co/Helsinki-NLP): SentencePiece, 4,000 pieces a language where the text is small; the dropout is its
default. The sizes are JoeyNMT's, as the default is twelve layers of 1,024. Its rate falls to 0 at the last step. So
each of the minutes is a training of its own, and a trial finds the steps that fit, and the faster of fp32 and bf16.
"""

import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from train import marian_of

SIZES = SimpleNamespace(d_model=256, n_layers=6, n_heads=4, d_ff=1024)  # of a model for a small text
SUBWORDS = 4_000
TRIAL_STEPS = 50  # one group of batches by length, so with all lengths


def file_of(folder: Path, mark: float, ending: str = "") -> Path:
    """Return the file of a training of `mark` minutes."""
    return folder / f"{mark:g}{ending}"


def lines_of(path: Path) -> list[str]:
    """Return the lines of a text, which end with a line feed each."""
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def write_facts(path: Path, minutes: float, steps: int) -> None:
    """Write what is known about a training."""
    path.write_text(json.dumps({"minutes": round(minutes, 3), "steps": steps}) + "\n", encoding="utf-8")


# ---- JoeyNMT -----------------------------------------------------------------------------------------------------


def joeynmt(text: Path, folder: Path, seed: int, minutes: Sequence[float]) -> None:
    left = [mark for mark in minutes if not file_of(folder, mark, ".json").exists()]
    settings = joeynmt_settings(text, folder, seed)
    if left:
        run_joeynmt("train", settings, folder, "--skip-test", marks=left)
    del settings["data"]["train"], settings["data"]["dev"]
    for mark in minutes:
        translations = file_of(folder, mark, ".txt")
        if not translations.exists():
            settings["testing"]["load_model"] = str(file_of(folder, mark, ".ckpt"))
            run_joeynmt("test", settings, folder, "--output-path", str(folder / "output"))
            (folder / "output.test").replace(translations)


def joeynmt_settings(text: Path, folder: Path, seed: int) -> dict[str, Any]:
    """Return the configuration of the demo, with paths, for a CPU. The subwords are learned on the first call."""
    codes = folder / "codes"
    vocabulary = folder / "vocabulary.txt"
    if not vocabulary.exists():
        learn_joint_bpe([text / "train.src", text / "train.tgt"], codes, vocabulary)
    side = {
        "level": "bpe", "lowercase": False, "normalize": False, "max_length": 100, "voc_file": str(vocabulary),
        "tokenizer_type": "subword-nmt", "tokenizer_cfg": {"codes": str(codes), "pretokenizer": "none"},
    }  # fmt: skip
    stack = {
        "type": "transformer", "num_layers": SIZES.n_layers, "num_heads": SIZES.n_heads,
        "embeddings": {"embedding_dim": SIZES.d_model, "scale": True, "dropout": 0.2},
        "hidden_size": SIZES.d_model, "ff_size": SIZES.d_ff, "dropout": 0.3, "layer_norm": "pre",
    }  # fmt: skip
    return {
        "name": "quality", "joeynmt_version": "2.3.0", "model_dir": str(folder / "run"), "use_cuda": False,
        "fp16": False, "random_seed": seed,
        "data": {
            **{name: str(text / stem) for name, stem in (("train", "train"), ("dev", "valid"), ("test", "test"))},
            "dataset_type": "plain", "src": {"lang": "src", **side}, "trg": {"lang": "tgt", **side},
        },
        "testing": {
            "beam_size": 5, "beam_alpha": 1.0, "batch_size": 3_600, "batch_type": "token", "max_output_length": 100,
            "eval_metrics": ["bleu"],
        },
        "training": {
            "optimizer": "adam", "adam_betas": [0.9, 0.999], "normalization": "tokens", "scheduling": "plateau",
            "patience": 5, "decrease_factor": 0.7, "learning_rate": 0.0003, "learning_rate_min": 0.00000001,
            "weight_decay": 0.0, "label_smoothing": 0.1, "batch_size": 4_096, "batch_type": "token",
            "early_stopping_metric": "bleu", "epochs": 1_000_000, "validation_freq": 1_000, "logging_freq": 100,
            "overwrite": True, "print_valid_sents": [], "keep_best_ckpts": 1,
        },
        "model": {
            "initializer": "xavier_uniform", "bias_initializer": "zeros", "init_gain": 1.0,
            "embed_initializer": "xavier_uniform", "embed_init_gain": 1.0, "tied_embeddings": True,
            "tied_softmax": True, "encoder": stack, "decoder": stack,
        },
    }  # fmt: skip


def learn_joint_bpe(texts: Sequence[Path], codes: Path, vocabulary: Path) -> None:
    """Write the merges of both languages together, and their subwords by frequency, as scripts/build_vocab.py does."""
    from subword_nmt.apply_bpe import BPE
    from subword_nmt.learn_bpe import learn_bpe

    lines = [line for path in texts for line in lines_of(path)]
    with codes.open("w", encoding="utf-8") as file:
        learn_bpe(lines, file, SUBWORDS)
    with codes.open(encoding="utf-8") as file:
        bpe = BPE(file)
    counts = Counter(subword for line in lines for subword in bpe.process_line(line).split())
    subwords = sorted(counts, key=lambda subword: (-counts[subword], subword))
    vocabulary.write_text("".join(f"{subword}\n" for subword in subwords), encoding="utf-8")


def run_joeynmt(mode: str, settings: Any, folder: Path, *options: str, marks: Sequence[float] = ()) -> None:
    """Run JoeyNMT's program. marks: minutes of a training, in ascending order, after which it saves its weights."""
    import torch
    import yaml
    from joeynmt import builders, training
    from joeynmt.__main__ import main

    left = list(marks)

    class Timed(training.TrainManager):
        began = 0.0

        def _train_step(self, batch: Any) -> Any:
            self.began = self.began or time.perf_counter()
            minutes = (time.perf_counter() - self.began) / 60
            while left and minutes >= left[0]:
                mark = left.pop(0)
                torch.save({"model_state": self.model.state_dict()}, file_of(folder, mark, ".ckpt"))
                write_facts(file_of(folder, mark, ".json"), minutes, self.stats.steps)
            if not left:
                raise KeyboardInterrupt  # which ends a training of JoeyNMT
            return super()._train_step(batch)

    path = folder / f"{mode}.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    training.TrainManager = Timed
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    builders.ReduceLROnPlateau = lambda verbose, **options: plateau(**options)  # torch 2.7 removed its `verbose`
    sys.argv = ["joeynmt", mode, str(path), *options]
    main()


# ---- Hugging Face transformers -----------------------------------------------------------------------------------

LONGEST = 128  # tokens of a sentence


def transformers(text: Path, folder: Path, seed: int, minutes: Sequence[float]) -> None:
    tokenizer = marian_tokenizer(text, folder)
    for mark in minutes:
        if not file_of(folder, mark, ".json").exists():
            train_marian(text, folder, tokenizer, seed, mark)
        if not file_of(folder, mark, ".txt").exists():
            translations = translate_by_marian(file_of(folder, mark), tokenizer, lines_of(text / "test.src"))
            content = "".join(f"{line}\n" for line in translations)
            file_of(folder, mark, ".txt").write_text(content, encoding="utf-8")


def marian_tokenizer(text: Path, folder: Path) -> Any:
    """Return a MarianTokenizer: SentencePiece for each language, one vocabulary. It is learned on the first call."""
    from sentencepiece import SentencePieceProcessor, SentencePieceTrainer
    from transformers import MarianTokenizer

    vocabulary = folder / "vocab.json"
    if not vocabulary.exists():
        pieces = dict.fromkeys(("</s>", "<unk>"))
        for side in ("src", "tgt"):
            SentencePieceTrainer.train(
                input=str(text / f"train.{side}"), model_prefix=str(folder / side), vocab_size=SUBWORDS,
                hard_vocab_limit=False,  # a smaller text has fewer pieces
            )  # fmt: skip
            model = SentencePieceProcessor(model_file=str(folder / f"{side}.model"))
            pieces |= dict.fromkeys(model.id_to_piece(i) for i in range(len(model)) if not model.is_control(i))
        ids = {piece: i for i, piece in enumerate([*pieces, "<pad>"])}
        vocabulary.write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
    return MarianTokenizer(str(folder / "src.model"), str(folder / "tgt.model"), str(vocabulary))


def train_marian(text: Path, folder: Path, tokenizer: Any, seed: int, minutes: float) -> None:
    """Train a model for `minutes`, save it, and write the facts."""
    import transformers as hf

    src, tgt = (lines_of(text / f"train.{side}") for side in ("src", "tgt"))
    data = tokenizer(src, text_target=tgt, max_length=LONGEST, truncation=True)
    rows = [dict(zip(data, values, strict=True)) for values in zip(*data.values(), strict=True)]

    class Clock(hf.TrainerCallback):
        """The times of the steps, and the end of the training at the latest when the minutes are over."""

        def __init__(self) -> None:
            self.times: list[float] = []

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.began = time.perf_counter()

        def on_step_end(self, _: Any, __: Any, control: Any, **___: Any) -> None:
            self.times.append(time.perf_counter() - self.began)
            control.should_training_stop = control.should_training_stop or self.times[-1] >= 60 * minutes

    def train(steps: int, precision: str) -> tuple[Any, list[float]]:
        hf.set_seed(seed)
        special = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
        special |= {"decoder_start_token_id": tokenizer.pad_token_id, "forced_eos_token_id": tokenizer.eos_token_id}
        sizes = SimpleNamespace(**vars(SIZES), vocab_size=len(tokenizer), dropout=0.1)
        model = marian_of(sizes, activation_function="swish", **special)
        arguments = hf.Seq2SeqTrainingArguments(
            str(folder / "run"), max_steps=steps, seed=seed, learning_rate=3e-4, warmup_steps=500,
            per_device_train_batch_size=64, label_smoothing_factor=0.1, train_sampling_strategy="group_by_length",
            use_cpu=True, bf16=precision == "bf16", save_strategy="no", report_to=[], disable_tqdm=True,
        )  # fmt: skip
        clock = Clock()
        collator = hf.DataCollatorForSeq2Seq(tokenizer, model=model)
        options = {"data_collator": collator, "train_dataset": rows, "processing_class": tokenizer}
        hf.Seq2SeqTrainer(model, arguments, callbacks=[clock], **options).train()
        return model, clock.times

    speeds = folder / "speeds.json"  # seconds of a step
    if not speeds.exists():
        trials = {precision: train(TRIAL_STEPS, precision)[1] for precision in ("fp32", "bf16")}
        means = {precision: (times[-1] - times[0]) / (len(times) - 1) for precision, times in trials.items()}
        speeds.write_text(json.dumps(means), encoding="utf-8")
    means = json.loads(speeds.read_text(encoding="utf-8"))
    precision = min(means, key=means.__getitem__)
    model, times = train(max(1, round(60 * minutes / means[precision])), precision)
    model.save_pretrained(file_of(folder, minutes))
    write_facts(file_of(folder, minutes, ".json"), times[-1] / 60, len(times))


def translate_by_marian(folder: Path, tokenizer: Any, lines: Sequence[str]) -> list[str]:
    """Return the translations of `lines`, which are translated in batches of similar length."""
    from transformers import MarianMTModel

    model = MarianMTModel.from_pretrained(folder).eval()
    order = sorted(range(len(lines)), key=lambda i: len(lines[i]))
    translations = [""] * len(lines)
    for start in range(0, len(order), 32):
        batch = order[start : start + 32]
        inputs = tokenizer([lines[i] for i in batch], return_tensors="pt", padding=True, truncation=True)
        outputs = model.generate(**inputs, num_beams=4, max_length=LONGEST, use_cache=True)
        for i, line in zip(batch, tokenizer.batch_decode(outputs, skip_special_tokens=True), strict=True):
            translations[i] = line
    return translations


SIDES = {"joeynmt": joeynmt, "transformers": transformers}


def main(side: str, text: str, folder: str, seed: str, threads: str, *minutes: str) -> None:
    import torch

    torch.set_num_threads(int(threads))
    Path(folder).mkdir(parents=True, exist_ok=True)
    SIDES[side](Path(text), Path(folder), int(seed), sorted(map(float, minutes)))


if __name__ == "__main__":
    main(*sys.argv[1:])
