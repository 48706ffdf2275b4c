"""The timed calls of the compressed cache's ops."""

from dataclasses import replace

from timed import Benchmark
from timed.kv_cache.calls import TINY, WARM, KvCacheMaker, add_options, small, workloads_of
from timed.kv_cache.contenders import KvCacheContender

BENCHMARK = Benchmark(
    add_options=add_options,
    workloads=workloads_of,
    tiny=lambda p: replace(p, shape=TINY[p.op]),
    host_workload=small,
    warm_workload=lambda p: replace(p, shape=WARM.get(p.op, p.shape)),
    maker=KvCacheMaker,
    data="normal random bf16 vectors; of caches that are attended over, random codes and one norm, of packed ones a page's vectors "
    "over and over",
    subject=lambda namespace, name: KvCacheContender(name=name, namespace=namespace),
)
