"""The tour: generate a corpus -> train -> evaluate on unseen sentences -> translate -> draw the attention.

The tour calls the same functions as a run on a user's corpus. `transduce.demo.grammar` writes the sentences.
"""

import shlex
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from transduce.config.recipes.studies.demo import demo
from transduce.config.schema import Config, with_value
from transduce.data.text import LinePair
from transduce.demo.grammar import corpus
from transduce.errors import UserError
from transduce.evaluation.attention_file import write_attention
from transduce.evaluation.metrics import bleu
from transduce.model import devices
from transduce.model.cpu_backend import has_fast_bf16
from transduce.storage.run_request import TrainRequest
from transduce.train import train
from transduce.translate import Translator, load

SIZES = {"train": 40_000, "valid": 500, "test": 1_000, "longer": 500}
SEED = 2017


def run_demo(out: Path) -> Path:
    """Run the whole tour in the new folder `out` and return the path out/report.json.

    Raises UserError if `out` exists and is not empty.
    """
    if out.exists() and any(out.iterdir() if out.is_dir() else [out]):
        raise UserError(f"{out}: expected a new folder; give another name")
    started_at = time.monotonic()
    _say(f"1. A corpus of English sentences, each with one German translation: {out / 'corpus'}")
    sets = write_corpus(out / "corpus")
    files = {name: (out / "corpus" / f"{name}.en", out / "corpus" / f"{name}.de") for name in SIZES}
    _say(f"   {SIZES['train']:,} pairs to train on, such as")
    _show(sets["train"][:3])

    config = recipe()
    _say(f"\n2. Training: tokens, then {config.train.max_steps:,} steps")
    train_started_at = time.monotonic()
    model_path = train(TrainRequest(config, files["train"], files["valid"], out))
    train_seconds = time.monotonic() - train_started_at

    _say(f"\n3. {SIZES['test']:,} unseen sentences, and {SIZES['longer']:,} longer than all training sentences")
    model = load(model_path)
    report = {
        **evaluate(model, sets["test"], ""),
        **evaluate(model, sets["longer"], "_longer"),
        "train_seconds": round(train_seconds, 1),
        "train_steps": config.train.max_steps,
    }
    _say("   Some translations:")
    samples = [src for src, _ in [*sets["test"][:4], *sets["longer"][:1]]]
    _show([(src, t.text) for src, t in zip(samples, model.translate(samples), strict=True)])

    _say("\n4. The attention weights of the first translation")
    picture = out / "attention.svg"
    write_attention(model.attend(samples[0]), picture)
    _say(f"   {picture}")

    report["seconds"] = round(time.monotonic() - started_at, 1)
    (out / "report.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    print(_summary(report, out))
    return out / "report.json"


def recipe() -> Config:
    """Return the recipe `demo`, in fp32 where the processor has no instructions for bf16."""
    return demo() if has_fast_bf16(devices.device()) else with_value(demo(), "train.precision", "fp32")


def write_corpus(folder: Path) -> dict[str, list[LinePair]]:
    """Write NAME.en and NAME.de for train, valid, test and longer. No sentence is in two of the sets."""
    folder.mkdir(parents=True)
    sets: dict[str, list[LinePair]] = {}
    sentences: set[str] = set()
    for number, (name, size) in enumerate(SIZES.items()):
        sets[name] = corpus(SEED + number, size, longer=name == "longer", exclude=sentences)
        sentences |= {src for src, _ in sets[name]}
        for side, language in enumerate(("en", "de")):
            lines = "".join(pair[side] + "\n" for pair in sets[name])
            (folder / f"{name}.{language}").write_bytes(lines.encode())
    return sets


def evaluate(model: Translator, pairs: list[LinePair], suffix: str) -> dict[str, float]:
    """Return BLEU (sacreBLEU 13a) and the percentage of exact translations: bleu{suffix} and exact_match{suffix}."""
    references = [tgt for _, tgt in pairs]
    outputs = [translation.text for translation in model.translate([src for src, _ in pairs])]
    exact = 100 * sum(a == b for a, b in zip(outputs, references, strict=True)) / len(pairs)
    scores = {f"bleu{suffix}": round(bleu(outputs, references), 2), f"exact_match{suffix}": round(exact, 2)}
    _say("   " + ", ".join(f"{name} {value}" for name, value in scores.items()))
    return scores


def _summary(report: dict[str, float], out: Path) -> str:
    rule, figures = "-" * min(shutil.get_terminal_size().columns, 80), out / "report.json"
    model, src, ref = (shlex.quote(f"{out / path}") for path in ("model", "corpus/test.en", "corpus/test.de"))
    return f"""{rule}
unseen sentences   BLEU {report["bleu"]:6.2f}   exact {report["exact_match"]:6.2f} %
longer sentences   BLEU {report["bleu_longer"]:6.2f}   exact {report["exact_match_longer"]:6.2f} %
training           {report["train_seconds"]:.0f} s; everything {report["seconds"]:.0f} s; figures in {figures}

Next steps
  echo "The old woman buys the red suitcase." | transduce translate {model}
  transduce evaluate {model} --src {src} --ref {ref} --language de
  transduce attend {model} "The old woman buys the red suitcase." --out page.html   (every head)
  transduce train --train train.en train.de --out run   (your own text)"""


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _show(pairs: Sequence[tuple[str, str]]) -> None:
    for src, tgt in pairs:
        _say(f"     {src}\n       {tgt}")
