"""The reference in the place of the kernels, so that the GPU tests' own logic runs without a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager

from families.scaled_mm.gpu.specs import REFUSES, acceptance
from gemmill.families import scaled_mm
from gemmill.families.scaled_mm.accepts import accepted
from gemmill.families.scaled_mm.cases.calls import Call
from gemmill.families.scaled_mm.config import KernelConfig
from gemmill.families.scaled_mm.reference import scaled_mm as reference_of_scaled_mm
from gemmill.manifest import KernelEntry
from gemmill.registry import REGISTRY
from gemmill.space.names import symbol_of, to_name
from gemmill.space.selections import select


class StandIn:
    """A subject with the variants of the smoke selection."""

    def __init__(self) -> None:
        self.entries = tuple(_entry(config) for config in REGISTRY.configs_of(scaled_mm.NAME, select("smoke").configs))
        self._pinned: str | None = None

    @contextmanager
    def use_variant(self, name: str) -> Iterator[None]:
        before, self._pinned = self._pinned, name
        try:
            yield
        finally:
            self._pinned = before

    def run(self, call: Call, variant: str | None = None) -> None:
        name = variant or self._pinned
        if name is not None:
            entry = next(entry for entry in self.entries if entry.name == name)
            if acceptance(accepted(entry.config), call) == REFUSES:
                raise RuntimeError(f"{name} does not take {call.spec}: an alignment or an argument is not its own")
        result = reference_of_scaled_mm(
            call.a, call.b, call.a_scales, call.b_scales, call.out.dtype, call.bias, azp_adj=call.azp_adj, azp=call.azp
        )
        call.out.copy_(result)


def _entry(config: KernelConfig) -> KernelEntry:
    return KernelEntry(
        name=to_name(config),
        family=scaled_mm.NAME,
        config=config,
        symbol=symbol_of(config),
        ops=REGISTRY.ops_of(config),
        epilogue=REGISTRY.epilogue_of(config),
        source_digest="",
        compile_seconds=0.0,
        peak_memory_bytes=0,
        code_bytes=0,
        registers=0,
        spill_bytes=0,
    )
