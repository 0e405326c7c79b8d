"""Runs of a tiny model that train in a second with every option that a resumed run could get wrong."""

import hashlib
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.trainings import train
from transduce.config.schema import Config, DataConfig, ModelConfig, SearchConfig, TrainConfig
from transduce.storage.atomic_folder import read_folder
from transduce.storage.run_log import reports

Texts = dict[str, tuple[Path, Path]]

# Reports, evaluations and checkpoints are on different steps, and epochs end between them.
AVERAGE = Config(
    model=ModelConfig(vocab_size=None, d_model=16, n_layers=1, n_heads=2, d_ff=32, dropout=0.2, attention_dropout=0.1),
    data=DataConfig(vocab_size=290, batch_tokens=150, max_tokens=24, bpe_dropout=0.2),
    train=TrainConfig(
        max_steps=32,
        warmup_steps=20,
        accumulate=2,
        log_every_steps=5,
        evaluate_every_steps=9,
        checkpoint_every_steps=6,
        keep_checkpoints=3,
        average_checkpoints=3,
    ),
    search=SearchConfig(max_extra_tokens=2),
)
CONFIGS = {
    "average": AVERAGE,
    "ema": replace(AVERAGE, train=replace(AVERAGE.train, use="ema", ema_decay=0.9, keep_checkpoints=1)),
    # The first evaluation has the best BLEU, so the run stops early, after the third.
    "best": replace(AVERAGE, train=replace(AVERAGE.train, use="best", best_by="bleu", patience=2)),
}


def write_texts(folder: Path) -> Texts:
    """Write 90 pairs to train on and 4 to evaluate on: lines of up to six letters, and the same lines reversed."""
    rng = random.Random(1)
    texts = {}
    for name, count in (("train", 90), ("valid", 4)):
        lines = [rng.sample("abcdefghij", rng.randint(1, 6)) for _ in range(count)]
        texts[name] = folder / f"{name}.src", folder / f"{name}.tgt"
        for path, side in zip(texts[name], (lines, [line[::-1] for line in lines]), strict=True):
            path.write_text("".join(" ".join(line) + "\n" for line in side), encoding="utf-8")
    return texts


def train_on(texts: Texts, out: Path, config: Config = AVERAGE, **request: Any) -> Path:
    """Train on these texts into the run folder `out`, and return the model folder. request: as in `trainings.train`."""
    return train(config, train=texts["train"], valid=texts["valid"], out=out, **request)


# ---- the files at the end of a run -------------------------------------------------------------------------------

TIMES = ("seconds", "processor_seconds", "processor_share", "tokens_per_second")


def ending(run: Path) -> dict[str, Any]:
    """Return the content of the folder of a run by name: SHA-256 of a file, or its values if some of them are times.

    Verifies all manifests, and that the log has no incomplete line.
    """
    contents: dict[str, Any] = {}
    for path in sorted(run.rglob("*")):
        name = str(path.relative_to(run))
        if path.is_dir():
            contents[name] = "folder"
        elif path.name == "manifest.json":  # has the hash of a file with times
            contents[name] = sorted(read_folder(path.parent))
        elif path.name in ("README.md", "report.html"):
            contents[name] = "page"
        elif path.name == "state.json":
            contents[name] = _without_times(json.loads(path.read_bytes()))
        elif path.name == "log.jsonl":
            contents[name] = [_without_times(line) for line in reports(run)]
            assert path.read_bytes().count(b"\n") == len(contents[name])
        else:
            contents[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return contents


def _without_times(content: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key not in TIMES}


def differences(actual: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Return a line for each difference between two endings."""
    names = sorted(actual.keys() | expected.keys())
    return [
        f"{name}: {actual.get(name, 'missing')}, expected {expected.get(name, 'nothing')}"
        for name in names
        if actual.get(name) != expected.get(name)
    ]
