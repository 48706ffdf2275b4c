"""The timed calls of fused experts."""

from timed import Benchmark
from timed.fused_experts.calls import TINY, ExpertsMaker, add_options, tiny, workload_of, workloads_of
from timed.fused_experts.contenders import ExpertsContender, ExpertsWay, OneAfterTheOther, TwoProducts, variants_of

BENCHMARK = Benchmark(
    add_options=add_options,
    workloads=workloads_of,
    tiny=tiny,
    host_workload=lambda kind: workload_of(kind, TINY, 1),
    warm_workload=lambda p: p.resized(tokens=1024),
    maker=ExpertsMaker,
    data="normal random numbers; each token has random experts, others from call to call",
    subject=lambda namespace, name: ExpertsContender(name=name, namespace=namespace),
    also=lambda: [
        OneAfterTheOther(),
        TwoProducts(),
        ExpertsWay(name="three launches", namespace="gemmill", apart=False),
        ExpertsWay(name="grouped GEMMs", namespace="gemmill", apart=True),
    ],
    variants=variants_of,
    judged=("fp8_groups", "nvfp4", "mxfp4_e4m3"),
)
