"""vLLM's manager of graph passes, with gemmill's behind vLLM's own.

Imported by vLLM alone, which asks its platform for the manager's name (`fusion.put_before`).
"""

from functools import cache
from pathlib import Path
from typing import Any

from torch import fx
from vllm.compilation.passes.inductor_pass import InductorPass, get_pass_context
from vllm.compilation.passes.pass_manager import PostGradPassManager

from gemmill.compat.vllm import fusion, gate_up, rewriting


class SiluQuantPass(InductorPass):
    """Fuses SiLU with a quantisation per token."""

    def __init__(self) -> None:
        """Traces the patterns."""
        self._patterns = rewriting.silu_patterns(_rows)

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrites a functional graph."""
        self._patterns.apply(graph)

    def uuid(self) -> str:
        """Of the rewriting's source: another makes other graphs."""
        return _source()


class GateUpPass(InductorPass):
    """Makes one op of a gate_up layer and SiLU with codes of a given scale."""

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrites a functional graph."""
        gate_up.fuse(graph)

    def uuid(self) -> str:
        """Of the rewriting's source."""
        return _source()


class GemmillPassManager(PostGradPassManager):
    """vLLM's, which gives its quantisation ops to gemmill where the configuration says so."""

    _key: Any = None

    def configure(self, config: Any) -> None:
        """vLLM's passes, and gemmill's behind them where vLLM fuses activations with quantisation."""
        super().configure(config)
        self._key = fusion.key_of(config)
        if self._key is None:
            return
        self.add(GateUpPass())
        if self.pass_config.fuse_act_quant:
            self.add(SiluQuantPass())

    def __call__(self, graph: fx.Graph) -> None:
        """Rewrites a graph last of all, for vLLM's passes find its ops by their names."""
        super().__call__(graph)
        if self._key is not None:
            rewriting.rewrite(graph, *_rows())

    def uuid(self) -> str:
        """vLLM's, followed by the builds and the source of gemmill's rewriting."""
        return f"{super().uuid()}|{self._key}|{_source()}"


def _rows() -> tuple[int, int]:
    compiled_for = get_pass_context().compile_range
    return compiled_for.start, compiled_for.end


@cache
def _source() -> str:
    sources = [Path(module.__file__).read_text(encoding="utf-8") for module in (rewriting, gate_up)]
    return str(InductorPass.hash_source("".join(sources)))
