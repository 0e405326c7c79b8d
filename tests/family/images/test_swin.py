"""Swin beside Hugging Face transformers, with the same random weights, and its windows beside loops."""

import itertools
from typing import Any

import pytest
import torch
from support.hugging_face import TOLERANCE, difference, disturb, gradient_difference_of, member_of
from support.images import classify_alike, random_images
from torch.nn import functional as F

from transduce.errors import UserError
from transduce.family.attention_wrappers import with_bias
from transduce.family.hugging_face.settings import Settings
from transduce.family.hugging_face.swin import CONVERSION
from transduce.family.images.configs import SwinConfig
from transduce.family.images.swin import Swin
from transduce.family.images.windows import WindowBias, joined, same_region, windows, with_windows
from transduce.model.attention import fast_attention
from transduce.model.transformer import parameter_count

SIZES: dict[str, Any] = {
    "image_size": 24,
    "patch_size": 2,
    "num_channels": 2,
    "embed_dim": 8,
    "depths": [2, 3],
    "num_heads": [2, 4],
    "window_size": 3,
    "mlp_ratio": 2.0,
}
Models = tuple[Any, Any]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Return our model and theirs."""
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    torch.manual_seed(1)
    theirs = disturb(transformers.SwinForImageClassification(transformers.SwinConfig(**SIZES, num_labels=5)))
    return member_of(theirs, tmp_path_factory.mktemp("theirs")), theirs


def test_logits_and_gradients_are_those_of_hugging_face(models: Models) -> None:
    ours, theirs = models
    images, classes = random_images(24, 24), torch.tensor([0, 4, 2])
    logits = ours(images), theirs(images).logits
    assert difference(*logits) < TOLERANCE
    assert gradient_difference_of(ours, theirs, [F.cross_entropy(x, classes) for x in logits]) < TOLERANCE


@pytest.mark.parametrize("size", [(24, 36), (48, 24)])
def test_images_of_another_size_are_those_of_hugging_face(models: Models, size: tuple[int, int]) -> None:
    ours, theirs = models
    images = random_images(*size)
    assert difference(ours(images), theirs(images).logits) < TOLERANCE


def test_its_folder_classifies(models: Models, tmp_path: Any) -> None:
    classify_alike(models[1], tmp_path, 24)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"depths": [2, 900]}, "depths=.*: expected at most [0-9]+ in all, the number of tensors in the folder"),
        ({"depths": [1] * 9}, "depths=.*: expected a list of 1 to 8 integers"),
        ({"num_heads": [2, 0]}, "num_heads=.*: expected integers from 1 to 1,000"),
        ({"num_heads": [3, 4]}, "num_heads=.*: expected a divisor of embed_dim=8 times 2\\^i for each of the depths"),
        ({"use_absolute_embeddings": True}, "use_absolute_embeddings=True: expected False"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes: dict[str, Any], message: str) -> None:
    shapes = {str(i): [1] for i in range(60)}
    with pytest.raises(UserError, match=message):
        CONVERSION.build(Settings(SIZES | changes | {"num_labels": 5}, "config.json", shapes))


def test_an_image_that_windows_do_not_fill_is_refused(models: Models) -> None:
    with pytest.raises(UserError, match="images of 24 x 30 pixels: expected multiples of the last stage's window=12"):
        models[0](random_images(24, 30))


@pytest.mark.parametrize("shift", [0, 1])
def test_windows_are_those_of_loops(shift: int) -> None:
    """Two positions see each other if they are in the same window of a grid that begins `shift` before its corner."""
    torch.manual_seed(1)
    rows, columns, width = 6, 9, 3
    bias = WindowBias(2, width)
    queries, keys, values = torch.randn(3, 2, 2, rows * columns, 4)
    places = [*itertools.product(range(rows), range(columns))]
    scores = torch.full((2, len(places), len(places)), -torch.inf)
    for i, (row, column) in enumerate(places):
        for j, (other_row, other_column) in enumerate(places):
            pairs = (row, other_row), (column, other_column)
            if all((a - shift) // width == (b - shift) // width for a, b in pairs):
                away = 5 * (row - other_row + 2) + column - other_column + 2
                scores[:, i, j] = bias.table.weight[away]
    expected = fast_attention(queries, keys, values, scores, 0.0)
    attention = with_windows((rows, columns), width, shift, with_bias(bias()))
    mask = same_region((rows, columns), width, shift, torch.device("cpu"))
    torch.testing.assert_close(attention(queries, keys, values, mask, 0.0), expected)


def test_windows_are_joined_again() -> None:
    x = torch.randn(2, 3, 54, 4)
    assert torch.equal(joined(windows(x, (6, 9), 3), (6, 9), 3), x)


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ({}, 28_288_354),  # T
        ({"depths": (2, 2, 18, 2)}, 49_606_258),  # S
        ({"d_model": 128, "depths": (2, 2, 18, 2), "n_heads": (4, 8, 16, 32)}, 87_768_224),  # B
    ],
)
def test_public_sizes_have_their_number_of_parameters(sizes: dict[str, Any], count: int) -> None:
    with torch.device("meta"):
        model = Swin(SwinConfig(**sizes), [str(i) for i in range(1_000)])
    assert parameter_count(model) == count


def test_it_learns_where_a_bright_patch_is() -> None:
    torch.manual_seed(1)
    model = Swin(SwinConfig(8, 1, 8, (2, 2), (2, 2), window=2, n_channels=1), "ab")
    images = torch.randn(32, 1, 8, 8) / 4
    classes = torch.arange(32) % 2
    for image, label, place in zip(images, classes.tolist(), torch.randint(6, (32,)).tolist(), strict=True):
        image[0, place : place + 2, 3 * label] += 2
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        F.cross_entropy(model(images), classes).backward()
        optimizer.step()
    assert (model(images).argmax(1) == classes).float().mean() > 0.9
