"""FlashAttention 3 in vLLM's build, by its library, and torch's own attention and matrix product."""

from argparse import ArgumentParser, Namespace
from functools import partial

import torch

from gemmill.tuner.protocol import first_line
from harness.contenders import Contender, FieldError
from harness.kv_cache_contenders import KvCachePeer, flash_attention_3, matrix_product, torch_attention

OPS = ("decode", "attend", "prefill")


def add_options(parser: ArgumentParser) -> None:
    """Where its library is."""
    parser.add_argument("--fa3-so", metavar="PATH", help="vLLM's _vllm_fa3_C.abi3.so")


def contenders(family: str, options: Namespace, notes: list[str]) -> list[Contender]:
    """For attention over pages. Raises FieldError."""
    if family != "kv_cache":
        return []
    found: list[Contender] = [
        KvCachePeer(name="torch_mm", op="hadamard", bind=matrix_product),
        *(KvCachePeer(name="torch_sdpa", op=op, bind=torch_attention) for op in OPS),
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
            found += [KvCachePeer(name=name, op=op, bind=partial(flash_attention_3, dtype)) for op in OPS]
    return found
