"""The calls that users would make without gemmill. Their times stand next to those of the variants; each family hands
in its own.
"""

from importlib import import_module

import torch

from gemmill.numerics.measured import MeasuredWorkload, Peer, through
from gemmill.registry import REGISTRY

VLLM = "vllm"
"""The name of the peer that a library of vLLM's is."""


def peers_of(family: str) -> tuple[Peer, ...]:
    """The ways in which torch itself computes a family's ops."""
    module = REGISTRY.named(family).peers
    return () if module is None else import_module(module).PEERS


def vllm_peer(library: str) -> Peer:
    """vLLM's released kernels. Raises OSError or RuntimeError where this process cannot load the library."""
    torch.ops.load_library(library)
    return Peer(name=VLLM, bind=through(torch.ops._C), takes=vllm_takes)


def vllm_takes(workload: MeasuredWorkload) -> bool:
    """Whether vLLM's op of the same name computes a MeasuredWorkload."""
    module = REGISTRY.measured[workload.op][0].peers
    return module is not None and import_module(module).vllm_takes(workload)
