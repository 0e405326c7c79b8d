"""Functions that a GPU computes in few kernels. Here a CPU is taken for a GPU."""

import logging

import pytest
import torch
from support.fused import compile_on_cpu, needs_compiler
from torch import Tensor

from transduce.model import fused as module
from transduce.model.fused import fused


def scaled(x: Tensor, factor: float) -> Tensor:
    return (x * factor).relu()


@pytest.fixture(autouse=True)
def notices(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return compile_on_cpu(monkeypatch)


def refuse(problem: Exception, monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Let torch.compile return a function that raises `problem`. Return the list of its arguments."""
    calls: list[Tensor] = []

    def compiled(x: Tensor, factor: float) -> Tensor:
        calls.append(x)
        raise problem

    monkeypatch.setattr(torch, "compile", lambda function, **_: compiled)
    return calls


def test_without_a_compiler_functions_run_as_written_after_one_notice(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    calls = refuse(RuntimeError("Cannot find a working triton installation.\nMore here"), monkeypatch)
    functions = [fused(scaled), fused(lambda x, factor: scaled(x, factor))]
    x = torch.tensor([-1.0, 2.0])
    with caplog.at_level(logging.WARNING):
        for function in functions * 2:
            assert function(x, 3.0).tolist() == [0, 6]
    assert len(calls) == 2  # one for each function
    assert [record.message for record in caplog.records] == [
        module.NOTICE.format("Cannot find a working triton installation.")
    ]


def test_lack_of_memory_is_no_failure_of_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = refuse(torch.OutOfMemoryError("CUDA out of memory"), monkeypatch)
    function = fused(scaled)
    for _ in range(2):
        with pytest.raises(torch.OutOfMemoryError):
            function(torch.ones(2), 1.0)
    assert len(calls) == 2


def test_a_mistake_in_the_arguments_is_raised(notices: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(RuntimeError("failed in the compiler"), monkeypatch)
    with pytest.raises(TypeError):
        fused(scaled)(torch.ones(2), None)  # pyright: ignore[reportArgumentType]
    assert not notices


@pytest.mark.slow
@needs_compiler
def test_the_compiled_function_equals_the_function(notices: list[str]) -> None:
    function = fused(scaled)
    for rows in (5, 6, 7):
        x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(rows))
        assert function(x, 2.0).equal(scaled(x, 2.0))
    assert not notices
