"""DeiT beside Hugging Face transformers, with the same random weights, and what its second token learns."""

from typing import Any

import pytest
import torch
from support.hugging_face import TOLERANCE, difference, disturb, gradient_difference_of, member_of
from support.images import SIZES, classify_alike, random_images
from torch.nn import functional as F

from transduce.family.images.configs import ViTConfig
from transduce.family.images.deit import DeiT
from transduce.model.transformer import parameter_count

Models = tuple[Any, Any]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Return our model and theirs."""
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    torch.manual_seed(1)
    config = transformers.DeiTConfig(**SIZES, num_labels=5)
    theirs = disturb(transformers.DeiTForImageClassificationWithTeacher(config))
    return member_of(theirs, tmp_path_factory.mktemp("theirs")), theirs


def test_logits_and_gradients_are_those_of_hugging_face(models: Models) -> None:
    ours, theirs = models
    images, classes = random_images(), torch.tensor([0, 4, 2])
    expected = theirs(images)
    assert difference(ours(images), expected.logits) < TOLERANCE
    teacher_classes = torch.tensor([1, 4, 3])
    loss = F.cross_entropy(expected.cls_logits, classes) / 2
    loss = loss + F.cross_entropy(expected.distillation_logits, teacher_classes) / 2
    assert gradient_difference_of(ours, theirs, [ours.loss(images, classes, teacher_classes), loss]) < TOLERANCE


def test_images_of_another_size_have_interpolated_positions(models: Models) -> None:
    ours, theirs = models
    images = random_images(8, 20)
    assert difference(ours(images), theirs(images, interpolate_pos_encoding=True).logits) < TOLERANCE


def test_its_folder_classifies(models: Models, tmp_path: Any) -> None:
    classify_alike(models[1], tmp_path)


@pytest.mark.parametrize(
    ("sizes", "count"),
    [((192, 12, 3), 5_910_800), ((384, 12, 6), 22_436_432), ((768, 12, 12), 87_338_192)],  # tiny, small, base
)
def test_public_sizes_have_their_number_of_parameters(sizes: Any, count: int) -> None:
    with torch.device("meta"):
        model = DeiT(ViTConfig(224, 16, *sizes), [str(i) for i in range(1_000)])
    assert parameter_count(model) == count


def test_the_second_token_learns_what_the_teacher_answers() -> None:
    """The teacher swaps two classes: x_class learns the truth, and the other token the swapped classes."""
    torch.manual_seed(1)
    model = DeiT(ViTConfig(8, 4, 16, n_layers=2, n_heads=2, n_channels=1), "ab")
    images = torch.randn(64, 1, 8, 8)
    classes = (images[:, 0, :4].mean(dim=(1, 2)) > images[:, 0, 4:].mean(dim=(1, 2))).long()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(100):
        optimizer.zero_grad()
        model.loss(images, classes, 1 - classes).backward()
        optimizer.step()
    truth, teacher = model.output.logits(model.pooled(images))
    assert (truth.argmax(1) == classes).float().mean() > 0.9
    assert (teacher.argmax(1) == 1 - classes).float().mean() > 0.9
