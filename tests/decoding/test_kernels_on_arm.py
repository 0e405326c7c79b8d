"""The kernels for 64-bit ARM, under an emulator, give what the kernels in torch give."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from support.levels import ARM
from support.toy_task import ROOT
from torch import Tensor
from torch.testing import assert_close

from transduce.decoding.kernels import PLAIN, Visible

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
TOOLS = COMPILER, EMULATOR, "cmake"
pytestmark = [
    pytest.mark.slow,
    *(pytest.mark.skipif(shutil.which(tool) is None, reason=f"needs {tool}") for tool in TOOLS),
]


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the programs, built as the installation builds the libraries. Each has the name of its level."""
    folder = tmp_path_factory.mktemp("programs")
    settings = {
        "CMAKE_SYSTEM_NAME": "Linux",
        "CMAKE_SYSTEM_PROCESSOR": "aarch64",
        "CMAKE_CXX_COMPILER": COMPILER,
        "CMAKE_EXE_LINKER_FLAGS": "-static",
        "PROGRAM": Path(__file__).with_name("run_kernels.cpp"),
    }
    options = [f"-D{name}={value}" for name, value in settings.items()]
    subprocess.run(["cmake", "-S", ROOT, "-B", folder, *options], check=True)
    subprocess.run(["cmake", "--build", folder], check=True)
    return folder


@pytest.fixture(params=[*ARM, "portable"])
def program(request: pytest.FixtureRequest, programs: Path) -> Path:
    return programs / request.param


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def outputs(program: Path, arguments: Sequence[object], inputs: Sequence[Tensor]) -> bytes:
    content = b"".join(x.contiguous().numpy().tobytes() for x in inputs)
    command = [EMULATOR, program, *map(str, arguments)]
    return subprocess.run(command, input=content, capture_output=True, check=True).stdout


@pytest.mark.parametrize("kind", ["int8", "fp32"])
@pytest.mark.parametrize("shape", [(1, 4, 16), (7, 33, 65), (13, 512, 130), (40, 70, 1_030)], ids=str)
def test_products_and_the_best_tokens(program: Path, kind: str, shape: tuple[int, int, int]) -> None:
    m, k, n = shape
    x, weight, bias, residual = noise(m, k), noise(n, k, seed=2), noise(n, seed=3), noise(m, n, seed=4)
    content = outputs(program, [kind, m, k, n], [x, weight, bias, residual])
    y = torch.frombuffer(bytearray(content[: 4 * m * n]), dtype=torch.float32).view(m, n)
    values = torch.frombuffer(bytearray(content[4 * m * n :][: 4 * m * 5]), dtype=torch.float32).view(m, 5)
    ids = torch.frombuffer(bytearray(content[4 * m * (n + 5) :]), dtype=torch.int64).view(m, 5)
    linear = PLAIN.pack(weight, bias, int8=kind == "int8")
    assert_close(y, linear(x, True, residual), rtol=0, atol=4e-6 * k**0.5)
    logits = linear(x)
    logits[:, 1] = -torch.inf
    assert ids.equal(logits.topk(5).indices)
    assert_close(values, linear(x).log_softmax(1).gather(1, ids), rtol=0, atol=1e-5 * k**0.5)


def test_sums_of_integers_are_exact(program: Path) -> None:
    for flip in (1, -1):
        x, weight = 127 * noise(7, 515).sign().abs(), flip * 127 * noise(70, 515).sign().abs()
        content = outputs(program, ["int8", 7, 515, 70], [x, weight, torch.zeros(70), torch.zeros(7, 70)])
        y = torch.frombuffer(bytearray(content[: 4 * 7 * 70]), dtype=torch.float32).view(7, 70)
        assert y.equal((x @ weight.T).relu())


@pytest.mark.parametrize("width", [1, 8, 70, 512])
def test_norms(program: Path, width: int) -> None:
    layer, x = torch.nn.LayerNorm(width), 3 * noise(7, width) + 10
    with torch.no_grad():
        layer.weight.copy_(noise(width, seed=2))
        layer.bias.copy_(noise(width, seed=3))
        content = outputs(program, ["norm", 7, width], [x, layer.weight, layer.bias])
        y = torch.frombuffer(bytearray(content), dtype=torch.float32).view(7, width)
        assert_close(y, PLAIN.norm(x, layer), rtol=0, atol=2e-5)


@pytest.mark.parametrize(("heads", "d_k", "d_v"), [(1, 16, 16), (3, 5, 9), (8, 64, 64), (2, 33, 20)])
def test_attention(program: Path, heads: int, d_k: int, d_v: int) -> None:
    queries, keys, values = noise(11, heads * d_k), noise(40, heads * d_k, seed=2), noise(40, heads * d_v, seed=3)
    index = torch.randint(40, (11, 40), generator=torch.Generator().manual_seed(5)).int()
    lengths = torch.tensor([1, 2, 3, 4, 5, 15, 16, 17, 20, 39, 40], dtype=torch.int32)
    content = outputs(program, ["attention", 11, heads, d_k, d_v], [queries, keys, values, index, lengths])
    heads_here = torch.frombuffer(bytearray(content), dtype=torch.float32).view(11, heads * d_v)
    visible = Visible(index, lengths, torch.arange(11, dtype=torch.int32))
    assert_close(heads_here, PLAIN.attend(queries, torch.cat([keys, values], dim=1), visible, heads), rtol=0, atol=1e-5)
