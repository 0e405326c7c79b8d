"""ViT as a user has it: images in, classes out."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from transduce.decoding.batched_search import in_batches
from transduce.errors import UserError
from transduce.family.hugging_face.folder import Member
from transduce.family.inference.application import Application
from transduce.family.inference.text_encoder import classes_of, cost_of_attention, finite, in_rows
from transduce.family.vit import ViT
from transduce.model.cpu_backend import faster_products

BATCH_IMAGES = 32


class ImageClassifier(Application):
    """A ViT. Raises UserError for another member."""

    def __init__(self, member: Member, folder: Path | str = "the folder") -> None:
        super().__init__(member, folder)
        if not isinstance(member.model, ViT):
            raise self.another("a model of images, ViT")
        self.model = member.model

    @torch.inference_mode()
    def classify(self, images: Tensor | np.ndarray) -> list[dict[str, float]]:
        """Return the probability of each class for each image, by its label, the most likely first.

        images: (B,C,height,width), numbers as the model was trained on: often 2 x - 1 for values x from 0 to 1.
        On a CPU, an answer does not depend on the other images. Raises UserError for another shape or type, or numbers
        that are not finite in fp32, and NotFiniteError if an output of the model is not finite.
        """
        if not isinstance(images, Tensor | np.ndarray):
            raise UserError(f"images: expected an array or a tensor, not a {type(images).__name__}; convert them")
        pixels, n_channels = torch.as_tensor(images), self.model.config.n_channels
        if pixels.dim() != 4 or pixels.size(1) != n_channels or not pixels.is_floating_point():
            expected = f"expected floating-point numbers of the shape (images, {n_channels}, height, width)"
            raise UserError(f"images: {expected}, not {pixels.dtype} of {(*pixels.shape,)}; convert them")
        weight = self.model.output.weight
        pixels = pixels.to(weight)
        is_finite = pixels.isfinite().flatten(1).all(dim=1)
        if not is_finite.all():
            raise UserError(f"images[{int(is_finite.int().argmin())}]: expected finite numbers; check their conversion")
        n_patches = max(pixels.size(2) * pixels.size(3) // self.model.config.patch_size**2, 1)
        output = self.model.output

        def classes(members: Sequence[int]) -> list[dict[str, float]]:
            cost = cost_of_attention(n_patches, output.in_features)
            states = in_rows(self.model.states, pixels[[*members]], n_patches, cost)
            logits = in_rows(output, states[:, 0], cost=output.in_features * output.out_features)
            return classes_of(finite(logits, self.folder), self.model.labels)

        numbers = range(len(pixels))
        batches = (numbers[i : i + BATCH_IMAGES] for i in numbers[::BATCH_IMAGES])
        with faster_products(weight.device):
            return [answer for _, answers in in_batches(classes, batches) for answer in answers]
