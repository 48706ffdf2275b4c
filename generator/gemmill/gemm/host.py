"""The facts of a kernel of the CuTe DSL that gemmill's own host code (kernels/core/gemm_host.h) reads. Nothing here
needs the DSL.
"""

from gemmill.gemm.expert_facts import ExpertFacts
from gemmill.gemm.facts import Facts
from gemmill.vocab import DType

_MAP_TYPES = {DType.F16: "kF16", DType.BF16: "kBf16"}
_KIBIBYTE = 1024
_SCHEDULERS = ("split_k", "split_k_parallel", "restarts")


def map_type(dtype: DType) -> str:
    """How a tensor map calls an element: eight bits are eight bits."""
    return f"gemmill::MapType::{_MAP_TYPES.get(dtype, 'kBytes')}"


def host_facts(facts: Facts, out: DType) -> dict[str, int | str]:
    """The fields of `GemmFacts`, in its order; `out` is D's type."""
    names = (
        "tile_x",
        "tile_y",
        "tile_k",
        "slice_step",
        "cluster_x",
        "cluster_y",
        "swap_ab",
        "box_rows",
        "store_columns",
    )
    numbers = {name: int(getattr(facts, name)) for name in (*names, "ctas_of_sm", *_SCHEDULERS)}
    return {**numbers, "operand": map_type(facts.x_dtype), "result": map_type(out)}


def shared_bytes(facts: Facts, *, result_bytes: int = 2, table_words: int = 0, more_words: int = 0) -> int:
    """Bytes of the `SharedStorage` of a kernel: barriers, tables, stages of X and Y, boxes of D, vectors, more, and scales."""
    at = _up(8 * (2 * facts.stages + 2) + 4 * table_words, _KIBIBYTE)
    for operand in (facts.x_bytes, facts.y_bytes):
        at = _up(at + facts.stages * operand, _KIBIBYTE)
    at = _up(at + result_bytes * max(facts.store_elements, 8), 4)
    at += 4 * (max(facts.consumer_groups * facts.vector_words, 4) + more_words)
    return _up(_up(at, 16) + 4 * max(facts.stages * facts.scales, 4), _KIBIBYTE)


def table_words(facts: ExpertFacts) -> int:
    """Words of shared memory by which a kernel finds experts: first tiles, beginnings, ends, and one for each warp."""
    return 3 * facts.most_experts + 1 + facts.threads // 32


def _up(count: int, unit: int) -> int:
    return -(-count // unit) * unit
