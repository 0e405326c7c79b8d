"""From text to a model on real corpora: captions, and Japanese, which has another script and no spaces."""

import os
from itertools import islice
from pathlib import Path

import pytest

from transduce.config.overrides import override
from transduce.config.recipes.studies.demo import demo
from transduce.config.schema import Config
from transduce.data import text
from transduce.data.tokenizer import Tokenizer

DATA = Path(os.environ.get("TRANSDUCE_DATA", Path(__file__).parents[2] / "data"))
CORPORA = {
    "multi30k": ("multi30k/train.en", "multi30k/train.de", "multi30k/valid.en", "multi30k/valid.de"),
    "tanaka_en_ja": (
        "tanaka_en_ja/train.en",
        "tanaka_en_ja/train.ja",
        "tanaka_en_ja/valid.en",
        "tanaka_en_ja/valid.ja",
    ),
}


@pytest.fixture(params=CORPORA)
def corpus(request: pytest.FixtureRequest) -> tuple[Path, Path, Path, Path]:
    """Return training source and target, validation source and target."""
    src, tgt, valid_src, valid_tgt = (DATA / name for name in CORPORA[request.param])
    if not src.exists():
        pytest.skip(f"needs the corpus {request.param} in {DATA}")
    return src, tgt, valid_src, valid_tgt


@pytest.mark.parametrize("kind", ["bpe", "wordpiece"])
def test_tokens_are_lossless_on_every_line(corpus: tuple[Path, Path, Path, Path], kind: str) -> None:
    """The tokenizer learns from 5,000 pairs; the validation text has new characters and words."""
    src, tgt, valid_src, valid_tgt = corpus
    lines = [side for pair in islice(text.read_pairs(src, tgt), 5_000) for side in pair]
    tokenizer = Tokenizer.learn(lines, kind=kind, vocab_size=4_000)
    unseen = [side for pair in text.read_pairs(valid_src, valid_tgt) for side in pair]
    assert [tokenizer.decode(ids) for ids in tokenizer.encode_batch(unseen)] == unseen


@pytest.mark.slow
def test_a_short_training_learns(corpus: tuple[Path, Path, Path, Path], tmp_path: Path) -> None:
    """After 60 steps with BPE-dropout the loss is lower than with equal probabilities."""
    from support.trainings import train

    from transduce.storage.run_log import reports

    src, tgt, *valid = corpus
    settings = ["train.max_steps=60", "train.warmup_steps=60", "train.evaluate_every_steps=30", "data.bpe_dropout=0.1"]
    config: Config = override(demo(), [*settings, "data.vocab_size=6000", "train.log_every_steps=10"])
    model = train(config, train=(src, tgt), valid=(valid[0], valid[1]), out=tmp_path / "run")
    evaluations = [line["valid_loss"] for line in reports(tmp_path / "run") if "valid_loss" in line]
    assert (model / "model.safetensors").exists()
    assert evaluations[-1] < evaluations[0] < 8.7  # log of 6,000 pieces
