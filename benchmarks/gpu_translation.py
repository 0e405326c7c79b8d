"""The part of gpu.py that translates: our search compared with other programs."""

import importlib.util
import tempfile
import types
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from gpu_common import DEVICE, Scale, counts, seconds, sentences
from gpu_training import marian
from torch import nn

from transduce.config.schema import Config, ModelConfig, SearchConfig
from transduce.data.vocabulary import CONTROLS
from transduce.decoding.backends import Backend
from transduce.decoding.batched_search import search_all
from transduce.decoding.cpu_layers import Precision
from transduce.decoding.cuda_graphs import CudaGraphTransformer
from transduce.interop.ctranslate2_export import spec_of
from transduce.model.transformer import Transformer, mixed_precision
from transduce.storage.model_folder import LoadedModel

Translate = Callable[[Sequence[Sequence[int]]], Any]


def sides(config: ModelConfig) -> dict[str, Callable[[], Translate]]:
    """Return the programs that translate, ours first, each with what prepares its model."""
    precision: Precision = "bf16" if DEVICE.type == "cuda" else "fp32"
    makers: dict[str, Callable[[], Translate]] = {
        "transduce": lambda: ours(CudaGraphTransformer(Transformer(config).eval().to(DEVICE), precision)),
        "transduce, no steps recorded": lambda: ours(Transformer(config).eval().to(DEVICE)),
    }
    if importlib.util.find_spec("transformers"):
        makers["Hugging Face"] = lambda: hugging_face(config)
    if importlib.util.find_spec("ctranslate2"):
        makers["CTranslate2"] = lambda: ctranslate2(Transformer(config).eval(), config)
    return makers


def measure(make: Callable[[], Translate], scale: Scale) -> dict[str, Any]:
    """Return output tokens a second with a beam of 4 and outputs as long as their sources, and the latency.

    The speed is the best of several numbers of sentences in one call.
    """
    translate = make()
    vocab_size = scale.sizes["base"].vocab_size
    assert vocab_size is not None
    sources = [source.tolist() for source in sentences(scale.sentences, scale.longest // 2, vocab_size, 6)]
    single, speeds = [sources[len(sources) // 2]], {}
    for size in (128, 512):
        parts = [sources[begin : begin + size] for begin in range(0, len(sources), size)]
        tokens = sum(len(part) * (len(part[-1]) + 1) for part in parts)  # outputs have the longest length, the last

        def all_parts(parts: list[Any] = parts) -> None:
            for part in parts:
                translate(part)

        speeds[size] = round(tokens / seconds(all_parts, scale.rounds))
    return {
        "tokens_per_second": max(speeds.values()),
        "by_sentences_at_once": speeds,
        "latency_ms": round(1e3 * seconds(lambda: translate(single), 10), 2),
        "a_step_of_one_sentence": counts(lambda: translate(single), steps=len(single[0]) + 1),
    }


def ours(model: Transformer | CudaGraphTransformer) -> Translate:
    def translate(sources: Sequence[Sequence[int]]) -> None:
        longest = len(sources[-1]) + 1
        rows = [[*source, *[source[0]] * (longest - 1 - len(source))] for source in sources]  # to one length
        plain = isinstance(model, Transformer) and DEVICE.type == "cuda"
        with mixed_precision("bf16", DEVICE) if plain else nullcontext():
            search_all(Backend([model]), rows, SearchConfig(max_extra_tokens=1, min_tokens=10_000))

    return translate


def hugging_face(config: ModelConfig) -> Translate:
    model = marian(config).eval().to(torch.bfloat16 if DEVICE.type == "cuda" else torch.float32)

    def translate(sources: Sequence[Sequence[int]]) -> None:
        part = [torch.tensor(source) for source in sources]
        src = nn.utils.rnn.pad_sequence(part, batch_first=True).to(DEVICE)
        length = src.size(1) + 1
        mask = (src != 0).long()
        model.generate(input_ids=src, attention_mask=mask, num_beams=4, min_new_tokens=length, max_new_tokens=length)

    return translate


def ctranslate2(model: Transformer, config: ModelConfig) -> Translate:
    import ctranslate2 as peer

    assert config.vocab_size is not None
    pieces = [*CONTROLS, *map(str, range(len(CONTROLS), config.vocab_size))]
    tokenizer: Any = types.SimpleNamespace(vocabulary=pieces)
    with tempfile.TemporaryDirectory() as folder:
        spec = spec_of(LoadedModel(model, Config(model=config), tokenizer), peer)
        spec.validate()
        spec.optimize()
        spec.save(folder)
        compute = "bfloat16" if DEVICE.type == "cuda" else "float32"
        translator = peer.Translator(folder, device=DEVICE.type, compute_type=compute)

    def translate(sources: Sequence[Sequence[int]]) -> None:
        tokens, length = [[pieces[i] for i in source] for source in sources], len(sources[-1]) + 1
        translator.translate_batch(
            tokens, beam_size=4, max_batch_size=0, min_decoding_length=length, max_decoding_length=length
        )

    return translate
