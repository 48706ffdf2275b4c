"""The timed calls of gated GEMMs."""

from collections.abc import Sequence

from timed import Benchmark
from timed.gated_mm.calls import GatedMaker, add_options, small, tiny, workloads_of
from timed.gated_mm.contenders import GatedContender, Separate, Way


def _also() -> Sequence[Separate | Way]:
    return (
        Way(name="one launch", namespace="gemmill", in_parts=False),
        Way(name="its parts", namespace="gemmill", in_parts=True),
        Separate(name="product alone", with_op=False),
        Separate(name="product, then op", with_op=True),
    )


BENCHMARK = Benchmark(
    add_options=add_options,
    workloads=workloads_of,
    tiny=tiny,
    host_workload=small,
    warm_workload=lambda p: p.resized(m=4096),
    maker=GatedMaker,
    data="normal random numbers; weights differ from call to call",
    subject=lambda namespace, name: GatedContender(name=name, namespace=namespace),
    also=_also,
    judged=("groups", "bf16", "groups_of_blocks", "bf16_int8"),
)
