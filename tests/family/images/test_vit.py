"""ViT beside Hugging Face transformers, with the same random weights."""

import json
from typing import Any

import pytest
import torch
from support.hugging_face import TOLERANCE, difference, disturb, gradient_difference_of, member_of
from support.images import SIZES, random_images
from torch.nn import functional as F

from transduce.errors import UserError
from transduce.family.hugging_face.settings import Settings
from transduce.family.hugging_face.vit import CONVERSION
from transduce.family.images.configs import ViTConfig
from transduce.family.images.vit import ViT
from transduce.model.transformer import parameter_count

Models = tuple[Any, Any]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Return our model and theirs."""
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    theirs = disturb(transformers.ViTForImageClassification(transformers.ViTConfig(**SIZES, num_labels=5)))
    return member_of(theirs, tmp_path_factory.mktemp("theirs")), theirs


def test_logits_are_those_of_hugging_face(models: Models) -> None:
    ours, theirs = models
    images = random_images()
    assert difference(ours(images), theirs(images).logits) < TOLERANCE
    states = theirs.vit(images).last_hidden_state
    assert difference(ours.states(images), states) < TOLERANCE


def test_gradients_are_those_of_hugging_face(models: Models) -> None:
    ours, theirs = models
    logits, classes = (ours(random_images()), theirs(random_images()).logits), torch.tensor([0, 4, 2])
    losses = [F.cross_entropy(one, classes) for one in logits]
    assert gradient_difference_of(ours, theirs, losses) < TOLERANCE


@pytest.mark.parametrize("size", [(16, 16), (8, 20), (64, 72)])
def test_images_of_another_size_have_interpolated_positions(models: Models, size: tuple[int, int]) -> None:
    ours, theirs = models
    images = random_images(*size)
    expected = theirs(images, interpolate_pos_encoding=True).logits
    assert difference(ours(images), expected) < TOLERANCE


def test_an_image_that_is_no_whole_number_of_patches_is_refused(models: Models) -> None:
    ours, _ = models
    expected = "images of 13 x 12 pixels: expected multiples of patch_size=4; resize or crop the images"
    with pytest.raises(UserError, match=f"^{expected}$"):
        ours(random_images(13, 12))


def test_a_patch_is_a_row_of_numbers_times_a_matrix(models: Models) -> None:
    """Eq. 1, with the pixels of a patch in the order channel, row, column."""
    ours, _ = models
    images = random_images()
    rows = [images[:, :, 4 * r : 4 * r + 4, 4 * c : 4 * c + 4].flatten(1) for r in range(3) for c in range(3)]
    expected = torch.stack(rows, dim=1) @ ours.patches.weight.flatten(1).T + ours.patches.bias
    torch.testing.assert_close(ours.patches(images).flatten(2).mT, expected)


def test_the_form_returns_the_settings_of_hugging_face(models: Models) -> None:
    ours, theirs = models
    expected = json.loads(theirs.config.to_json_string(use_diff=False))
    settings = CONVERSION.settings(ours)
    assert settings == {name: expected[name] for name in settings}


def test_an_image_size_that_is_no_multiple_of_the_patch_is_refused() -> None:
    with pytest.raises(UserError, match="config.json: image_size=13: expected a multiple of patch_size=4"):
        CONVERSION.build(Settings(SIZES | {"image_size": 13}, "config.json"))


@pytest.mark.parametrize(
    ("sizes", "n_classes", "count"),
    [
        ((224, 16, 768, 12, 12), 1_000, 86_567_656),  # ViT-B/16
        ((384, 32, 768, 12, 12), 1_000, 88_297_192),  # ViT-B/32
        ((224, 16, 1_024, 24, 16), 1_000, 304_326_632),  # ViT-L/16
        ((224, 14, 1_280, 32, 16), 1_000, 632_045_800),  # ViT-H/14
        ((224, 16, 192, 12, 3), 1_000, 5_717_416),  # DeiT tiny
        ((224, 16, 384, 12, 6), 1_000, 22_050_664),  # DeiT small
    ],
)
def test_public_sizes_have_their_number_of_parameters(sizes: Any, n_classes: int, count: int) -> None:
    with torch.device("meta"):
        model = ViT(ViTConfig(*sizes), [str(i) for i in range(n_classes)])
    assert parameter_count(model) == count


def test_matrices_start_normal_and_biases_at_zero() -> None:
    torch.manual_seed(1)
    for name, parameter in ViT(
        ViTConfig(image_size=32, patch_size=4, d_model=64, n_layers=2, n_heads=4), "abcdefghij"
    ).named_parameters():
        if parameter.dim() > 1:
            is_large = parameter.numel() > 1_000
            assert float(parameter.detach().std()) == pytest.approx(0.02, rel=0.1 if is_large else 0.3), name
        elif name.endswith("bias"):
            assert not parameter.any(), name


def test_dropout_acts_in_training_only() -> None:
    torch.manual_seed(1)
    model = ViT(
        ViTConfig(image_size=8, patch_size=4, d_model=16, n_layers=1, n_heads=2, n_channels=1, dropout=0.5), "ab"
    )
    images = torch.randn(2, 1, 8, 8)
    assert not torch.equal(model(images), model(images))
    model.eval()
    assert torch.equal(model(images), model(images))
