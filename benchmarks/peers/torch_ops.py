"""What torch itself offers."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from gemmill.tune.operands import Operands
from gemmill.tune.peers import torch_peers
from harness.contenders import Contender, LocalContender, of_peer


def add_options(parser: ArgumentParser) -> None:
    """None: torch is there."""


def contenders(family: str, options: Namespace, notes: list[str]) -> list[Contender]:
    """Its scaled GEMMs; it quantises nothing."""
    return [*scaled_mm()] if family == "scaled_mm" else []


def scaled_mm() -> list[LocalContender]:
    """Its GEMMs, scaled and plain."""
    binds = {"torch row-wise": _bind_row_wise, "torch tensor-wise": _bind_tensor_wise, "torch mm": _bind_mm}
    return [replace(of_peer(peer), bind=binds.get(peer.name)) for peer in torch_peers()]


def _bind_row_wise(x: Operands) -> Callable[[], object]:
    scales = (x.a_scales, x.b_scales)
    return partial(torch._scaled_mm, x.a, x.weights[0], *scales, out_dtype=x.out.dtype, use_fast_accum=True)


def _bind_tensor_wise(x: Operands) -> Callable[[], object]:
    scales = (x.a_scale, x.b_scale)
    return partial(torch._scaled_mm, x.a, x.weights[0], *scales, out_dtype=x.out.dtype, use_fast_accum=True)


def _bind_mm(x: Operands) -> Callable[[], object]:
    return partial(torch.mm, x.a, x.weights[0], out=x.out)
