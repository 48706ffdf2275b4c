"""vLLM's hadacore_transform, by gemmill's hadamard_transform where that takes the number of columns, else in float32 by
torch.

Name and schema are vLLM 0.33.0's. Its kernel rounds to 16 bits after every factor of 16, this one once, so results differ by roundings.
Where vLLM's library has the op, calls stay with it.
"""

import torch
from torch import Tensor

import gemmill
from gemmill.families.kv_cache.formats import HEAD_DIMS

HADACORE = "hadacore_transform"
SCHEMA = "(Tensor(a!) x, bool inplace) -> Tensor"
MOST_COLUMNS = 32768
_DTYPES = (torch.bfloat16, torch.float16)


def hadacore_transform(x: Tensor, inplace: bool) -> Tensor:
    """H x / sqrt(n) for each row of x [..., n], in x's dtype, H being Sylvester's matrix: x itself, overwritten, with `inplace`.

    x is bfloat16 or float16, and n a power of two up to 32768. Raises RuntimeError for another dtype or n.
    """
    n = x.shape[-1] if x.dim() else 0
    if x.dtype not in _DTYPES or n.bit_count() != 1 or n > MOST_COLUMNS:
        raise RuntimeError(
            f"{HADACORE}: x is {str(x.dtype).removeprefix('torch.')} {list(x.shape)}, expected bfloat16 or float16 "
            f"[..., a power of two up to {MOST_COLUMNS}]"
        )
    scale = n**-0.5
    out = gemmill.hadamard_transform(x, scale) if n in HEAD_DIMS else _in_float32(x, scale)
    return x.copy_(out) if inplace else out


def _in_float32(x: Tensor, scale: float) -> Tensor:
    y, step = x.float().reshape(-1, x.shape[-1]), 1
    while step < x.shape[-1]:
        first, second = y.view(len(y), -1, 2, step).unbind(2)
        y = torch.stack((first + second, first - second), 2).view(len(y), -1)
        step *= 2
    return (y * scale).to(x.dtype).view(x.shape)
