"""Folders of small BERTs with random weights, without Hugging Face transformers."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from transduce.family.bert import Bert
from transduce.family.configs import BertConfig
from transduce.family.hugging_face.folder import Member, write_member

WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] a the dog cat bird runs sleeps sings fast on mat big small . ##s".split()
LABELS = ["good", "bad\n\x1b", "neither"]


def tokenizer_json(*, mask: str = "[MASK]", cuts: bool = False, marks: bool = True) -> bytes:
    """Return a tokenizer as BERT has one.

    cuts: it cuts and pads to 8 tokens, as MiniLM's does to 128. marks: it adds [CLS] and [SEP].
    """
    words = [mask if word == "[MASK]" else word for word in WORDS]
    tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(words[:5])
    special: Any = [("[CLS]", 2), ("[SEP]", 3)]
    if marks:
        tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=special)
    if cuts:
        tokenizer.enable_truncation(8)
        tokenizer.enable_padding(length=8)
    return tokenizer.to_str().encode()


def small_bert(*heads: str) -> Bert:
    """Return a BERT of 24 positions with these heads: words, pooler, classifier."""
    torch.manual_seed(1)
    config = BertConfig(vocab_size=len(WORDS), d_model=48, n_layers=2, n_heads=4, max_positions=24)
    model = Bert(config, heads=heads, labels=LABELS, classifier_dropout=0.0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def bert_folder(folder: Path, *heads: str, tokenizer: bytes | None = None) -> Path:
    """Write a small BERT with these heads and a tokenizer; b"" for none."""
    content = tokenizer_json() if tokenizer is None else tokenizer
    write_member(folder, Member(small_bert(*heads), {}, {"tokenizer.json": content} if content else {}))
    return folder
