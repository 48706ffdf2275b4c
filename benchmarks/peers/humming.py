"""Humming as a contender: 4-bit weights and FP8 in blocks of 32 x 32 by a folder of its package (humming-kernels).

It compiles a kernel for every shape and kind of rows with NVRTC at its first call, for which it wants CUDA's headers next to the
library: seconds each. Its layers are made of the same weights, and only its GEMM is timed.
"""

import importlib
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from math import frexp
from typing import Any

import torch

from gemmill.families.blockscaled.cases.measured import BlockScaledMaker, BlockScaledOperands
from gemmill.families.blockscaled.sweep import MeasuredOp
from gemmill.families.scaled_mm.sweep import MeasuredOp as GemmOp
from gemmill.formats.quantise import BlockScaled
from gemmill.numerics.measured import Operands
from gemmill.tuner.protocol import first_line
from gemmill.tuner.workloads import Workload
from harness.compile_ahead import compile_ahead
from harness.contenders import Contender, FieldError, LocalContender
from peers.humming_experts import Humming, HummingExperts
from peers.vllm import moe_library
from timed.blockscaled import BENCHMARK, workloads_of
from timed.fused_experts.calls import ExpertsMaker
from timed.fused_experts.calls import workloads_of as layers_of
from timed.workload import Workload as LayerWorkload

WEIGHTS = {
    "nvfp4": {"quant_method": "modelopt", "quant_algo": "nvfp4"},
    "mxfp4": {"quant_method": "mxfp4"},
}
FP8_TOKENS = {"dtype": "float8e4m3", "quant_mode": "dynamic_token"}
FINE_BLOCKS = {"quant_method": "fp8", "weight_block_size": [32, 32]}
FP8_GROUPS = {"dtype": "float8e4m3", "quant_mode": "dynamic_group", "group_size": 32}
OPS = (MeasuredOp.NVFP4_BF16, MeasuredOp.MXFP4_BF16, MeasuredOp.MXFP4_E4M3)
COMPILE_LIMIT_S = 60.0


def add_options(parser: ArgumentParser) -> None:
    """Where its package is."""
    parser.add_argument("--humming", metavar="FOLDER", help="the folder that has Humming's package")
    parser.add_argument("--humming-jobs", type=int, default=0, metavar="N", help="processes that compile it beforehand")


def contenders(family: str, options: Namespace, notes: list[str]) -> list[Contender]:
    """Its GEMM or its layers of experts, if a package was named. Raises FieldError."""
    if not options.humming or family not in ("blockscaled", "scaled_mm", "fused_experts"):
        return []
    try:
        if family == "fused_experts":
            library = _sorting_library(options)
            if options.vllm_moe_so:  # else vLLM's contenders have loaded it
                torch.ops.load_library(library)
            layer = experts_contender(options.humming)
            if options.humming_jobs:
                calls = options.drawn if "drawn" in options else layers_of(options)
                call = partial(_call_layer_once, options.humming, library)
                taken = [workload for workload in calls if layer.takes(workload)]
                notes.append(compile_ahead("Humming", call, taken, options.humming_jobs, COMPILE_LIMIT_S))
            return [layer]
        if family == "scaled_mm":
            return [groups_contender(options.humming)]
        found = humming_contender(options.humming)
        if options.humming_jobs:
            asked = options.drawn if "drawn" in options else workloads_of(options)
            workloads = [workload for workload in asked if workload.op in OPS]
            small = dict.fromkeys(BENCHMARK.host_workload(workload.op) for workload in workloads)
            call = partial(_call_once, options.humming)
            notes.append(compile_ahead("Humming", call, [*small, *workloads], options.humming_jobs, COMPILE_LIMIT_S))
        return [found]
    except (OSError, ImportError, RuntimeError, AttributeError) as error:
        raise FieldError(f"Humming in {options.humming} cannot be used: {first_line(error)}") from None


def humming_contender(folder: str) -> LocalContender:
    """Its dense GEMM. Raises OSError, ImportError or RuntimeError where it cannot be loaded."""
    layer_type = _layer_type(folder)
    layers: dict[int, tuple[BlockScaled, Any]] = {}
    kinds: list[tuple[str, int, int]] = []

    def layer_of(x: BlockScaledOperands, i: int) -> Any:
        """Made once of each copy of the weights; those of another class or shape go."""
        weights, kind = x.plain[i], (x.workload.op, x.call.n, x.call.k)
        if kinds != [kind]:
            layers.clear()
            kinds[:] = [kind]
        if id(weights) not in layers:
            layers[id(weights)] = weights, _layer(layer_type, x, weights)
        return layers[id(weights)][1]

    def bind(x: BlockScaledOperands, i: int) -> Callable[[], object]:
        scale = {"input_scale": x.made.given["a_sf"]} if x.call.is_folded else {}
        return partial(layer_of(x, i), inputs=x.made.given["a"], outputs=x.out, **scale)

    return LocalContender(name="humming", bind=bind, suits=lambda workload: workload.op in OPS)


def groups_contender(folder: str) -> LocalContender:
    """Its dense GEMM of FP8 in blocks of 32 x 32. It keeps weights' scales as bf16, so its result is compared with nothing. Raises as
    `humming_contender`."""
    layer_type = _layer_type(folder)
    layers: dict[tuple[int, int, int], Any] = {}

    def bind(x: Operands, i: int) -> Callable[[], object]:
        out, a, b, a_scales, b_scales, _ = x.arguments(i)
        n, k = out.shape[1], a.shape[1]
        key = b.data_ptr(), n, k
        if key not in layers:
            if any(other[1:] != (n, k) for other in layers):
                layers.clear()
            config, inputs = dict(FINE_BLOCKS), dict(FP8_GROUPS)
            layer = layer_type(shape_n=n, shape_k=k, weight_config=config, input_config=inputs, torch_dtype=out.dtype)
            layer = layer.to(a.device)
            layer.load_from_tensors({"weight": b.t(), "weight_scale_inv": b_scales.t().contiguous()})
            layer.transform()
            layers[key] = layer
        return partial(layers[key], inputs=a, outputs=out, input_scale=a_scales.contiguous())

    return LocalContender(
        name="humming", bind=bind, suits=lambda workload: workload.op == GemmOp.FP8_GROUPS_32, complete=False
    )


def experts_contender(folder: str) -> HummingExperts:
    """Its layers of experts. Raises as `humming_contender`, and AttributeError where vLLM's library of experts was not loaded."""
    layer, (forward, tune) = _layer_type(folder), (_module(folder, name) for name in ("forward", "tune"))
    summed = importlib.import_module("peers.weighed_sum").weighed_sum
    return HummingExperts(
        of=Humming(
            layer=layer,
            configs=WEIGHTS,
            tiles=tune.get_heuristics_config,
            process=forward.may_process_input,
            align=torch.ops._moe_C.moe_align_block_size.default,
            sum=summed,
        )
    )


def _layer_type(folder: str) -> Any:
    return _module(folder, "layer").HummingLayer


def _module(folder: str, name: str) -> Any:
    sys.path.insert(0, folder)
    try:
        return importlib.import_module(f"humming.{name}")
    finally:
        sys.path.remove(folder)


def _layer(layer_type: Any, x: BlockScaledOperands, weights: BlockScaled) -> Any:
    n, k = weights.codes.shape[0], weights.k
    device, alpha = weights.codes.device, x.made.given.get("alpha")
    factor = 1.0 if alpha is None else float(alpha)
    more = {"input_config": dict(FP8_TOKENS)} if x.call.is_folded else {}
    config = dict(WEIGHTS[str(weights.format)])
    layer = layer_type(shape_n=n, shape_k=k, weight_config=config, torch_dtype=torch.bfloat16, **more).to(device)
    tensors = {"weight": weights.codes, "weight_scale": weights.scales}
    if weights.format.has_global_scale:
        tensors["weight_scale"] = weights.scales.view(torch.float8_e4m3fn)
        tensors["weight_scale_2"] = torch.tensor([factor], device=device)
    else:  # a power of two, which its op has no argument for
        tensors["weight_scale"] = (weights.scales.int() + frexp(factor)[1] - 1).to(torch.uint8)
    layer.load_from_tensors(tensors)
    layer.transform()
    return layer


def _call_once(folder: str, workload: Workload) -> None:
    operands = BlockScaledMaker(torch.device("cuda" if torch.cuda.is_available() else "cpu"), rotated_bytes=1).make(
        workload
    )
    humming_contender(folder).call(operands, 0)()


def _sorting_library(options: Namespace) -> str:
    """vLLM's library of experts' ops, one of which sorts the rows for Humming. Raises FieldError."""
    if not (options.vllm_moe_so or options.vllm_so):
        raise FieldError("Humming's layers of experts want --vllm-moe-so, or --vllm-so beside which that library lies")
    return str(options.vllm_moe_so or moe_library(options.vllm_so))


def _call_layer_once(folder: str, library: str, workload: LayerWorkload) -> None:
    torch.ops.load_library(library)
    operands = ExpertsMaker(torch.device("cuda"), 0).make(workload)
    experts_contender(folder).call(operands, 0)()
