"""Everything about a GPU in one call of under nine minutes: is it right, is it fast, what happens without memory?

    python benchmarks/gpu.py [--out results/gpu.json]          on a machine with a GPU
    python benchmarks/gpu.py --tiny                            the same on a CPU with tiny models: does it run?

Needs Python 3.11, torch 2.10 and numpy, none of the packages that the command line needs. What is measured:

- correctness: logits, gradients, cached decoding and beam search against the reference on the CPU, in fp32 and bf16;
- training: source and target tokens a second of base and big with 25,000 tokens a side, eager and compiled, and what
  share of the machine's bf16 matrix product that is in useful FLOPs; torch.nn.Transformer, and Hugging Face's Marian if
  it is there, in the same loop on the same batches;
- memory: a batch that does not fit is cut, and gives the same gradient;
- waits: how often a training step, and a step of a search, waits for the GPU;
- translation: tokens a second with a beam of 4, the latency of one sentence; Hugging Face's generate and CTranslate2 if
  they are there.

A part that fails is told in its place, with the error, and the others go on; then the exit code is 1.
"""

import argparse
import importlib.util
import json
import statistics
import sys
import tempfile
import time
import traceback
import types
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class _Anything(type):
    """Classes that have whatever is asked of them."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything(name, (_Stand,), {})


class _Stand(Exception, metaclass=_Anything):
    def __init_subclass__(cls, **_: Any) -> None:
        """Takes what any base class would."""


class _Absent(types.ModuleType):
    """Stands for a package that only the command line needs, so that importing it is no error."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_Stand, name)


for _name in ("msgspec", "tokenizers", "safetensors", "safetensors.torch", "rich", "rich.console", "rich.progress"):
    if importlib.util.find_spec(_name.split(".")[0]) is None:
        sys.modules[_name] = _Absent(_name)
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

from transduce.config.schema import Config, ModelConfig, SearchConfig, TrainConfig  # noqa: E402
from transduce.data.batches import Batch, collate  # noqa: E402
from transduce.data.vocabulary import CONTROLS  # noqa: E402
from transduce.decoding.backends import Backend  # noqa: E402
from transduce.decoding.batched_search import search_all  # noqa: E402
from transduce.decoding.cpu_transformer import Precision  # noqa: E402
from transduce.decoding.cuda_graphs import RecordedTransformer  # noqa: E402
from transduce.interop.ctranslate2_export import spec_of  # noqa: E402
from transduce.model.attention import reference_attention  # noqa: E402
from transduce.model.positions import sinusoids  # noqa: E402
from transduce.model.transformer import Transformer, mixed_precision  # noqa: E402
from transduce.storage.model_folder import LoadedModel  # noqa: E402
from transduce.training.gradients import Gradients, update  # noqa: E402
from transduce.training.optimizer import adam  # noqa: E402

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True)
class Scale:
    """How large everything is."""

    sizes: dict[str, ModelConfig]
    batch_tokens: int
    longest: int  # tokens of a sentence
    steps: int
    rounds: int
    product: int  # rows and columns of the matrices that give the ceiling
    sentences: int  # translated together


BASE = ModelConfig(vocab_size=37_000)
BIG = replace(BASE, d_model=1024, d_ff=4096, n_heads=16, dropout=0.3)
SMALL = ModelConfig(vocab_size=101, d_model=32, n_layers=2, n_heads=4, d_ff=64)
FULL = Scale({"base": BASE, "big": BIG}, 25_000, 100, 8, 5, 8_192, 512)
TINY = Scale({"base": SMALL, "big": replace(SMALL, d_model=48)}, 300, 20, 1, 1, 64, 6)


def sentences(count: int, longest: int, vocab_size: int, seed: int) -> list[np.ndarray]:
    """Random ids, in lengths like those of news: many of 10 to 40 tokens, some long."""
    generator = np.random.default_rng(seed)
    lengths = np.clip(generator.lognormal(3.1, 0.55, count), 1, longest - 1).astype(int)
    return [generator.integers(4, vocab_size, length) for length in np.sort(lengths)]


def batch_of(tokens: int, longest: int, vocab_size: int, seed: int) -> Batch:
    """About `tokens` on either side, of sentences of like length."""
    src, tgt = (sentences(4 * tokens // 10, longest, vocab_size, seed + side) for side in range(2))
    start = int(np.random.default_rng(seed).integers(len(src) // 4, len(src) // 2))
    end = start
    while end < len(src) and max(sum(len(s) + 1 for s in side[start : end + 1]) for side in (src, tgt)) <= tokens:
        end += 1
    return collate(src[start:end], tgt[start:end])


def wait() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def seconds(work: Callable[[], Any], repeats: int) -> float:
    """The median time of `work`, after one to warm up."""
    times = []
    for _ in range(repeats + 1):
        wait()
        began = time.perf_counter()
        work()
        wait()
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def waits(work: Callable[[], Any]) -> int | None:
    """How often `work` waits for the GPU; None without one."""
    if DEVICE.type != "cuda":
        return None
    wait()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return sum("synchroniz" in str(one.message) for one in caught)


# ---- is it right? ------------------------------------------------------------------------------------------------


def correctness(scale: Scale) -> dict[str, Any]:
    """Relative errors against the CPU with the plain attention, and whether the search finds the same outputs."""
    torch.manual_seed(1)
    config = replace(scale.sizes["base"], dropout=0.0, vocab_size=min(1_000, scale.sizes["base"].vocab_size or 0))
    assert config.vocab_size is not None
    reference = Transformer(config).eval()
    here = Transformer(config).eval()
    here.load_state_dict(reference.state_dict())
    here.to(DEVICE)
    batch = batch_of(400, scale.longest, config.vocab_size, 3)
    train = TrainConfig()
    expected = reference.decode(
        batch.tgt_in, reference.encode(batch.src, batch.src_mask, reference_attention), batch.src_mask,
        reference_attention,
    )  # fmt: skip
    expected = reference.logits(expected)[batch.tgt_mask].detach()
    Gradients(reference, train, torch.device("cpu"), print).of([batch], seed=1)
    gradient = torch.cat([p.grad.flatten() for p in reference.parameters() if p.grad is not None])
    found: dict[str, Any] = {}
    for precision, bound in (("fp32", 1e-4), ("bf16", 0.1)):
        moved = batch.to(DEVICE)
        with torch.no_grad(), mixed_precision(precision, DEVICE):
            logits = here(moved.src, moved.src_mask, moved.tgt_in)[moved.tgt_mask].float().cpu()
        Gradients(here, replace(train, precision=precision), DEVICE, print).of([batch], seed=1)
        mine = torch.cat([p.grad.flatten().cpu() for p in here.parameters() if p.grad is not None])
        errors = {"logits": _error(logits, expected), "gradient": _error(mine, gradient)}
        assert max(errors.values()) < bound, f"{precision}: {errors}, expected under {bound}"
        found[precision] = errors
    sources = [source.tolist() for source in sentences(40, scale.longest // 2, config.vocab_size, 4)]
    ask = SearchConfig(max_extra_tokens=10)
    wanted = search_all(Backend([reference]), sources, ask)
    for name, model in (("", here), (", recorded", RecordedTransformer(here, "fp32"))):
        for batch_size in (len(sources), 1):
            cut = [sources[i : i + batch_size] for i in range(0, len(sources), batch_size)]
            outputs = [best for part in cut for best in search_all(Backend([model]), part, ask)]
            same = sum(a[0].ids == b[0].ids for a, b in zip(outputs, wanted, strict=True))
            found[f"same outputs in batches of {batch_size}{name}"] = f"{same} of {len(sources)}"
            assert same >= 0.95 * len(sources), found
    return found


def _error(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


# ---- training ----------------------------------------------------------------------------------------------------


def ceiling(scale: Scale) -> float:
    """FLOP/s of a square product in bf16."""
    x, y = (torch.randn(scale.product, scale.product, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    return 2 * scale.product**3 / seconds(lambda: x @ y, 10)


def useful_flops(config: ModelConfig, batch: Batch) -> float:
    """Multiplications and additions of a step, forward and backward, on tokens that are not padding."""
    d, f, n = config.d_model, config.d_ff, config.n_layers
    assert config.vocab_size is not None
    src, tgt = batch.src_mask.sum(1).double(), batch.tgt_mask.sum(1).double()
    products = src.sum() * n * (6 * d * d + 2 * d * f) + tgt.sum() * (
        n * (6 * d * d + 2 * d * f) + d * config.vocab_size
    )
    attention = n * d * 2 * ((src * src).sum() + (tgt * tgt).sum() / 2 + (src * tgt).sum())
    return 3 * 2 * float(products + attention)


Step = Callable[[Batch], None]


def our_step(config: ModelConfig, *, compiled: bool) -> Step:
    model = Transformer(config).to(DEVICE).train()
    if compiled:
        for layer in [*model.encoder, *model.decoder]:
            layer.compile(dynamic=True)
    optimizer = adam(model.parameters(), 0.98)
    for group in optimizer.param_groups:
        group["lr"] = 1e-4
    gradients = Gradients(model, TrainConfig(precision="bf16"), DEVICE, print)
    count = iter(range(1, 1 << 30))

    def step(batch: Batch) -> None:
        number = next(count)
        assert gradients.of([batch], seed=number).is_finite
        update(optimizer, number)
        optimizer.zero_grad()

    return step


def peer_step(model: nn.Module, logits: Callable[[Batch], Tensor]) -> Step:
    """A peer's model in the common loop."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, betas=(0.9, 0.98), eps=1e-9, fused=True)

    def step(batch: Batch) -> None:
        moved = batch.to(DEVICE)
        with torch.autocast(DEVICE.type, torch.bfloat16):
            real, targets = moved.real(logits(moved))
        F.cross_entropy(real.float(), targets, label_smoothing=0.1).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def torch_nn_step(config: ModelConfig) -> Step:
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


def marian_step(config: ModelConfig) -> Step:
    model = marian(config).train()

    def logits(batch: Batch) -> Tensor:
        mask = batch.src_mask.long()
        return model(input_ids=batch.src, attention_mask=mask, decoder_input_ids=batch.tgt_in, use_cache=False).logits

    return peer_step(model, logits)


def training(scale: Scale, size: str, most: float) -> dict[str, Any]:
    """Tokens a second of every side, in turn."""
    config = scale.sizes[size]
    assert config.vocab_size is not None
    batches = [batch_of(scale.batch_tokens, scale.longest, config.vocab_size, seed) for seed in range(3)]
    makers: dict[str, Callable[[], Step]] = {
        "transduce": lambda: our_step(config, compiled=False),
        "torch.nn.Transformer": lambda: torch_nn_step(config),
    }
    if importlib.util.find_spec("transformers"):
        makers["Hugging Face Marian"] = lambda: marian_step(config)
    if DEVICE.type == "cuda":
        makers["transduce, compiled"] = lambda: our_step(config, compiled=True)
    result: dict[str, Any] = {}
    for name, make in makers.items():
        result[name] = _or_problem(lambda make=make: measured(make(), batches, scale, config, most))
    return result


def _or_problem(work: Callable[[], dict[str, Any]]) -> dict[str, Any] | str:
    """What `work` finds, or in a line what one side fails by, for the others are to be measured all the same."""
    try:
        return work()
    except (RuntimeError, ImportError, TypeError, ValueError, AttributeError) as problem:
        return f"{type(problem).__name__}: {(str(problem).splitlines() or [''])[0][:200]}"
    finally:
        if DEVICE.type == "cuda":
            torch.cuda.empty_cache()


def measured(step: Step, batches: Sequence[Batch], scale: Scale, config: ModelConfig, most: float) -> dict[str, Any]:
    """The speed of a step, over several rounds of the batches."""
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for batch in batches:
        step(batch)
    speeds, shares = [], []
    for batch in [*batches] * scale.rounds:
        taken = seconds(partial(step, batch), scale.steps)
        speeds.append(int(batch.src_mask.sum() + batch.tgt_mask.sum()) / taken)
        shares.append(useful_flops(config, batch) / taken / most)
    return {
        "tokens_per_second": round(statistics.median(speeds)),
        "least": round(min(speeds)),
        "most": round(max(speeds)),
        "share_of_ceiling": round(statistics.median(shares), 4),
        "waits_a_step": waits(partial(step, batches[0])),
        "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 2) if DEVICE.type == "cuda" else None,
    }


def out_of_memory(scale: Scale) -> dict[str, Any]:
    """Leave too little memory for a batch: it is cut, and its gradient is that of the whole."""
    if DEVICE.type != "cuda":
        return {"skipped": "needs a GPU; on a CPU the tests do it"}
    torch.manual_seed(1)
    config = replace(scale.sizes["base"], dropout=0.0)
    assert config.vocab_size is not None
    model = Transformer(config).to(DEVICE).train()
    batch = batch_of(scale.batch_tokens, scale.longest, config.vocab_size, 5)
    said: list[str] = []
    gradients = Gradients(model, TrainConfig(precision="bf16"), DEVICE, said.extend)
    whole = gradients.of([batch], seed=1)
    peak = torch.cuda.max_memory_allocated()
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(DEVICE).total_memory
    torch.cuda.set_per_process_memory_fraction(0.6 * peak / total)
    try:
        cut = gradients.of([batch], seed=1)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert said, "the batch fitted; nothing was tested"
    error = abs(cut.norm - whole.norm) / whole.norm
    assert error < 0.01, f"gradient norms {whole.norm} and {cut.norm}"
    return {"said": said, "relative difference of gradient norms": error}


# ---- translation -------------------------------------------------------------------------------------------------


Translate = Callable[[Sequence[Sequence[int]]], Any]


def translation(scale: Scale) -> dict[str, Any]:
    """Output tokens a second with a beam of 4, outputs as long as their sources; the latency of one sentence."""
    config = scale.sizes["base"]
    model = Transformer(config).eval()
    makers: dict[str, Callable[[], Translate]] = {}
    if importlib.util.find_spec("ctranslate2"):
        makers["CTranslate2"] = lambda: ctranslate2(model, config)  # before the model moves to the GPU
    precision: Precision = "bf16" if DEVICE.type == "cuda" else "fp32"
    makers["transduce"] = lambda: ours(RecordedTransformer(model.to(DEVICE), precision))
    makers["transduce, no steps recorded"] = lambda: ours(model.to(DEVICE))
    if importlib.util.find_spec("transformers"):
        makers["Hugging Face"] = lambda: hugging_face(config)
    return {name: _or_problem(lambda make=make: translated(make(), scale)) for name, make in makers.items()}


def translated(translate: Translate, scale: Scale) -> dict[str, Any]:
    """The speed of one side, at the best of several numbers of sentences that it is given at once."""
    vocab_size = scale.sizes["base"].vocab_size
    assert vocab_size is not None
    sources = [source.tolist() for source in sentences(scale.sentences, scale.longest // 2, vocab_size, 6)]
    one, speeds = [sources[len(sources) // 2]], {}
    for size in (128, 512):
        parts = [sources[begin : begin + size] for begin in range(0, len(sources), size)]
        tokens = sum(len(part) * (len(part[-1]) + 1) for part in parts)  # as long as the longest, which is the last

        def all_parts(parts: list[Any] = parts) -> None:
            for part in parts:
                translate(part)

        speeds[size] = round(tokens / seconds(all_parts, scale.rounds))
    return {
        "tokens_per_second": max(speeds.values()),
        "by_sentences_at_once": speeds,
        "latency_ms": round(1e3 * seconds(lambda: translate(one), 10), 2),
        "waits_a_token": (found := waits(lambda: translate(one))) and round(found / (len(one[0]) + 1), 2),
    }


def ours(model: Transformer | RecordedTransformer) -> Translate:
    def translate(chosen: Sequence[Sequence[int]]) -> None:
        longest = len(chosen[-1]) + 1
        padded = [[*source, *[source[0]] * (longest - 1 - len(source))] for source in chosen]  # so all are as long
        plain = isinstance(model, Transformer) and DEVICE.type == "cuda"
        with mixed_precision("bf16", DEVICE) if plain else nullcontext():
            search_all(Backend([model]), padded, SearchConfig(max_extra_tokens=1, min_tokens=10_000))

    return translate


def hugging_face(config: ModelConfig) -> Translate:
    model = marian(config).eval().to(torch.bfloat16 if DEVICE.type == "cuda" else torch.float32)

    def translate(chosen: Sequence[Sequence[int]]) -> None:
        part = [torch.tensor(source) for source in chosen]
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

    def translate(chosen: Sequence[Sequence[int]]) -> None:
        tokens, length = [[pieces[i] for i in source] for source in chosen], len(chosen[-1]) + 1
        translator.translate_batch(
            tokens, beam_size=4, max_batch_size=0, min_decoding_length=length, max_decoding_length=length
        )

    return translate


# ---- all of it ---------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    asked = parser.parse_args()
    scale = TINY if asked.tiny else FULL
    if DEVICE.type != "cuda" and not asked.tiny:
        print("there is no GPU here; --tiny runs on a CPU", file=sys.stderr)
        return 2
    torch.backends.cuda.matmul.allow_tf32 = False
    name = torch.cuda.get_device_name() if DEVICE.type == "cuda" else "CPU"
    most = ceiling(scale)
    result: dict[str, Any] = {"device": name, "torch": torch.__version__, "ceiling_tflops": round(most / 1e12, 3)}
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "correctness": lambda: correctness(scale),
        **{f"training {size}": lambda size=size: training(scale, size, most) for size in scale.sizes},
        "out of memory": lambda: out_of_memory(scale),
        "translation": lambda: translation(scale),
    }
    failed = False
    for part, work in parts.items():
        began = time.perf_counter()
        try:
            result[part] = work()
        except Exception:  # whatever it is, the machine is there only once: tell, and go on
            failed = True
            result[part] = traceback.format_exc().splitlines()[-8:]
        result[f"{part}, seconds"] = round(time.perf_counter() - began, 1)
        print(json.dumps({part: result[part]}, indent=1), flush=True)
        if asked.out is not None:
            asked.out.parent.mkdir(parents=True, exist_ok=True)
            asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
