"""The families of kernels: the only place that lists them.

`REGISTRY` imports their declarations at its first use. Before that, a command line reads their `questions.py` alone:
help waits for no declaration.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from gemmill.questions import Asked, merged

if TYPE_CHECKING:
    from gemmill.family import Registry

    REGISTRY: Registry

FAMILIES = tuple(
    f"gemmill.families.{name}"
    for name in "scaled_mm quant blockscaled kv_cache grouped_mm gated_mm sparse_mm fused_experts routing".split()
)
"""Their packages, in the order of options and ops in lists."""


def questions() -> dict[str, Asked]:
    """The options of calls of any family, by name, as in the declarations."""
    return merged(option for family in FAMILIES for option in _of(family, "questions").QUESTIONS)


def questions_by_family() -> dict[str, tuple[Asked, ...]]:
    """The options of calls of each family, in its own words, by the family's title."""
    return {_of(family, "questions").TITLE: _of(family, "questions").QUESTIONS for family in FAMILIES}


def measured() -> dict[str, tuple[str, ...]]:
    """Measured classes of calls, by the names that tables know them by, with the names of their sizes."""
    found: dict[str, tuple[str, ...]] = {}
    for family in FAMILIES:
        found |= getattr(_of(family, "questions"), "MEASURED", {})
    return found


def _of(family: str, part: str) -> Any:
    return import_module(f"{family}.{part}")


def __getattr__(name: str) -> Any:
    if name != "REGISTRY":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gemmill.family import Registry

    made = globals()[name] = Registry(tuple(_of(family, "family").FAMILY for family in FAMILIES))
    return made
