"""The benchmarks that this machine cannot run in earnest run all the same, small."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from support.toy_task import ROOT

SCALE = runpy.run_path(str(ROOT / "benchmarks" / "scale.py"))

# As on a machine that has torch and numpy, and nothing that the command line needs.
WITHOUT = """
import runpy, sys
class Refused:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {absent}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refused())
import importlib.util
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *a: None if name in {absent} else real(name, *a)
sys.argv = {argv}
runpy.run_path(sys.argv[0], run_name="__main__")
"""
ABSENT = {"cyclopts", "msgspec", "rich", "sacrebleu", "safetensors", "tokenizers", "transformers"}


def test_the_gpu_script_runs_small_on_a_cpu_with_nothing_but_torch(tmp_path: Path) -> None:
    argv = [str(ROOT / "benchmarks" / "gpu.py"), "--tiny", "--out", str(tmp_path / "gpu.json")]
    program = WITHOUT.format(absent=ABSENT, argv=argv)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "gpu.json").read_text())
    assert max(result["correctness"]["bf16"].values()) < 0.1
    for part in ("training base", "training big"):
        for side in ("transduce", "torch.nn.Transformer"):
            assert result[part][side]["tokens_per_second"] > 0
    assert result["translation"]["transduce"]["latency_ms"] > 0


# ---- scale -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", SCALE["tables"](quick=True))
def test_the_costs_of_small_batches_can_be_measured(table: str) -> None:
    key, cells = SCALE["tables"](quick=True)[table]
    rows = [{**cell, **SCALE["measure"](cell, threads=1, seconds=0)} for cell in cells]
    for i, row in enumerate(rows):
        assert row["seconds"] > 0
        assert len(SCALE["line_of"](rows[: i + 1], key).split("|")) == 8


@pytest.mark.slow
def test_a_long_file_keeps_its_order_in_flat_memory() -> None:
    """20,000 lines through the command line, blank and very long ones among them."""
    found = SCALE["run_file"](20_000, threads=1)
    assert found["in_place"] == found["sample"] == 200
    assert found["added_mb"] < 60
