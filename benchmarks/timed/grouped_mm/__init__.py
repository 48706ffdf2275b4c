"""The timed calls of grouped GEMMs."""

from collections.abc import Sequence

from gemmill.runtime.library import Build
from timed import Benchmark
from timed.grouped_mm.calls import MoeMaker, add_options, small, tiny, workloads_of
from timed.grouped_mm.contenders import MoeContender, variants_of


def _variants(build: Build | None) -> Sequence[MoeContender]:
    return [] if build is None else variants_of(build)


BENCHMARK = Benchmark(
    add_options=add_options,
    workloads=workloads_of,
    tiny=tiny,
    host_workload=small,
    warm_workload=lambda p: p.resized(tokens=4096),
    maker=MoeMaker,
    data="normal random numbers; routings differ from call to call",
    subject=lambda namespace, name: MoeContender(name=name, namespace=namespace),
    variants=_variants,
    judged=("fp8", "fp8_groups", "bf16", "nvfp4", "mxfp4_fp8"),
)
