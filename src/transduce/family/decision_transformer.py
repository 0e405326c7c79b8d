"""Decision Transformer (Chen et al. 2021, section 3): acting as the continuation of a sequence, by the layers of GPT-2.

An episode is a text of three tokens for each time step t: the return to go R_t, which is the sum of the rewards from t
on, the state s_t and the action a_t. Each is a linear map of numbers, plus a learned row for its time step:

    h = LN(R_1, s_1, a_1, R_2, s_2, a_2, ...)     after the sums; then GPT-2's layers, with ReLU
    a_t = tanh(W h(s_t) + b)                      from R_1, s_1, a_1, ..., R_t, s_t

A model that has learned which actions follow which returns acts well when it is asked for a high return. In shape
comments T counts time steps; the other letters are as in `model/transformer.py`.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from transduce.family.attention_wrappers import causal
from transduce.family.configs import DecisionTransformerConfig
from transduce.family.gpt2 import gpt2_layer
from transduce.family.initialisation import initialise
from transduce.model.dropout import Dropout


class Predictions(NamedTuple):
    """What follows at each time step: the action after the state, and state and return to go after the action."""

    actions: Tensor  # (B,T,n_actions)
    states: Tensor  # (B,T,n_states), of the next time step
    returns: Tensor  # (B,T,1), of the next time step


class DecisionTransformer(nn.Module):
    """A model of episodes. Its actions are numbers, or with `is_discrete` scores of the actions to choose from."""

    def __init__(self, config: DecisionTransformerConfig) -> None:
        super().__init__()
        d_model = config.d_model
        self.config = config
        self.steps = nn.Embedding(config.max_steps, d_model)
        self.from_return = nn.Linear(1, d_model)
        self.from_state = nn.Linear(config.n_states, d_model)
        self.from_action = nn.Linear(config.n_actions, d_model)
        self.input_norm = nn.LayerNorm(d_model)
        self.dropout = Dropout(config.dropout)
        self.layers = nn.ModuleList(gpt2_layer(config.gpt2, F.relu) for _ in range(config.n_layers))
        self.norm = nn.LayerNorm(d_model)
        self.to_state = nn.Linear(d_model, config.n_states)
        self.to_action = nn.Linear(d_model, config.n_actions)
        self.to_return = nn.Linear(d_model, 1)
        initialise(self.named_parameters(), n_residuals=2 * config.n_layers)

    def forward(
        self, returns: Tensor, states: Tensor, actions: Tensor, steps: Tensor, is_real: Tensor | None = None
    ) -> Predictions:
        """Return the predictions for returns to go (B,T,1), states (B,T,n_states) and actions (B,T,n_actions).

        steps: numbers of the time steps, (B,T). is_real: (B,T), False at padding; None: all are real. An action
        depends on no later token, so the action of a step to predict may have any value.
        """
        inputs = self.from_return(returns), self.from_state(states), self.from_action(actions)
        tokens = torch.stack(inputs, dim=2) + self.steps(steps)[:, :, None]  # (B,T,3,D)
        x = self.dropout(self.input_norm(tokens.flatten(1, 2)))
        mask = causal(x.size(1), x.size(1), x.device)
        if is_real is not None:
            mask = mask & is_real.repeat_interleave(3, dim=1)[:, None, None]
        for layer in self.layers:
            x = layer(x, mask)
        _, of_state, of_action = self.norm(x).unflatten(1, (-1, 3)).unbind(2)
        chosen = self.to_action(of_state)
        chosen = chosen if self.config.is_discrete else chosen.tanh()
        return Predictions(chosen, self.to_state(of_action), self.to_return(of_action))
