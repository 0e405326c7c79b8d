"""The tests of a GPU, on a pretended one."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from support.toy_task import ROOT

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="the GPU runs these tests itself"),
    pytest.mark.skipif(not sys.platform.startswith("linux") or shutil.which("c++") is None, reason="needs g++"),
]
TESTS = Path(__file__).parents[1]


def run_gpu_tests(file: str, *, are_slow: bool, least: int) -> None:
    """Run the tests of a file with the marker `cuda`. least: how many of them must pass."""
    marks = "cuda and slow" if are_slow else "cuda and not slow"
    words = [sys.executable, "-m", "pytest", "-p", "support.pretend_gpu", "-p", "no:cacheprovider", "-m", marks]
    paths = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    run = subprocess.run(
        [*words, str(TESTS / "system" / file)],
        env={**environment, "PYTHONPATH": paths},
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
    )
    passed = re.search(r"(\d+) passed", run.stdout)
    assert run.returncode == 0 and passed is not None and int(passed[1]) >= least, run.stdout + run.stderr


@pytest.mark.slow
def test_results_and_waits() -> None:
    run_gpu_tests("test_cuda.py", are_slow=False, least=20)


@pytest.mark.slow
def test_every_kind_of_model_trains_and_resumes() -> None:
    run_gpu_tests("test_cuda_runs.py", are_slow=True, least=37)


@pytest.mark.slow
def test_the_work_of_a_step_can_be_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRANSDUCE_DEVICE")  # the tests of a CPU name it
    out = tmp_path / "counts.json"
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_counts.py"), "--tiny", "--out", str(out)]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    counts = json.loads(out.read_text(encoding="utf-8"))
    for precision in ("fp32", "bf16"):
        training = counts[f"training, {precision}"]
        assert 0 < training["loss"]["kernels"] < training["gradient"]["kernels"]
        assert not any(training[part]["waits"] for part in ("gradient", "loss", "update", "moving average"))
    decoding = counts["decoding, beam 4"]
    assert len(decoding["kernels of a recorded step, and of its best tokens"]) == 2
    assert decoding["kernels outside of them"] <= 10 and decoding["copies to the GPU"] < 1.5


@pytest.mark.slow
def test_the_measurement_of_a_gpu_runs(tmp_path: Path) -> None:
    out = tmp_path / "gpu.json"
    argv = [str(ROOT / "benchmarks" / "gpu.py"), "--tiny", "--out", str(out)]
    program = (
        f"import support.pretend_gpu, runpy, sys; sys.argv = {argv}; runpy.run_path(sys.argv[0], None, '__main__')"
    )
    environment = {name: value for name, value in os.environ.items() if name != "TRANSDUCE_DEVICE"}
    environment["PYTHONPATH"] = os.pathsep.join([str(TESTS), str(ROOT / "benchmarks")])
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    result = json.loads(out.read_text(encoding="utf-8"))
    assert result["training base, transduce"]["a_step"]["waits"] == 1
    assert result["translation, transduce"]["a_step_of_one_sentence"]["waits"] < 2
