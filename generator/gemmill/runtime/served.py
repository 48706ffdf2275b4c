"""The layers of a serving engine that gemmill takes, and those that it leaves: in the log, and from `serving_report`."""

import logging
from dataclasses import dataclass, field
from typing import Any

from gemmill.runtime.notices import LOG


@dataclass(frozen=True, kw_only=True)
class ServedLayers:
    """Layers of one shape that one kernel serves."""

    layer: str
    """The layer, in words."""
    by: str
    """The kernel's class or function, by its name."""
    variants: str
    """The variants of some calls, and the evidence for each choice."""
    rows: str = ""
    """The rows of calls that it serves, and why; empty for all."""


@dataclass(kw_only=True)
class _Log:
    """The lines that this process has logged, and those to come."""

    layers: dict[ServedLayers, set[int]] = field(default_factory=dict)
    """The layers of each kind, by their identity; none where calls alone are known."""
    untold: dict[ServedLayers, None] = field(default_factory=dict)
    refusals: dict[tuple[str, str], None] = field(default_factory=dict)
    """Layers that stay with the engine, each with its reason."""


_log = _Log()


def took(kind: ServedLayers, layer: object | None = None) -> None:
    """Note a layer that gemmill takes; `tell` logs it. A call of an unknown layer is logged at once, and once."""
    if layer is None and kind not in _log.layers:
        LOG.info("%s", _sentence(kind, 0))
    elif layer is not None:
        _log.untold[kind] = None
    known = _log.layers.setdefault(kind, set())
    if layer is not None:
        known.add(id(layer))


def left(layer: str, why: str, *, level: int = logging.INFO) -> None:
    """Log that a layer stays with the engine: once for a shape and a reason."""
    if (layer, why) not in _log.refusals:
        _log.refusals[layer, why] = None
        LOG.log(level, "%s", _refused(layer, why))


def tell() -> None:
    """Log each kind of layers that came since the last time, and how many layers it has by now."""
    for kind in _log.untold:
        LOG.info("%s", _sentence(kind, len(_log.layers[kind])))
    _log.untold.clear()


def forget() -> None:
    """Forget everything, as in a new process."""
    for part in (_log.layers, _log.untold, _log.refusals):
        part.clear()


def serving_report() -> dict[str, list[dict[str, Any]]]:
    """Print and return the layers that gemmill serves in this process's engine, and those that it left to the engine.

    `served` has layer, kernel, variants, rows and number of layers for each kind; the number is 0 where the engine's calls came to
    gemmill, and not its layers. Rows are those of calls that gemmill serves, empty for all. `left` has layer and reason.
    """
    found = {
        "served": [
            {"layer": kind.layer, "by": kind.by, "variants": kind.variants, "rows": kind.rows, "layers": len(layers)}
            for kind, layers in _log.layers.items()
        ],
        "left": [{"layer": layer, "why": why} for layer, why in _log.refusals],
    }
    lines = [_sentence(kind, len(layers)) for kind, layers in _log.layers.items()]
    lines += [_refused(*refusal) for refusal in _log.refusals]
    print("\n".join(lines) or "no engine has asked gemmill for a layer in this process", flush=True)
    return found


def _sentence(kind: ServedLayers, layers: int) -> str:
    count = f", {layers} of them" if layers else ""
    rows = f"; it serves {kind.rows}" if kind.rows else ""
    return f"{kind.by} takes a {kind.layer}{count}: {kind.variants}{rows}"


def _refused(layer: str, why: str) -> str:
    return f"a {layer} stays with the engine: {why}"
