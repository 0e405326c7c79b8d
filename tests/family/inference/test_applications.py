"""`transduce.family.load`: a class for each member. T5 from text to text, and ViT from images to classes."""

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.little_memory import LittleMemory
from support.small_encoders import bert_folder
from support.small_members import gpt2_folder, t5_folder, vit_folder
from torch import Tensor

import transduce
from transduce import Sampling, UserError
from transduce.errors import NotFiniteError
from transduce.family.inference.application import Application
from transduce.family.inference.image_classifier import ImageClassifier
from transduce.family.inference.language_model import LanguageModel
from transduce.family.inference.text_encoder import TextEncoder, classes_of
from transduce.family.inference.text_generator import GeneratedText
from transduce.family.inference.text_to_text import TextToText

TEXTS = ["two young men", "a dog", "", "the man sits on it", "a", " \t", "Zürich ist schön", "two dogs"]
MAKERS: dict[type[Application], Callable[[Path], Path]] = {
    LanguageModel: gpt2_folder,
    TextEncoder: lambda folder: bert_folder(folder, "pooler"),
    TextToText: t5_folder,
    ImageClassifier: vit_folder,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[type[Application], Path]:
    return {kind: make(tmp_path_factory.mktemp("members") / "model") for kind, make in MAKERS.items()}


@pytest.fixture(scope="module")
def t5(folders: dict[type[Application], Path]) -> TextToText:
    return TextToText.load(folders[TextToText])


@pytest.fixture(scope="module")
def vit(folders: dict[type[Application], Path]) -> ImageClassifier:
    return ImageClassifier.load(folders[ImageClassifier])


def random_images(count: int, size: int = 12) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("kind", MAKERS)
def test_each_member_has_its_class(folders: dict[type[Application], Path], tmp_path: Path, kind: Any) -> None:
    model = transduce.family.load(folders[kind])
    assert type(model) is kind
    model.save(tmp_path / "copy")
    assert type(transduce.family.load(tmp_path / "copy")) is kind
    for other in MAKERS.keys() - {kind}:
        with pytest.raises(UserError, match=r"model_type='\w+': expected a .*; use `transduce"):
            kind.load(folders[other])


@pytest.mark.parametrize("kind", [TextEncoder, TextToText, ImageClassifier])
def test_only_continuations_have_a_precision(folders: dict[type[Application], Path], kind: Any) -> None:
    with pytest.raises(UserError, match=r"precision='int8': expected 'fp32', the only precision of model_type='\w+'"):
        transduce.family.load(folders[kind], precision="int8")


# ---- T5 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beam_size", [1, 4])
def test_outputs_are_those_of_hugging_face(t5: TextToText, tmp_path: Path, beam_size: int) -> None:
    transformers = pytest.importorskip("transformers", reason="needs transduce[export]")
    t5.save(tmp_path / "copy")
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path / "copy").eval()
    options: dict[str, Any] = {"num_beams": beam_size, "do_sample": False, "max_new_tokens": 12}
    if beam_size > 1:
        options["length_penalty"] = 0.0
    expected, outputs = list[str](), t5.generate_texts(TEXTS, max_tokens=12, beam_size=beam_size)
    for text in filter(str.strip, TEXTS):
        ids = theirs.generate(torch.tensor([t5.tokenizer.encode(text).ids]), **options)[0, 1:].tolist()
        expected.append(t5.tokenizer.decode(ids))
    texts = [output.text for output, text in zip(outputs, TEXTS, strict=True) if text.strip()]
    assert texts == expected
    assert any(output.finished for output in outputs) and any(not output.finished for output in outputs)


@pytest.mark.parametrize("options", [{}, {"beam_size": 3}, {"sampling": Sampling(1.5), "seed": 7}])
def test_the_other_texts_do_not_change_an_output(t5: TextToText, options: Any) -> None:
    together = t5.generate_texts(TEXTS, max_tokens=8, **options)
    assert together[2] == together[5] == GeneratedText()
    for number, text in enumerate(TEXTS, start=1):
        (alone,) = t5.generate_texts([text], max_tokens=8, first_number=number, **options)
        assert together[number - 1].text == alone.text
        assert together[number - 1].score == pytest.approx(alone.score, abs=1e-4)
    assert t5.generate(TEXTS[0], max_tokens=8) == t5.generate_texts(TEXTS[:1], max_tokens=8)[0]
    assert t5.generate_texts([]) == []


def test_a_t5_without_a_start_is_refused(t5: TextToText, tmp_path: Path) -> None:
    t5.save(tmp_path / "copy")
    (tmp_path / "copy" / "generation_config.json").write_text(json.dumps({"decoder_start_token_id": None}))
    with pytest.raises(UserError, match="copy: decoder_start_token_id: expected one id of the vocabulary"):
        transduce.family.load(tmp_path / "copy")


# ---- ViT ---------------------------------------------------------------------------------------------------------


def test_classes_of_images_are_those_of_the_model(vit: ImageClassifier) -> None:
    images = random_images(40)
    answers = vit.classify(images)
    expected = vit.model(images).softmax(dim=-1).tolist()
    for answer, values in zip(answers, expected, strict=True):
        assert answer == pytest.approx(dict(zip(["cat", "dog", "bird"], values, strict=True)), abs=1e-6)
        assert [*answer.values()] == sorted(answer.values(), reverse=True)
    assert len({next(iter(answer)) for answer in answers}) > 1
    assert vit.classify(images.numpy()) == answers
    assert vit.classify(images.double()) == answers


@pytest.mark.parametrize("size", [4, 12, 20])
def test_the_other_images_do_not_change_an_answer(vit: ImageClassifier, size: int) -> None:
    images = random_images(40, size)
    together = vit.classify(images)
    assert [vit.classify(image[None])[0] for image in images] == together
    assert vit.classify(images[:0]) == []


def test_images_that_do_not_fit_into_memory_together_are_halved(vit: ImageClassifier) -> None:
    images = random_images(40)
    expected = vit.classify(images)
    with LittleMemory(10) as memory:
        assert vit.classify(images) == expected
    assert max(memory.sizes) == 32 and min(memory.sizes) <= 10


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (torch.zeros(3, 12, 12), r"images: expected floating-point numbers of the shape \(images, 3, height, width\)"),
        (torch.zeros(1, 1, 12, 12), r"not torch.float32 of \(1, 1, 12, 12\); convert them"),
        (np.zeros((1, 3, 12, 12), np.uint8), "not torch.uint8"),
        (torch.zeros(1, 3, 12, 13), "images of 12 x 13 pixels: expected multiples of patch_size=4"),
        (torch.zeros(1, 3, 0, 12), "images of 0 x 12 pixels: expected multiples"),
        (torch.zeros(1, 3, 2, 2), "images of 2 x 2 pixels: expected multiples"),
        ([["x"]], "images: expected an array or a tensor, not a list"),
        (torch.full((2, 3, 12, 12), math.nan), r"images\[0\]: expected finite numbers; check"),
        (np.full((2, 3, 12, 12), [[[[0.0]]], [[[1e300]]]]), r"images\[1\]: expected finite numbers; check"),
    ],
)
def test_images_that_do_not_fit_are_refused(vit: ImageClassifier, images: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        vit.classify(images)


def test_of_classes_with_equal_names_the_most_likely_counts() -> None:
    (classes,) = classes_of(torch.tensor([[2.0, 1.0, 0.0]]), ["crane", "dog", "crane"])
    assert classes == pytest.approx({"crane": 0.6652, "dog": 0.2447}, abs=1e-4)


def test_classes_of_images_that_are_not_finite_are_refused(folders: dict[type[Application], Path]) -> None:
    vit = ImageClassifier.load(folders[ImageClassifier])
    with torch.no_grad():
        vit.model.norm.weight.fill_(3e38)
    with pytest.raises(NotFiniteError, match="model: expected outputs that are finite numbers; use another copy"):
        vit.classify(random_images(1))
