"""A model of images as a user has it: images in, classes out."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from transduce.decoding.batched_search import in_batches
from transduce.errors import UserError
from transduce.family.hugging_face.folder import Member
from transduce.family.images.image_model import ImageModel
from transduce.family.inference.application import Application
from transduce.family.inference.text_encoder import classes_of, cost_of_attention, finite, in_rows
from transduce.model.cpu_backend import faster_products

BATCH_IMAGES = 32
ClassHead = Callable[[Tensor], Tensor]
ImageAnswer = TypeVar("ImageAnswer")


class ImageClassifier(Application):
    """A ViT, or another classifier of images. Raises UserError for another member."""

    def __init__(self, member: Member, folder: Path | str = "the folder") -> None:
        super().__init__(member, folder)
        self.model = self.model_of(ImageModel, "a classifier of images, such as ViT")

    def classify(self, images: Tensor | np.ndarray) -> list[dict[str, float]]:
        """Return the probability of each class for each image, by its label, the most likely first.

        images: (B,C,height,width), numbers as the model was trained on: often 2 x - 1 for values x from 0 to 1.
        On a CPU, an answer does not depend on the other images. Raises UserError for another shape or type, or numbers
        that are not finite in fp32, and NotFiniteError if an output of the model is not finite.
        """
        if not self.model.labels:
            raise UserError(f"{self.folder}: expected a model with classes; use `embed`, or add a head")
        return image_answers(images, self.model, self._classes)

    def embed(self, images: Tensor | np.ndarray) -> Tensor:
        """Return the vector of each image, (B,D) or as the model has it, of which a head makes classes.

        Images and errors are as for `classify`.
        """
        answers = image_answers(images, self.model, lambda vectors: [*finite(vectors, self.folder).cpu()])
        return torch.stack(answers) if answers else torch.empty(0)

    def _classes(self, vectors: Tensor) -> list[dict[str, float]]:
        return classes_of_vectors(vectors, self.model.output, self.model.labels, self.folder)


def classes_of_vectors(
    vectors: Tensor, output: ClassHead, labels: Sequence[str], folder: Path | str
) -> list[dict[str, float]]:
    """Return the probabilities of classes of vectors. output: function that makes logits. folder: for messages."""
    logits = in_rows(output, vectors, cost=vectors.size(-1) * len(labels))
    return classes_of(finite(logits, folder), labels)


@torch.inference_mode()
def image_answers(
    images: Tensor | np.ndarray, model: ImageModel, answers_of: Callable[[Tensor], list[ImageAnswer]]
) -> list[ImageAnswer]:
    """Return an answer to each image, as if it was alone.

    answers_of: function that makes the answers of the vectors of some images. Errors are as for `classify`.
    """
    weight = next(model.parameters())
    pixels = checked(images, model.n_channels).to(weight)
    is_finite = pixels.isfinite().flatten(1).all(dim=1)
    if not is_finite.all():
        raise UserError(f"images[{int(is_finite.int().argmin())}]: expected finite numbers; check their conversion")
    n_rows, width = model.least_rows(*pixels.shape[2:])

    def answers(members: Sequence[int]) -> list[ImageAnswer]:
        cost = cost_of_attention(n_rows, width)
        return answers_of(in_rows(model.pooled, pixels[[*members]], n_rows, cost))

    numbers = range(len(pixels))
    batches = (numbers[i : i + BATCH_IMAGES] for i in numbers[::BATCH_IMAGES])
    with faster_products(weight.device):
        return [answer for _, of_batch in in_batches(answers, batches) for answer in of_batch]


def checked(images: Tensor | np.ndarray, n_channels: int) -> Tensor:
    """Return images as a tensor. Raises UserError for another shape or type."""
    if not isinstance(images, Tensor | np.ndarray):
        raise UserError(f"images: expected an array or a tensor, not a {type(images).__name__}; convert them")
    pixels = torch.as_tensor(images)
    if pixels.dim() != 4 or pixels.size(1) != n_channels or not pixels.is_floating_point():
        expected = f"expected floating-point numbers of the shape (images, {n_channels}, height, width)"
        raise UserError(f"images: {expected}, not {pixels.dtype} of {(*pixels.shape,)}; convert them")
    return pixels
