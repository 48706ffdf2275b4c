"""A call's record on the CPU, for `gemmill export`: a kernel's inputs and its expected outputs."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gemmill.numerics.cases import Case, CodeRange, cases_of_op
from gemmill.numerics.dumped import Dumped
from gemmill.numerics.memory import ALIGNMENT
from gemmill.runtime.library import Build
from gemmill.runtime.on_cpu import by_reference
from gemmill.runtime.schemas import BY_NAME, OPS


@dataclass(frozen=True, kw_only=True)
class RecordedTensor:
    """A tensor of a call."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    address: int
    before: bytes
    """The bytes from its first element to its last, with the gaps between."""
    wanted: bytes | None
    """The same bytes after the call; None for an input."""
    limit: bytes | None = None
    """The distance by which each element of a right result may be off, as f32 in the order of indices. None where it
    is equal.
    """
    ranges: tuple[CodeRange, ...] = ()
    """The codes in bytes that may be one of several values. All else is equal."""

    @property
    def shift(self) -> int:
        """The bytes by which it lies behind an aligned address."""
        return self.address % ALIGNMENT


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A launch."""

    op: str
    arguments: bytes
    """The family's own struct of arguments, with addresses of this process."""
    tensors: tuple[RecordedTensor, ...]
    is_saved: bool = False
    """Whether results are those that a saved call wrote, and not the reference's."""

    def place_of(self, address: int) -> tuple[int, int] | None:
        """The index of the tensor that an address is in, and the bytes from its first. None where there is none."""
        for i, tensor in enumerate(self.tensors):
            if 0 <= address - tensor.address < max(len(tensor.before), 1):
                return i, address - tensor.address
        return None


def record(build: Build, name: str, case: Case | Dumped) -> Recorded:
    """Make a case's call with a build's variant pinned, which launches nothing, and then by the reference. Of a saved call, the
    results are those that it wrote.

    Raises RuntimeError where the variant does not take the call. Raises ValueError where it launches nothing, and
    ManifestError for a build that cannot record.
    """
    op, given = BY_NAME[case.op], list(case.arguments("cpu"))
    (row, *_) = build.table.rows_of(name)
    with _on_cpu(build) as ops, build.recording() as launches:
        before = build.pin(row)
        try:
            made = _tensors(getattr(ops, op.name).default(*given))
        finally:
            build.pin(before)
    if len(launches) != 1:
        raise ValueError(f"{op.name} launches {len(launches)} kernels for this call, and one can be exported")
    named = {**dict(zip(op.arguments, given, strict=True)), **dict(zip(op.returns, made, strict=True))}
    read = {name: _bytes_of(value) for name, value in named.items() if isinstance(value, Tensor)}
    if after := case.wrote if isinstance(case, Dumped) else {}:
        limits, ranges = {}, {}  # the same kernel writes the same bits
    else:
        results = _tensors(by_reference(op, given))
        written = {parameter.name for parameter in op.parameters if parameter.written}
        after = {name: named[name] for name in written if name in read} | dict(zip(op.returns, results, strict=True))
        cases = cases_of_op(op.name)
        limits = cases.limits(op.name, named) if cases.limits else {}
        ranges = cases.ranges(op.name, named) if cases.ranges else {}
    tensors = tuple(
        RecordedTensor(
            name=name,
            dtype=named[name].dtype,
            shape=tuple(named[name].shape),
            strides=named[name].stride(),
            address=named[name].data_ptr(),
            before=bytes_,
            wanted=_bytes_of(after[name]) if name in after else None,
            limit=limits[name].float().contiguous().numpy().tobytes() if name in limits else None,
            ranges=tuple(ranges.get(name, ())),
        )
        for name, bytes_ in read.items()
    )
    return Recorded(
        op=op.name,
        arguments=launches[0][1],
        tensors=tensors,
        is_saved=isinstance(case, Dumped) and bool(case.wrote),
    )


@contextmanager
def _on_cpu(build: Build) -> Iterator[Any]:
    """The build's ops for CPU tensors, in a namespace of their own."""
    namespace = f"gemmill_recorded_{build.build_id}"
    library = torch.library.Library(namespace, "FRAGMENT")
    for op in OPS:
        library.define(op.schema)
    registration = build.register(namespace, "CPU")
    try:
        yield getattr(torch.ops, namespace)
    finally:
        build.unregister(registration)
        library._destroy()


def _tensors(returned: Any) -> Sequence[Tensor]:
    if returned is None:
        return ()
    return returned if isinstance(returned, (tuple, list)) else (returned,)


def _bytes_of(tensor: Tensor) -> bytes:
    """The bytes from the first element to the last."""
    if not tensor.numel():
        return b""
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    bits = tensor.as_strided((span,), (1,)).view(torch.uint8)
    assert math.prod(bits.shape) == span * tensor.itemsize
    return bits.numpy().tobytes()
