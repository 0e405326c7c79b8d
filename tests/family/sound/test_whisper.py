"""Whisper beside Hugging Face transformers, with the same random weights."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.hugging_face import TOLERANCE, difference, disturb, gradient_difference_of, member_of
from torch import Tensor
from torch.nn import functional as F

from transduce.errors import UserError
from transduce.family.configs import WhisperConfig
from transduce.family.hugging_face.folder import Member, write_member
from transduce.family.hugging_face.settings import Settings
from transduce.family.hugging_face.whisper import CONVERSION
from transduce.family.sound.whisper import Whisper
from transduce.model.transformer import parameter_count

SIZES = {
    "vocab_size": 60,
    "num_mel_bins": 12,
    "d_model": 24,
    "encoder_layers": 3,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "max_source_positions": 30,
    "max_target_positions": 32,
}
Models = tuple[Any, Any]
HEARD = torch.ones(3, 30, dtype=torch.bool)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Return our model and theirs."""
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    torch.manual_seed(1)
    ids = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"), 0)
    theirs = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**SIZES, **ids))
    return member_of(disturb(theirs), tmp_path_factory.mktemp("theirs")), theirs


def features(n_frames: int = 60) -> Tensor:
    return torch.randn(3, 12, n_frames, generator=torch.Generator().manual_seed(2))


def random_ids(n: int = 30) -> Tensor:
    """Return ids without padding, id 0, whose embedding transformers does not train."""
    return torch.randint(1, 60, (3, n), generator=torch.Generator().manual_seed(n))


def both_logits(models: Models) -> tuple[Tensor, Tensor]:
    ours, theirs = models
    outputs = theirs(input_features=features(), decoder_input_ids=random_ids())
    return ours(features(), HEARD, random_ids()), outputs.logits


def test_logits_are_those_of_hugging_face(models: Models) -> None:
    assert difference(*both_logits(models)) < TOLERANCE


def test_gradients_are_those_of_hugging_face(models: Models) -> None:
    truth = random_ids().roll(-1, 1).flatten()
    losses = [F.cross_entropy(logits.flatten(0, 1), truth) for logits in both_logits(models)]
    assert gradient_difference_of(*models, losses) < TOLERANCE
    assert models[0].src_positions.grad is None  # sinusoids are not trained


@pytest.mark.parametrize("chunks", [[1] * 30, [5, 25], [29, 1]])
def test_chunks_after_a_cache_are_the_whole(models: Models, chunks: list[int]) -> None:
    ours, _ = models
    cache, logits = ours.start(ours.encode(features(), HEARD), HEARD), []
    for chunk in random_ids().split(chunks, dim=1):
        states, cache = ours.decode_after(chunk, cache)
        logits.append(ours.logits(states))
    assert cache.length == 30
    assert difference(torch.cat(logits, dim=1), both_logits(models)[1]) < TOLERANCE


def test_padding_of_a_shorter_sound_changes_nothing(models: Models) -> None:
    """A sound alone is the sound beside a longer one, if the mask hides what follows it."""
    ours, _ = models
    heard = torch.arange(30) < torch.tensor([[20], [30], [30]])
    padded = features()
    padded[0, :, 40:] = 0  # what the convolutions see after the end of a sound
    batched = ours(padded, heard, random_ids())[0]
    alone = ours(padded[:1, :, :40], heard[:1, :20], random_ids()[:1])[0]
    assert difference(alone, batched) < TOLERANCE


def test_a_new_model_has_the_sinusoids_of_hugging_face() -> None:
    module = pytest.importorskip("transformers.models.whisper.modeling_whisper", reason="needs transduce[export]")
    model = Whisper(WhisperConfig(vocab_size=9, d_model=32, n_heads=2, n_layers=1))
    assert difference(model.src_positions, module.sinusoids(1_500, 32)) < 1e-4  # theirs are computed in fp32


def test_the_form_returns_the_settings_of_hugging_face(models: Models) -> None:
    ours, theirs = models
    expected = json.loads(theirs.config.to_json_string(use_diff=False))
    settings = CONVERSION.settings(ours)
    assert settings == {name: expected[name] for name in settings}


@pytest.mark.parametrize(
    ("key", "value"),
    [("decoder_ffn_dim", 41), ("decoder_attention_heads", 2), ("activation_function", "relu"), ("d_model", 2)],
)
def test_what_no_public_model_has_is_refused(key: str, value: Any) -> None:
    settings = {"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"], **SIZES, key: value}
    with pytest.raises(UserError, match=f"config.json: {key}={value!r}: expected "):
        CONVERSION.build(Settings(settings, "config.json"))


@pytest.mark.parametrize(
    ("name", "sizes", "count"),
    [
        ("tiny", {"d_model": 384, "n_layers": 4, "n_heads": 6}, 37_760_640),
        ("base", {"d_model": 512, "n_layers": 6, "n_heads": 8}, 72_593_920),
        ("small", {"d_model": 768, "n_layers": 12, "n_heads": 12}, 241_734_912),
        ("medium", {"d_model": 1_024, "n_layers": 24, "n_heads": 16}, 763_857_920),
        ("large-v2", {"d_model": 1_280, "n_layers": 32, "n_heads": 20}, 1_543_304_960),
        ("large-v3", {"vocab_size": 51_866, "d_model": 1_280, "n_layers": 32, "n_heads": 20, "n_mels": 128}, None),
    ],
)
def test_public_sizes_have_their_number_of_parameters(name: str, sizes: dict[str, Any], count: int | None) -> None:
    with torch.device("meta"):
        model = Whisper(WhisperConfig(**{"vocab_size": 51_865, **sizes}))
    if count is None:  # a row of the embedding, and 48 bands more for the first convolution
        count = 1_543_304_960 + 1_280 + 48 * 3 * 1_280
    assert parameter_count(model) == count, name


def test_a_folder_that_is_written_opens_in_hugging_face(models: Models, tmp_path: Path) -> None:
    ours, theirs = models
    write_member(tmp_path / "ours", Member(ours, theirs.config.to_dict()))
    copy = type(theirs).from_pretrained(tmp_path / "ours")
    ids = {"input_features": features(), "decoder_input_ids": random_ids()}
    assert difference(copy(**ids).logits, theirs(**ids).logits) < TOLERANCE
