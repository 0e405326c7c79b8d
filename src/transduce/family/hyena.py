"""Hyena (Poli et al. 2023, section 3): products and convolutions as long as the text, instead of attention.

Attention compares each pair of tokens. Here a token reaches the later ones by filters h, which are functions of the
distance only, and products decide what passes. With N(x) the layer norm, and all by channels but W:

    v, x_1, ... x_n = conv_3(W_in N(x))          n + 1 projections, each with its last 3 inputs (algorithm 1)
    z = v;  z = x_i * (h_i conv z)               for i = 1 ... n, the order (eq. 4)
    x = x + W_out z
    h_i(t) = window(t) FFN(encoding(t))          eq. 7: a network makes the values of a filter (algorithm 2)

Convolutions are products of Fourier transforms: n log n operations for n tokens. The number of parameters does not
depend on the length of a filter. The feed-forward part of a layer is the same as in GPT-2.

Letters as in `model/transformer.py`; S counts the positions so far, of which the last T are new.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.family.configs import HyenaConfig
from transduce.family.gpt2 import gelu
from transduce.family.initialisation import initialise
from transduce.family.row_states import NO_STATES, PartState, RowStates, with_state
from transduce.family.text_model import TextModel
from transduce.model.devices import in_float64
from transduce.model.dropout import Dropout
from transduce.model.transformer import FeedForward, Residual


def long_convolution(z: Tensor, h: Tensor, n_new: int) -> Tensor:
    """Return y (N,D,T) with y_t = sum of h_(t-s) z_s over s = 0 ... t, for the last T = `n_new` of S positions.

    z (N,D,S); h (D,S): the values of the filter at the distances from 0. Without zeros behind both, the transform would
    wrap around, and the beginning would see the end.
    """
    n = z.size(-1)
    if n_new == 1:
        return (z * h.flip(-1)).sum(-1, keepdim=True)
    spectrum = torch.fft.rfft(z, 2 * n) * torch.fft.rfft(h, 2 * n)
    return torch.fft.irfft(spectrum, 2 * n)[..., n - n_new : n]


class Filters(nn.Module):
    """The filters of a layer: a network from the encoding of a distance to their values there, times a window.

    n_positions: longest distance plus one. It is the unit of distances, so a trained model keeps it. n_filters: number
    of filters of each of the d_model channels. width: inner width of the network. bands: number of sines, and of
    cosines, of the encoding. frequency: initial frequency of the network's sines.
    """

    def __init__(
        self, n_filters: int, d_model: int, n_positions: int, width: int, bands: int, frequency: float
    ) -> None:
        super().__init__()
        self.n_filters = n_filters
        self.n_positions = n_positions
        self.bands = bands
        self.w_1 = nn.Linear(1 + 2 * bands, width)
        self.w_2 = nn.Linear(width, width)
        self.w_3 = nn.Linear(width, width)
        self.w_4 = nn.Linear(width, n_filters * d_model, bias=False)
        self.frequency = nn.Parameter(torch.full((width,), frequency))
        self.at_zero = nn.Parameter(torch.randn(n_filters, d_model))  # added at distance 0, as in the released code

    def encoding(self, n: int) -> Tensor:
        """Return the distance in units of the longest one, and its sines and cosines: (n, 1 + 2 bands)."""
        device = in_float64(self.frequency).device
        t, bands = (torch.arange(count, dtype=torch.double, device=device) for count in (n, self.bands))
        angles = 2 * math.pi / self.n_positions * t[:, None] * bands
        return torch.cat([t[:, None] / max(self.n_positions - 1, 1), angles.cos(), angles.sin()], dim=1)

    def window(self, n: int) -> Tensor:
        """Return factors (D,n): e^(-a t) + 0.05, with an a for each channel.

        It falls to 1 % at 0.3 to 1.5 times the longest distance. What is added lets a filter reach further.
        """
        device, longest = in_float64(self.frequency).device, max(self.n_positions - 1, 1)
        rates = torch.linspace(1 / 1.5, 1 / 0.3, self.at_zero.size(1), dtype=torch.double, device=device)
        t = torch.arange(n, dtype=torch.double, device=device) / longest
        return torch.exp(math.log(0.01) * rates[:, None] * t) + 0.05

    def forward(self, n: int) -> Tensor:
        """Return the values (filters,D,n) at the distances from 0 to n - 1.

        In fp64: each sine enlarges rounding by the frequency, so in fp32 the values would depend on n.
        """
        y = self.encoding(n)
        for layer in self.w_1, self.w_2, self.w_3:
            y = F.linear(y, in_float64(layer.weight), in_float64(layer.bias))
            y = torch.sin(in_float64(self.frequency) * y)
        y = F.linear(y, in_float64(self.w_4.weight)).unflatten(1, (self.n_filters, -1))
        h = y.permute(1, 2, 0) * self.window(n)
        return torch.cat([h[..., :1] + in_float64(self.at_zero)[..., None], h[..., 1:]], dim=-1).to(self.frequency)


class Operator(nn.Module):
    """The part of a layer that mixes positions (definition 3.1). `Hyena` describes the arguments."""

    def __init__(self, d_model: int, order: int, n_positions: int, width: int, bands: int, frequency: float) -> None:
        super().__init__()
        self.order = order
        channels = (order + 1) * d_model
        self.w_in, self.w_out = nn.Linear(d_model, channels), nn.Linear(d_model, d_model)
        self.conv = nn.Conv1d(channels, channels, 3, groups=channels)
        self.filters = Filters(order, d_model, n_positions, width, bands, frequency)

    def forward(self, x: Tensor, past: PartState | None) -> tuple[Tensor, PartState]:
        """Return the output (N,T,D) for new positions x (N,T,D), and the state after them.

        The state has the last 2 inputs of the short convolution, and the inputs of each long one so far (N,order,D,S).
        """
        inputs = self.w_in(x).mT
        n_rows, n_new, d_model = x.shape
        before, history = past or (inputs.new_zeros(n_rows, len(self.conv.weight), 2), None)
        inputs = torch.cat([before, inputs], dim=2)
        h = self.filters(n_new + (0 if history is None else history.size(3)))
        z, *gates = self.conv(inputs).to(h.dtype).split(d_model, dim=1)
        so_far = []
        for i, gate in enumerate(gates):
            so_far.append(z if history is None else torch.cat([history[:, i], z], dim=2))
            z = gate * long_convolution(so_far[i], h[i], n_new)
        return self.w_out(z.mT), (inputs[:, :, n_new:], torch.stack(so_far, dim=1))


class Hyena(TextModel):
    """A language model with these operators, and GPT-2's feed-forward parts, norms and first values.

    width, bands, frequency: sizes of the networks that make filters, see `Filters`. A high frequency lets filters
    change fast (3.3), and needs a low learning rate: the released language models have 14.
    """

    no_past = NO_STATES

    def __init__(self, config: HyenaConfig, *, width: int = 64, bands: int = 16, frequency: float = 1.0) -> None:
        assert config.vocab_size is not None
        super().__init__()
        d_model = config.d_model
        n_layers = config.n_layers
        d_ff = config.d_ff or 4 * d_model
        self.n_positions = config.max_positions
        self.embedding, self.dropout = nn.Embedding(config.vocab_size, d_model), Dropout(config.dropout)
        sizes = d_model, config.order, config.max_positions, width, bands, frequency
        self.operators = nn.ModuleList(Operator(*sizes) for _ in range(n_layers))
        self.feed_forwards = nn.ModuleList(FeedForward(d_model, d_ff, gelu) for _ in range(n_layers))
        self.residuals = nn.ModuleList(
            Residual(nn.LayerNorm(d_model), config.dropout, post=False) for _ in range(2 * n_layers)
        )
        self.norm = nn.LayerNorm(d_model)
        self.output = nn.Linear(d_model, config.vocab_size, bias=False)
        self.output.weight = self.embedding.weight
        # Short convolutions and filters keep the values of torch.
        drawn = [(name, p) for name, p in self.named_parameters() if ".conv." not in name and ".filters." not in name]
        initialise(drawn, n_residuals=2 * n_layers)

    def states(self, ids: Tensor, past: RowStates = NO_STATES) -> tuple[Tensor, RowStates]:
        """Return what `output` makes logits of, (N,T,D), for new ids (N,T), and the states after them."""
        x, so_far = self.dropout(self.embedding(ids)), list[PartState]()
        for i, (operator, feed_forward) in enumerate(zip(self.operators, self.feed_forwards, strict=True)):
            x = self.residuals[2 * i](x, with_state(operator, past.of_part(i), so_far))
            x = self.residuals[2 * i + 1](x, feed_forward)
        return self.norm(x), RowStates(so_far)
