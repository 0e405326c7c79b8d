"""RWKV-4 (Peng et al. 2023, section 3): an average of the values so far, whose weights fade, instead of attention.

What changed since GPT-2: a key has its own weight, without a query, so the sums over all tokens so far are a state of
fixed size. No positions: old tokens fade, each channel at its own speed, and each part sees the input before. With x' =
mu * x + (1 - mu) * (x of the position before), and a mu for each use of it (eq. 11-13):

    r, k, v = W_r x', W_k x', W_v x'                 x: after a layer norm
    wkv = average of v with the weights
        e^(u + k) of this token                      eq. 16
        e^(k - n w) of the token n + 1 before it
    x = x + W_o (sigmoid(r) * wkv)                   eq. 17
    x = x + sigmoid(W_r x') * W_v relu(W_k x')^2     eq. 14, 15, 18; its own matrices and mu
    log p(next id) ~ W LN(x)

w > 0 and u are vectors of a layer: all but the matrices works by channels. Letters as in `model/transformer.py`.

The first values are as in the released code. Appendix E has other values of mu of r, and other matrices that are 0.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.family.configs import RWKVConfig
from transduce.family.row_states import NO_STATES, PartState, RowStates, with_state
from transduce.family.text_model import TextModel
from transduce.model.transformer import Residual

Sums = tuple[Tensor, Tensor, Tensor]  # each (N,D): s, z and m, for the sums e^m s of weighted values, e^m z of weights


def wkv(k: Tensor, v: Tensor, w: Tensor, u: Tensor, sums: Sums) -> tuple[Tensor, Sums]:
    """Return the averages (N,T,D) of eq. 16, and the sums after the last position (eq. 23-28).

    k, v (N,T,D); w > 0 and u (D); sums: before the first position. The largest exponent so far is taken out of them, so
    large keys do not overflow.
    """
    outputs = []
    for t in range(k.size(1)):
        values, weights, _ = _with(sums, 0.0, u + k[:, t], v[:, t])
        outputs.append(values / weights)
        sums = _with(sums, -w, k[:, t], v[:, t])
    return torch.stack(outputs, dim=1), sums


def _with(sums: Sums, fading: Tensor | float, exponent: Tensor, value: Tensor) -> Sums:
    """Return the sums times e^fading, with one more value of weight e^exponent."""
    values, weights, largest = sums
    old = largest + fading
    new = torch.maximum(old, exponent).detach()  # it cancels in the average, so it needs no gradient
    past, now = (old - new).exp(), (exponent - new).exp()
    return past * values + now * value, past * weights + now, new


def mixed(x: Tensor, before: Tensor, mu: Tensor) -> Tensor:
    """Return mu * x + (1 - mu) * before (eq. 11-13, the token shift). x, before (N,T,D); mu (1,1,D)."""
    return mu * x + (1 - mu) * before


def inputs_before(x: Tensor, past: PartState | None) -> Tensor:
    """Return the input before each of x (N,T,D). The first of a state is the last input (N,D); zeros without one."""
    last = past[0] if past else torch.zeros_like(x[:, 0])
    return torch.cat([last[:, None], x[:, :-1]], dim=1)


def mu_of(d_model: int, power: float, shift: float = 0.0) -> nn.Parameter:
    """Return a mu (1,1,D), which starts at (channel / D)^power + shift."""
    return nn.Parameter((torch.arange(d_model) / d_model).pow(power)[None, None] + shift)


class TimeMix(nn.Module):
    """The part of a layer that mixes positions. layer: its number from 0, on which the first values depend."""

    def __init__(self, d_model: int, layer: int, n_layers: int) -> None:
        super().__init__()
        self.w_r, self.w_k, self.w_v, self.w_o = (nn.Linear(d_model, d_model, bias=False) for _ in range(4))
        self.log_w, self.u = (nn.Parameter(torch.zeros(d_model)) for _ in range(2))
        rest, depth = 1 - layer / n_layers, layer / max(n_layers - 1, 1)
        self.mu_r = mu_of(d_model, 0.5 * rest)
        self.mu_k = mu_of(d_model, rest)
        self.mu_v = mu_of(d_model, rest, 0.3 * depth)
        self.initialise(depth)

    @torch.no_grad()
    def initialise(self, depth: float) -> None:
        """Give the channels their speeds, slow ones first, and no output. depth: 0 to 1."""
        channels = torch.arange(len(self.u))
        self.log_w.copy_(8 * (channels / max(len(channels) - 1, 1)).pow(0.7 + 1.3 * depth) - 5)
        self.u.copy_(math.log(0.3) + 0.5 * ((channels + 1) % 3 - 1))
        nn.init.orthogonal_(self.w_v.weight)
        for matrix in self.w_r, self.w_k, self.w_o:
            nn.init.zeros_(matrix.weight)

    def forward(self, x: Tensor, past: PartState | None) -> tuple[Tensor, PartState]:
        """Return the output (N,T,D) for new positions x (N,T,D), and the state after them: the last x, and sums."""
        before = inputs_before(x, past)
        r, k, v = (
            w(mixed(x, before, mu)) for w, mu in ((self.w_r, self.mu_r), (self.w_k, self.mu_k), (self.w_v, self.mu_v))
        )
        nothing = torch.zeros_like(x[:, 0])
        _, *sums = past or (nothing, nothing, nothing, nothing - torch.inf)
        average, sums = wkv(k, v, self.log_w.exp(), self.u, (sums[0], sums[1], sums[2]))
        return self.w_o(r.sigmoid() * average), (x[:, -1], *sums)


class ChannelMix(nn.Module):
    """The feed-forward part of a layer. layer: its number from 0, on which the first values depend."""

    def __init__(self, d_model: int, d_ff: int, layer: int, n_layers: int) -> None:
        super().__init__()
        self.w_r = nn.Linear(d_model, d_model, bias=False)
        self.w_k, self.w_v = nn.Linear(d_model, d_ff, bias=False), nn.Linear(d_ff, d_model, bias=False)
        self.mu_r, self.mu_k = (mu_of(d_model, 1 - layer / n_layers) for _ in range(2))
        nn.init.orthogonal_(self.w_k.weight, math.sqrt(max(1, d_ff / d_model)))
        for matrix in self.w_r, self.w_v:
            nn.init.zeros_(matrix.weight)

    def forward(self, x: Tensor, past: PartState | None) -> tuple[Tensor, PartState]:
        """Return the output (N,T,D) for new positions x (N,T,D), and the state after them: the last x."""
        before = inputs_before(x, past)
        r, k = self.w_r(mixed(x, before, self.mu_r)), self.w_k(mixed(x, before, self.mu_k))
        return r.sigmoid() * self.w_v(F.relu(k).square()), (x[:, -1],)


class RWKV(TextModel):
    """The language model of RWKV-4.

    The recurrence has no limit; max_positions limits a search.
    """

    no_past = NO_STATES

    def __init__(self, config: RWKVConfig) -> None:
        assert config.vocab_size is not None
        super().__init__()
        d_model = config.d_model
        n_layers = config.n_layers
        self.config = config
        self.n_positions = config.max_positions
        self.d_ff = config.d_ff or 4 * d_model
        self.embedding, self.embedding_norm = nn.Embedding(config.vocab_size, d_model), nn.LayerNorm(d_model)
        self.mixers = nn.ModuleList()
        for i in range(n_layers):
            self.mixers += [TimeMix(d_model, i, n_layers), ChannelMix(d_model, self.d_ff, i, n_layers)]
        self.residuals = nn.ModuleList(
            Residual(nn.LayerNorm(d_model), dropout=0.0, post=False) for _ in range(2 * n_layers)
        )
        self.norm = nn.LayerNorm(d_model)
        self.output = nn.Linear(d_model, config.vocab_size, bias=False)
        nn.init.uniform_(self.embedding.weight, -1e-4, 1e-4)  # small, before a norm (3.4)
        nn.init.orthogonal_(self.output.weight, 0.5 * math.sqrt(max(1, config.vocab_size / d_model)))

    def states(self, ids: Tensor, past: RowStates = NO_STATES) -> tuple[Tensor, RowStates]:
        """Return what `output` makes logits of, (N,T,D), for new ids (N,T), and the states after them."""
        x, so_far = self.embedding_norm(self.embedding(ids)), list[PartState]()
        for i, (mixer, residual) in enumerate(zip(self.mixers, self.residuals, strict=True)):
            x = residual(x, with_state(mixer, past.of_part(i), so_far))
        return self.norm(x), RowStates(so_far)
