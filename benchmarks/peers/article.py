"""The article's method for 2:4 sparse FP4 experts, rebuilt: article.cu, which this machine's nvcc compiles when it is asked for.

Its weights are those of the layer that gemmill is timed on, in the article's layout.
"""

import ctypes
import os
import shutil
import subprocess
import tempfile
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gemmill.formats.sparse_blocks import SparseFp4Blocks
from gemmill.formats.sparse_fp4 import SparseFp4
from harness.contenders import Contender, FieldError
from timed.fused_experts.calls import ExpertsOperands
from timed.fused_experts.contenders import ExpertsPeer

NAME = "article"
KINDS = ("nvfp4_2to4", "nvfp4_2to4_8")
TILE_K, MOST_PAIRS = 64, 65535


def add_options(parser: ArgumentParser) -> None:
    """Whether it is wanted."""
    parser.add_argument(
        "--article", action="store_true", help="sparse experts: the article's method, compiled by this machine's nvcc"
    )


def contenders(family: str, options: Namespace, notes: list[str]) -> list[Contender]:
    """It, where sparse experts are timed and it is asked for. Raises FieldError."""
    if family != "fused_experts" or not options.article:
        return []
    notes.append("the article's method is article.cu, with weights in the article's layout: eight launches")
    return [article_layer(compiled())]


def compiled() -> ctypes.CDLL:
    """The library of article.cu. Raises FieldError."""
    home = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "bin/nvcc"
    nvcc = shutil.which("nvcc") or (str(home) if home.is_file() else None)
    if nvcc is None:
        raise FieldError("the article's method wants nvcc, which is not on PATH: leave --article out")
    source, folder = Path(__file__).with_suffix(".cu"), Path(tempfile.mkdtemp(prefix="article-"))
    library = folder / "article.so"
    flags = ["-O3", "-std=c++17", "-gencode=arch=compute_90,code=sm_90", "-shared", "-Xcompiler=-fPIC"]
    try:
        subprocess.run([nvcc, *flags, source, "-o", library], check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        raise FieldError(f"nvcc does not compile {source.name}: {error.stderr.splitlines()[0]}") from None
    return ctypes.CDLL(str(library))


def article_layer(library: ctypes.CDLL) -> ExpertsPeer:
    """The layer as the article computes it."""
    made: list[tuple[Tensor, Any]] = []

    def packed(x: ExpertsOperands) -> Any:
        """Both weights, made once of each layer's."""
        if not made or made[0][0] is not x.w13:
            made[:] = [(x.w13, (_weights(x, x.w13, x.w13_scales, True), _weights(x, x.w2, x.w2_scales, False)))]
        return made[0][1]

    def bind(x: ExpertsOperands, i: int) -> Callable[[], object]:
        p = x.workload
        if (pairs := p.tokens * p.top) > MOST_PAIRS:
            raise RuntimeError(f"{pairs} pairs: its grid has at most {MOST_PAIRS}")
        return partial(_layer, library, x, x.ids[i], _rooms(x), *packed(x))

    return ExpertsPeer(name=NAME, bind=bind, kinds=KINDS)


def _weights(x: ExpertsOperands, blocks: Tensor, bases: Tensor, gated: bool) -> dict[str, Tensor]:
    """All experts' in the article's layout, gates before ups. Bases are one power of two, the factor of all."""
    p, n = x.workload, bases.shape[1]
    k = p.hidden if gated else p.inner
    rows = torch.arange(n, device=blocks.device)
    order = torch.cat((rows[0::2], rows[1::2])) if gated else rows
    each = []
    for own, base in zip(blocks, bases, strict=True):
        sparse = SparseFp4Blocks(n=n, k=k, group=p.of.packing.sparse_group, blocks=own, base=base).weights()[0]
        parts = {name: getattr(sparse, name)[:, order] for name in ("codes", "patterns", "scales")}
        factors = base[:1].expand(1, 2 if gated else 1).contiguous()
        each.append(SparseFp4(**parts, weight_scale_2=factors).transposed_2to4())
    return {name: torch.cat([one[name] for one in each]) for name in each[0]}


def _rooms(x: ExpertsOperands) -> tuple[Tensor, ...]:
    """Experts of pairs, rows of x, partial sums, gates and ups, results, products."""
    p, pairs = x.workload, x.workload.tokens * x.workload.top
    partial_sums = max(-(-p.hidden // TILE_K) * 2 * p.inner, -(-p.inner // TILE_K) * p.hidden)
    half = partial(torch.empty, dtype=torch.float16, device=x.x.device)
    ids = torch.empty(pairs, dtype=torch.int32, device=x.x.device)
    return (
        ids,
        half(pairs, p.hidden),
        half(pairs, partial_sums),
        half(pairs, 2 * p.inner),
        half(pairs, p.inner),
        half(pairs, p.hidden),
    )


def _layer(
    library: ctypes.CDLL,
    x: ExpertsOperands,
    ids: Tensor,
    rooms: tuple[Tensor, ...],
    first: dict[str, Tensor],
    second: dict[str, Tensor],
) -> None:
    p = x.workload
    tensors = (x.x, ids, x.weights, x.out, *rooms, *first.values(), *second.values())
    pointers = (ctypes.c_void_p * len(tensors))(*(tensor.data_ptr() for tensor in tensors))
    sizes = (ctypes.c_int * 6)(p.tokens, p.top, p.experts, p.hidden, p.inner, p.of.packing.sparse_group)
    error = library.article_layer(pointers, sizes, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
    if error:
        raise RuntimeError(f"the article's method failed with CUDA error {error}")
