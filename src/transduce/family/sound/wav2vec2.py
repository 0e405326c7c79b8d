"""wav2vec 2.0 (Baevski et al. 2020, section 2) with a layer for CTC, which makes text of sound.

What changed since 2017: the tokens are pieces of a sound, 20 ms each, and there is no decoder. Convolutions make them
of the samples, and another convolution adds what positions added. With LN for layer norm:

    z = gelu(Norm(Conv(...(samples))))      seven convolutions; a frame for every 320 samples
    h = W LN(z) + b
    h = LN(h + gelu(P(h)))                  P: a wide convolution, which tells a frame where its neighbours are
    h = LN(h + Attention(h)), LN(h + W_2 gelu(W_1 h))      the layers of 2017
    log p(token or blank) ~ h W^T + b       for each frame; `family/sound/ctc.py` makes text of it

With `norm="pre"`, as in the later large models, the norm comes before each part, and each convolution has one.

Letters in shape comments are as in `model/transformer.py`, where S counts samples, T frames, and C channels.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.family.initialisation import initialise
from transduce.family.layers import layer_around
from transduce.family.sound.configs import Wav2Vec2Config
from transduce.family.sound.convolutions import FrameNorm, PositionalConvolution
from transduce.model.attention import Attention, fast_attention
from transduce.model.dropout import Dropout
from transduce.model.transformer import EncoderLayer, FeedForward


class Wav2Vec2(nn.Module):
    """The encoder, and the layer `output`, which gives each frame logits of the tokens and of the blank, id 0."""

    def __init__(self, config: Wav2Vec2Config) -> None:
        assert config.vocab_size is not None
        super().__init__()
        d_model, eps = config.d_model, config.norm_eps
        post = config.norm == "post"

        def layer() -> EncoderLayer:
            network = FeedForward(d_model, config.d_ff or 4 * d_model, F.gelu)
            return layer_around(network, d_model, config.n_heads, dropout=config.dropout, norm_eps=eps, post=post)

        n_channels = config.n_channels
        sizes = zip((1, *[n_channels] * len(config.kernels)), config.kernels, config.strides, strict=False)
        convolutions = [nn.Conv1d(c, n_channels, k, s, bias=not post) for c, k, s in sizes]
        self.convolutions = nn.ModuleList(convolutions)
        n_norms = 1 if post else len(config.kernels)
        # Post-norm: only the first convolution has a norm, of each channel over all frames, padding included.
        norms = [nn.GroupNorm(n_channels, n_channels) if post else FrameNorm(n_channels) for _ in range(n_norms)]
        self.norms = nn.ModuleList(norms)
        self.feature_norm, self.projection = nn.LayerNorm(n_channels, eps), nn.Linear(n_channels, d_model)
        self.positions = PositionalConvolution(d_model, config.position_width, config.position_groups)
        self.norm, self.dropout = nn.LayerNorm(d_model, eps), Dropout(config.dropout)
        self.layers = nn.ModuleList(layer() for _ in range(config.n_layers))
        self.output = nn.Linear(d_model, config.vocab_size)
        self.config = config
        for convolution in convolutions:
            nn.init.kaiming_normal_(convolution.weight)
        initialise(self.named_parameters())

    def n_frames(self, n_samples: Tensor) -> Tensor:
        """Return the number of frames of sounds of `n_samples` samples each, of the same shape."""
        for kernel, stride in zip(self.config.kernels, self.config.strides, strict=True):
            n_samples = (n_samples - kernel) // stride + 1
        return n_samples

    def features(self, samples: Tensor) -> Tensor:
        """Return the outputs (B,T,C) of the convolutions of `samples` (B,S)."""
        x = samples[:, None]
        for i, convolution in enumerate(self.convolutions):
            x = convolution(x)
            x = F.gelu(self.norms[i](x) if i < len(self.norms) else x)
        return x.mT

    def states(self, samples: Tensor, mask: Tensor, attention: Attention = fast_attention) -> Tensor:
        """Return the states (B,T,D) of `samples` (B,S), of which those where `mask` (B,S) is False are padding."""
        x = self.dropout(self.projection(self.feature_norm(self.features(samples))))
        is_real = torch.arange(x.size(1), device=x.device) < self.n_frames(mask.sum(1))[:, None]
        x = x.masked_fill(~is_real[..., None], 0.0)
        post = self.config.norm == "post"
        x = x + self.positions(x)
        x = self.dropout(self.norm(x) if post else x)
        for layer in self.layers:
            x = layer(x, is_real[:, None, None, :], attention)
        return x if post else self.norm(x)

    def forward(self, samples: Tensor, mask: Tensor) -> Tensor:
        """Return the logits (B,T,V) of `samples` (B,S), 16,000 a second, with mask (B,S)."""
        return self.output(self.dropout(self.states(samples, mask)))


def normalised(samples: Tensor, mask: Tensor) -> Tensor:
    """Return sounds (B,S) with mean 0 and variance 1 where `mask` (B,S) is True, and 0 elsewhere (section 2)."""
    n = mask.sum(1, keepdim=True)
    centred = (samples - (samples * mask).sum(1, keepdim=True) / n) * mask
    return centred / ((centred**2).sum(1, keepdim=True) / n + 1e-7).sqrt()
