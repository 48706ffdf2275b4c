"""Rewrites a compiled graph of vLLM's: its quantisation ops become gemmill's, and SiLU with an FP8 scale for each token becomes one op.

Graphs are those that vLLM's last passes give to Inductor. A call in a graph costs the host nothing that vLLM's does not, for no Python
stands between. A graph has no way back, so a call is rewritten where the build has a variant for the rows that the graph is
compiled for, and a first call passes; others stay vLLM's, with a sentence.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch._inductor.pattern_matcher as pm
from torch import Tensor, fx
from torch._higher_order_ops.auto_functionalize import auto_functionalized
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily

from gemmill.compat.linear import ROWS, first_call_passes, refusal, take
from gemmill.compat.vllm import quant
from gemmill.family import VLLM_PREFIX
from gemmill.runtime.schemas import NAMESPACE

FUSED = "silu_and_mul_per_token_quant"
"""gemmill's op of SiLU, gates times ups, and codes with a scale a token. vLLM has none."""
_SILU, _QUANT = "silu_and_mul", "dynamic_per_token_scaled_fp8_quant"


@dataclass(frozen=True, kw_only=True)
class Operand:
    """A tensor of a graph's call."""

    shape: tuple[int | None, ...]
    """None stands for the rows, whose number the graph does not know."""
    dtype: torch.dtype
    is_column_major: bool

    @classmethod
    def of(cls, x: Tensor) -> "Operand":
        """The operand that a fake tensor of a graph stands for."""
        shape = tuple(size if isinstance(size, int) else None for size in x.shape)
        return cls(shape=shape, dtype=x.dtype, is_column_major=x.dim() == 2 and shape[1] != 1 and x.stride(0) == 1)

    def at(self, rows: int, device: torch.device | str) -> Tensor:
        """A tensor of zeros with so many rows."""
        shape = [rows if size is None else size for size in self.shape]
        if self.is_column_major:
            return torch.zeros(shape[::-1], dtype=self.dtype, device=device).t()
        return torch.zeros(shape, dtype=self.dtype, device=device)


@dataclass(frozen=True, kw_only=True)
class GraphCall:
    """A call of an op in a graph, as far as a variant for it depends on it."""

    op: str
    """gemmill's op."""
    arguments: tuple[Operand | float | None, ...]
    rows: tuple[int, ...]
    """The M for which the build must have a variant."""

    def call(self, m: int, device: torch.device | str = "meta") -> tuple[Any, ...]:
        """The op's name and its arguments for m rows."""
        given = (x.at(m, device) if isinstance(x, Operand) else x for x in self.arguments)
        return self.op, *given

    def __str__(self) -> str:
        widths = next(x.shape[-1] for x in self.arguments if isinstance(x, Operand))
        return f"call of {self.op.removeprefix(VLLM_PREFIX)} for {widths} columns in a compiled graph"


def rewrite(graph: fx.Graph, least: int, most: int) -> int:
    """Give vLLM's calls of NAMES to gemmill, for graphs of `least` to `most` rows; the number of calls that changed."""
    changed = 0
    for node, theirs in list(_calls(graph)):
        own = _own(VLLM_PREFIX + theirs)
        if _takes(VLLM_PREFIX + theirs, _arguments(node, own), least, most):
            if node.target is auto_functionalized:
                node.args = (own, *node.args[1:])
            else:
                node.target = own
            changed += 1
    return changed


def _calls(graph: fx.Graph) -> Iterator[tuple[fx.Node, str]]:
    """Calls of vLLM's ops that gemmill has kernels for, with their names."""
    known = {
        getattr(getattr(torch.ops, quant.VLLM), name).default: name
        for name in quant.NAMES
        if hasattr(getattr(torch.ops, quant.VLLM), name)
    }
    for node in graph.nodes:
        if node.op == "call_function":
            op = node.args[0] if node.target is auto_functionalized else node.target
            if isinstance(op, OpOverload) and op in known:
                yield node, known[op]


def _own(name: str) -> OpOverload:
    own: OpOverload = getattr(getattr(torch.ops, NAMESPACE), name).default
    return own


def _arguments(node: fx.Node, op: OpOverload) -> list[Any]:
    """A call's arguments in the schema's order."""
    by_place = () if node.target is auto_functionalized else node.args
    given = dict(zip((x.name for x in op._schema.arguments), by_place, strict=False)) | node.kwargs
    return [given.get(x.name, x.default_value) for x in op._schema.arguments]


def _takes(name: str, arguments: list[Any], least: int, most: int) -> bool:
    """Whether gemmill's op of this name takes a call, which is then noted. Raises nothing."""
    values = [x.meta.get("val") if isinstance(x, fx.Node) else x for x in arguments]
    if not all(x is None or isinstance(x, (Tensor, int, float)) for x in values):
        return False  # among them sizes that only the running graph knows
    rows = tuple(sorted({least, most, *(m for m in ROWS if least <= m <= most)}))
    operands = tuple(Operand.of(x) if isinstance(x, Tensor) else x for x in values)
    call = GraphCall(op=name, arguments=operands, rows=rows)
    device = next(x.device for x in values if isinstance(x, Tensor))
    with unset_fake_temporarily():  # the choice of a variant looks at where tensors lie
        if refusal(call) is not None:
            return False
        given = call.call(least, device)[1:]
        tensors = [x for x in given if isinstance(x, Tensor)]
        if not first_call_passes(call, partial(_called, _own(name), given), *tensors):
            return False
    take(call, name)
    return True


def _called(op: OpOverload, given: tuple[Any, ...], *tensors: Tensor) -> None:
    """Call an op with other tensors in the places of the given ones."""
    of_call = iter(tensors)
    op(*(next(of_call) if isinstance(x, Tensor) else x for x in given))


def silu_patterns(rows: Callable[[], tuple[int, int]]) -> pm.PatternMatcherPass:
    """The pass that fuses SiLU and vLLM's quantisation per token, for graphs of the least and the most rows that `rows` gives."""
    found, library = pm.PatternMatcherPass(), getattr(torch.ops, quant.VLLM)
    quantise, own = getattr(library, _QUANT).default, _own(FUSED)
    functional: Callable[..., Any] = auto_functionalized

    def codes_of(x: Tensor) -> tuple[Tensor, Tensor]:
        codes = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=x.device)
        scales = torch.empty((x.shape[0], 1), dtype=torch.float32, device=x.device)
        made = functional(quantise, result=codes, input=x, scale=scales, scale_ub=None)
        return made[1], made[2]

    def in_steps(x: Tensor) -> tuple[Tensor, Tensor]:
        half = x.shape[-1] // 2
        return codes_of(torch.nn.functional.silu(x[..., :half]) * x[..., half:])

    def in_ops(x: Tensor) -> tuple[Tensor, Tensor]:
        out = torch.empty((*x.shape[:-1], x.shape[-1] // 2), dtype=x.dtype, device=x.device)
        return codes_of(functional(getattr(library, _SILU).default, result=out, input=x)[1])

    def fused(x: Tensor) -> tuple[Tensor, Tensor]:
        shape = (*x.shape[:-1], x.shape[-1] // 2)
        codes = torch.empty(shape, dtype=torch.float8_e4m3fn, device=x.device)
        scales = torch.empty((x.shape[0], 1), dtype=torch.float32, device=x.device)
        made = functional(own, result=codes, input=x, scale=scales, scale_ub=None)
        return made[1], made[2]

    def fits(match: pm.Match) -> bool:
        x = match.kwargs["x"].meta["val"]
        shape = (*x.shape[:-1], x.shape[-1] // 2)
        made = x.new_empty(shape, dtype=torch.float8_e4m3fn), x.new_empty((x.shape[0], 1), dtype=torch.float32)
        return x.dim() == 2 and _takes(FUSED, [made[0], x, made[1], None], *rows())

    for pattern in (in_steps, in_ops) if hasattr(library, _SILU) else (in_steps,):
        with torch._guards.tracing(None), unset_fake_temporarily(), FakeTensorMode():
            example = [torch.empty((5, 16), dtype=torch.bfloat16, device=device_of_graphs())]
            pm.register_replacement(pattern, fused, example, _traced, found, extra_check=fits)
    return found


def device_of_graphs() -> str:
    """The kind of device that graphs are for."""
    return quant.KEY.lower()


def _traced(*given: Any, **named: Any) -> fx.GraphModule:
    """As vLLM traces its patterns."""

    made: fx.GraphModule = pm.fwd_only(*given, **named)
    post_grad: Any = import_module("torch._inductor.fx_passes.post_grad")
    post_grad.view_to_reshape(made)
    return made
