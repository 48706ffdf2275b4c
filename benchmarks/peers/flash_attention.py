"""FlashAttention 3 in vLLM's build, by its library, and torch's own attention and matrix product."""

from argparse import ArgumentParser, Namespace
from functools import partial

import torch

from gemmill.nn.cache_prefill import Attention, attend_by_torch
from gemmill.tuner.protocol import first_line
from harness.contenders import Contender, FieldError
from timed.kv_cache.contenders import (
    KvCachePeer,
    PrefillPeer,
    flash_attention_3,
    matrix_product,
    plain_flash_attention_3,
    prefill_of_class,
    restore_then_attend,
    torch_attention,
)

OPS = ("decode", "attend", "prefill")
CHUNK = "chunk"
"""Rows that are not as many as keys: torch's attention would let them see the first keys, not the last."""


def add_options(parser: ArgumentParser) -> None:
    """Where its library is."""
    parser.add_argument("--fa3-so", metavar="PATH", help="vLLM's _vllm_fa3_C.abi3.so")


def contenders(family: str, options: Namespace, notes: list[str]) -> list[Contender]:
    """For attention over pages. Raises FieldError."""
    if family != "kv_cache":
        return []
    found: list[Contender] = [
        KvCachePeer(name="torch_mm", op="hadamard", bind=matrix_product),
        *(KvCachePeer(name="torch_sdpa", op=op, bind=torch_attention, reads_lengths=False) for op in OPS),
        *_restoring("sdpa", attend_by_torch),
    ]
    notes.append("peers read keys and values of their own, of the same sizes: their results are not checked")
    if options.fa3_so:
        try:
            torch.ops.load_library(options.fa3_so)
        except (OSError, RuntimeError) as error:
            raise FieldError(
                f"FlashAttention 3's library {options.fa3_so} cannot be used: {first_line(error)}"
            ) from None
        for name, dtype in (("fa3_bf16", torch.bfloat16), ("fa3_fp8", torch.float8_e4m3fn)):
            found += [KvCachePeer(name=name, op=op, bind=partial(flash_attention_3, dtype)) for op in (*OPS, CHUNK)]
        found += [peer for op in ("prefill", CHUNK) for peer in _restoring("fa3", plain_flash_attention_3, op)]
    return found


def _restoring(name: str, attention: Attention, op: str = "prefill") -> list[Contender]:
    """Keys and values restored by gemmill, then an attention: by hand, and by the cache's class."""
    ways = (("restored", restore_then_attend), ("class", prefill_of_class))
    return [PrefillPeer(name=f"{way}_{name}", op=op, bind=partial(bind, attention)) for way, bind in ways]
