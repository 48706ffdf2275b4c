"""Quantise a block of a diffusion transformer and compare its output with bf16.

    python examples/diffusion_block.py
    python examples/diffusion_block.py --hidden 5120 --heads 40 --tokens 32760 --weights channel int8    # Wan's size, on a GPU

The same call takes any model of torch modules, as the transformer of a diffusers pipeline: `quantize_module(pipe.transformer, "channel")`.
"""

import argparse
import time

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from gemmill.nn import quantize_module


class Block(nn.Module):
    """Attention over tokens, attention to a text and a feed-forward layer, each modulated by the time step."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(hidden, elementwise_affine=False) for _ in range(3))
        self.modulation = nn.Linear(hidden, 6 * hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.text_q, self.text_kv, self.text_out = (nn.Linear(hidden, n * hidden) for n in (1, 2, 1))
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Attention of [tokens, hidden]."""
        q, k, v = (x.unflatten(1, (self.heads, -1)).transpose(0, 1)[None] for x in (q, k, v))
        return scaled_dot_product_attention(q, k, v)[0].transpose(0, 1).flatten(1)

    def forward(self, x: torch.Tensor, text: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        """x [tokens, hidden], text [words, hidden], step [1, hidden]."""
        shift, scale, gate, shift_up, scale_up, gate_up = self.modulation(step).chunk(6, dim=-1)
        x = x + gate * self.out(self.attend(*self.qkv(self.norms[0](x) * (1 + scale) + shift).chunk(3, dim=-1)))
        x = x + self.text_out(self.attend(self.text_q(self.norms[1](x)), *self.text_kv(text).chunk(2, dim=-1)))
        hidden = nn.functional.gelu(self.up(self.norms[2](x) * (1 + scale_up) + shift_up), approximate="tanh")
        return x + gate_up * self.down(hidden)


def seconds(block: Block, *inputs: torch.Tensor) -> float:
    """Of one call, the best of three."""
    times = []
    for _ in range(3):
        started = time.perf_counter()
        block(*inputs)
        if inputs[0].is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return min(times)


@torch.no_grad()
def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Returns each kind of weights' error: the norm of the difference over the norm of the output in bf16."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--weights", nargs="+", default=["channel", "int8", "nvfp4", "mxfp8"])
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    torch.manual_seed(0)
    made = {"device": device, "dtype": torch.bfloat16}
    inputs = [torch.randn(rows, options.hidden, **made) for rows in (options.tokens, 32, 1)]
    block = Block(options.hidden, options.heads).to(**made)
    state, expected = block.state_dict(), block(*inputs).float()
    print(f"bf16 on {device}: {1e3 * seconds(block, *inputs):.2f} ms")
    errors = {}
    for weights in options.weights:
        quantised = Block(options.hidden, options.heads).to(**made)
        quantised.load_state_dict(state)
        quantize_module(quantised, weights)
        found = quantised(*inputs).float()
        errors[weights] = float((found - expected).norm() / expected.norm())
        print(f"{weights}: error {errors[weights]:.4f}, {1e3 * seconds(quantised, *inputs):.2f} ms")
    return errors


if __name__ == "__main__":
    main()
