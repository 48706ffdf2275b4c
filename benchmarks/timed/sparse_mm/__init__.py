"""The timed calls of sparse GEMMs."""

from gemmill.families.sparse_mm.ops import SPARSE_MM
from gemmill.runtime.library import Build
from timed import Benchmark
from timed.sparse_mm.calls import KINDS, SparseMaker, add_options, tiny, workloads_of
from timed.sparse_mm.contenders import SparseContender


def _variants(build: Build | None) -> list[SparseContender]:
    entries = [] if build is None else build.manifest.entries
    return [
        SparseContender(
            name=entry.name, namespace="gemmill", variant=entry.name, dtype=entry.config.operand_dtype.torch_name
        )
        for entry in entries
        if SPARSE_MM.name in entry.ops and entry.config.out_dtype.torch_name == "bfloat16"
    ]


BENCHMARK = Benchmark(
    add_options=add_options,
    workloads=workloads_of,
    tiny=tiny,
    host_workload=lambda kind: KINDS[kind].at(m=16, n=256, k=512),
    warm_workload=lambda p: p.resized(m=4096, n=8192, k=8192),
    maker=SparseMaker,
    data="normal random numbers (int8: of the whole range), of which any two of four are zeroed; scales are 1",
    subject=lambda namespace, name: SparseContender(name=name, namespace=namespace),
    variants=_variants,
    judged=tuple(KINDS),
)
