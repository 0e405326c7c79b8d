"""A tiny LLaDA with random weights."""

import torch

from transduce.family.llada import Llada
from transduce.family.llama import Llama


def small_llada(vocab_size: int = 20, longest: int | None = 9) -> Llada:
    torch.manual_seed(1)
    model = Llada(Llama(vocab_size, 16, 2, 4, d_ff=24, n_kv_heads=2, n_positions=32), longest).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model
