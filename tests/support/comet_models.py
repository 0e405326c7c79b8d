"""Small random COMET models: the files of the encoder, and checkpoints in the form of COMET's library."""

import io
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

sentencepiece = pytest.importorskip("sentencepiece", reason="needs transduce[sentencepiece]")

WORDS = "der Hund läuft über die Straße und das Kind spielt im Garten mit dem Ball".split()
SIZES = {
    "model_type": "xlm-roberta",
    "vocab_size": 42,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 26,
    "type_vocab_size": 1,
    "layer_norm_eps": 1e-5,
    "hidden_act": "gelu",
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
}
SETTINGS = {
    "class_identifier": "regression_metric",
    "encoder_model": "XLM-RoBERTa",
    "pretrained_model": "xlm-roberta-large",
    "layer": "mix",
    "layer_transformation": "sparsemax",
    "layer_norm": False,
    "pool": "avg",
    "hidden_sizes": [12, 8],
    "activations": "Tanh",
    "final_activation": None,
}


def sentence(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, 9)))


def samples() -> list[dict[str, str]]:
    """Return sources, translations and references, also without text, with unknown letters, and longer than allowed."""
    rng = random.Random(1)
    rows = [{name: sentence(rng) for name in ("src", "mt", "ref")} for _ in range(20)]
    rows[3]["mt"], rows[4]["src"] = "", "  x 漢 "
    rows[5]["ref"] = rows[6]["mt"] = rows[6]["src"] = " ".join(WORDS * 2)
    return rows


def columns() -> list[list[str]]:
    """Return the sources, translations and references of `samples`."""
    return [[row[name] for row in samples()] for name in ("src", "mt", "ref")]


def write_encoder(folder: Path, **changes: Any) -> None:
    """Write the files of a small encoder."""
    rng, model = random.Random(1), io.BytesIO()
    lines = (sentence(rng) for _ in range(300))
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=lines, model_writer=model, vocab_size=40, minloglevel=2, num_threads=1
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "sentencepiece.bpe.model").write_bytes(model.getvalue())
    (folder / "config.json").write_text(json.dumps({**SIZES, **changes}))


def random_weights() -> dict[str, Tensor]:
    """Return the tensors of a checkpoint with `SIZES` and `SETTINGS`."""
    d, f, shapes = 16, 32, dict[str, tuple[int, ...]]()
    for name, rows in (("word", 42), ("position", 26), ("token_type", 1)):
        shapes[f"embeddings.{name}_embeddings.weight"] = (rows, d)
    parts = {"attention.self.query": (d, d), "attention.self.key": (d, d), "attention.self.value": (d, d)}
    parts |= {"attention.output.dense": (d, d), "intermediate.dense": (f, d), "output.dense": (d, f)}
    linear = {f"encoder.layer.{i}.{name}": shape for i in range(3) for name, shape in parts.items()}
    norms = [f"encoder.layer.{i}.{name}.LayerNorm" for i in range(3) for name in ("attention.output", "output")]
    for name, shape in linear.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    for name in ("embeddings.LayerNorm", *norms):
        shapes |= {f"{name}.weight": (d,), f"{name}.bias": (d,)}
    shapes = {f"encoder.model.{name}": shape for name, shape in shapes.items()}
    for i, (rows, width) in {0: (12, 6 * d), 3: (8, 12), 6: (1, 8)}.items():
        shapes |= {f"estimator.ff.{i}.weight": (rows, width), f"estimator.ff.{i}.bias": (rows,)}
    shapes |= {f"layerwise_attention.scalar_parameters.{i}": (1,) for i in range(4)}
    shapes["layerwise_attention.gamma"] = (1,)
    generator = torch.Generator().manual_seed(1)
    return {name: torch.randn(shape, generator=generator) / 3 for name, shape in shapes.items()}


def write_comet(folder: Path, **settings: Any) -> Path:
    """Write a COMET model of random weights."""
    write_encoder(folder)
    (folder / "checkpoints").mkdir()
    values = {**SETTINGS, **settings}
    (folder / "hparams.yaml").write_text(f"class_identifier: {values['class_identifier']}\n")
    content = {"state_dict": random_weights(), "hyper_parameters": values, "epoch": 1}
    torch.save(content, folder / "checkpoints" / "model.ckpt")
    return folder
