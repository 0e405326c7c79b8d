"""A decoding step in one call gives what its kernels give one by one, and what the model gives, for any sizes."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small_models import SRC, SRC_MASK, logits_of_a_search, model_of, noise
from torch import Tensor
from torch.testing import assert_close

from transduce.config.schema import ModelConfig
from transduce.decoding.compiled_kernels import Compiled, compiled
from transduce.decoding.cpu_transformer import CpuTransformer
from transduce.decoding.decoder import reordered

KERNELS = compiled()
pytestmark = pytest.mark.skipif(KERNELS is None, reason="needs compiled kernels")

configs = st.builds(
    ModelConfig,
    vocab_size=st.integers(13, 600),
    d_model=st.sampled_from([8, 24, 64, 72]),
    n_layers=st.integers(1, 3),
    n_decoder_layers=st.sampled_from([None, 1, 3]),
    n_heads=st.sampled_from([1, 2, 4]),
    d_k=st.sampled_from([None, 3, 16, 33]),
    d_v=st.sampled_from([None, 5, 17, 80]),
    d_ff=st.integers(1, 130),
    dropout=st.just(0.1),
    norm=st.sampled_from(["pre", "post"]),
    positions=st.sampled_from(["interleaved", "halves", "learned"]),
    max_positions=st.just(30),
    attention_bias=st.booleans(),
    tie_src_tgt=st.booleans(),
    tie_output=st.just(False),
    output_bias=st.booleans(),
)


def stepwise(transformer: CpuTransformer) -> CpuTransformer:
    """Return the transformer without its one call for all layers."""
    assert transformer.stacks is not None
    transformer.stacks = None
    return transformer


@settings(max_examples=12)
@given(configs, st.sampled_from(["fp32", "int8"]))
def test_one_call_is_the_kernels_composed_and_the_model(config: ModelConfig, precision: str) -> None:
    model = model_of(replace(config, max_positions=30 if config.positions == "learned" else None), torch.float32)
    expected, logits = logits_of_a_search(model, CpuTransformer(model, precision, KERNELS))  # pyright: ignore[reportArgumentType]
    _, composed = logits_of_a_search(model, stepwise(CpuTransformer(model, precision, KERNELS)))  # pyright: ignore[reportArgumentType]
    assert logits.equal(composed)
    if precision == "fp32":
        assert (logits - expected).norm() < 1e-5 * expected.norm()


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_the_number_of_rows_changes_no_bit(precision: str) -> None:
    """The output of a sentence and its best tokens are the same alone, in a batch, and in a beam."""
    config = ModelConfig(vocab_size=600, d_model=64, n_layers=2, n_heads=4, d_ff=130, dropout=0.0)
    transformer = CpuTransformer(model_of(config, torch.float32), precision, KERNELS)  # pyright: ignore[reportArgumentType]

    def outputs(sentences: list[int], beam: int) -> tuple[Tensor, ...]:
        """Return the output, and the best tokens, of all steps of the first row of each sentence."""
        length = int(SRC_MASK[sentences].sum(1).max())
        src, mask = SRC[sentences, :length], SRC_MASK[sentences, :length]
        cache = transformer.start(transformer.encode(src, mask), mask)
        rows = torch.arange(len(sentences)).repeat_interleave(beam)
        steps = []
        for token in range(4, 24):
            decoded, cache = transformer.decode(torch.full((len(rows),), token), cache.select(rows, rows[::beam]))
            steps.append((decoded[::beam], *(x[::beam] for x in transformer.best(decoded, 5, [2, 7]))))
            rows = torch.arange(len(rows))
        return tuple(torch.stack(parts, dim=1) for parts in zip(*steps, strict=True))

    with torch.inference_mode():
        together = outputs([0, 1, 2], 1)
        for beam in (1, 2, 4, 7):
            for i in range(3):
                for alone, part in zip(outputs([i], beam), together, strict=True):
                    assert alone[0].equal(part[i])


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize(("rows", "size"), [(1, 13), (7, 513), (40, 1_700)])
def test_the_best_of_an_output_are_the_best_of_its_logits(int8: bool, rows: int, size: int) -> None:
    assert isinstance(KERNELS, Compiled)
    weight, bias, x = (noise(*shape, dtype=torch.float32).detach() for shape in ((size, 70), (size,), (rows, 70)))
    output, barred = KERNELS.pack(weight, bias, int8=int8), [0, 3, 11]
    logits = output(x)
    for count in (1, 8):
        for new, old in zip(output.best_of(x, count, []), KERNELS.best(logits, count), strict=True):
            assert new.equal(old)
        expected = reordered(*KERNELS.best(logits, count + 3), count, barred)
        for new, old in zip(output.best_of(x, count, barred), expected, strict=True):
            assert new.equal(old)
    values, ids = output.best_of(x, 13, range(3, size))  # three are left
    assert values[:, 3:].eq(-torch.inf).all() and ids[:, :3].sort(dim=1).values.eq(torch.arange(3)).all()


def test_a_nan_in_a_row_gives_only_nan_in_that_row() -> None:
    assert isinstance(KERNELS, Compiled)
    output = KERNELS.pack(noise(700, 20, dtype=torch.float32).detach(), torch.zeros(700), int8=False)
    x = torch.ones(3, 20)
    x[1, 4] = torch.nan
    values, _ = output.best_of(x, 4, [])
    assert values.isnan().all(dim=1).tolist() == [False, True, False]


def test_an_activation_that_the_kernels_lack_takes_the_kernels_one_by_one() -> None:
    config = ModelConfig(vocab_size=13, d_model=8, n_layers=1, n_heads=2, d_ff=8, activation="swish")
    model = model_of(config, torch.float32)
    transformer = CpuTransformer(model, "fp32", KERNELS)
    assert transformer.stacks is None
    expected, logits = logits_of_a_search(model, transformer)
    assert_close(logits, expected)
