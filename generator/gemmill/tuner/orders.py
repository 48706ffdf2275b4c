"""Variants by the order of their sums along K: under batch invariance, variants of one order answer a call."""

from collections.abc import Mapping
from functools import cache

from gemmill.family import Order
from gemmill.registry import REGISTRY
from gemmill.space.names import parse_name


@cache
def order_of(name: str) -> Order | None:
    """The order of a variant; None where the batch decides it. Raises ValueError for a name that is none."""
    config = parse_name(name)
    return REGISTRY.choices[REGISTRY.family_of(config).name].order(config)


def fastest_of_orders(us: Mapping[str, float], most: int = 1) -> tuple[str, ...]:
    """Of each order that does not depend on the batch up to `most` variants, the fastest first."""
    taken: dict[Order, int] = {}
    found = []
    for name in sorted(us, key=lambda name: (us[name], name)):
        order = order_of(name)
        if order is not None and taken.setdefault(order, 0) < most:
            taken[order] += 1
            found.append(name)
    return tuple(found)
