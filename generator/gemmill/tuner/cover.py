"""The fewest kernels that suffice at calls: a greedy set cover, of measured times or of the model's at random calls."""

import math
import random
from collections.abc import Collection, Hashable, Iterable, Mapping
from typing import TypeVar

from gemmill.family import Config, Row, ShapedCall
from gemmill.registry import REGISTRY
from gemmill.runtime.select import model_ns, rejection
from gemmill.space.names import to_name

Call = TypeVar("Call", bound=Hashable)
Class = tuple[str, int]
"""A family's name, and the number of a class of its calls."""

_ALIGNED = 16
"""Bytes to which random operands are aligned, and their step is `_RAGGED` for one call of so many as that."""
_RAGGED = 16


def fewest(ratios: Mapping[Call, Mapping[str, float]], given: Collection[str] = ()) -> list[str]:
    """The fewest kernels, greedily chosen, such that each call has one of those that suffice for it, or of `given`.

    `ratios` has the kernels that suffice for a call, with their time over the fastest one's. Among kernels that serve
    as many of the remaining calls, the fastest is first.
    """
    left = {call for call, of_kernel in ratios.items() if not any(kernel in of_kernel for kernel in given)}
    kernels: list[str] = []
    while left:
        serves: dict[str, list[float]] = {}
        for call in left:
            for kernel, ratio in ratios[call].items():
                serves.setdefault(kernel, []).append(ratio)
        chosen = min(serves, key=lambda k: (-len(serves[k]), math.fsum(serves[k]), k))
        kernels.append(chosen)
        left = {call for call in left if chosen not in ratios[call]}
    return kernels


def modelled(
    configs: Iterable[Config], served: Collection[Class], calls: int, within: float, sm_count: int
) -> set[Config]:
    """The configs that suffice for the classes of calls other than `served`, within `within` of the fastest by the model.

    There are `calls` random calls of each class, the same each time. A class of which the family tells no usual sizes
    keeps all its configs, and so does a config that is chosen under batch invariance alone.
    """
    rows: dict[Class, list[tuple[Row, str]]] = {}
    kept, kernel_of = set(), {}
    for config in configs:
        family = REGISTRY.family_of(config)
        kernel_of[config] = to_name(config.compiled)
        for row in family.tuning.rows(config, 0):
            place = family.name, row.call_class
            if row.held_only or (place not in served and not family.tuning.usual(row.call_class)):
                kept.add(config)
            elif place not in served:
                rows.setdefault(place, []).append((row, kernel_of[config]))
    ratios = {}
    for (family_name, number), of_class in rows.items():
        for call in random_calls(family_name, number, calls):
            ns: dict[str, float] = {}
            for row, kernel in of_class:
                if rejection(row, call) is None:
                    ns[kernel] = min(ns.get(kernel, math.inf), model_ns(row, call, sm_count))
            limit = (1 + within) * min(ns.values(), default=0.0)
            if fit := {kernel: time / limit for kernel, time in ns.items() if time <= limit}:
                ratios[call] = fit
    kernels = set(fewest(ratios, {kernel_of[config] for config in kept}))
    return kept | {config for config, kernel in kernel_of.items() if kernel in kernels}


def random_calls(family: str, call_class: int, count: int) -> list[ShapedCall]:
    """So many random calls of a class, of sizes log-uniform over the usual ones: the same each time.

    One of sixteen has ragged sizes, and operands without alignment.
    """
    tuning = REGISTRY.choices[family]
    generator = random.Random(f"{family} {call_class}")  # noqa: S311
    usual = tuning.usual(call_class)
    found = []
    for number in range(count):
        ragged = number % _RAGGED == _RAGGED - 1
        sizes = {name: _size(generator, *usual[name], ragged=ragged) for name in tuning.sizes}
        alignments = (1 if ragged else _ALIGNED,) * len(tuning.aligned)
        found.append(
            ShapedCall(family=family, call_class=call_class, sizes=tuning.ordered(sizes), alignments=alignments)
        )
    return found


def _size(generator: random.Random, least: int, most: int, step: int, *, ragged: bool) -> int:
    if least == most:
        return least
    size = int(least * ((most + 1) / least) ** generator.random())
    return min(most, size if ragged else max(least, round(size / step) * step))
