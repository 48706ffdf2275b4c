"""vLLM's routing of few tokens to experts: logits, their softmax and the largest of them in one launch, where vLLM has two.

Of release 0.33. vLLM's runner of experts calls a gate, a linear layer, and gives its logits to a router. Where the runner has
called a gate, gemmill's kernel computes the router's results too, and the router keeps them. It returns them for the same tensor
of logits, and computes those of any other, so logits that travelled between ranks or were replaced are vLLM's. Gates with biases,
LoRA or logits of float32 stay vLLM's, and so do layers with experts in several places and all under VLLM_BATCH_INVARIANT.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from logging import WARNING
from math import ceil
from typing import Any, ClassVar

import torch
from torch import Tensor

import gemmill
from gemmill.compat import invariance
from gemmill.compat.linear import first_call_passes, refusal, take, unusable
from gemmill.runtime import served
from gemmill.runtime.holding import holds_here

MOST_TOKENS = 256
"""The most tokens of a call that gemmill's kernel takes. vLLM's two launches take 9.0 us at 1 to 256 tokens of Qwen3-30B-A3B (H200)."""
_FEWER_TOKENS, _MOST_PASSES = 192, 2
_EXPERTS_OF_PASS, _COLUMNS_OF_PASS = 128, 2048
_FUSED_MOE = "vllm.model_executor.layers.fused_moe"
GATE = f"{_FUSED_MOE}.router.gate_linear", "GateLinear"
ROUTER = f"{_FUSED_MOE}.router.fused_topk_router", "FusedTopKRouter"
RUNNER = f"{_FUSED_MOE}.runner.moe_runner", "MoERunner"
PADDING = "_get_padding_mask"
"""The function of the router's module that says which rows of a batch are of no token; None for no mask. vLLM routes them to -1."""
_OWN = "_gemmill"
"""Attribute of vLLM's objects: of a gate its `_Layer`, of a router the results that it keeps; None where there are none."""
_OP = "router_topk"
_HALVES = torch.bfloat16, torch.float16

Results = tuple[Tensor, Tensor, Tensor]
"""Logits, weights f32 and experts s32."""


def most_tokens(experts: int, hidden: int) -> int:
    """The most tokens for which gemmill's kernel is faster than F.linear and topk_softmax; 0 for none.

    A warp loads eight blocks of K at once, for 16 experts: a pass over 128 experts and 2,048 columns takes 4.0 to 5.1 us at up to 192
    tokens, two take 5.0 to 7.8, where F.linear alone takes 5.2 to 7.4 and topk_softmax 3.8 to 4.2 behind it; four take 12. At 256
    tokens one takes 6.5, two 6.8 to 10.1 (H200, 61554b07, docs/notes/routing.md).
    """
    passes = ceil(experts / _EXPERTS_OF_PASS) * ceil(hidden / _COLUMNS_OF_PASS)
    return 0 if passes > _MOST_PASSES else MOST_TOKENS if passes == 1 else _FEWER_TOKENS


@dataclass(frozen=True, kw_only=True)
class Routing:
    """A gate and its router, as far as a variant for them depends on them."""

    rows: ClassVar[tuple[int, ...]] = (1, MOST_TOKENS)
    experts: int
    hidden: int
    topk: int
    dtype: torch.dtype
    """The dtype of x, the gate's weight and logits."""
    renormalize: bool

    def __str__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        return f"router to {self.topk} of {self.experts} experts, by rows of {self.hidden} {kind} elements"

    def call(self, m: int) -> tuple[Any, ...]:
        """The op's name and its arguments for m tokens, on torch's meta device."""

        def empty(*shape: int, kind: torch.dtype = self.dtype) -> Tensor:
            return torch.empty(shape, dtype=kind, device="meta")

        results = empty(m, self.experts), empty(m, self.topk, kind=torch.float32), empty(m, self.topk, kind=torch.int32)
        return _OP, *results, empty(m, self.hidden), empty(self.experts, self.hidden), self.renormalize


@dataclass(kw_only=True, slots=True, eq=False)
class _Layer:
    """The router behind a gate."""

    router: Any
    runner: Any
    """That of both; None when gemmill has taken the layer, by its first call."""
    padding_of: Callable[[int], Tensor | None]
    most: int = 0
    """Tokens of a call that gemmill takes."""

    def logits(self, gate: Any, x: Tensor) -> Tensor | None:
        """The logits of a call that gemmill takes, whose results the router keeps; None for other calls. Raises nothing."""
        if torch.compiler.is_compiling() or gate._forward_hooks or x.dim() != 2 or not (rows := x.shape[0]):
            return None
        if self.runner is not None and not self._is_taken(gate, x):
            setattr(gate, _OWN, None)
            return None
        weight = gate._parameters["weight"].data  # without vLLM's subclass, and without a module's search for the name
        if rows > self.most or x.dtype is not weight.dtype:
            return None
        try:
            results = self._results(x, weight, self.padding_of(rows))
        except Exception as error:  # whatever is wrong with gemmill, vLLM has kernels of its own
            served.left(str(self._routing(gate, x)), unusable(error), level=WARNING)
            setattr(gate, _OWN, None)
            return None
        self.router._gemmill = results
        return results[0]

    def _results(self, x: Tensor, weight: Tensor, padding: Tensor | None = None) -> Results:
        router = self.router
        return gemmill.router_topk(x, weight, router.top_k, renormalize=router.renormalize, is_padding=padding)

    def _is_taken(self, gate: Any, x: Tensor) -> bool:
        """Whether gemmill takes the layer, by its first call, of any number of tokens: later ones may be captured in a CUDA graph."""
        routing = self._routing(gate, x)
        try:
            why = refusal_of(self.runner, gate, self.router)
        except Exception as error:  # the same
            why = unusable(error)
        if why is not None:
            served.left(str(routing), why)
            return False
        if refusal(routing) is not None or not first_call_passes(routing, self._results, x[:MOST_TOKENS], gate.weight):
            return False
        self.most = most_tokens(routing.experts, routing.hidden)
        take(routing, _OP, rows=f"calls of at most {self.most} tokens")
        self.runner = None
        return True

    def _routing(self, gate: Any, x: Tensor) -> Routing:
        router = self.router
        return Routing(
            experts=gate.output_size,
            hidden=x.shape[1],
            topk=router.top_k,
            dtype=x.dtype,
            renormalize=router.renormalize,
        )


def refusal_of(runner: Any, gate: Any, router: Any) -> str | None:
    """The reason why a layer stays vLLM's, in one sentence; None where gemmill takes it if the build does."""
    if invariance.vllm_asks() or holds_here():
        return "gemmill takes no router under batch invariance, for it takes few tokens and leaves many to vLLM"
    if router.scoring_func != "softmax":
        return f"gemmill routes by softmax, and scoring_func is {router.scoring_func!r}"
    if router.eplb_state is not None or runner.do_naive_dispatch_combine:
        return "gemmill takes no layer whose experts or logits travel between ranks"
    if runner.gate is not gate or runner.moe_config.is_lora_enabled:
        return "gemmill takes no gate with LoRA"
    if runner._fse_fuse_gate or runner.is_monolithic:
        return "vLLM gives this layer's logits to no router"
    if gate.bias is not None or not gate.is_unquantized or gate.weight.dtype not in _HALVES:
        return "gemmill takes gates of bfloat16 or float16 without biases"
    if not most_tokens(*gate.weight.shape):
        return "F.linear is faster for more than 128 experts of 4096 columns or 256 of 2048"
    if gate.out_dtype not in (None, gate.weight.dtype):
        return f"gemmill gives logits the dtype of the gate's weight, and out_dtype is {gate.out_dtype}"
    return None


def _before_gate(of_vllm: Callable[..., Any]) -> Callable[..., Any]:
    """A gate's forward."""

    @wraps(of_vllm)
    def forward(self: Any, x: Tensor) -> Any:
        layer = self._gemmill
        if layer is None or (logits := layer.logits(self, x)) is None:
            return of_vllm(self, x)
        return (logits, None) if self.return_bias else logits

    return forward


def _before_router(of_vllm: Callable[..., Any]) -> Callable[..., Any]:
    """A router's choice of experts."""

    @wraps(of_vllm)
    def compute_routing(
        self: Any,
        hidden_states: Tensor,
        router_logits: Tensor,
        indices_type: torch.dtype | None,
        *,
        input_ids: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        kept = self._gemmill
        if kept is not None:
            self._gemmill = None
            logits, weights, ids = kept
            if logits is router_logits:
                return weights, ids if indices_type is None else _as(ids, indices_type)
        found: tuple[Tensor, Tensor] = of_vllm(self, hidden_states, router_logits, indices_type, input_ids=input_ids)
        return found

    return compute_routing


def _as(ids: Tensor, kind: torch.dtype) -> Tensor:
    """Experts in another type of integers; uint32 has the same bits."""
    return ids.view(kind) if kind is torch.uint32 else ids.to(kind)


def _before_runner(
    of_vllm: Callable[..., None], gates: type, routers: type, padding_of: Callable[[int], Tensor | None]
) -> Callable[..., None]:
    """A runner's construction, which tells its gate of its router. Subclasses of either stay vLLM's."""

    @wraps(of_vllm)
    def made(self: Any, *given: Any, **named: Any) -> None:
        of_vllm(self, *given, **named)
        gate, router = getattr(self, "gate", None), getattr(self, "router", None)
        if type(gate) is gates and type(router) is routers:
            setattr(gate, _OWN, _Layer(router=router, runner=self, padding_of=padding_of))

    return made


def put_before() -> None:
    """Wrap methods of vLLM's gates, routers and runners of experts; a second call changes nothing."""
    gates, routers, runners = (getattr(import_module(module), name) for module, name in (GATE, ROUTER, RUNNER))
    if _OWN in vars(gates):
        return
    padding_of = getattr(import_module(ROUTER[0]), PADDING)
    forward, compute_routing = _before_gate(gates.forward), _before_router(routers._compute_routing)
    made = _before_runner(runners.__init__, gates, routers, padding_of)
    for of_vllm in (gates, routers):
        setattr(of_vllm, _OWN, None)
    gates.forward, routers._compute_routing, runners.__init__ = forward, compute_routing, made
