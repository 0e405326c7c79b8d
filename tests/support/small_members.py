"""Small members of the family with random weights, and folders of them, without Hugging Face transformers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from support.hugging_face import disturb
from transduce.family.configs import GPT2Config, T5Config
from transduce.family.gpt2 import GPT2
from transduce.family.hugging_face.folder import Member, write_member
from transduce.family.images.configs import ViTConfig
from transduce.family.images.vit import ViT
from transduce.family.t5 import T5

END = "<|endoftext|>"
TEXT = ["two young men are sitting on a table", "a dog runs on the grass", "Zürich ist schön", "the man sits\non it"]


def tokenizer_json(vocab_size: int = 300, special: Sequence[str] = (END,)) -> bytes:
    """Return a byte-level tokenizer as GPT-2 has one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options: dict[str, Any] = {"special_tokens": [*special], "initial_alphabet": alphabet, "show_progress": False}
    tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=vocab_size, **options))
    return tokenizer.to_str().encode()


def small_gpt2() -> GPT2:
    torch.manual_seed(1)
    model = GPT2(GPT2Config(vocab_size=300, d_model=24, n_layers=2, n_heads=4, max_positions=40, dropout=0.0))
    disturb(model)
    return model


def t5_folder(folder: Path) -> Path:
    """Write a small T5 with a tokenizer, which ends a text with id 1."""
    torch.manual_seed(1)
    model = T5(
        T5Config(vocab_size=300, d_model=24, n_layers=2, n_heads=4, d_k=6, gated=True, tied=False, dropout=0.0),
        n_sentinels=0,
    )
    disturb(model)
    with torch.no_grad():
        model.output.weight[1] *= 3  # so that some outputs end
    tokenizer = Tokenizer.from_str(tokenizer_json(299, [END, "</s>"]).decode())
    ends: Any = [("</s>", 1)]
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=ends)
    write_member(folder, Member(model, {}, {"tokenizer.json": tokenizer.to_str().encode()}))
    return folder


def vit_folder(folder: Path) -> Path:
    """Write a small ViT of 12 x 12 pixels with three classes."""
    torch.manual_seed(1)
    model = ViT(ViTConfig(image_size=12, patch_size=4, d_model=24, n_layers=2, n_heads=4), ["cat", "dog", "bird"])
    disturb(model)
    write_member(folder, Member(model, {}))
    return folder


def gpt2_folder(folder: Path) -> Path:
    """Write a small GPT-2 with a tokenizer, whose end of text is id 0."""
    files = {"tokenizer.json": tokenizer_json()}
    write_member(folder, Member(small_gpt2(), {"bos_token_id": 0, "eos_token_id": 0}, files))
    return folder
