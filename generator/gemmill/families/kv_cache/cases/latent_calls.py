"""Calls of attention over a cache of latents by their sizes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gemmill.families.kv_cache.cases.made import POISON, SEED, MadeCall, normal, stored
from gemmill.families.kv_cache.config import KvCacheConfig
from gemmill.families.kv_cache.formats import PAGE_SIZES
from gemmill.families.kv_cache.latent import E4M3_TOKEN_BYTES, LATENT_DIM, ROTARY_DIM, TOKEN_BYTES, latent_spec
from gemmill.families.kv_cache.latent_ops import LATENT
from gemmill.families.kv_cache.reference.latent import parts_of
from gemmill.families.kv_cache.reference.vectors import compress, to_bytes
from gemmill.vocab import DType

SIZES: tuple[dict[str, Any], ...] = (
    {"lengths": (37,), "heads": 16},
    {"lengths": (130, 0, 1, 269), "heads": 8},
    {"lengths": (150, 2), "rows": 3, "heads": 16},
    {"lengths": (300,), "rows": 2, "heads": 40, "causal": False},
    {"lengths": (70, 500), "heads": 128, "is_rotated": True},
    {"lengths": (64, 3), "heads": 5, "stays_rotated": True},
    {"lengths": (2100,), "heads": 16},
    {"lengths": (), "heads": 16},
)

_SCALE = 0.37


@dataclass(frozen=True, kw_only=True)
class LatentCase(MadeCall):
    """A call whose queries attend over latents."""

    lengths: Sequence[int]
    """Tokens of each sequence."""
    rows: int = 1
    heads: int = 16
    page: int = 64
    dtype: DType = DType.BF16
    format: str = "eden4"
    causal: bool = True
    is_rotated: bool = False
    """Whether queries come rotated."""
    stays_rotated: bool = False
    """Whether the output stays rotated."""
    rotary: DType | None = None
    """Type of rotary parts; None: `dtype`."""
    has_scale: bool = False
    """Whether rotary parts in e4m3 have a scale other than one."""
    schema = LATENT

    def arguments(self, device: torch.device | str) -> list[Any]:
        """Arguments of normally distributed data, in pages of any order.

        Bytes without a token are NaN, and the table names no page beyond a sequence.
        """
        batch, widest = len(self.lengths), max([1, *(-(-length // self.page) for length in self.lengths)])
        shape = (batch, self.rows, self.heads + 1, LATENT_DIM + ROTARY_DIM)
        q = normal(shape, self.dtype, device)[:, :, : self.heads]
        out = torch.full((*q.shape[:3], LATENT_DIM), torch.nan, device=device, dtype=torch.float32).to(q.dtype)
        lse = torch.full((batch, self.heads, self.rows), torch.nan, device=device, dtype=torch.float32)
        token = TOKEN_BYTES if self.rotary is None else E4M3_TOKEN_BYTES
        cache = torch.full((batch * widest, self.page, token), POISON, dtype=torch.uint8, device=device)
        table = torch.empty((batch, widest), dtype=torch.int32, device=device)
        lengths = torch.empty(batch, dtype=torch.int32, device=device)
        if str(device) != "meta":
            lengths.copy_(torch.tensor(self.lengths, dtype=torch.int64, device="cpu"))
            table.copy_(self._fill(cache.fill_(0xFF), q.dtype, widest))
        seed, scales = (
            -1 if self.is_rotated else SEED,
            torch.full((1,), _SCALE, dtype=torch.float32, device=device) if self.has_scale else None,
        )
        plain = self.format, 192**-0.5, seed, self.causal, lse, self.stays_rotated, scales
        return [out, q, cache, table, lengths, *plain]

    def _fill(self, cache: Tensor, dtype: torch.dtype, widest: int) -> Tensor:
        """Store normally distributed latents and rotary parts. Return the page table."""
        random = torch.Generator().manual_seed(sum(self.lengths))
        order = torch.randperm(cache.shape[0], generator=random, dtype=torch.int64, device="cpu")
        table, spec = order.reshape(len(self.lengths), widest), latent_spec(self.format, SEED)
        latents, rotary = parts_of(cache, dtype)
        for slots, x in stored(self.lengths, table, self.page, (), (LATENT_DIM + ROTARY_DIM,), cache.device):
            where = (slots // self.page).to(cache.device), (slots % self.page).to(cache.device)
            latents[where] = to_bytes(compress(x[:, :LATENT_DIM], spec, torch.float32), spec)
            rotary[where] = (x[:, LATENT_DIM:] / (_SCALE if self.has_scale else 1.0)).to(rotary.dtype)
        for row, length in enumerate(self.lengths):
            table[row, -(-length // self.page) :] = 10**6
        return table


def of_latent_config(config: KvCacheConfig) -> Iterator[LatentCase]:
    """Calls of the op that a config serves: tiles of few and of many rows, pages of every size."""
    for i, sizes in enumerate(SIZES):
        format = ("eden4", "turboquant_mse4")[i % 2]
        x = config.operands
        common: dict[str, Any] = {"rotary": x.rotary, "has_scale": x.rotary is not None and i % 3 < 2}
        yield LatentCase(dtype=x.dtype, page=PAGE_SIZES[i % len(PAGE_SIZES)], format=format, **common, **sizes)
