"""vLLM's released kernels, by its library."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

import torch

from gemmill.tuner.protocol import first_line
from harness.contenders import Contender, FieldError, vllm_contender
from harness.remote import RemoteContender, RemoteError
from peers.marlin import marlin_contender, marlin_experts, marlin_layer, vllms_ops
from peers.vllm_plugin import plugin_layer
from timed.fused_experts.calls import PACKED
from timed.fused_experts.contenders import VllmTriton
from timed.gated_mm.contenders import Separate
from timed.grouped_mm.contenders import MoePeer, vllm_grouped
from timed.quant.contenders import QuantContender

NAME = "vllm"


def add_options(parser: ArgumentParser) -> None:
    """Where its library is."""
    parser.add_argument("--vllm-so", metavar="PATH", help="vLLM's _C_stable_libtorch.abi3.so")
    parser.add_argument(
        "--vllm-moe-so", metavar="PATH", help="its _moe_C_stable_libtorch.abi3.so, for Marlin's experts"
    )
    parser.add_argument(
        "--vllm-fused-moe",
        type=Path,
        metavar="PATH",
        help="experts: vLLM's fused_moe.py, with files of tile sizes beside it; beside --vllm-so lies the _moe_C library",
    )
    parser.add_argument("--vllm-apart", action="store_true", help="run vLLM's GEMMs in a process of their own")


def contenders(family: str, options: Namespace, notes: list[str]) -> list[Contender]:
    """Its ops, if a library was named. Raises FieldError."""
    if family == "grouped_mm" and options.vllm_moe_so:
        return [_marlin_experts(options), *([_moe(options, notes)] if options.vllm_so else [])]
    if not options.vllm_so:
        return []
    if family == "fused_experts":
        return _experts(options, notes)
    return [_OF_FAMILY[family](options, notes)] if family in _OF_FAMILY else []


def _scaled_mm(options: Namespace, notes: list[str]) -> Contender:
    """In this process if its library loads, else in its own."""
    if not options.vllm_apart:
        try:
            return vllm_contender(options.vllm_so)
        except (OSError, RuntimeError, AttributeError) as error:
            notes.append(f"vllm runs in its own process, because in this one: {first_line(error)}")
    try:
        return RemoteContender(options.vllm_so, options.family)
    except RemoteError as error:
        raise FieldError(f"vLLM's library {options.vllm_so} cannot be used: {first_line(error)}") from None


def _quant(options: Namespace, notes: list[str]) -> Contender:
    try:
        torch.ops.load_library(options.vllm_so)
    except (OSError, RuntimeError) as error:
        raise FieldError(f"vLLM's library {options.vllm_so} cannot be used: {first_line(error)}") from None
    notes.append("vllm's per-tensor op wants a scale that is zeroed before each call: that is not in its time")
    return QuantContender(name=NAME, namespace="_C", codes_apart=1.0)


def _gated(options: Namespace, notes: list[str]) -> Contender:
    try:
        torch.ops.load_library(options.vllm_so)
    except (OSError, RuntimeError) as error:
        raise FieldError(f"vLLM's library {options.vllm_so} cannot be used: {first_line(error)}") from None
    notes.append("vllm's product, then its op; experts have no such product there")
    return Separate(name=NAME, namespace="_C", with_op=True, complete=True)


def _moe(options: Namespace, notes: list[str]) -> Contender:
    try:
        torch.ops.load_library(options.vllm_so)
    except (OSError, RuntimeError) as error:
        raise FieldError(f"vLLM's library {options.vllm_so} cannot be used: {first_line(error)}") from None
    return MoePeer(name=NAME, bind=vllm_grouped)


def _marlin_experts(options: Namespace) -> Contender:
    try:
        torch.ops.load_library(options.vllm_moe_so)
        return marlin_experts()
    except (OSError, RuntimeError, AttributeError) as error:
        raise FieldError(f"vLLM's library {options.vllm_moe_so} cannot be used: {first_line(error)}") from None


def moe_library(library: Path | str) -> Path:
    """Its library of experts' ops, which lies beside the one of the others."""
    path = Path(library)
    return path.with_name(f"_moe{path.name}")


def _experts(options: Namespace, notes: list[str]) -> list[Contender]:
    """Its layer with Marlin, and with Triton if the file of that kernel was named."""
    if options.vllm_fused_moe is None and not set(PACKED) & set(options.op.split(",")):
        raise FieldError(
            "vLLM's layers of experts want --vllm-fused-moe beside --vllm-so: its Triton kernel is in that file"
        )
    library = Path(options.vllm_so)
    try:
        for path in (library, moe_library(library)):
            torch.ops.load_library(str(path))
        found: list[Contender] = [marlin_layer(vllms_ops()), plugin_layer(vllms_ops())]
    except (OSError, RuntimeError, AttributeError) as error:
        raise FieldError(f"vLLM's library {options.vllm_so} cannot be used: {first_line(error)}") from None
    if options.vllm_fused_moe is None:
        return found
    notes.append(
        "vllm's Triton kernel runs by file, with the kernels that vLLM calls around it and its tile sizes for this layer"
    )
    return [VllmTriton(name=NAME, source=options.vllm_fused_moe), *found]


def _blockscaled(options: Namespace, notes: list[str]) -> Contender:
    try:
        torch.ops.load_library(options.vllm_so)
        return marlin_contender()
    except (OSError, RuntimeError, AttributeError) as error:
        raise FieldError(f"vLLM's library {options.vllm_so} cannot be used: {first_line(error)}") from None


_OF_FAMILY = {
    "scaled_mm": _scaled_mm,
    "quant": _quant,
    "gated_mm": _gated,
    "blockscaled": _blockscaled,
    "grouped_mm": _moe,
}
