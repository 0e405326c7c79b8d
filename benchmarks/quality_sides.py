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

**fairseq** 0.12.2. "IWSLT'14 German to English (Transformer)" of github.com/facebookresearch/fairseq, in
examples/translation/README.md, with the tokenizer of Moses and joint BPE of 10,000 merges of prepare-iwslt14.sh, but
without lowering capitals, as BLEU counts them. Its rate does not depend on the end either.

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
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
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


def write_lines(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def write_facts(path: Path, minutes: float, steps: int) -> None:
    """Write what is known about a training."""
    path.write_text(json.dumps({"minutes": round(minutes, 3), "steps": steps}) + "\n", encoding="utf-8")


class Marks:
    """The minutes of a training after which its weights are saved. The training ends after the last of them."""

    def __init__(self, folder: Path, minutes: Sequence[float]) -> None:
        self.folder = folder
        self.left = list(minutes)
        self.began = 0.0

    def before_step(self, steps: int, save: Callable[[str], Any]) -> None:
        """Save at each mark that is over. KeyboardInterrupt after the last one, as by hand. steps: made until now."""
        self.began = self.began or time.perf_counter()
        minutes = (time.perf_counter() - self.began) / 60
        while self.left and minutes >= self.left[0]:
            mark = self.left.pop(0)
            save(str(file_of(self.folder, mark, ".ckpt")))
            write_facts(file_of(self.folder, mark, ".json"), minutes, steps)
        if not self.left:
            raise KeyboardInterrupt


def missing(folder: Path, minutes: Sequence[float], ending: str) -> list[float]:
    """Return the minutes without a file."""
    return [mark for mark in minutes if not file_of(folder, mark, ending).exists()]


# ---- JoeyNMT -----------------------------------------------------------------------------------------------------


def joeynmt(text: Path, folder: Path, seed: int, minutes: Sequence[float]) -> None:
    settings = joeynmt_settings(text, folder, seed)
    if left := missing(folder, minutes, ".json"):
        run_joeynmt("train", settings, folder, "--skip-test", marks=left)
    del settings["data"]["train"], settings["data"]["dev"]
    for mark in missing(folder, minutes, ".txt"):
        settings["testing"]["load_model"] = str(file_of(folder, mark, ".ckpt"))
        run_joeynmt("test", settings, folder, "--output-path", str(folder / "output"))
        (folder / "output.test").replace(file_of(folder, mark, ".txt"))


def joeynmt_settings(text: Path, folder: Path, seed: int) -> dict[str, Any]:
    """Return the configuration of the demo, with paths, for a CPU. The subwords are learned on the first call."""
    codes = folder / "codes"
    vocabulary = folder / "vocabulary.txt"
    if not vocabulary.exists():
        lines = [line for name in ("train.src", "train.tgt") for line in lines_of(text / name)]
        bpe = learn_joint_bpe(lines, codes, SUBWORDS)
        counts = Counter(subword for line in lines for subword in bpe.process_line(line).split())
        subwords = sorted(counts, key=lambda subword: (-counts[subword], subword))  # as in its scripts/build_vocab.py
        write_lines(vocabulary, subwords)
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


def learn_joint_bpe(lines: Sequence[str], codes: Path, merges: int) -> Any:
    """Return the BPE of subword-nmt for the lines of both languages, and write it to `codes`."""
    from subword_nmt.apply_bpe import BPE
    from subword_nmt.learn_bpe import learn_bpe

    with codes.open("w", encoding="utf-8") as file:
        learn_bpe(lines, file, merges)
    with codes.open(encoding="utf-8") as file:
        return BPE(file)


def run_joeynmt(mode: str, settings: Any, folder: Path, *options: str, marks: Sequence[float] = ()) -> None:
    """Run JoeyNMT's program. marks: minutes of a training, in ascending order, after which it saves its weights."""
    import torch
    import yaml
    from joeynmt import builders, training
    from joeynmt.__main__ import main

    clock = Marks(folder, marks)

    class Timed(training.TrainManager):
        def _train_step(self, batch: Any) -> Any:
            clock.before_step(self.stats.steps, self.save)
            return super()._train_step(batch)

        def save(self, path: str) -> None:
            torch.save({"model_state": self.model.state_dict()}, path)

    path = folder / f"{mode}.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    training.TrainManager = Timed
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
    builders.ReduceLROnPlateau = lambda verbose, **options: plateau(**options)  # torch 2.7 removed its `verbose`
    sys.argv = ["joeynmt", mode, str(path), *options]
    main()


# ---- fairseq -----------------------------------------------------------------------------------------------------

FAIRSEQ_TRAINING = (
    "--arch transformer_iwslt_de_en --share-decoder-input-output-embed --optimizer adam --clip-norm 0.0 --lr 5e-4 "
    "--lr-scheduler inverse_sqrt --warmup-updates 4000 --dropout 0.3 --weight-decay 0.0001 "
    "--criterion label_smoothed_cross_entropy --label-smoothing 0.1 --max-tokens 4096 --cpu --no-save"
)  # checkpoints after each epoch would only cost it time


def fairseq(text: Path, folder: Path, seed: int, minutes: Sequence[float]) -> None:
    import_fairseq()
    from fairseq.trainer import Trainer
    from fairseq_cli import generate, preprocess, train
    from sacremoses import MosesDetokenizer

    data = folder / "bin"
    if not data.exists():
        write_subwords_of_fairseq(text, folder)
        texts = [word for name in ("train", "valid", "test") for word in (f"--{name}pref", str(folder / name))]
        run_fairseq(preprocess, "--source-lang", "src", "--target-lang", "tgt", "--destdir", str(data), *texts)
    if left := missing(folder, minutes, ".json"):
        clock = Marks(folder, left)
        step = Trainer.train_step

        def timed_step(trainer: Any, *arguments: Any, **options: Any) -> Any:
            trainer.consolidate_optimizer()  # a checkpoint needs it
            clock.before_step(trainer.get_num_updates(), lambda path: trainer.save_checkpoint(path, {}))
            return step(trainer, *arguments, **options)

        Trainer.train_step = timed_step
        with suppress(KeyboardInterrupt):
            run_fairseq(train, str(data), *FAIRSEQ_TRAINING.split(), "--adam-betas", "(0.9, 0.98)", "--seed", str(seed))
    detokenizer = MosesDetokenizer()
    for mark in missing(folder, minutes, ".txt"):
        options = ["--path", str(file_of(folder, mark, ".ckpt")), "--results-path", str(folder), "--batch-size", "128"]
        run_fairseq(generate, str(data), *options, "--beam", "5", "--remove-bpe", "--cpu")
        rows = [line.split("\t") for line in lines_of(folder / "generate-test.txt") if line.startswith("H-")]
        rows.sort(key=lambda row: int(row[0].removeprefix("H-")))
        write_lines(file_of(folder, mark, ".txt"), [detokenizer.detokenize(row[2].split()) for row in rows])


def import_fairseq() -> None:
    """Import fairseq, which does not run with Python 3.11 and torch 2.13 unless three things are as they were."""
    import dataclasses

    import torch

    decorator = dataclasses.dataclass
    dataclasses.dataclass = partial(decorator, unsafe_hash=True)  # Python 3.11: a default value must have a hash
    from fairseq.modules.transformer_layer import TransformerEncoderLayerBase

    dataclasses.dataclass = decorator
    torch.load = partial(torch.load, weights_only=False)  # torch 2.6: True where it is not given
    # The fused layer of torch needs an argument that fairseq does not give: "Mask Type should be defined".
    TransformerEncoderLayerBase.load_to_BT = property(lambda layer: False, lambda layer, value: None)


def write_subwords_of_fairseq(text: Path, folder: Path) -> None:
    """Write the text in the subwords of prepare-iwslt14.sh, with capitals."""
    from sacremoses import MosesTokenizer

    tokenizer = MosesTokenizer()
    names = [f"{name}.{side}" for name in ("train", "valid", "test") for side in ("src", "tgt")]
    texts = {name: [tokenizer.tokenize(line, return_str=True) for line in lines_of(text / name)] for name in names}
    bpe = learn_joint_bpe([*texts["train.src"], *texts["train.tgt"]], folder / "codes", 10_000)
    for name, lines in texts.items():
        write_lines(folder / name, [bpe.process_line(line) for line in lines])


def run_fairseq(tool: Any, *words: str) -> None:
    sys.argv = [tool.__name__, *words]
    tool.cli_main()


# ---- Hugging Face transformers -----------------------------------------------------------------------------------

LONGEST = 128  # tokens of a sentence


def transformers(text: Path, folder: Path, seed: int, minutes: Sequence[float]) -> None:
    tokenizer = marian_tokenizer(text, folder)
    for mark in missing(folder, minutes, ".json"):
        train_marian(text, folder, tokenizer, seed, mark)
    for mark in missing(folder, minutes, ".txt"):
        translations = translate_by_marian(file_of(folder, mark), tokenizer, lines_of(text / "test.src"))
        write_lines(file_of(folder, mark, ".txt"), translations)


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


SIDES = {"joeynmt": joeynmt, "transformers": transformers, "fairseq": fairseq}


def main(side: str, text: str, folder: str, seed: str, threads: str, *minutes: str) -> None:
    import torch

    torch.set_num_threads(int(threads))
    Path(folder).mkdir(parents=True, exist_ok=True)
    SIDES[side](Path(text), Path(folder), int(seed), sorted(map(float, minutes)))


if __name__ == "__main__":
    main(*sys.argv[1:])
