"""wav2vec 2.0 beside Hugging Face transformers, with the same random weights."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.hugging_face import TOLERANCE, difference, disturb, gradient_difference_of, member_of
from torch import Tensor

from transduce.errors import UserError
from transduce.family.hugging_face.folder import Member, write_member
from transduce.family.hugging_face.settings import Settings
from transduce.family.hugging_face.wav2vec2 import CONVERSION
from transduce.family.inference.speech_recogniser import SpeechRecogniser
from transduce.family.sound.configs import Wav2Vec2Config
from transduce.family.sound.ctc import ctc_losses
from transduce.family.sound.wav2vec2 import Wav2Vec2, normalised
from transduce.model.transformer import parameter_count

SIZES = {
    "vocab_size": 11,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "conv_dim": [12] * 3,
    "conv_kernel": [5, 3, 2],
    "conv_stride": [3, 2, 2],
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4,
}
FORMS = {
    "post": {"feat_extract_norm": "group", "conv_bias": False, "do_stable_layer_norm": False},
    "pre": {"feat_extract_norm": "layer", "conv_bias": True, "do_stable_layer_norm": True},
}
Models = tuple[Any, Any]


@pytest.fixture(scope="module", params=FORMS)
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Return our model and theirs."""
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    theirs = disturb(transformers.Wav2Vec2ForCTC(transformers.Wav2Vec2Config(**SIZES, **FORMS[request.param])))
    return member_of(theirs, tmp_path_factory.mktemp("theirs")), theirs


def sounds() -> tuple[Tensor, Tensor]:
    """Return the samples (B,S) of two sounds, of which the second is shorter, and their mask."""
    mask = torch.arange(400) < torch.tensor([400, 290])[:, None]
    return torch.randn(2, 400, generator=torch.Generator().manual_seed(2)) * mask, mask


def test_logits_are_those_of_hugging_face(models: Models) -> None:
    ours, theirs = models
    samples, mask = sounds()
    assert difference(ours(samples, mask), theirs(samples, attention_mask=mask.long()).logits) < TOLERANCE
    whole = torch.ones_like(mask)
    assert difference(ours(samples, whole), theirs(samples).logits) < TOLERANCE
    assert difference(ours.features(samples).mT, theirs.wav2vec2.feature_extractor(samples)) < TOLERANCE


def test_the_loss_and_its_gradients_are_those_of_hugging_face(models: Models) -> None:
    ours, theirs = models
    samples, mask = sounds()
    targets = torch.tensor([[3, 3, 5, 1], [10, 2, 0, 0]])
    n_frames = ours.n_frames(mask.sum(1))
    losses = ctc_losses(ours(samples, mask), n_frames, targets, torch.tensor([4, 2])).sum()
    expected = theirs(samples, attention_mask=mask.long(), labels=targets.masked_fill(targets == 0, -100)).loss
    assert (losses - expected).item() == pytest.approx(0, abs=1e-4)
    assert gradient_difference_of(ours, theirs, [losses, expected]) < TOLERANCE


def test_a_sound_with_norms_of_frames_does_not_depend_on_its_padding() -> None:
    torch.manual_seed(1)
    model = Wav2Vec2(small("pre")).eval()
    samples, mask = sounds()
    alone = model(samples[1:, :290], mask[1:, :290])
    torch.testing.assert_close(model(samples, mask)[1:, : alone.size(1)], alone)


def test_sounds_are_normalised_as_in_hugging_face() -> None:
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    samples, mask = sounds()
    extractor = transformers.Wav2Vec2FeatureExtractor(return_attention_mask=True)
    rows = [row[keep].numpy() for row, keep in zip(3 * samples + 1, mask, strict=True)]
    expected = extractor(rows, sampling_rate=16_000, padding=True, return_tensors="pt").input_values
    torch.testing.assert_close(normalised((3 * samples + 1) * mask, mask), expected, atol=1e-5, rtol=1e-5)


def small(norm: str, **changes: Any) -> Wav2Vec2Config:
    sizes: dict[str, Any] = {"vocab_size": 11, "d_model": 16, "n_layers": 1, "n_heads": 2, "n_channels": 8}
    return Wav2Vec2Config(**sizes | {"position_width": 4, "kernels": (5, 3), "strides": (3, 2), "norm": norm} | changes)


def test_the_number_of_frames_is_that_of_the_convolutions() -> None:
    model = Wav2Vec2(Wav2Vec2Config(vocab_size=4, d_model=16, n_layers=1, n_heads=2, n_channels=2))
    for n in (400, 719, 720, 16_000):
        assert model.features(torch.zeros(1, n)).size(1) == int(model.n_frames(torch.tensor(n)))
    assert model.config.frame == 320


@pytest.mark.parametrize("form", FORMS)
def test_it_is_written_in_hugging_faces_form(form: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    torch.manual_seed(1)
    ours = Wav2Vec2(small(form)).eval()
    write_member(tmp_path / "folder", Member(ours, CONVERSION.settings(ours)))
    theirs = transformers.Wav2Vec2ForCTC.from_pretrained(tmp_path / "folder").eval()
    samples, mask = sounds()
    assert difference(ours(samples, mask), theirs(samples, attention_mask=mask.long()).logits) < TOLERANCE
    settings, expected = CONVERSION.settings(ours), json.loads(theirs.config.to_json_string(use_diff=False))
    assert {**settings, "architectures": None} == {name: expected[name] for name in settings} | {"architectures": None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"do_stable_layer_norm": True}, "do_stable_layer_norm=True: expected False"),
        ({"conv_dim": [12, 12, 8]}, "conv_dim=.*: expected equal numbers"),
        ({"conv_kernel": [5, 0, 2]}, "conv_kernel=.*: expected integers from 1 to 10,000"),
        ({"conv_kernel": "532"}, "conv_kernel='532': expected a list of 1 to 20 integers"),
        ({"conv_stride": [3, 2]}, "conv_stride=.*: expected as many numbers as conv_kernel"),
        ({"num_conv_pos_embedding_groups": 5}, "num_conv_pos_embedding_groups=5: expected a divisor of hidden_size"),
        ({"pad_token_id": 3}, "pad_token_id=3: expected 0"),
        ({"add_adapter": True}, "add_adapter=True: expected False"),
        ({"architectures": ["Wav2Vec2ForPreTraining"]}, "architectures=.*: expected .'Wav2Vec2ForCTC'"),
    ],
)
def test_settings_that_it_cannot_have_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        CONVERSION.build(Settings(SIZES | FORMS["post"] | changes, "config.json"))


@pytest.mark.parametrize(
    ("sizes", "count"),
    [
        ({}, 94_395_552),  # base
        ({"d_model": 1_024, "n_layers": 24, "n_heads": 16}, 315_460_768),  # large
        ({"d_model": 1_024, "n_layers": 24, "n_heads": 16, "norm": "pre"}, 315_470_496),  # large, LV-60
    ],
)
def test_public_sizes_have_their_number_of_parameters(sizes: Any, count: int) -> None:
    with torch.device("meta"):
        model = Wav2Vec2(Wav2Vec2Config(vocab_size=32, **sizes))
    assert parameter_count(model) == count


def test_sizes_that_do_not_fit_together_are_named() -> None:
    assert small("pre").problems() == []
    (line,) = small("pre", strides=(3,)).problems()
    assert line == "model.strides=3: expected as many numbers as model.kernels has, each from 1 to 1,000"
    (line,) = small("pre", position_groups=3).problems()
    assert line == "model.position_groups=3: expected a divisor of model.d_model=16"


def test_a_recogniser_refuses_an_empty_beam_and_hears_a_view(models: Models) -> None:
    recogniser = SpeechRecogniser(Member(models[0], {}))
    samples = sounds()[0][0].numpy()
    for beam_size in 0, -1, True:
        with pytest.raises(UserError, match=f"beam_size={beam_size}: expected"):
            recogniser.transcribe(samples, beam_size=beam_size)
    recogniser.__dict__["_characters"] = dict(enumerate(" abcdefghij"))
    assert recogniser.transcribe(samples[::-1]) == recogniser.transcribe(samples[::-1].copy()) != ""
