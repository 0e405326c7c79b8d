"""Small random models in the form of the OPUS-MT models, and models as transformers loads them."""

import io
import json
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

sentencepiece = pytest.importorskip("sentencepiece", reason="needs transduce[export]")
transformers = pytest.importorskip("transformers", reason="needs transduce[export]")

WORDS = "der Hund läuft über die Straße und das Kind spielt im Garten mit dem Ball".split()
LINES = ["der Hund läuft", "das Kind spielt im Garten", "unbekannt 漢字", ">>fra<< der Ball", "x"]


def sentences(seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(2, 9))) for _ in range(300)]


def spm(seed: int) -> bytes:
    model = io.BytesIO()
    trainer = sentencepiece.SentencePieceTrainer
    lines = iter(sentences(seed))
    trainer.train(sentence_iterator=lines, model_writer=model, vocab_size=36 + seed, minloglevel=2, num_threads=1)
    return model.getvalue()


def opus(folder: Path, **changes: Any) -> Path:
    """Write a small random model in the form of the OPUS-MT models."""
    folder.mkdir()
    models = {"source": spm(1), "target": spm(2)}
    pieces: list[str] = []
    for side, content in models.items():
        (folder / f"{side}.spm").write_bytes(content)
        processor = sentencepiece.SentencePieceProcessor(model_proto=content)
        pieces += [processor.id_to_piece(i) for i in range(3, processor.vocab_size())]
    vocabulary = ["</s>", "<unk>", *dict.fromkeys([*pieces, ">>fra<<"]), "<pad>"]
    ids = {piece: i for i, piece in enumerate(vocabulary)}
    (folder / "vocab.json").write_text(json.dumps(ids), "utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "MarianTokenizer"}))
    pad = len(ids) - 1
    sides = {"layers": 2, "attention_heads": 4, "ffn_dim": 48}
    config = transformers.MarianConfig(
        vocab_size=len(ids),
        d_model=32,
        **{
            **{f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in sides.items()},
            "activation_function": "swish",
            "scale_embedding": True,
            "pad_token_id": pad,
            "decoder_start_token_id": pad,
            "eos_token_id": 0,
            "forced_eos_token_id": 0,
            "max_position_embeddings": 128,
            "init_std": 0.5,
            **changes,
        },
    )
    torch.manual_seed(1)
    model = transformers.MarianMTModel(config).eval()
    model.final_logits_bias.normal_()
    model.final_logits_bias[0, 0] += 3  # so that outputs end
    model.save_pretrained(folder)
    return folder


def hugging_face(folder: Path) -> tuple[Any, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        return transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval(), tokenizer
