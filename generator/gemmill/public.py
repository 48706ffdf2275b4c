"""The public names: the questions on builds and calls, and the functions of all families.

Type checkers read them from `__init__.pyi`.
"""

from importlib import import_module

from gemmill.registry import REGISTRY
from gemmill.runtime.holding import batch_invariant, set_batch_invariant
from gemmill.runtime.ops import (  # defines torch.ops.gemmill, which the functions call
    active,
    assume_constant_weights,
    check_ranks,
    explain,
    load,
    stats,
    supports,
    table_digest,
    use_variant,
    variants,
)
from gemmill.runtime.served import serving_report
from gemmill.tuning import tune
from gemmill.version import __version__

__all__ = [
    "__version__",
    "active",
    "assume_constant_weights",
    "batch_invariant",
    "check_ranks",
    "explain",
    "load",
    "serving_report",
    "set_batch_invariant",
    "stats",
    "supports",
    "table_digest",
    "tune",
    "use_variant",
    "variants",
]
for _family in REGISTRY.families:
    if _family.functions is not None:
        _module = import_module(_family.functions)
        globals().update({name: getattr(_module, name) for name in _module.__all__})
        __all__.extend(_module.__all__)  # `+=` is for lists that a reader of the source can know
__all__.sort()
