"""The timed calls of the compressed cache's ops."""

from timed import Benchmark
from timed.kv_cache.calls import TINY, WARM, KvCacheMaker, add_options, small, workload_of, workloads_of
from timed.kv_cache.contenders import KvCacheContender

BENCHMARK = Benchmark(
    add_options=add_options,
    workloads=workloads_of,
    tiny=lambda p: workload_of(p.kind, TINY[p.of.op], p.page, is_ragged=p.is_ragged),
    host_workload=small,
    warm_workload=lambda p: workload_of(
        p.kind, WARM.get(p.of.op, tuple(p.sizes.values())), p.page, is_ragged=p.is_ragged
    ),
    maker=KvCacheMaker,
    data="normal random bf16 vectors; of caches that are attended over, random codes and one norm, of packed ones a page's vectors "
    "over and over",
    subject=lambda namespace, name: KvCacheContender(name=name, namespace=namespace),
)
