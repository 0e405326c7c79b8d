"""COMET's own library saves checkpoints, and gives our scores.

pip installs the library in a folder of the test, with the older packages that it needs. Nothing else is downloaded.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.comet_models import columns, samples, write_encoder
from support.other_programs import install

from transduce.family.inference.comet import load_comet

pytestmark = pytest.mark.slow

LIBRARY = """
unbabel-comet==2.2.7 entmax==1.3 jsonargparse==3.13.1 pytorch-lightning==2.6.6 lightning-utilities==0.15.3
torchmetrics==0.10.3 transformers==4.57.6 tokenizers==0.22.2 huggingface-hub==0.36.2 hf-xet safetensors fsspec
numpy==1.26.4 pandas==2.2.3 scipy==1.15.3 protobuf==4.25.9 sentencepiece==0.2.0 setuptools==80.10.2 python-dateutil
pytz tzdata six pyyaml requests urllib3 certifi idna charset-normalizer packaging tqdm regex filelock
""".split()
MODELS: list[tuple[str, dict[str, Any]]] = [
    ("regression_metric", {"layer_transformation": "sparsemax", "layer_norm": False}),
    ("regression_metric", {"layer_transformation": "softmax", "layer_norm": True, "pool": "max"}),
    ("regression_metric", {"layer": 2, "pool": "cls", "final_activation": "Sigmoid"}),
    ("referenceless_regression_metric", {"layer_transformation": "sparsemax"}),
    ("regression_metric", {"layer_transformation": "sparsemax"}),  # whose hparams.yaml has a correction
    ("unified_metric", {"input_segments": ["mt", "src"], "layer_norm": False}),  # as wmt22-cometkiwi-da
]
PROGRAM = """
import json, sys, torch, yaml
from pathlib import Path
import pytorch_lightning
from comet import load_from_checkpoint
from comet.models import str2model

request, answers = json.load(sys.stdin), []
for i, (folder, kind, settings) in enumerate(request["models"]):
    corrections = {"layer_transformation": "sparsemax_patch"} if i == request["corrected"] else {}
    torch.manual_seed(1)
    offline = {"load_pretrained_weights": False, "local_files_only": True}
    model = str2model[kind](pretrained_model=folder, hidden_sizes=[12, 8], **offline, **settings)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    trainer = pytorch_lightning.Trainer(accelerator="cpu", **quiet)
    trainer.strategy.connect(model)
    checkpoint = Path(folder) / "checkpoints" / "model.ckpt"
    trainer.save_checkpoint(checkpoint)
    checkpoint.parents[1].joinpath("hparams.yaml").write_text(yaml.dump({**model.hparams, **corrections}))
    loaded = load_from_checkpoint(checkpoint, local_files_only=True)
    settings = {"gpus": 0, "accelerator": "cpu", "progress_bar": False, "num_workers": 1}
    output = loaded.predict(request["samples"], batch_size=8, **settings)
    answers.append([output.scores, output.system_score])
Path(request["out"]).write_text(json.dumps(answers))
"""


def test_the_library_gives_our_scores(tmp_path: Path) -> None:
    library = install(tmp_path / "library", *LIBRARY)
    models = [(str(tmp_path / f"model{i}"), *model) for i, model in enumerate(MODELS)]
    for folder, *_ in models:
        write_encoder(Path(folder))
    variables = {"PYTHONPATH": str(library), "HF_HUB_OFFLINE": "1", "HOME": str(tmp_path)}
    process = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps({"models": models, "corrected": 4, "samples": samples(), "out": str(tmp_path / "answers")}),
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    answers = json.loads((tmp_path / "answers").read_text())
    for (folder, kind, _), (theirs, system) in zip(models, answers, strict=True):
        scorer = load_comet(Path(folder))
        assert scorer.scores(*columns()) == pytest.approx(theirs, abs=0.001), kind
        (score,) = scorer.corpus_scores(*columns())
        assert score.value == pytest.approx(100 * system, abs=0.1) and max(theirs) - min(theirs) > 0.002
