"""The timed calls of the compressed cache's ops."""

from timed import Benchmark
from timed.kv_cache.calls import TINY, WARM, KvCacheMaker, add_options, resized, small, workloads_of
from timed.kv_cache.contenders import KvCacheContender

BENCHMARK = Benchmark(
    add_options=add_options,
    workloads=workloads_of,
    tiny=lambda p: resized(p, TINY[p.of.op]),
    host_workload=small,
    warm_workload=lambda p: resized(p, WARM.get(p.of.op, tuple(p.sizes.values()))),
    maker=KvCacheMaker,
    data="normal random bf16 vectors; of caches that are attended over, random codes and one norm, of packed ones a page's vectors "
    "over and over",
    subject=lambda namespace, name: KvCacheContender(name=name, namespace=namespace),
    judged=("decode 4 bits", "decode 3 bits", "attend turboquant_4bit_nc"),
)
