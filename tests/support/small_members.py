"""Small members of the family with random weights, and folders of them, without Hugging Face transformers."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from support.hugging_face import disturb
from transduce.family.gpt2 import GPT2
from transduce.family.weights import Member, write_member

END = "<|endoftext|>"
TEXT = ["two young men are sitting on a table", "a dog runs on the grass", "Zürich ist schön", "the man sits\non it"]


def tokenizer_json(vocab_size: int = 300) -> bytes:
    """Return a byte-level tokenizer as GPT-2 has one."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options: dict[str, Any] = {"special_tokens": [END], "initial_alphabet": alphabet, "show_progress": False}
    tokenizer.train_from_iterator(TEXT, trainers.BpeTrainer(vocab_size=vocab_size, **options))
    return tokenizer.to_str().encode()


def small_gpt2() -> GPT2:
    torch.manual_seed(1)
    model = GPT2(300, 24, 2, 4, n_positions=40, dropout=0.0)
    disturb(model)
    return model


def gpt2_folder(folder: Path) -> Path:
    """Write a small GPT-2 with a tokenizer, whose end of text is id 0."""
    files = {"tokenizer.json": tokenizer_json()}
    write_member(folder, Member(small_gpt2(), {"bos_token_id": 0, "eos_token_id": 0}, files))
    return folder
