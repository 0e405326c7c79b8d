"""A tiny LLaDA with random weights."""

import torch

from transduce.family.configs import LladaConfig
from transduce.family.llada import Llada


def small_llada(vocab_size: int = 20, n_lengths: int = 9) -> Llada:
    torch.manual_seed(1)
    sizes = {"d_model": 16, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "d_ff": 24}
    model = Llada(LladaConfig(vocab_size=vocab_size, max_positions=32, tied=False, **sizes), n_lengths=n_lengths).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model
