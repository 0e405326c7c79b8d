"""The length from which PyTorch's fused attention is faster than the plain one. It decides `LONG` of the model.

    python benchmarks/attention.py [--threads 2]

Forward and backward with a padding mask, 4,096 tokens a batch, 8 heads of 64. The two sides take turns. The figures are
medians of 7.
"""

import argparse
import statistics
import time

import torch

from transduce.model.attention import Attention, reference_attention


def fused(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, dropout: float) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)


def seconds(attention: Attention, length: int, dtype: torch.dtype) -> float:
    q, k, v = (torch.randn(4_096 // length, 8, length, 64, dtype=dtype, requires_grad=True) for _ in range(3))
    mask = torch.rand(4_096 // length, 1, 1, length) < 0.9
    started_at = time.perf_counter()
    attention(q, k, v, mask, 0.0).sum().backward()
    return time.perf_counter() - started_at


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    torch.set_num_threads(parser.parse_args().threads)
    print("| keys | fp32 plain ms | fp32 fused ms | bf16 plain ms | bf16 fused ms |\n|---|---|---|---|---|")
    for length in (16, 32, 64, 128, 192, 256, 512, 1_024):
        cells = []
        for dtype in (torch.float32, torch.bfloat16):
            times: dict[Attention, list[float]] = {reference_attention: [], fused: []}
            for _ in range(9):
                for attention, values in times.items():
                    values.append(seconds(attention, length, dtype))
            cells += [f"{1e3 * statistics.median(values[2:]):.1f}" for values in times.values()]
        print(f"| {length} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
