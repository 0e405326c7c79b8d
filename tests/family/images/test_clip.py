"""CLIP beside Hugging Face transformers, with the same random weights, and its classes that are only named."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from support.hugging_face import TOLERANCE, difference, disturb, gradient_difference_of, member_of
from support.images import random_images
from support.small_members import END, tokenizer_json
from tokenizers import Tokenizer, processors
from torch.nn import functional as F

import transduce
from transduce.family.hugging_face.clip import CONVERSION
from transduce.family.hugging_face.settings import Settings
from transduce.family.images.clip import Clip
from transduce.family.images.configs import ClipConfig, ViTConfig
from transduce.family.inference.zero_shot import ZeroShotClassifier
from transduce.model.transformer import parameter_count

TOWER = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 60}
IDS = torch.tensor([[299, 5, 9, 0, 0], [299, 7, 0, 3, 3], [299, 11, 12, 13, 0]])  # 0 is the end
LABELS = ["dog", "two young men", "table"]
Models = tuple[Any, Any]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Return our model and theirs."""
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    vision = TOWER | {"image_size": 12, "patch_size": 4, "num_channels": 2}
    text = TOWER | {"hidden_size": 20, "vocab_size": 300, "max_position_embeddings": 16}
    text |= {"eos_token_id": 0, "bos_token_id": 299}
    torch.manual_seed(1)
    config = transformers.CLIPConfig(vision_config=vision, text_config=text, projection_dim=10)
    theirs = disturb(transformers.CLIPModel(config))
    return member_of(theirs, tmp_path_factory.mktemp("theirs")), theirs


@pytest.fixture(scope="module")
def folder(models: Models, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a tokenizer, which ends a text with id 0."""
    folder = tmp_path_factory.mktemp("clip") / "model"
    models[1].save_pretrained(folder)
    tokenizer = Tokenizer.from_str(tokenizer_json().decode())
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=[(END, 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_vectors_and_logits_are_those_of_hugging_face(models: Models) -> None:
    ours, theirs = models
    expected = theirs(IDS, random_images())
    assert difference(ours.images.pooled(random_images()), expected.image_embeds) < TOLERANCE
    assert difference(ours.texts.pooled(IDS), expected.text_embeds) < TOLERANCE
    assert difference(ours(random_images(), IDS), expected.logits_per_image) < TOLERANCE


def test_loss_and_gradients_are_those_of_hugging_face(models: Models) -> None:
    ours, theirs = models
    losses = [ours.loss(random_images(), IDS), theirs(IDS, random_images(), return_loss=True).loss]
    assert difference(*losses) < TOLERANCE
    assert gradient_difference_of(ours, theirs, losses) < TOLERANCE


def test_ids_after_the_end_do_not_count(models: Models) -> None:
    ours, _ = models
    torch.testing.assert_close(ours.texts.pooled(IDS[1:2, :3]), ours.texts.pooled(IDS)[1:2])


def test_the_end_of_an_old_folder_is_the_largest_id(models: Models, tmp_path: Path) -> None:
    _, theirs = models
    theirs.config.text_config.eos_token_id = 2
    theirs.save_pretrained(tmp_path)
    theirs.config.text_config.eos_token_id = 0
    ids = torch.tensor([[5, 299, 2], [2, 7, 299]])
    old = type(theirs).from_pretrained(tmp_path).eval()
    ours = transduce.family.load(tmp_path).model
    assert difference(ours.texts.pooled(ids), old(ids, random_images()).text_embeds) < TOLERANCE


def test_classes_are_named_by_the_user(folder: Path, models: Models) -> None:
    classifier = transduce.family.load(folder)
    assert isinstance(classifier, ZeroShotClassifier)
    images = random_images(count=5)
    answers = classifier.classify(images, LABELS, "a {} there")
    texts = [classifier.tokenizer.encode(f"a {label} there").ids for label in LABELS]
    longest = max(map(len, texts))
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
    for answer, logits in zip(answers, models[1](ids, images).logits_per_image, strict=True):
        assert answer == pytest.approx(dict(zip(LABELS, logits.softmax(0).tolist(), strict=True)), abs=1e-5)
    assert [classifier.classify(image[None], LABELS, "a {} there")[0] for image in images] == answers
    vectors = classifier.embed(images), classifier.embed_texts(LABELS)
    assert all(torch.allclose(x.norm(dim=1), torch.ones(len(x))) for x in vectors)


@pytest.mark.parametrize(
    ("labels", "template", "message"),
    [
        (["dog"], "a {}", r"labels=\['dog'\]: expected two or more, all different"),
        (["dog", "dog"], "a {}", "expected two or more, all different"),
        (["dog", "cat"], "a photo", "template='a photo': expected {}, where a label stands"),
        (["dog", "cat" * 50], "a {}", "texts: 'a catcat.*': expected 1 to 16 tokens, the end included, not"),
        ("dog", "a {}", "labels: expected"),
    ],
)
def test_classes_that_do_not_fit_are_refused(folder: Path, labels: Any, template: str, message: str) -> None:
    with pytest.raises(transduce.UserError, match=message):
        transduce.family.load(folder).classify(random_images(), labels, template)


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        ("vision_config", 7, "vision_config=7: expected an object"),
        ("vision_config", {"hidden_act": "gelu"}, "vision_config: hidden_act='gelu': expected 'quick_gelu'"),
        ("vision_config", {"image_size": 33}, "vision_config: image_size=33: expected a multiple of patch_size=32"),
        ("text_config", {"hidden_size": 22}, "text_config: hidden_size=22: expected a multiple of num_attention_heads"),
        (
            "text_config",
            {"num_hidden_layers": 900},
            "text_config: num_hidden_layers=900: expected at most 60, the number",
        ),
        ("text_config", {"eos_token_id": 300}, "text_config: eos_token_id=300: expected a number from 0 to below 300"),
        (
            "text_config",
            {"attention_dropout": 1},
            "text_config: attention_dropout=1: expected a number from 0 to below 1",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused(part: str, changes: Any, message: str) -> None:
    sizes: dict[str, Any] = {"vision_config": TOWER, "text_config": TOWER | {"vocab_size": 300}}
    values = sizes[part] | changes if isinstance(changes, dict) else changes
    with pytest.raises(transduce.UserError, match=message):
        CONVERSION.build(Settings(sizes | {part: values}, "config.json", {str(i): [1] for i in range(60)}))


def test_the_settings_of_a_tower_in_an_older_folder_are_those_of_hugging_face(models: Models, tmp_path: Path) -> None:
    """Those of text_config_dict replace those of text_config."""
    _, theirs = models
    theirs.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    for key in ("text_config", "vision_config"):
        values[f"{key}_dict"], values[key] = (
            values[key],
            values[key] | {"num_attention_heads": 2, "layer_norm_eps": 0.1},
        )
    path.write_text(json.dumps(values))
    expected = type(theirs).from_pretrained(tmp_path).eval()(IDS, random_images())
    assert (
        difference(transduce.family.load(tmp_path).model(random_images(), IDS), expected.logits_per_image) < TOLERANCE
    )
    torch.testing.assert_close(expected.logits_per_image, theirs(IDS, random_images()).logits_per_image)


def test_dropout_of_attention_is_the_dropout_of_a_tower() -> None:
    sizes = {"vision_config": TOWER, "text_config": TOWER | {"vocab_size": 300, "attention_dropout": 0.1}}
    model = CONVERSION.build(Settings(sizes, "config.json"))
    assert (model.config.dropout, model.config.images.dropout) == (0.1, 0.0)
    assert CONVERSION.settings(model)["text_config"]["attention_dropout"] == 0.1


def test_a_copy_of_the_folder_is_read_by_hugging_face(folder: Path, models: Models, tmp_path: Path) -> None:
    transduce.family.load(folder).save(tmp_path / "copy")
    again, info = type(models[1]).from_pretrained(tmp_path / "copy", output_loading_info=True)
    assert not any(info.values())
    images = random_images()
    assert torch.equal(again.eval()(IDS, images).logits_per_image, models[1](IDS, images).logits_per_image)


@pytest.mark.parametrize(
    ("config", "count"),
    [
        (ClipConfig(), 151_277_313),  # B/32
        (ClipConfig(ViTConfig(), norm_eps=1e-5), 149_620_737),  # B/16
        (
            ClipConfig(ViTConfig(224, 14, 1_024, 24, 16), d_model=768, n_heads=12, d_joint=768),
            427_616_513,  # L/14
        ),
    ],
)
def test_public_sizes_have_their_number_of_parameters(config: ClipConfig, count: int) -> None:
    with torch.device("meta"):
        assert parameter_count(Clip(config)) == count


@pytest.mark.parametrize(("before", "after"), [(150.0, 100.0), (99.0, 99.0)])
def test_a_training_clips_the_scale(before: float, after: float) -> None:
    torch.manual_seed(1)
    tower = ViTConfig(12, 4, 8, 1, 2, 2, 8)
    model = Clip(ClipConfig(tower, 300, 8, 1, 2, 8, max_positions=8, d_joint=4), end=0)
    model.log_scale.data.fill_(math.log(before))
    model.eval().loss(random_images(), IDS)
    assert model.log_scale.exp().item() == pytest.approx(before)
    loss = model.train().loss(random_images(), IDS)
    assert model.log_scale.exp().item() == pytest.approx(after)
    assert loss.item() == pytest.approx(model.eval().loss(random_images(), IDS).item())
    loss.backward()
    assert model.log_scale.grad is not None and model.log_scale.grad.item() != 0


def test_pairs_that_belong_together_are_learned() -> None:
    torch.manual_seed(1)
    model = Clip(ClipConfig(ViTConfig(8, 4, 16, 1, 2, 1), 9, 16, 1, 2, max_positions=4, d_joint=8))
    images = torch.randn(6, 1, 8, 8)
    ids = torch.tensor([[a, b, 8] for a in range(3) for b in range(3, 5)])
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(160):
        optimizer.zero_grad()
        model.loss(images, ids).backward()
        optimizer.step()
    logits = model(images, ids)
    assert logits.argmax(1).tolist() == logits.argmax(0).tolist() == [*range(6)]
    assert F.cross_entropy(logits, torch.arange(6)) < 0.1
