"""The number of parameters from the configuration equals the number in the model itself."""

import pytest
from support.made_up_kind import WINDOW, WindowConfig

from transduce.config.kinds import KINDS
from transduce.config.schema import ModelConfig
from transduce.evaluation.model_size import parameter_count


@pytest.mark.parametrize(
    "model",
    [
        ModelConfig(vocab_size=6_000, d_model=128, n_layers=4, n_heads=4, d_ff=256, norm="pre"),
        ModelConfig(vocab_size=50, d_model=16, n_layers=2, n_heads=4, d_ff=24, d_k=3, d_v=5, tie_src_tgt=False),
        ModelConfig(vocab_size=50, d_model=16, n_layers=1, n_heads=2, d_ff=8, tie_output=False, attention_bias=False),
        ModelConfig(vocab_size=50, d_model=16, n_layers=1, n_heads=2, d_ff=8, positions="learned", max_positions=9),
        ModelConfig(vocab_size=50, d_model=16, n_layers=1, n_heads=2, d_ff=8, output_bias=True),
        ModelConfig(vocab_size=50, d_model=16, n_layers=3, n_decoder_layers=1, n_heads=2, d_ff=8),
        ModelConfig(vocab_size=50, d_model=16, n_layers=3, n_encoder_layers=1, n_heads=2, d_ff=8, norm="pre"),
        ModelConfig(kind="recurrent", vocab_size=50, d_model=16, n_layers=3, tie_src_tgt=False),
        ModelConfig(kind="convolutional", vocab_size=50, d_model=16, n_layers=3, tie_output=False),
    ],
)
def test_the_count_equals_the_parameters_of_the_model(model: ModelConfig) -> None:
    from transduce.model.build import build
    from transduce.model.transformer import parameter_count as counted

    assert parameter_count(model, model.vocab_size or 0) == counted(build(model))


def test_a_kind_that_the_package_does_not_know_is_counted_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """7 billion parameters would not fit; no random number is drawn, so a training goes on as without the count."""
    import torch

    monkeypatch.setitem(KINDS, "window", WINDOW)
    state = torch.get_rng_state()
    assert parameter_count(WindowConfig(d_model=10_000), 350_000) == 2 * 350_000 * 10_000 + 350_000
    assert torch.equal(torch.get_rng_state(), state)
