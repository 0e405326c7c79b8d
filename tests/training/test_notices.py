"""The lines that a run prints at its start."""

import pytest
import torch

from transduce.demo.tour import recipe
from transduce.model import cpu_backend
from transduce.training.notices import slow_precision


@pytest.mark.parametrize("is_supported", [True, False])
def test_bf16_without_instructions_for_it_is_reported(is_supported: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: is_supported)
    assert cpu_backend.has_fast_bf16(torch.device("cpu")) is is_supported
    assert slow_precision("fp32") == []
    lines = slow_precision("bf16")
    assert lines == [] if is_supported else "--set train.precision=fp32" in lines[0]
    assert recipe().train.precision == ("bf16" if is_supported else "fp32")
