"""Registers caches of compressed latents (MLA) with vLLM: values of `--kv-cache-dtype`, and the backend that serves them.

    vllm serve MODEL --attention-backend MLA_GEMMILL --kv-cache-dtype gemmill_eden4

Of a chunk's prefix vLLM gathers latents into a workspace of 16-bit elements; of these caches gemmill restores them there.
"""

from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

import gemmill
from gemmill.families.kv_cache.latent import E4M3_TOKEN_BYTES, LATENT_DIM, LATENT_FORMATS, ROTARY_DIM, TOKEN_BYTES

BACKEND = "MLA_GEMMILL"
_E4M3 = "_e4m3"
FORMATS = {f"gemmill_{name}{end}": name for end in ("", _E4M3) for name in LATENT_FORMATS}
"""The ops' formats by vLLM's name of the cache. Those that end in `_e4m3` have rotary parts in e4m3."""
GATHERS = "gather_and_maybe_dequant_cache"
SEED = 0
"""Of the rotation, for all layers."""
_DTYPES, _BACKENDS, _OPS = "vllm.config.cache", "vllm.v1.attention.backends.registry", "vllm._custom_ops"
_OWN = "gemmill.compat.vllm.latents.GemmillLatentBackend"


def token_bytes(name: str) -> int:
    """The bytes of a token in a cache of FORMATS."""
    return E4M3_TOKEN_BYTES if name.endswith(_E4M3) else TOKEN_BYTES


def restored(cache: Tensor, out: Tensor, slots: Tensor, format: str, scale: Tensor) -> None:
    """Restore slots, int64 [tokens], of a cache u8 [blocks, tokens, 400 or 336] to out [tokens, 576]: latents, then rotary parts.

    `scale` is vLLM's `k_scale`, f32 of one element, by which rotary parts in e4m3 were divided.
    """
    latents, rotary = gemmill.latent_cache(cache.view(torch.uint8), out.dtype)
    out[:, :LATENT_DIM] = gemmill.kv_decompress_keys(latents, LATENT_DIM, slots, format, seed=SEED, dtype=out.dtype)[
        :, 0
    ]
    if cache.shape[-1] == E4M3_TOKEN_BYTES:
        told = {"scales": scale.reshape(1), "dtype": out.dtype}
        out[:, LATENT_DIM:] = gemmill.kv_decompress_keys(rotary, ROTARY_DIM, slots, "e4m3", **told)[:, 0]
    else:
        out[:, LATENT_DIM:] = rotary[slots]


def _before(of_vllm: Callable[..., None]) -> Callable[..., None]:
    """vLLM's gathering of a prefix for prefill, of which gemmill takes caches in its formats."""

    @wraps(of_vllm)
    def gather(
        src_cache: Tensor,
        dst: Tensor,
        block_table: Tensor,
        cu_seq_lens: Tensor,
        token_to_seq: Tensor,
        num_tokens: int,
        kv_cache_dtype: str,
        scale: Tensor,
        seq_starts: Tensor | None = None,
    ) -> None:
        if kv_cache_dtype not in FORMATS:
            of_vllm(
                src_cache, dst, block_table, cu_seq_lens, token_to_seq, num_tokens, kv_cache_dtype, scale, seq_starts
            )
            return
        sequences, page = token_to_seq[:num_tokens].long(), src_cache.shape[1]
        places = torch.arange(num_tokens, dtype=torch.int64, device=dst.device) - cu_seq_lens[sequences]
        if seq_starts is not None:
            places = places + seq_starts[sequences]
        slots = block_table[sequences, places // page].long() * page + places % page
        restored(src_cache, dst[:num_tokens], slots, FORMATS[kv_cache_dtype], scale)

    return gather


class _Bytes:
    """vLLM's questions about a value of `--kv-cache-dtype`: the cache has bytes, which vLLM's own kernels do not read."""

    def torch_dtype(self) -> torch.dtype:
        """The dtype of the tensors that vLLM allocates."""
        return torch.uint8

    def quant_mode(self) -> Any:
        """No mode of vLLM's kernels: with one, vLLM would view the bytes as FP8."""
        return import_module("vllm.v1.kv_cache_interface").KVQuantMode.NONE


def put_before() -> None:
    """Register formats and backend, and wrap the function that gathers latents; a second call changes nothing."""
    config, backends, ops = (import_module(name) for name in (_DTYPES, _BACKENDS, _OPS))
    for name in FORMATS:
        if not config.is_known_kv_cache_dtype(name):
            config.register_kv_cache_dtype(name)(type("Bytes", (_Bytes,), {"name": name}))
    if BACKEND not in backends.AttentionBackendEnum.__members__:
        backends.register_backend(BACKEND, _OWN)
    if not hasattr(getattr(ops, GATHERS), "__wrapped__"):
        setattr(ops, GATHERS, _before(getattr(ops, GATHERS)))
