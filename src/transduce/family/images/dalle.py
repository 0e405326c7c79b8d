"""DALL-E (Ramesh et al. 2021, section 2): one decoder over the tokens of a caption and the codes of its image.

First, a discrete autoencoder learns codes: convolutions make logits of K codes for each piece of an image, and others
make pixels of codes. To learn through a choice, the choice is softened, at a temperature that falls (section 2.1):

    loss = mean of (pixels - decode(softmax((logits + Gumbel noise) / temperature)))^2 + beta KL(codes | uniform)

Second, a GPT-2 learns captions and codes as one text, row by row, and continues a caption with an image (section 2.2):

    loss = 1/8 mean CE of the caption + 7/8 mean CE of the codes

Not as in the paper: pieces of 2 x 2 pixels instead of 8 x 8, squares instead of its loss of pixels, each position sees
all before it, and captions have one length.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.family.configs import GPT2Config
from transduce.family.gpt2 import GPT2
from transduce.family.images.configs import DallEConfig

OF_TEXT = 1 / 8  # weight of the captions in the loss


class DiscreteAutoencoder(nn.Module):
    """Images (B,C,2R,2R) to codes (B,RR), and back."""

    def __init__(self, config: DallEConfig) -> None:
        super().__init__()
        n = config.n_channels
        d = config.d_pixels
        side = config.side
        middle = nn.ReLU(), nn.Conv2d(d, d, 3, padding=1), nn.ReLU()
        self.encoder = nn.Sequential(nn.Conv2d(n, d, 4, 2, 1), *middle, nn.Conv2d(d, config.n_codes, 1))
        middle = nn.ReLU(), nn.Conv2d(d, d, 3, padding=1), nn.ReLU()
        self.decoder = nn.Sequential(nn.Conv2d(config.n_codes, d, 1), *middle, nn.ConvTranspose2d(d, n, 4, 2, 1))
        self.shape = config.n_codes, side, side

    def codes(self, images: Tensor) -> Tensor:
        """Return the most likely codes (B,RR), row by row."""
        return self.encoder(images).argmax(dim=1).flatten(1)

    def decode(self, codes: Tensor) -> Tensor:
        """Return the images of codes (B,RR)."""
        return self.decoder(F.one_hot(codes, self.shape[0]).float().mT.unflatten(2, self.shape[1:]))

    def loss(self, images: Tensor, temperature: float, beta: float = 1e-3) -> Tensor:
        """Return the loss of section 2.1. beta: weight of the divergence from codes that are equally likely."""
        logits = self.encoder(images)
        pixels = self.decoder(F.gumbel_softmax(logits, temperature, dim=1))
        log_p = logits.log_softmax(dim=1)
        divergence = (log_p.exp() * (log_p + math.log(self.shape[0]))).sum(dim=1).mean()
        return F.mse_loss(pixels, images) + beta * divergence


class DallE(nn.Module):
    """The decoder of captions and codes. A caption begins with an id that no other place has."""

    def __init__(self, config: DallEConfig) -> None:
        super().__init__()
        sizes = GPT2Config(
            vocab_size=config.n_text_ids + config.n_codes,
            d_model=config.d_model,
            n_layers=config.n_layers,
            n_heads=config.n_heads,
            max_positions=config.n_text + config.side**2 - 1,
            dropout=config.dropout,
        )
        self.decoder = GPT2(sizes)
        self.config = config

    def loss(self, texts: Tensor, codes: Tensor) -> Tensor:
        """Return the loss of captions (B,T), the start first, and of the codes (B,RR) of their images."""
        n_text, n_ids = texts.size(1), self.config.n_text_ids
        logits = self.decoder(torch.cat([texts, codes[:, :-1] + n_ids], dim=1)).mT
        of_text = F.cross_entropy(logits[:, :n_ids, : n_text - 1], texts[:, 1:])
        of_codes = F.cross_entropy(logits[:, n_ids:, n_text - 1 :], codes)
        return OF_TEXT * of_text + (1 - OF_TEXT) * of_codes

    @torch.no_grad()
    def draw(self, texts: Tensor, temperature: float = 1.0) -> Tensor:
        """Return random codes (B,RR) that continue captions (B,T), the start first. It has no dropout, in any mode."""
        is_training = self.training
        self.eval()
        ids = texts
        past = self.decoder.no_past
        drawn = list[Tensor]()
        for _ in range(self.config.side**2):
            states, past = self.decoder.states(ids, past)
            logits = self.decoder.output(states[:, -1])[:, self.config.n_text_ids :]
            drawn.append(torch.multinomial((logits / temperature).softmax(dim=-1), 1))
            ids = drawn[-1] + self.config.n_text_ids
        self.train(is_training)
        return torch.cat(drawn, dim=1)
