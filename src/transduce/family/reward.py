"""A reward model: GPT-2 with a scalar head (Ouyang et al. 2022, section 3.4), the judge of two texts.

    r(x) = w h_T                               h_T: the state of the last token, after the last norm

The output matrix of the language model is its embedding, so it has no weight of its own that would be left over.
"""

import torch
from torch import Tensor, nn

from transduce.family.configs import RewardConfig
from transduce.family.gpt2 import GPT2


class RewardModel(nn.Module):
    """The language model `base`, and `output`, which makes a number from a state. The first head is 0."""

    def __init__(self, config: RewardConfig) -> None:
        super().__init__()
        self.config = config
        self.base = GPT2(config.gpt2)
        self.output = nn.Linear(config.d_model, 1, bias=False)
        nn.init.zeros_(self.output.weight)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        """Return the rewards (N,) of texts: ids (N,T) with BOS, of which the first `lengths` (N,) are real."""
        states = self.base.states(ids)[0]
        return self.output(states[torch.arange(len(ids), device=ids.device), lengths - 1])[:, 0]
