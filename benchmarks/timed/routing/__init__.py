"""The timed calls of routers."""

from timed import Benchmark
from timed.routing.calls import KINDS, RouterMaker, add_options, tiny, workloads_of
from timed.routing.contenders import RouterContender

BENCHMARK = Benchmark(
    add_options=add_options,
    workloads=workloads_of,
    tiny=tiny,
    host_workload=lambda kind: KINDS[kind].at(m=16, experts=128, k=2048, topk=8),
    warm_workload=lambda p: p.resized(m=1024, experts=512, k=8192),
    maker=RouterMaker,
    data="normal random bf16",
    subject=lambda namespace, name: RouterContender(name=name, namespace=namespace),
    judged=tuple(KINDS),
)
