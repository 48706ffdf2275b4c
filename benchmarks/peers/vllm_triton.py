"""vLLM's attention in Triton over pages in bf16, by the files of vLLM's sources: the rest of vLLM need not be there.

`unified_attention` serves keys and values of any head dim, and `decode_attention_fwd` latents, each as vLLM 0.33.0's backends call it:
in 16 segments where sequences times KV heads are 128 at most, and in a split for each 512 tokens.
"""

import logging
import sys
from collections.abc import Callable
from enum import IntEnum
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import Tensor

OPS = "vllm.v1.attention.ops"
SEGMENTS = 16
"""`NUM_PAR_SOFTMAX_SEGMENTS` of vLLM's triton_attn.py."""
_MOST_SEGMENTED = 128
"""`MIN_LAUNCH_GRID_SIZE_2D`, the same."""
_TOKENS_OF_SPLIT, _SPLITS_OF_SM = 512, 2
"""`_MIN_WORK_PER_SPLIT` and `_SPLIT_OCCUPANCY_MULTIPLIER` of triton_mla.py."""


class _Modes(IntEnum):
    """Of `KVQuantMode`, the members that the kernels' files name."""

    NONE = 0
    INT8_PER_TOKEN_HEAD = 2
    FP8_PER_TOKEN_HEAD = 3
    INT4_PER_TOKEN_HEAD = 4


def imported(folder: Path, *names: str) -> list[ModuleType]:
    """Modules of `vllm.v1.attention.ops`, below packages that stand for vLLM's own. Raises ImportError without Triton or a file."""
    import triton
    from triton import language

    for name in ("vllm", "vllm.v1", "vllm.v1.attention", OPS):
        package = ModuleType(name)
        package.__path__ = [str(folder.joinpath(*name.split(".")))]
        sys.modules.setdefault(name, package)
    platform = SimpleNamespace(
        is_rocm=lambda: False,
        is_cuda_alike=lambda: True,
        is_cuda=lambda: True,
        is_device_capability_family=lambda family: False,
        fp8_dtype=lambda: torch.float8_e4m3fn,
        get_device_capability=lambda device=0: torch.cuda.get_device_capability(device),
    )
    for name, held in {
        "vllm.envs": {"VLLM_BATCH_INVARIANT": False},
        "vllm.logger": {"init_logger": _logger},
        "vllm.platforms": {"current_platform": platform},
        "vllm.triton_utils": {"triton": triton, "tl": language},
        "vllm.v1.kv_cache_interface": {"KVQuantMode": _Modes},
    }.items():
        module = ModuleType(name)
        vars(module).update(held)
        sys.modules.setdefault(name, module)
    vars(sys.modules["vllm"]).setdefault("envs", sys.modules["vllm.envs"])
    return [import_module(f"{OPS}.{name}") for name in names]


def attention(
    folder: Path, q: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor, scale: float
) -> Callable[[], Tensor]:
    """A call that attends one row of each sequence over pages: out [sequences, heads, d].

    q is [sequences, heads, d], keys and values [pages, page, KV heads, d], the table and lengths int32.
    """
    (module,) = imported(folder, "triton_unified_attention")
    batch, heads, head_dim = q.shape
    padded = 1 << (head_dim - 1).bit_length()
    out = torch.empty_like(q)
    scratch = [q.new_empty(batch, heads, SEGMENTS, *last, dtype=torch.float32) for last in ((padded,), (), ())]
    call = partial(
        module.unified_attention,
        q=q,
        k=keys,
        v=values,
        out=out,
        cu_seqlens_q=torch.arange(batch + 1, dtype=torch.int32, device=q.device),
        max_seqlen_q=1,
        seqused_k=lengths,
        max_seqlen_k=table.shape[1] * keys.shape[1],
        softmax_scale=scale,
        causal=True,
        window_size=(-1, -1),
        block_table=table,
        softcap=0,
        q_descale=None,
        k_descale=None,
        v_descale=None,
        seq_threshold_3D=_MOST_SEGMENTED // keys.shape[2],
        num_par_softmax_segments=SEGMENTS,
        **dict(zip(("softmax_segm_output", "softmax_segm_max", "softmax_segm_expsum"), scratch, strict=True)),
    )
    return partial(_made, call, out)


def latent_attention(
    folder: Path, q: Tensor, cache: Tensor, table: Tensor, lengths: Tensor, scale: float
) -> Callable[[], Tensor]:
    """The same over latents of 512 elements and rotary parts behind them: q [sequences, heads, 576], cache [pages, page, 576]."""
    (module,) = imported(folder, "triton_decode_attention")
    batch, heads, _ = q.shape
    longest = table.shape[1] * cache.shape[1]
    sms = torch.cuda.get_device_properties(q.device).multi_processor_count if q.is_cuda else 132
    splits = min(1 << (max(1, longest // _TOKENS_OF_SPLIT) - 1).bit_length(), sms * _SPLITS_OF_SM)
    keys, out, lse = cache.unsqueeze(2), q.new_empty(batch, heads, 512), q.new_empty(batch, heads)
    logits = q.new_empty(batch, heads, splits, 513, dtype=torch.float32)
    where = table, lengths, logits, splits, scale, cache.shape[1]
    one = torch.ones((), device=q.device)
    call = partial(
        module.decode_attention_fwd, q, keys, keys[..., :512], out, lse, *where, k_scale=one, v_scale=one, is_mla=True
    )
    return partial(_made, call, out)


def _made(call: Callable[[], object], out: Tensor) -> Tensor:
    call()
    return out


def _logger(name: str) -> Any:
    """A logger with vLLM's `debug_once`."""
    logger = logging.getLogger(name)
    return SimpleNamespace(
        debug_once=logger.debug, warning=logger.warning, warning_once=logger.warning, info=logger.info
    )
