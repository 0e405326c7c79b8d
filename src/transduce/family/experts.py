"""Mixture of experts, in place of the feed-forward network: a router sends each token to few of N networks.

    y = sum_i g_i(x) E_i(x)               only over the experts with a gate g_i above 0

| router      | gates                                                        | paper                            |
|-------------|--------------------------------------------------------------|----------------------------------|
| `NoisyTopK` | softmax over the k highest of x W_g + noise                  | Shazeer et al. 2017, eq. 3 to 5  |
| `Switch`    | p = softmax(x W_g), p_i of the best one; limited capacity    | Fedus et al. 2021, 2.1 and 2.2   |
| `TopK`      | softmax over the k highest of x W_g                          | Jiang et al. 2024 (Mixtral), 2.1 |

A router without a loss for the balance would send all tokens to the experts that are best at first. So this loss is
added to the loss of the task: `balance_loss` for the last two, `importance_loss` and `load_loss` for the first.
`router_loss` has their factors.

    model = DecoderOnly(DecoderConfig(vocab_size=4_000, d_model=128, n_layers=4, n_heads=4, n_experts=8))
    loss = cross_entropy + router_loss(routings(model))
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from transduce.family.gpt2 import gelu
from transduce.model.dropout import own_generator
from transduce.model.transformer import FeedForward


@dataclass(frozen=True)
class Routing:
    """The experts of n tokens.

    gates: (n,N), 0 for the experts that a token does not go to. choices: (n,N), True for the experts that the router
    chose, also where their capacity is used up. probabilities: (n,N), softmax over all experts. load: (N,), in
    `NoisyTopK` an estimate of the tokens of each expert that has a gradient.
    """

    gates: Tensor
    choices: Tensor
    probabilities: Tensor
    load: Tensor | None = None

    @property
    def shares(self) -> Tensor:
        """The share of the tokens that go to each expert, (N,). Their sum is k."""
        return (self.gates > 0).float().mean(dim=0)


# ---- routers -----------------------------------------------------------------------------------------------------


class TopK(nn.Module):
    """The k experts with the highest scores. The gates equal a softmax over all experts, renormalised."""

    def __init__(self, d_model: int, n_experts: int, k: int = 2) -> None:
        super().__init__()
        self.w_g = nn.Linear(d_model, n_experts, bias=False)
        self.k = k

    def forward(self, x: Tensor) -> Routing:
        """Return the routing of tokens (n,D)."""
        scores = self.w_g(x)
        choices = _highest(scores, self.k)
        return Routing(_softmax_over(choices, scores), choices, scores.softmax(dim=-1))


class NoisyTopK(TopK):
    """The k experts with the highest scores, with noise of a learned size in training."""

    def __init__(self, d_model: int, n_experts: int, k: int = 4) -> None:
        super().__init__(d_model, n_experts, k)
        self.w_noise = nn.Linear(d_model, n_experts, bias=False)
        nn.init.zeros_(self.w_g.weight)  # the load is equal at first (appendix A)
        nn.init.zeros_(self.w_noise.weight)

    def forward(self, x: Tensor) -> Routing:
        """Return the routing of tokens (n,D)."""
        clean, size = self.w_g(x), F.softplus(self.w_noise(x))
        noisy = clean + _noise_like(clean) * size if self.training else clean
        choices = _highest(noisy, self.k)
        gates = _softmax_over(choices, noisy)
        return Routing(gates, choices, clean.softmax(dim=-1), self.chances(clean, noisy, size).sum(dim=0))

    def chances(self, clean: Tensor, noisy: Tensor, size: Tensor) -> Tensor:
        """Return the probability (n,N) that an expert is chosen if only its own noise were drawn again (eq. 8, 9)."""
        if self.k == clean.size(1):
            return torch.ones_like(clean)
        best = noisy.topk(self.k + 1, dim=-1).values
        # The k-th highest score of the other experts: for a chosen expert that is the next one after the k highest.
        threshold = torch.where(_highest(noisy, self.k), best[:, -1:], best[:, -2:-1])
        return torch.special.ndtr((clean - threshold) / size)


def _noise_like(scores: Tensor) -> Tensor:
    """Return normal noise. Threads with halves of a batch draw it from their own generators, as dropout."""
    return torch.randn(scores.shape, dtype=scores.dtype, device=scores.device, generator=own_generator())


class Switch(nn.Module):
    """Only the best expert, times its probability.

    capacity_factor: an expert takes at most this many times n / N tokens of a training batch, the first ones. The
    others get nothing and pass by the residual. Outside of training no token is left out, so that its output does not
    depend on others.
    """

    k = 1

    def __init__(self, d_model: int, n_experts: int, capacity_factor: float = 1.25) -> None:
        super().__init__()
        self.w_g = nn.Linear(d_model, n_experts, bias=False)
        self.capacity_factor = capacity_factor

    def forward(self, x: Tensor) -> Routing:
        """Return the routing of tokens (n,D)."""
        probabilities = self.w_g(x).softmax(dim=-1)
        choices = served = _highest(probabilities, 1)
        if self.training:
            capacity = math.ceil(self.capacity_factor * len(x) / probabilities.size(1))
            served = choices & (choices.cumsum(dim=0) <= capacity)
        return Routing(probabilities * served, choices, probabilities)


def _highest(scores: Tensor, k: int) -> Tensor:
    """Return True for the k highest scores of each row, (n,N)."""
    return torch.zeros_like(scores, dtype=torch.bool).scatter(1, scores.topk(k, dim=-1).indices, value=True)


def _softmax_over(choices: Tensor, scores: Tensor) -> Tensor:
    return scores.masked_fill(~choices, -math.inf).softmax(dim=-1)


# ---- experts -----------------------------------------------------------------------------------------------------


PARTS = 4  # the fullest blocks that an expert with its share of the tokens has


class Experts(nn.Module):
    """The experts of a layer, with their router. routing: the routing of the last call, for the losses."""

    def __init__(self, router: TopK | Switch, networks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.router = router
        self.networks = nn.ModuleList(networks)
        self.routing: Routing | None = None

    def forward(self, x: Tensor) -> Tensor:
        """(B,T,D) -> (B,T,D)."""
        tokens = x.flatten(0, -2)
        self.routing = routing = self.router(tokens)
        mix = self._mix if x.device.type == "cpu" else self._mix_in_blocks
        return mix(tokens, routing.gates).view_as(x)

    def _mix(self, tokens: Tensor, gates: Tensor) -> Tensor:
        """Return the sum of the experts of each token, (n,D). Each expert computes only its own tokens."""
        counts = (gates != 0).sum(dim=0).tolist()
        chosen = torch.nonzero_static(gates.T, size=sum(counts))[:, 1].split(counts)
        output = torch.zeros_like(tokens)
        for i, (network, members) in enumerate(zip(self.networks, chosen, strict=True)):
            part = gates[members, i, None] * network(tokens[members])  # without tokens: its gradient is 0
            output = output.index_add(0, members, part.to(output.dtype))
        return output

    def _mix_in_blocks(self, tokens: Tensor, gates: Tensor) -> Tensor:
        """Return the same as `_mix`. The host does not wait for a GPU to count the tokens of each expert.

        The tokens of an expert fill blocks of one size. For N experts there are (PARTS + 1) N blocks, always enough.
        Row n of the inputs is padding, for the rest of the blocks.
        """
        n, n_experts = gates.shape
        size = math.ceil(n * self.router.k / (PARTS * n_experts))
        rows, expert = _blocks(gates.T != 0, size)
        weights = [dict(network.named_parameters()) for network in self.networks]
        stacks = {name: torch.stack([of[name] for of in weights])[expert] for name in weights[0]}
        inputs = F.pad(tokens, (0, 0, 0, 1))[rows].unflatten(0, (-1, size))
        outputs = torch.vmap(partial(functional_call, self.networks[0]))(stacks, inputs)
        factors = F.pad(gates, (0, 0, 0, 1))[rows, expert.repeat_interleave(size), None]
        parts = (factors * outputs.flatten(0, 1)).to(tokens.dtype)
        return F.pad(torch.zeros_like(tokens), (0, 0, 0, 1)).index_add(0, rows, parts)[:n]


def _blocks(is_chosen: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the token in each row of all blocks, n for padding, and the expert of each block.

    is_chosen: True where an expert gets a token, (N,n). size: rows of a block.
    """
    n_experts, n = is_chosen.shape
    n_blocks = (PARTS + 1) * n_experts
    of_expert = (is_chosen.sum(dim=1) + size - 1) // size  # blocks of each expert, (N,)
    ends = of_expert.cumsum(dim=0)
    places = (ends - of_expert)[:, None] * size + is_chosen.cumsum(dim=1) - 1
    places = places.where(is_chosen, n_blocks * size)  # (N,n); the last place is for pairs that are not chosen
    tokens = torch.arange(n, device=is_chosen.device).expand_as(places)
    rows = tokens.new_full((n_blocks * size + 1,), n).scatter(0, places.flatten(), tokens.flatten())[:-1]
    blocks = torch.arange(n_blocks, device=is_chosen.device)
    return rows, torch.searchsorted(ends, blocks, right=True).clamp(max=n_experts - 1)


def experts(router: TopK | Switch, d_ff: int) -> Experts:
    """Return a network of width d_ff, as in GPT-2, for each expert of the router."""
    n_experts, d_model = router.w_g.weight.shape
    return Experts(router, (FeedForward(d_model, d_ff, gelu) for _ in range(n_experts)))


def routings(model: nn.Module) -> list[Routing]:
    """Return the routing of the last call of each layer."""
    return [part.routing for part in model.modules() if isinstance(part, Experts) and part.routing is not None]


def forget_routings(model: nn.Module) -> None:
    """Free what the routing of the last call keeps in memory: all values of the layers before, for the gradient."""
    for part in model.modules():
        if isinstance(part, Experts):
            part.routing = None


# ---- losses ------------------------------------------------------------------------------------------------------


def router_loss(routings: Iterable[Routing]) -> Tensor:
    """Return the loss for the balance, the sum over all layers, which is added to the mean loss of a token.

    Its factor comes from the paper of the router: 0.01 for `Switch` (Fedus et al. 2021, 2.2), also for `TopK`, and 0.1
    for `NoisyTopK` (Shazeer et al. 2017, appendix C).
    """
    losses = [
        0.01 * balance_loss(layer) if layer.load is None else 0.1 * (importance_loss(layer) + load_loss(layer))
        for layer in routings
    ]
    return torch.stack(losses).sum()


def balance_loss(routing: Routing) -> Tensor:
    """Return N sum_i f_i P_i over the tokens of a layer: k if they are even, at most N (Fedus et al. 2021, eq. 4).

    f: share of the tokens that each expert is chosen for, without a gradient. P: mean probability of each expert.
    """
    shares, probabilities = routing.choices.float().mean(dim=0), routing.probabilities.mean(dim=0)
    return len(shares) * (shares * probabilities).sum()


def importance_loss(routing: Routing) -> Tensor:
    """Return CV(sum of the gates of each expert)^2 of a layer (Shazeer et al. 2017, eq. 6 and 7)."""
    return squared_variation(routing.gates.sum(dim=0))


def load_loss(routing: Routing) -> Tensor:
    """Return CV(load of each expert)^2 of a layer (eq. 10 and 11). `NoisyTopK` computes the load."""
    assert routing.load is not None
    return squared_variation(routing.load)


def squared_variation(values: Tensor) -> Tensor:
    """Return the squared coefficient of variation: variance over squared mean."""
    return values.var(correction=0) / values.mean() ** 2
