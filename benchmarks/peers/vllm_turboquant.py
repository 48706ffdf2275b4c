"""vLLM's TurboQuant kernels in Triton, by the files of vLLM's sources: the rest of vLLM need not be there."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from gemmill.families.kv_cache.formats import Method, preset
from gemmill.families.kv_cache.packed import slot_sizes
from gemmill.families.kv_cache.reference.rotations import hadamard_transform
from gemmill.families.kv_cache.vllm_codebooks import vllm_codebook
from gemmill.tuner.protocol import first_line
from harness.contenders import Contender, FieldError
from peers import vllm_triton
from timed.kv_cache.contenders import KvCachePeer
from timed.workload import Workload

SPLITS = 32
"""vLLM's own number, by its attention_config."""
STORED = "turboquant_4bit_nc"
PREFIX = "turboquant_"


def add_options(parser: ArgumentParser) -> None:
    """Where its sources are."""
    parser.add_argument("--vllm-sources", metavar="FOLDER", help="a folder that has vllm/v1/attention/ops of vLLM")


def contenders(family: str, options: Namespace, notes: list[str]) -> list[Contender]:
    """For attention over vLLM's slots, and to store new tokens. Raises FieldError."""
    if family != "kv_cache" or not options.vllm_sources:
        return []
    try:
        decode, store = _kernels(Path(options.vllm_sources))
    except (ImportError, AttributeError) as error:
        raise FieldError(f"vLLM's sources below {options.vllm_sources} cannot be used: {first_line(error)}") from None
    notes.append(
        f"vllm_triton stores {STORED}, and attends over the slots that gemmill attends over, in {SPLITS} splits"
    )
    return [
        VllmPeer(name="vllm_triton", op="attend", bind=partial(_attend, decode)),
        KvCachePeer(name="vllm_triton", op="store", bind=partial(_store, store)),
    ]


class VllmPeer(KvCachePeer):
    """Attends over TurboQuant's presets alone."""

    def takes(self, workload: Workload) -> bool:
        """Whether the format is one of them."""
        return super().takes(workload) and workload.kind.split()[1].startswith(PREFIX)


def _kernels(folder: Path) -> tuple[Callable[..., Any], Callable[..., Any]]:
    decode, store = vllm_triton.imported(folder, "triton_turboquant_decode", "triton_turboquant_store")
    return decode.triton_turboquant_decode_attention, store.triton_turboquant_store


class _Layout:
    """The arguments of vLLM's kernels for a preset."""

    def __init__(self, name: str, head_dim: int, device: torch.device) -> None:
        keys, values = preset(name).keys, preset(name).values
        self.key_bytes, _, self.slot_bytes = slot_sizes(preset(name), head_dim)
        self.is_fp8, self.value_bits = keys.method is Method.E4M3, values.bits
        self.key_bits = 4 if self.is_fp8 else keys.bits
        self.corrects_norms = keys.method is Method.UNIT_CENTROIDS
        self.centroids = torch.tensor(vllm_codebook(head_dim, self.key_bits).centroids, device=device)
        self.rotation = hadamard_transform(torch.eye(head_dim, device=device)).float()


def _attend(kernel: Callable[..., Any], given: dict[str, Any], workload: Workload) -> Callable[[], object]:
    q, keys = given["q"], given["keys"]
    layout = _Layout(workload.kind.split()[1], q.shape[-1], q.device)
    cache = keys.as_strided((*keys.shape[:3], layout.slot_bytes), keys.stride())
    batch, _, heads, head_dim = q.shape
    sums = torch.empty(batch, heads, SPLITS, head_dim + 1, device=q.device)
    return partial(
        kernel,
        q[:, 0],
        cache,
        given["block_table"],
        given["seq_lens"],
        layout.rotation,
        layout.centroids,
        given["scale"],
        layout.key_bits,
        layout.key_bytes,
        layout.value_bits,
        layout.is_fp8,
        layout.corrects_norms,
        layout.rotation,
        sums,
        torch.empty(batch, heads, head_dim, dtype=q.dtype, device=q.device),
        torch.empty(batch, heads, device=q.device),
        None,
        SPLITS,
    )


def _store(kernel: Callable[..., Any], given: dict[str, Any], workload: Workload) -> Callable[[], object]:
    keys = given["keys"]
    _, heads, head_dim = keys.shape
    layout = _Layout(STORED, head_dim, keys.device)
    pages, _, page, _ = given["cache"].shape
    cache = torch.empty(pages, page, heads, layout.slot_bytes, dtype=torch.uint8, device=keys.device)
    middles = (layout.centroids[:-1] + layout.centroids[1:]) / 2
    return partial(
        kernel,
        keys,
        given["values"],
        cache,
        given["slot_mapping"],
        layout.rotation,
        middles,
        layout.key_bits,
        layout.key_bytes,
        layout.value_bits,
    )
