"""CLIP as a user has it: images and texts as vectors, and classes that are only named (Radford et al. 2021, 3.1)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from transduce.decoding.segmentation import check_lines
from transduce.errors import UserError
from transduce.family.hugging_face.folder import Member
from transduce.family.images.clip import Clip
from transduce.family.inference.application import Application
from transduce.family.inference.image_classifier import classes_of_vectors, image_answers
from transduce.family.inference.text_encoder import cost_of_attention, finite, in_rows
from transduce.model.cpu_backend import faster_products


class ZeroShotClassifier(Application):
    """A CLIP. Raises UserError for another member."""

    def __init__(self, member: Member, folder: Path | str = "the folder") -> None:
        super().__init__(member, folder)
        self.model = self.model_of(Clip, "a model of images and texts, CLIP")

    def classify(
        self, images: Tensor | np.ndarray, labels: Sequence[str], template: str = "a photo of a {}."
    ) -> list[dict[str, float]]:
        """Return the probability of each label for each image, the most likely first.

        labels: names of the classes, two or more. template: caption in which a label stands for {}.
        Images and errors are as for `ImageClassifier.classify`.
        """
        check_lines(labels=labels)
        if len({*labels}) < max(len(labels), 2):
            raise UserError(f"labels={list(labels)!r}: expected two or more, all different; change them")
        if "{}" not in template:
            raise UserError(f"template={template!r}: expected {{}}, where a label stands; add it")
        texts = self.embed_texts([template.replace("{}", label) for label in labels]).to(self._weight)

        def classes(vectors: Tensor) -> list[dict[str, float]]:
            return classes_of_vectors(vectors, lambda rows: self.model.logits(rows, texts), labels, self.folder)

        return image_answers(images, self.model.images, classes)

    def embed(self, images: Tensor | np.ndarray) -> Tensor:
        """Return a vector of length 1 for each image, (B,E). Images and errors are as for `classify`."""
        vectors = image_answers(images, self.model.images, lambda x: [*finite(x, self.folder).cpu()])
        return torch.stack(vectors) if vectors else torch.empty(0, self.model.config.d_joint)

    @torch.inference_mode()
    def embed_texts(self, texts: Sequence[str]) -> Tensor:
        """Return a vector of length 1 for each text, (B,E). Raises UserError for a text that is too long."""
        check_lines(texts=texts)
        longest, width = self.model.config.max_positions, self.model.config.d_model
        vectors = [torch.empty(0, self.model.config.d_joint)]
        for text, encoding in zip(texts, self._encode_texts(texts), strict=True):
            ids = encoding.ids
            if len(ids) > longest or self.model.texts.end not in ids:
                expected = f"expected 1 to {longest} tokens, the end included"
                raise UserError(f"texts: {text[:40]!r}: {expected}, not {len(ids)}; shorten the text")
            rows = torch.tensor([ids], device=self._weight.device)
            with faster_products(self._weight.device):
                vector = in_rows(self.model.texts.pooled, rows, len(ids), cost_of_attention(len(ids), width))
            vectors.append(finite(vector, self.folder).cpu())
        return torch.cat(vectors)

    @property
    def _weight(self) -> Tensor:
        return self.model.log_scale
