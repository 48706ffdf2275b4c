"""Who is timed on the compressed cache's ops: gemmill's, the same of other builds, torch, FlashAttention 3."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from gemmill.families.kv_cache.cases.judging import parts, report
from gemmill.families.kv_cache.cases.measured import last_row
from gemmill.families.kv_cache.reference.rotations import hadamard_transform
from gemmill.nn import CompressedKVCache
from gemmill.nn.cache_prefill import Attention
from harness.contenders import CheckedCalls, WrongResult
from timed.kv_cache.calls import KvCacheOperands, case_of
from timed.workload import Workload


@dataclass(frozen=True, kw_only=True)
class KvCacheContender(CheckedCalls):
    """Ops of one namespace."""

    name: str
    namespace: str
    complete: bool = True

    def takes(self, workload: Workload) -> bool:
        """Whether the namespace has the op."""
        return hasattr(getattr(torch.ops, self.namespace), case_of(workload).schema.name)

    def call(self, operands: KvCacheOperands, i: int) -> Callable[[], object]:
        """A call with its arguments bound."""
        op = getattr(getattr(torch.ops, self.namespace), case_of(operands.workload).schema.name)
        return partial(op.default, *operands.given[i].values())

    def check(self, operands: KvCacheOperands, call: Callable[[], object]) -> None:
        check(operands, call)


def check(operands: KvCacheOperands, call: Callable[[], object]) -> None:
    """Hold a result against the reference, of attention that of the first sequence. Raises WrongResult."""
    given = operands.given[0]
    before = {name: value.clone() if name == "cache" else value for name, value in given.items()}
    before = {name: value.clone() if name == "packed" else value for name, value in before.items()}
    for name in ("keys", "values") if operands.workload.of.op == "restore" else ("out", "lse"):
        if isinstance(given.get(name), Tensor):
            given[name].fill_(torch.nan)
    call()
    after = given
    if "q" in given:
        before, after = (last_row(each) for each in (before, after))
    if wrong := report(parts(case_of(operands.workload).schema.name, before, after)):
        raise WrongResult(f"wrong result of {operands.workload}: {wrong}")


@dataclass(frozen=True, kw_only=True)
class KvCachePeer(CheckedCalls):
    """The calls that a user would make instead, on operands of its own of the same sizes: its results are not checked."""

    name: str
    op: str
    """The kind of workload that it computes."""
    bind: Callable[[dict[str, Any], Workload], Callable[[], object]]
    """A call, from the arguments of gemmill's."""
    complete: bool = True
    reads_lengths: bool = True
    """Whether sequences of a batch can have several lengths."""

    def takes(self, workload: Workload) -> bool:
        """Whether the workload is one of its kind."""
        return workload.of.op == self.op and (self.reads_lengths or not workload.lengths)

    def call(self, operands: KvCacheOperands, i: int) -> Callable[[], object]:
        """A call with its arguments bound."""
        return self.bind(operands.given[i], operands.workload)

    def check(self, operands: KvCacheOperands, call: Callable[[], object]) -> None:
        """Nothing."""


def matrix_product(given: dict[str, Any], workload: Workload) -> Callable[[], object]:
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


def torch_attention(given: dict[str, Any], workload: Workload) -> Callable[[], object]:
    """torch's attention over keys and values that lie in order."""
    batch, length = workload.batch, workload.length
    q, (keys, values) = given["q"].transpose(1, 2), plain_pages(given, torch.bfloat16)
    k, v = (x.flatten(0, 1)[: batch * length].unflatten(0, (batch, length)).transpose(1, 2) for x in (keys, values))
    is_causal = q.shape[2] > 1
    return partial(torch.nn.functional.scaled_dot_product_attention, q, k, v, enable_gqa=True, is_causal=is_causal)


def flash_attention_3(dtype: torch.dtype, given: dict[str, Any], workload: Workload) -> Callable[[], object]:
    """vLLM's FlashAttention 3 over pages, as its backend calls it."""
    batch, length = workload.batch, workload.length
    q, (keys, values) = given["q"].flatten(0, 1).to(dtype), plain_pages(given, dtype)
    out = torch.empty(q.shape, dtype=torch.bfloat16, device=q.device)
    rows = given["q"].shape[1]
    starts = rows * torch.arange(batch + 1, dtype=torch.int32, device=q.device)
    descale = None if dtype is torch.bfloat16 else torch.ones(batch, keys.shape[2], device=q.device)
    lengths, sizes = (starts, None, None, None, given["seq_lens"]), (rows, length, given["block_table"])
    return _bound_fa3(q, keys, values, out, (*lengths, *sizes), descale, given["scale"], causal=True)


def plain_flash_attention_3(q: Tensor, keys: Tensor, values: Tensor, scale: float, causal: bool) -> Tensor:
    """The same of one sequence without pages, as `CompressedKVCache.prefill` takes an attention."""
    out, lengths = torch.empty_like(q), (len(q), len(keys))
    # Made on the device: a graph records no copy from the host.
    starts = [length * torch.arange(2, dtype=torch.int32, device=q.device) for length in lengths]
    _bound_fa3(q, keys, values, out, (*starts, None, None, None, *lengths, None), None, scale, causal=causal)()
    return out


def _bound_fa3(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    out: Tensor,
    sizes: tuple[object, ...],
    descale: Tensor | None,
    scale: float,
    *,
    causal: bool,
) -> Callable[[], object]:
    """`sizes` are starts of queries and of keys, new keys' starts, lengths of both, the longest of both, and the page table."""
    new, places, rotary, chosen = (None,) * 3, (None,) * 2, (None,) * 3, (None, 0, None, 0, None, 1, 0, None)
    options = (scale, causal, -1, -1, 0.0, True)
    arguments = (*new, out, *sizes, *places, *rotary, descale, descale, descale, *options, *chosen)
    return partial(torch.ops._vllm_fa3_C.fwd, q, keys, values, *arguments)


@dataclass(frozen=True, kw_only=True)
class PrefillPeer(KvCachePeer):
    """Prefills over pages of our own formats, by restored keys and values."""

    op: str = "prefill"

    def takes(self, workload: Workload) -> bool:
        """Whether there are pages."""
        return super().takes(workload) and bool(workload.of.bits)


def restore_then_attend(attention: Attention, given: dict[str, Any], workload: Workload) -> Callable[[], object]:
    """`kv_decompress` and an attention, by hand: a sequence at a time, into memory that is there already."""
    batch, length, cache = workload.batch, workload.length, given["cache"]
    page, q, table = cache.shape[2], given["q"], given["block_table"].long()
    places = torch.arange(page, device=q.device)
    slots = [(row[:, None] * page + places).flatten()[:length] for row in table]
    keys, values = (torch.empty(length, cache.shape[1], q.shape[3], dtype=q.dtype, device=q.device) for _ in range(2))
    out = torch.empty_like(q)

    def call() -> Tensor:
        for i in range(batch):
            torch.ops.gemmill.kv_decompress.default(keys, values, cache, slots[i], given["format"], given["seed"])
            out[i] = attention(q[i], keys, values, given["scale"], True)
        return out

    return call


def prefill_of_class(attention: Attention, given: dict[str, Any], workload: Workload) -> Callable[[], object]:
    """`CompressedKVCache.prefill` over the same pages."""
    batch, length, data, q = workload.batch, workload.length, given["cache"], given["q"]
    sizes = {"kv_heads": data.shape[1], "head_dim": q.shape[3], "page": data.shape[2], "format": given["format"]}
    cache = CompressedKVCache(pages=len(data), seed=given["seed"], device=data.device, **sizes)
    cache.data = data[None]
    own = [cache.allocate() for _ in range(batch)]
    step = replace(
        cache.append(dict.fromkeys(own, 0)),
        counts=(q.shape[1],) * batch,
        lengths=(length,) * batch,
        slot_mapping=torch.empty(0, dtype=torch.int64, device=data.device),
        block_table=given["block_table"],
        seq_lens=given["seq_lens"],
    )
    return partial(cache.prefill, step, q, scale=given["scale"], attention=attention)
