"""Operands of the measured classes of calls: caches of random codes, with several copies that calls take in turns."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from gemmill.families.kv_cache.cases.calls import DecodeCase, DecompressCase, empty_cache
from gemmill.families.kv_cache.cases.judging import parts, report, worst_part
from gemmill.families.kv_cache.cases.packed_calls import AttendCase, packed_vectors, specs_of
from gemmill.families.kv_cache.sweep import MeasuredOp
from gemmill.numerics.comparison import Comparison
from gemmill.numerics.measured import ROTATED_BYTES, MeasuredWorkload
from gemmill.numerics.memory import Slot

MOST_COPIES = 32
NORM = 8.0
"""The norm of all keys and values in pages. Their codes are random."""
PER_SEQUENCE = ("out", "q", "block_table", "seq_lens", "lse")
"""Arguments whose first dimension is the sequences."""
PAGE = 64


@dataclass(frozen=True, kw_only=True)
class AttentionOperands:
    """The `Operands` of a measured attention."""

    workload: MeasuredWorkload
    case: DecodeCase | AttendCase
    given: tuple[dict[str, Any], ...]
    """The input arguments, by name, of each copy."""
    written: dict[str, Tensor]

    @property
    def op(self) -> str:
        return self.case.schema.name

    @property
    def copies(self) -> int:
        return len(self.given)

    @property
    def words(self) -> str:
        return ""

    @property
    def outputs(self) -> dict[str, Tensor]:
        return self.written

    def arguments(self, i: int) -> list[Any]:
        given = self.given[i] | self.written
        return [given[name] for name in self.case.schema.arguments]

    def writing(self, outputs: Mapping[str, Tensor]) -> Self:
        return replace(self, written=dict(outputs))

    def slots(self, pad: int) -> dict[str, Slot]:
        out, lse = self.written["out"], self.written["lse"]
        return {"out": _slot(out, out.shape[-1] + pad), "lse": _slot(lse, lse.shape[-1])}

    def expected(self) -> "FirstSequence":
        return FirstSequence(self)


def _slot(x: Tensor, stride: int) -> Slot:
    """The slot of a tensor's shape, whose rows of the last dimension are at one stride."""
    *outer, columns = x.shape
    strides = [stride]
    for size in reversed(outer[1:]):
        strides.insert(0, strides[0] * size)
    return Slot(
        dtype=x.dtype,
        shape=tuple(x.shape),
        strides=(*strides, 1),
        rows=x.numel() // max(columns, 1),
        columns=columns,
        row_stride=stride,
        column_stride=1,
        values=None,
        written=True,
    )


class FirstSequence:
    """The reference of the last row of the first sequence. It does not check other rows."""

    def __init__(self, x: AttentionOperands) -> None:
        self._op, self._given = x.op, dict(zip(x.case.schema.arguments, x.arguments(0), strict=True))

    def compare(self, results: Mapping[str, Tensor]) -> Comparison:
        """Hold the first sequence's last row of whole results against the reference."""
        found = parts(self._op, *(last_row(self._given | dict(each)) for each in ({}, results)))
        wrong = sum(int((~(part <= 1)).sum()) for part in found.values())
        return Comparison(
            ok=wrong == 0,
            wrong=wrong,
            elements=sum(part.numel() for part in found.values()),
            worst_fraction=max(map(worst_part, found.values())),
            report=report(found),
            unwritten=any(bool(result.isnan().any()) for result in results.values()),
        )


def last_row(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of the first sequence's last row, which are a call of their own."""
    one = {name: value[:1] if name in PER_SEQUENCE else value for name, value in given.items()}
    return one | {"q": one["q"][:, -1:], "out": one["out"][:, -1:], "lse": one["lse"][..., -1:].contiguous()}


def random_cache(case: DecodeCase | DecompressCase, pages: int, device: torch.device) -> Tensor:
    """Pages of random codes whose vectors have one norm. To compress so many vectors by the reference takes minutes."""
    cache = empty_cache(case.spec, pages, device)
    pieces = cache.view(pages, case.kv_heads, -1).random_(0, 256)
    norms = torch.full((case.page,), NORM, dtype=torch.float16, device=device).view(torch.uint8)
    codes = case.page * case.head_dim * case.spec.format.keys.bits // 8
    pieces[..., codes : codes + len(norms)] = norms
    pieces[..., -len(norms) :] = norms
    return cache


def random_slots(case: AttendCase, pages: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Keys and values in slots, the vectors of a page over and over. Random bytes would not do: their scalars may be
    infinite or NaN."""
    specs = specs_of(case.format, case.head_dim)
    page = torch.cat([packed_vectors((1, case.page, case.kv_heads), spec, device) for spec in specs], dim=-1)
    cache, key = page.repeat(pages, 1, 1, 1), specs[0].format.size(case.head_dim)
    return cache[..., :key], cache[..., key:]


def attention_arguments(case: DecodeCase | AttendCase, device: torch.device) -> dict[str, Any]:
    """Arguments by name, for sequences of one length."""
    batch, length = len(case.lengths), case.lengths[0]
    each = -(-length // case.page)
    pages = batch * each
    if isinstance(case, DecodeCase):
        cached: dict[str, Any] = {"cache": random_cache(case, pages, device)}
    else:
        cached = dict(zip(("keys", "values"), random_slots(case, pages, device), strict=True))
    q = torch.randn(batch, case.rows, case.heads, case.head_dim, device=device, dtype=torch.float32).bfloat16()
    given = {
        "out": torch.empty_like(q),
        "q": q,
        **cached,
        "block_table": torch.randperm(pages, device=device, dtype=torch.int64).int().reshape(batch, each),
        "seq_lens": torch.full((batch,), length, dtype=torch.int32, device=device),
        "format": case.format,
        "scale": case.head_dim**-0.5,
        "seed": case.seed,
        "causal": True,
        "window": 0,
        "sinks": None,
        "lse": torch.empty(batch, case.heads, case.rows, device=device, dtype=torch.float32),
        "softcap": 0.0,
        "rotated_out": False,
        "key_scales": None,
        "value_scales": None,
    }
    return {name: given[name] for name in case.schema.arguments}


class AttentionMaker:
    """The maker of operands on a device."""

    def __init__(self, device: torch.device, rotated_bytes: int = ROTATED_BYTES) -> None:
        self._device, self._rotated_bytes = device, rotated_bytes

    def make(self, workload: MeasuredWorkload) -> AttentionOperands:
        """Make as many copies of the operands as keep L2 from holding them."""
        op, sizes = MeasuredOp(workload.op), workload.sizes
        batch, rows, heads, kv_heads, length = (
            sizes[name] for name in ("batch", "rows", "heads", "kv_heads", "length")
        )
        lengths, kind = (length,) * batch, DecodeCase if op.bits else AttendCase
        case = kind(lengths=lengths, rows=rows, heads=heads, kv_heads=kv_heads, page=PAGE, format=op.cache_format)
        count = min(MOST_COPIES, max(1, -(-self._rotated_bytes // (batch * length * kv_heads * op.token_bytes))))
        given = tuple(attention_arguments(case, self._device) for _ in range(count))
        written = {name: given[0][name].fill_(torch.nan) for name in ("out", "lse")}
        return AttentionOperands(workload=workload, case=case, given=given, written=written)

    def exact(self, x: AttentionOperands) -> None:
        """Nothing: sums of exponentials are never exact."""
