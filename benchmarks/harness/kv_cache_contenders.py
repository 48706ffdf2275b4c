"""Who is timed on the compressed cache's ops: gemmill's, the same of other builds, torch, FlashAttention 3."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gemmill.families.kv_cache.cases.judging import parts, report
from gemmill.families.kv_cache.cases.measured import last_row
from gemmill.families.kv_cache.reference.rotations import hadamard_transform
from harness.contenders import WrongResult
from harness.statistics import Sample
from harness.timers import Prepared, Timer

if TYPE_CHECKING:
    from timed.kv_cache import KvCacheOperands, KvCacheWorkload


@dataclass(frozen=True, kw_only=True)
class KvCacheContender:
    """Ops of one namespace."""

    name: str
    namespace: str
    complete: bool = True

    def takes(self, problem: "KvCacheWorkload") -> bool:
        """Whether the namespace has the op."""
        return hasattr(getattr(torch.ops, self.namespace), problem.case.schema.name)

    def call(self, operands: "KvCacheOperands", i: int) -> Callable[[], object]:
        """A call with its arguments bound."""
        op = getattr(getattr(torch.ops, self.namespace), operands.problem.case.schema.name)
        return partial(op.default, *operands.copies[i].values())

    def prepare(self, operands: "KvCacheOperands", timer: Timer, fewest: int) -> Prepared:
        """Check one result, then make ready to be timed. Raises WrongResult, or whatever the call raises."""
        check(operands, self.call(operands, 0))
        return timer.prepare([self.call(operands, i) for i in range(len(operands.copies))], fewest)

    def host_us(self, operands: "KvCacheOperands", timer: Timer) -> Sample:
        """Host time of one call."""
        return timer.host_us(self.call(operands, 0))


def check(operands: "KvCacheOperands", call: Callable[[], object]) -> None:
    """Hold a result against the reference, of attention that of the first sequence. Raises WrongResult."""
    given = operands.copies[0]
    before = {name: value.clone() if name == "cache" else value for name, value in given.items()}
    before = {name: value.clone() if name == "packed" else value for name, value in before.items()}
    for name in ("keys", "values") if operands.problem.op == "restore" else ("out", "lse"):
        if isinstance(given.get(name), Tensor):
            given[name].fill_(torch.nan)
    call()
    after = given
    if "q" in given:
        before, after = (last_row(each) for each in (before, after))
    if wrong := report(parts(operands.problem.case.schema.name, before, after)):
        raise WrongResult(f"wrong result of {operands.problem}: {wrong}")


@dataclass(frozen=True, kw_only=True)
class KvCachePeer:
    """What a user would call instead, on operands of its own of the same sizes: its results are not checked."""

    name: str
    op: str
    """The kind of problem that it computes."""
    bind: Callable[[dict[str, Any], "KvCacheWorkload"], Callable[[], object]]
    """A call, from the arguments of gemmill's."""
    complete: bool = True

    def takes(self, problem: "KvCacheWorkload") -> bool:
        """Whether the problem is one of its kind."""
        return problem.op == self.op

    def prepare(self, operands: "KvCacheOperands", timer: Timer, fewest: int) -> Prepared:
        """Make ready to be timed. Raises whatever the call raises."""
        return timer.prepare([self.bind(given, operands.problem) for given in operands.copies], fewest)

    def host_us(self, operands: "KvCacheOperands", timer: Timer) -> Sample:
        """Host time of one call."""
        return timer.host_us(self.bind(operands.copies[0], operands.problem))


def matrix_product(given: dict[str, Any], problem: "KvCacheWorkload") -> Callable[[], object]:
    """Rows times a Hadamard matrix."""
    x = given["x"]
    matrix = hadamard_transform(torch.eye(x.shape[1], device=x.device)).to(x.dtype)
    return partial(torch.mm, x, matrix, out=torch.empty_like(x))


def plain_pages(given: dict[str, Any], dtype: torch.dtype) -> Sequence[Tensor]:
    """Pages of keys and of values of a cache's sizes, [pages, page, KV heads, head dim]."""
    q = given["q"]
    if "cache" in given:
        pages, heads, page, _ = given["cache"].shape
    else:
        pages, page, heads, _ = given["keys"].shape
    shape = (pages, page, heads, q.shape[3])
    return [torch.randn(shape, device=q.device, dtype=torch.bfloat16).to(dtype) for _ in range(2)]


def torch_attention(given: dict[str, Any], problem: "KvCacheWorkload") -> Callable[[], object]:
    """torch's attention over keys and values that lie in order."""
    batch, length = problem.shape
    q, (keys, values) = given["q"].transpose(1, 2), plain_pages(given, torch.bfloat16)
    k, v = (x.flatten(0, 1)[: batch * length].unflatten(0, (batch, length)).transpose(1, 2) for x in (keys, values))
    is_causal = q.shape[2] > 1
    return partial(torch.nn.functional.scaled_dot_product_attention, q, k, v, enable_gqa=True, is_causal=is_causal)


def flash_attention_3(dtype: torch.dtype, given: dict[str, Any], problem: "KvCacheWorkload") -> Callable[[], object]:
    """vLLM's FlashAttention 3 over pages, as its backend calls it."""
    batch, length = problem.shape
    q, (keys, values) = given["q"].flatten(0, 1).to(dtype), plain_pages(given, dtype)
    out = torch.empty(q.shape, dtype=torch.bfloat16, device=q.device)
    rows = given["q"].shape[1]
    starts = rows * torch.arange(batch + 1, dtype=torch.int32, device=q.device)
    descale = None if dtype is torch.bfloat16 else torch.ones(batch, keys.shape[2], device=q.device)
    new, lengths_of_new, rotary = (None, None, None), (starts, None, None, None, given["seq_lens"]), (None,) * 3
    sizes, chosen = (rows, length, given["block_table"], None, None), (None, 0, None, 0, None, 1, 0, None)
    options = (given["scale"], True, -1, -1, 0.0, True)
    arguments = (*new, out, *lengths_of_new, *sizes, *rotary, descale, descale, descale, *options, *chosen)
    return partial(torch.ops._vllm_fa3_C.fwd, q, keys, values, *arguments)
