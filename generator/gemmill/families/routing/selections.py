"""The routers of the named selections."""

from collections.abc import Iterator

from gemmill.families.routing.config import HALVES, Operands, RoutingConfig
from gemmill.vocab import Arch


def default(arch: Arch) -> Iterator[RoutingConfig]:
    """One of each type, on sm90a."""
    for dtype in HALVES if arch is Arch.SM90A else ():
        yield RoutingConfig(operands=Operands(dtype=dtype), arch=arch)


def smoke(arch: Arch) -> Iterator[RoutingConfig]:
    """That of bf16."""
    yield from (config for config in default(arch) if config.dtype is HALVES[0])
