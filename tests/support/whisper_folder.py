"""A folder of a tiny Whisper with random weights, as Hugging Face transformers writes it, with a tiny tokenizer."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from support.hugging_face import disturb

LANGUAGES = ("en", "de", "yue")
FIRST = ("endoftext", "startoftranscript", *LANGUAGES, "translate", "transcribe", "nospeech", "notimestamps")
N_TIMES = 31  # from 0 to 0.6 s, the length of a window
RATE = 16_000


def tokenizer_file(n_times: int = N_TIMES) -> Tokenizer:
    """Return a byte-level BPE of single bytes, then the special tokens, then the times."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(f"<|{name}|>", special=True) for name in FIRST])
    tokenizer.add_tokens([AddedToken(f"<|{i * 0.02:.2f}|>", normalized=False) for i in range(n_times)])
    return tokenizer


def write_whisper(folder: Path, **settings: Any) -> Any:
    """Write a folder, and return the model of transformers. settings: values of generation_config.json."""
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    tokenizer = tokenizer_file()
    ids: dict[str, int] = {name: tokenizer.token_to_id(f"<|{name}|>") for name in FIRST}
    end = ids["endoftext"]
    torch.manual_seed(1)
    config = transformers.WhisperConfig(
        vocab_size=tokenizer.get_vocab_size(),
        num_mel_bins=20,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_source_positions=N_TIMES - 1,
        max_target_positions=40,
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        decoder_start_token_id=ids["startoftranscript"],
    )
    theirs = disturb(transformers.WhisperForConditionalGeneration(config))
    with torch.no_grad():
        rows = theirs.proj_out.weight
        rows[end] = 0.3 * rows[[7, 158, 232]].sum(dim=0)  # near the tokens of most outputs, so that some end
        for layer in theirs.model.decoder.layers:  # so that outputs depend on the sound
            layer.encoder_attn.q_proj.weight *= 20
            layer.encoder_attn.out_proj.weight *= 10
        theirs.model.decoder.embed_positions.weight *= 5  # so that they do not repeat one token
    values = {
        "max_length": 40,
        "pad_token_id": end,
        "bos_token_id": end,
        "eos_token_id": end,
        "decoder_start_token_id": ids["startoftranscript"],
        "is_multilingual": True,
        "lang_to_id": {f"<|{code}|>": ids[code] for code in LANGUAGES},
        "task_to_id": {task: ids[task] for task in ("transcribe", "translate")},
        "no_timestamps_token_id": ids["notimestamps"],
        "suppress_tokens": [3, 50, *(ids[name] for name in FIRST[1:-1])],
        "begin_suppress_tokens": [32, end],
        "max_initial_timestamp_index": 10,
        **settings,
    }
    theirs.generation_config = transformers.GenerationConfig(**values)
    theirs.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return theirs


def noise(seconds: float, seed: int = 1) -> torch.Tensor:
    """Return a sound (N,) of noise that changes, at 16 kHz."""
    n = int(seconds * RATE)
    generator = torch.Generator().manual_seed(seed)
    loudness = torch.rand(n // 1_000 + 1, generator=generator).repeat_interleave(1_000)[:n]
    return 0.3 * loudness * torch.randn(n, generator=generator)
