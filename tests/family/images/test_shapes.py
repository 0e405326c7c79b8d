"""The drawn shapes of `benchmarks/shapes.py`: their boxes, captions and figures, and what a few steps learn of them."""

import runpy
import sys
from typing import Any

import numpy as np
import pytest
import torch
from support.toy_task import ROOT
from torch import Tensor

sys.path.insert(0, str(ROOT / "benchmarks"))
SHAPES = runpy.run_path(str(ROOT / "benchmarks" / "shapes.py"))


@pytest.mark.parametrize("shape", SHAPES["SHAPES"])
def test_a_shape_fills_its_box(shape: str) -> None:
    thing = SHAPES["Thing"]("white", shape, (14.0, 17.0), 7.0)
    picture = SHAPES["draw"](np.random.default_rng(1), [thing])
    rows, columns = np.nonzero((picture > 0.5).all(axis=0))
    assert abs(rows.min() - 10) <= 1 and abs(rows.max() - 23) <= 1
    assert abs(columns.min() - 7) <= 1 and abs(columns.max() - 20) <= 1
    assert thing.box == pytest.approx([14 / 32, 17 / 32, 14 / 32, 14 / 32])


def test_held_out_pairs_have_each_colour_and_each_shape_once() -> None:
    held_out = SHAPES["HELD_OUT_PAIRS"]
    training = SHAPES["TRAINING_PAIRS"]
    assert len({colour for colour, _ in held_out}) == len({shape for _, shape in held_out}) == len(held_out) == 6
    assert len(training) == 30 and not {*training} & {*held_out}


def test_captions_end_with_the_last_id() -> None:
    generator = np.random.default_rng(1)
    captions = [SHAPES["caption"](generator, SHAPES["random_thing"](generator, SHAPES["PAIRS"])) for _ in range(50)]
    assert any(" at the " in text for text in captions) and any(len(text.split()) == 3 for text in captions)
    ids = SHAPES["ids_of"](captions)
    end = len(SHAPES["WORDS"]) - 1
    for text, row in zip(captions, ids.tolist(), strict=True):
        assert row.index(end) == len(text.split()) and {*row[row.index(end) :]} == {end}


class Answers(torch.nn.Module):
    """A detector that answers the truth of `scenes_of`, changed by a function of each box."""

    def __init__(self, change: Any, sureness: float = 9.0) -> None:
        super().__init__()
        self.change, self.sureness = change, sureness

    def forward(self, pictures: Tensor) -> list[tuple[Tensor, Tensor]]:
        _, truth = SHAPES["scenes_of"](np.random.default_rng(0), len(pictures))
        logits = torch.zeros(len(pictures), 8, 7)
        logits[..., -1] = self.sureness
        boxes = torch.full((len(pictures), 8, 4), 0.01)
        for i, (classes, true_boxes) in enumerate(truth):
            for k, (shape, box) in enumerate(zip(classes, true_boxes, strict=True)):
                logits[i, k, shape] = 2 * self.sureness
                boxes[i, k] = self.change(box)
        return [(logits, boxes)]


@pytest.mark.parametrize(
    ("change", "iou", "precisions"),
    [
        (lambda box: box, 1.0, (1.0, 1.0)),
        (lambda box: box * torch.tensor([1, 1, 0.8, 0.75]), 0.6, (1.0, 0.0)),
        (lambda box: box + 5, 0.0, (0.0, 0.0)),
    ],
)
def test_figures_of_known_answers(change: Any, iou: float, precisions: tuple[float, float]) -> None:
    figures = SHAPES["detection"](Answers(change), 60)
    assert figures["mean IoU"] == pytest.approx(iou, abs=0.01)
    assert figures["pictures with the right number"] == 1
    assert figures["average precision at IoU 0.5"] == pytest.approx(precisions[0], abs=0.01)
    assert figures["average precision at IoU 0.75"] == pytest.approx(precisions[1], abs=0.01)


@pytest.mark.slow
def test_clip_names_pictures_after_some_steps() -> None:
    """Of 36 names, chance is right in 2.8 %."""
    model = SHAPES["train_clip"](150, 1).eval()
    assert SHAPES["zero_shot"](model, SHAPES["TRAINING_PAIRS"], 10) > 0.1
