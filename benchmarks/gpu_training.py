"""The part of gpu.py that trains: our steps compared with other programs, in one common loop."""

import importlib.util
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from gpu_common import DEVICE, Scale, batch_of, counts, seconds, wait
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.config.schema import ModelConfig, TrainConfig
from transduce.data.batches import Batch
from transduce.model.positions import sinusoids
from transduce.model.transformer import Transformer
from transduce.train import TranslationTask
from transduce.training.gradients import Gradients, update
from transduce.training.optimizer import adam


def ceiling(scale: Scale) -> float:
    """Return the FLOP/s of a square product in bf16."""
    x, y = (torch.randn(scale.product, scale.product, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    return 2 * scale.product**3 / seconds(lambda: x @ y, 10)


def useful_flops(config: ModelConfig, batch: Batch) -> float:
    """Return the FLOPs of a step, forward and backward, on tokens without padding."""
    d = config.d_model
    f = config.d_ff
    n = config.n_layers
    assert config.vocab_size is not None
    src, tgt = batch.src_mask.sum(1).double(), batch.tgt_mask.sum(1).double()
    products = src.sum() * n * (6 * d * d + 2 * d * f) + tgt.sum() * (
        n * (6 * d * d + 2 * d * f) + d * config.vocab_size
    )
    attention = n * d * 2 * ((src * src).sum() + (tgt * tgt).sum() / 2 + (src * tgt).sum())
    return 3 * 2 * float(products + attention)


TrainingStep = Callable[[Batch], None]


def our_step(config: ModelConfig, *, is_compiled: bool) -> TrainingStep:
    model = Transformer(config).to(DEVICE).train()
    optimizer = adam(model.parameters(), 0.98)
    for group in optimizer.param_groups:
        group["lr"] = 1e-4
    gradients = Gradients(model, TranslationTask(), TrainConfig(precision="bf16"), DEVICE, print)
    if is_compiled:
        for copy in gradients.workers.models:  # a copy, with some weights in bf16
            for layer in [*copy.encoder, *copy.decoder]:
                layer.compile(dynamic=True)
    count = iter(range(1, 1 << 30))

    def step(batch: Batch) -> None:
        number = next(count)
        assert gradients.of([batch], seed=number).is_finite
        update(optimizer, number)
        optimizer.zero_grad()

    return step


def peer_step(model: nn.Module, logits: Callable[[Batch], Tensor]) -> TrainingStep:
    """Return a step of a peer's model in the common loop."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def step(batch: Batch) -> None:
        on_device = batch.to(DEVICE)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            real, targets = on_device.real(logits(on_device))
        F.cross_entropy(real.float(), targets, label_smoothing=0.1).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def torch_nn_step(config: ModelConfig) -> TrainingStep:
    c = config

    class Peer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            assert c.vocab_size is not None
            self.embedding = nn.Embedding(c.vocab_size, c.d_model)
            self.transformer = nn.Transformer(
                c.d_model, c.n_heads, c.n_layers, c.n_layers, c.d_ff, c.dropout, batch_first=True
            )
            self.register_buffer("positions", sinusoids(1_024, c.d_model))

        def forward(self, batch: Batch) -> Tensor:
            def embed(ids: Tensor) -> Tensor:
                return F.dropout(self.embedding(ids) * c.d_model**0.5 + self.positions[: ids.size(1)], c.dropout)

            future = nn.Transformer.generate_square_subsequent_mask(batch.tgt_in.size(1), DEVICE).isinf()
            padding = ~batch.src_mask
            masks = {"src_key_padding_mask": padding, "memory_key_padding_mask": padding, "tgt_mask": future}
            hidden = self.transformer(embed(batch.src), embed(batch.tgt_in), tgt_is_causal=True, **masks)
            return F.linear(hidden, self.embedding.weight)

    model = Peer().to(DEVICE).train()
    return peer_step(model, model)


def marian(config: ModelConfig) -> Any:
    from transformers import MarianConfig, MarianMTModel  # pyright: ignore[reportMissingImports]

    shape = {
        f"{side}_{name}": value
        for side in ("encoder", "decoder")
        for name, value in (
            ("layers", config.n_layers), ("attention_heads", config.n_heads), ("ffn_dim", config.d_ff)
        )
    }  # fmt: skip
    theirs = MarianConfig(
        vocab_size=config.vocab_size, d_model=config.d_model, dropout=config.dropout, attention_dropout=0.0,
        activation_dropout=0.0, activation_function="relu", scale_embedding=True, pad_token_id=0, eos_token_id=2,
        decoder_start_token_id=1, max_position_embeddings=1_024, forced_eos_token_id=None, **shape,
    )  # fmt: skip
    return MarianMTModel(theirs).to(DEVICE)


def marian_step(config: ModelConfig) -> TrainingStep:
    model = marian(config).train()

    def logits(batch: Batch) -> Tensor:
        mask = batch.src_mask.long()
        return model(input_ids=batch.src, attention_mask=mask, decoder_input_ids=batch.tgt_in, use_cache=False).logits

    return peer_step(model, logits)


def sides(config: ModelConfig) -> dict[str, Callable[[], TrainingStep]]:
    """Return the programs that train, ours first, each with what makes its step."""
    makers: dict[str, Callable[[], TrainingStep]] = {
        "transduce": lambda: our_step(config, is_compiled=False),
        "torch.nn.Transformer": lambda: torch_nn_step(config),
    }
    if importlib.util.find_spec("transformers"):
        makers["Hugging Face Marian"] = lambda: marian_step(config)
    if DEVICE.type == "cuda":
        makers["transduce, compiled"] = lambda: our_step(config, is_compiled=True)
    return makers


def measure(make: Callable[[], TrainingStep], scale: Scale, config: ModelConfig, most: float) -> dict[str, Any]:
    """Return the speed of a step over several rounds of three batches, and what a step gives to the device."""
    assert config.vocab_size is not None
    batches = [batch_of(scale.batch_tokens, scale.longest, config.vocab_size, seed) for seed in range(3)]
    step = make()
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    for batch in batches:
        step(batch)
    wait()
    first = time.perf_counter() - began
    speeds, shares, times = [], [], []
    for batch in [*batches] * scale.rounds:
        duration = seconds(partial(step, batch), scale.steps)
        times.append(duration)
        speeds.append(int(batch.src_mask.sum() + batch.tgt_mask.sum()) / duration)
        shares.append(useful_flops(config, batch) / duration / most)
    return {
        "tokens_per_second": round(statistics.median(speeds)),
        "least": round(min(speeds)),
        "most": round(max(speeds)),
        "share_of_ceiling": round(statistics.median(shares), 4),
        "ms_a_step": round(1e3 * statistics.median(times), 2),
        "seconds_of_the_first_steps": round(first, 1),
        "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2) if DEVICE.type == "cuda" else None,
        "a_step": counts(partial(step, batches[0])),
    }
