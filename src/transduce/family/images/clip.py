"""CLIP (Radford et al. 2021, section 2.3 and figure 3): a ViT and a small GPT-2 whose vectors meet.

What changed since ViT: an image has no class. Of B images and their B captions, the model learns which belong together.
Each tower ends in a linear map W to a common width and a division by the length; t is learned, and starts as 1 / 0.07:

    i = W_i LN(z_class) / |...|,   c = W_c LN(h_end) / |...|       h_end: state of the last token of the caption
    logits = t i c^T                                               (B,B); the diagonal belongs together
    loss = 1/2 CE(rows, diagonal) + 1/2 CE(columns, diagonal)      figure 3

`clip_towers.py` has the towers. Captions of classes, such as "a photo of a dog", make a classifier without training:
zero-shot (section 3.1).
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.family.images.clip_towers import ImageTower, TextTower
from transduce.family.images.configs import ClipConfig


class Clip(nn.Module):
    """Both towers. end: id of the last token of each text; None: the last of the vocabulary."""

    def __init__(self, config: ClipConfig, *, end: int | None = None) -> None:
        super().__init__()
        self.config = config
        self.images = ImageTower(config)
        self.texts = TextTower(config, config.vocab_size - 1 if end is None else end)
        self.log_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def logits(self, images: Tensor, texts: Tensor) -> Tensor:
        """Return t i c^T, (B,V), of vectors of images (B,E) and of texts (V,E)."""
        return self.log_scale.exp() * images @ texts.T

    def forward(self, images: Tensor, ids: Tensor) -> Tensor:
        """Return the logits (B,V) of V texts (V,T) for `images` (B,C,height,width)."""
        return self.logits(self.images.pooled(images), self.texts.pooled(ids))

    def loss(self, images: Tensor, ids: Tensor) -> Tensor:
        """Return the loss of figure 3 for images (B,C,height,width) and their captions (B,T).

        In training it first clips t to 100 (section 2.5), in place: clipped in the product, a larger t would have no
        gradient.
        """
        if self.training:
            self.log_scale.data.clamp_(max=math.log(100))
        logits, pairs = self(images, ids), torch.arange(len(ids), device=ids.device)
        return (F.cross_entropy(logits, pairs) + F.cross_entropy(logits.T, pairs)) / 2
