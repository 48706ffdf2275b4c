"""Fuse element-by-element work of your own into a GEMM.

    python examples/own_epilogue.py                                            # the reference, on a CPU
    gemmill build --epilogue examples.own_epilogue:leaky                       # its kernels, then run this again on a GPU

One launch computes leaky(a_scale * b_scale * (a @ b) + bias), which is stored once.
"""

import torch

from gemmill.epilogue import Column, ColumnOut, Row, Scalar, Value, epilogue, fma, where


@epilogue
def leaky(acc: Value, a_scale: Row, b_scale: Column, bias: ColumnOut, slope: Scalar) -> Value:
    """Scales, a bias and a leaky ReLU. `acc` is an element's sum over K."""
    x = fma(a_scale, acc * b_scale, bias)
    return where(x > 0, x, slope * x)


def main() -> float:
    """Returns the largest difference from three torch ops, relative to the largest result."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    a = torch.randn(48, 256, device=device).to(torch.float8_e4m3fn)
    b = torch.randn(96, 256, device=device).to(torch.float8_e4m3fn).t()
    a_scale, b_scale = torch.rand(48, 1, device=device), torch.rand(1, 96, device=device)
    bias = torch.randn(96, device=device, dtype=torch.bfloat16)
    out = leaky(a, b, a_scale, b_scale, bias, 0.1)
    expected = torch.nn.functional.leaky_relu(a.float() @ b.float() * a_scale * b_scale + bias, 0.1)
    error = float((out.float() - expected).abs().max() / expected.abs().max())
    print(f"leaky on {device}: {tuple(out.shape)} of {out.dtype}, largest difference {error:.5f}")
    return error


if __name__ == "__main__":
    main()
