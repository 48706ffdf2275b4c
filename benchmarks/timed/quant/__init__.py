"""The timed calls of the quantisation ops."""

from timed import Benchmark
from timed.quant.calls import (
    HOST_SHAPE,
    JUDGED,
    KINDS,
    TINY_HIDDEN,
    TINY_M,
    WARM_UP_SHAPE,
    QuantOperandMaker,
    add_options,
    workloads_of,
)
from timed.quant.contenders import QuantContender

BENCHMARK = Benchmark(
    add_options=add_options,
    workloads=workloads_of,
    tiny=lambda p: p.resized(m=min(p.m, TINY_M), hidden=TINY_HIDDEN),
    host_workload=lambda kind: KINDS[kind].at(m=HOST_SHAPE[0], hidden=HOST_SHAPE[1]),
    warm_workload=lambda p: p.resized(m=WARM_UP_SHAPE[0], hidden=WARM_UP_SHAPE[1]),
    maker=QuantOperandMaker,
    data="normal random bf16; outputs row-major, scales too but for packed ones",
    subject=lambda namespace, name: QuantContender(name=name, namespace=namespace),
    judged=JUDGED,
)
