"""fp32 matrix products on a CPU: oneDNN only where it is exact, and no other setting changes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from transduce.model import cpu_backend


@pytest.mark.parametrize("shape", [(1, 64, 32), (100, 128, 128), (512, 2048, 512)])
def test_products_are_as_exact_as_fp32(shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    torch.manual_seed(1)
    x, y = torch.randn(m, k), torch.randn(k, n)
    with cpu_backend.faster_products(torch.device("cpu")):
        actual = x @ y
    exact = x.double() @ y.double()
    assert (actual - exact).norm() < 2e-6 * exact.norm()
    assert torch.get_float32_matmul_precision() == "highest"


def test_products_that_would_be_rounded_to_bf16_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_backend, "EXACT", 1e-9)
    cpu_backend._onednn_is_exact.cache_clear()
    with cpu_backend.faster_products(torch.device("cpu")):
        assert torch.get_float32_matmul_precision() == "highest"
    cpu_backend._onednn_is_exact.cache_clear()


def test_another_device_and_another_precision_are_unchanged() -> None:
    with cpu_backend.faster_products(torch.device("cuda")):
        assert torch.get_float32_matmul_precision() == "highest"
    torch.set_float32_matmul_precision("high")
    try:
        with cpu_backend.faster_products(torch.device("cpu")):
            assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_both_of_torchs_switches_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a use of the newer switch, the older one cannot even be read."""
    x = torch.randn(100, 512)
    with cpu_backend.faster_products(torch.device("cpu")):
        expected = x @ x.T
    monkeypatch.setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32")
    before = cpu_backend.PRODUCTS.fp32_precision
    with cpu_backend.faster_products(torch.device("cuda")), cpu_backend.faster_products(torch.device("cpu")):
        assert torch.equal(x @ x.T, expected)
    assert cpu_backend.PRODUCTS.fp32_precision == before
    cpu_backend.PRODUCTS.fp32_precision = "tf32"
    try:
        with cpu_backend.faster_products(torch.device("cpu")):
            assert cpu_backend.PRODUCTS.fp32_precision == "tf32"
    finally:
        cpu_backend.PRODUCTS.fp32_precision = before


MANY_SHAPES = """
import sys, torch
from transduce.model import cpu_backend
if sys.argv[1] == "limited":
    cpu_backend.limit_kept_code()
weights = torch.randn(256, 512, dtype=torch.bfloat16)
memory = lambda: int(open("/proc/self/statm").read().split()[1])  # pages
torch.randn(1_500, 256, dtype=torch.bfloat16) @ weights
before = memory()
for rows in range(1, 401):
    torch.randn(rows, 256, dtype=torch.bfloat16) @ weights
print(memory() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads the memory of a process from /proc")
@pytest.mark.skipif(
    not cpu_backend.has_fast_bf16(torch.device("cpu")), reason="oneDNN compiles no products in bf16 for this processor"
)
def test_the_code_of_many_shapes_takes_little_memory() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name in cpu_backend.CAPACITIES:
        environment.pop(name, None)

    def growth(word: str) -> float:
        command = [sys.executable, "-c", MANY_SHAPES, word]
        return float(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)

    assert 0 < growth("limited") < growth("unlimited") / 2


def test_a_limit_of_the_user_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = cpu_backend.CAPACITIES
    monkeypatch.setattr(os, "environ", {first: "7"})
    cpu_backend.limit_kept_code()
    assert (os.environ[first], os.environ[second]) == ("7", cpu_backend.SHAPES)
