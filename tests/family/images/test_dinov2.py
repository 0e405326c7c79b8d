"""DINOv2's encoder beside Hugging Face transformers, with the same random weights."""

from typing import Any

import pytest
import torch
from support.hugging_face import TOLERANCE, difference, disturb, gradient_difference_of, member_of
from support.images import SIZES, classify_alike, random_images
from torch.nn import functional as F

import transduce
from transduce.family.hugging_face.dinov2 import CONVERSION
from transduce.family.hugging_face.settings import Settings
from transduce.family.images.configs import ViTConfig
from transduce.family.images.dinov2 import DinoV2
from transduce.model.transformer import parameter_count

Models = tuple[Any, Any]
DINO_SIZES = {key: value for key, value in SIZES.items() if key != "intermediate_size"} | {"mlp_ratio": 3}


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "gated"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Return our model and theirs."""
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    torch.manual_seed(1)
    config = transformers.Dinov2Config(**DINO_SIZES, use_swiglu_ffn=request.param, num_labels=5)
    theirs = disturb(transformers.Dinov2ForImageClassification(config))
    return member_of(theirs, tmp_path_factory.mktemp("theirs")), theirs


def test_logits_and_gradients_are_those_of_hugging_face(models: Models) -> None:
    ours, theirs = models
    images, classes = random_images(), torch.tensor([0, 4, 2])
    logits = ours(images), theirs(images).logits
    assert difference(*logits) < TOLERANCE
    assert difference(ours.states(images), theirs.dinov2(images).last_hidden_state) < TOLERANCE
    assert gradient_difference_of(ours, theirs, [F.cross_entropy(x, classes) for x in logits]) < TOLERANCE


def test_images_of_another_size_have_interpolated_positions(models: Models) -> None:
    ours, theirs = models
    images = random_images(8, 20)
    assert difference(ours(images), theirs(images).logits) < TOLERANCE


def test_its_folder_classifies(models: Models, tmp_path: Any) -> None:
    classify_alike(models[1], tmp_path)


def test_a_folder_without_classes_gives_vectors(models: Models, tmp_path: Any) -> None:
    _, theirs = models
    theirs.dinov2.save_pretrained(tmp_path / "theirs")
    classifier = transduce.family.load(tmp_path / "theirs")
    images = random_images()
    states = theirs.dinov2(images).last_hidden_state
    expected = torch.cat([states[:, 0], states[:, 1:].mean(1)], dim=1)
    assert difference(classifier.embed(images), expected) < TOLERANCE
    with pytest.raises(transduce.UserError, match="expected a model with classes; use `embed`"):
        classifier.classify(images)


def test_a_ratio_that_makes_the_feed_forward_layer_too_wide_is_refused() -> None:
    values = DINO_SIZES | {"hidden_size": 2**24, "mlp_ratio": 2**24}
    settings = Settings(values | {"model_type": "dinov2", "architectures": ["Dinov2Model"]}, "config.json")
    with pytest.raises(transduce.UserError, match="mlp_ratio=16777216: expected at most 1, so that hidden_size"):
        CONVERSION.build(settings)


@pytest.mark.parametrize(
    ("sizes", "gated", "count"),
    [
        ((384, 12, 6), False, 22_056_576),  # small
        ((768, 12, 12), False, 86_580_480),  # base
        ((1_024, 24, 16), False, 304_368_640),  # large
        ((1_536, 40, 24), True, 1_136_480_768),  # giant
    ],
)
def test_public_sizes_have_their_number_of_parameters(sizes: Any, gated: bool, count: int) -> None:
    """With the mask token of the training, which is not here: d_model values."""
    with torch.device("meta"):
        model = DinoV2(ViTConfig(518, 14, *sizes), gated=gated)
    assert parameter_count(model) + sizes[0] == count


def test_a_new_model_starts_as_almost_the_identity() -> None:
    model = DinoV2(ViTConfig(8, 4, 16, n_layers=4, n_heads=2), "ab")
    images = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(model.states(images), model.norm(model.tokens(images)), atol=1e-3, rtol=0)
