"""Mamba (Gu and Dao 2023, section 3): a state of fixed size, which each token reads and writes, instead of attention.

What changed since GPT-2: a layer has one part. A state h of E x S numbers is the memory of all tokens so far, so a step
costs the same after any number of them. What is kept depends on the token (section 3.2): dt, B and C are functions of
it. With N(x) the RMS norm of `llama.py`:

    u, z = W_in N(x)                             E = 2 d_model channels each
    u = silu(conv(u))                            of a channel's last 4 inputs
    dt, B, C = W_x u                             dt = softplus(W_dt dt + b): the length of a step, (E)
    h = exp(dt A) * h + dt * u B                 A = -exp(log_a) < 0: eq. 4 for A; Euler's rule for B
    y = h C + d * u                              B and C (S) are shared by the channels
    x = x + W_out (y * silu(z))
    log p(next id) ~ N(x) E^T

Letters as in `model/transformer.py`; E channels, S numbers in the state of each.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.family.configs import MambaConfig
from transduce.family.row_states import NO_STATES, PartState, RowStates, with_state
from transduce.family.text_model import TextModel
from transduce.model.transformer import Residual


def selective_scan(u: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return y (N,T,E) and the state (N,E,S) after the last position (Algorithm 2, without d * u).

    u, dt (N,T,E); a (E,S); b, c (N,T,S); state (N,E,S), before the first position.
    """
    outputs = []
    for t in range(u.size(1)):
        decay = (dt[:, t, :, None] * a).exp()
        state = decay * state + (dt[:, t] * u[:, t])[:, :, None] * b[:, t, None]
        outputs.append((state @ c[:, t, :, None])[:, :, 0])
    return torch.stack(outputs, dim=1), state


class SelectiveMixer(nn.Module):
    """The part of a layer that mixes positions. `Mamba` describes the arguments."""

    def __init__(self, d_model: int, d_inner: int, d_state: int, d_step: int, d_conv: int) -> None:
        super().__init__()
        self.d_step, self.d_state = d_step, d_state
        self.w_in = nn.Linear(d_model, 2 * d_inner, bias=False)
        self.conv = nn.Conv1d(d_inner, d_inner, d_conv, groups=d_inner)
        self.w_x = nn.Linear(d_inner, d_step + 2 * d_state, bias=False)
        self.w_dt = nn.Linear(d_step, d_inner)
        self.log_a = nn.Parameter(torch.arange(1.0, d_state + 1).log().repeat(d_inner, 1))
        self.d = nn.Parameter(torch.ones(d_inner))
        self.w_out = nn.Linear(d_inner, d_model, bias=False)
        self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """Set b so that the steps of the channels, softplus(b), are log-uniform from 0.001 to 0.1 (3.6)."""
        steps = torch.empty_like(self.w_dt.bias).uniform_(math.log(0.001), math.log(0.1)).exp()
        self.w_dt.bias.copy_(steps + torch.log(-torch.expm1(-steps)))  # the inverse of softplus

    def forward(self, x: Tensor, past: PartState | None) -> tuple[Tensor, PartState]:
        """Return the output (N,T,D) for new positions x (N,T,D), and the state after them.

        The state has the last inputs of the convolution (N,E,d_conv-1), and h (N,E,S).
        """
        u, z = self.w_in(x).chunk(2, dim=-1)
        inputs, state = past or self._start(u)
        inputs = torch.cat([inputs, u.mT], dim=2)
        u = F.silu(self.conv(inputs)).mT
        dt, b, c = self.w_x(u).split([self.d_step, self.d_state, self.d_state], dim=-1)
        y, state = selective_scan(u, F.softplus(self.w_dt(dt)), -self.log_a.exp(), b, c, state)
        return self.w_out((y + self.d * u) * F.silu(z)), (inputs[:, :, x.size(1) :], state)

    def _start(self, u: Tensor) -> PartState:
        """Return the state before the first position: zeros."""
        n_rows, _, d_inner = u.shape
        return u.new_zeros(n_rows, d_inner, self.conv.kernel_size[0] - 1), u.new_zeros(n_rows, d_inner, self.d_state)


class Mamba(TextModel):
    """The language model of Mamba.

    d_inner: E; None: 2 d_model. d_step: width before W_dt; None: d_model / 16, rounded up. d_conv: inputs of a
    convolution. norm_eps: added to the mean squares. The recurrence has no limit; max_positions limits a search.
    """

    no_past = NO_STATES

    def __init__(
        self,
        config: MambaConfig,
        *,
        d_inner: int | None = None,
        d_step: int | None = None,
        d_conv: int = 4,
        norm_eps: float = 1e-5,
    ) -> None:
        assert config.vocab_size is not None
        super().__init__()
        d_model = config.d_model
        self.config = config
        self.n_positions = config.max_positions
        self.d_inner = d_inner or 2 * d_model
        self.d_step = d_step or math.ceil(d_model / 16)
        self.d_conv = d_conv
        self.norm_eps = norm_eps

        sizes = d_model, self.d_inner, config.d_state, self.d_step, d_conv
        self.embedding = nn.Embedding(config.vocab_size, d_model)
        self.mixers = nn.ModuleList(SelectiveMixer(*sizes) for _ in range(config.n_layers))
        self.residuals = nn.ModuleList(
            Residual(nn.RMSNorm(d_model, norm_eps), dropout=0.0, post=False) for _ in range(config.n_layers)
        )
        self.norm = nn.RMSNorm(d_model, norm_eps)
        self.output = nn.Linear(d_model, config.vocab_size, bias=False)
        self.output.weight = self.embedding.weight
        self.initialise()

    @torch.no_grad()
    def initialise(self) -> None:
        """Draw the embedding from N(0, 0.02), and divide the matrices before a residual by sqrt(n_layers)."""
        nn.init.normal_(self.embedding.weight, std=0.02)
        for name, parameter in self.named_parameters():
            if name.endswith("w_out.weight"):
                parameter /= math.sqrt(len(self.mixers))

    def states(self, ids: Tensor, past: RowStates = NO_STATES) -> tuple[Tensor, RowStates]:
        """Return what `output` makes logits of, (N,T,D), for new ids (N,T), and the states after them."""
        x, so_far = self.embedding(ids), list[PartState]()
        for i, (mixer, residual) in enumerate(zip(self.mixers, self.residuals, strict=True)):
            x = residual(x, with_state(mixer, past.of_part(i), so_far))
        return self.norm(x), RowStates(so_far)
