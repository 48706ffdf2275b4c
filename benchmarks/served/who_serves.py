"""The classes that serve a model's layers, listed in the model's process; vLLM's workers import it by this name."""

import collections
import json
import sys
from typing import Any

_MODULES = (
    "gemmill",
    "vllm.model_executor.kernels",
    "vllm.model_executor.layers.fused_moe",
    "vllm.v1.attention.backends",
)


def who_serves(model: Any) -> tuple[dict[str, int], Any]:
    """The number of each class, by `Layer: Class`, and gemmill's report."""
    found: collections.Counter[str] = collections.Counter()
    for module in model.modules():
        held = [value for value in vars(module).values() if hasattr(value, "__dict__")]
        for value in held + [inner for holder in held for inner in vars(holder).values()]:
            kind = type(value)
            if kind.__module__.startswith(_MODULES) and not isinstance(value, type):
                found[f"{type(module).__name__}: {kind.__name__}"] += 1
    gemmill = sys.modules.get("gemmill")
    report = getattr(gemmill, "serving_report", None) or getattr(gemmill, "stats", None)
    return dict(found), json.loads(json.dumps(report(), default=str)) if report else None
