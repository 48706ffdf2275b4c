"""The gate of a sweep: the faults that it must find, and the memory around results that it watches."""

import ctypes
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch

from gemmill.families.scaled_mm.cases.measured import GemmOperands
from gemmill.numerics.measured import through
from gemmill.tuner.bench import Bench
from gemmill.tuner.checking import GUARD, GUARD_BYTES, PAD, GuardedArena
from gemmill.tuner.protocol import WorkerSpec, workload_to_json
from gemmill.tuner.subjects import Subject
from gemms import MeasuredOp, Workload, gemm

CPU = torch.device("cpu")


def faults_of(workload: Workload, **subjects: Subject) -> dict[str, dict[str, str] | None]:
    """A measuring process's verdict on each."""
    bench = Bench(WorkerSpec(builds=(), dry_run=True))
    bench._subjects = type("Given", (), {"find": lambda _, candidate: subjects[candidate.name]})()
    bench.open(workload_to_json(workload))
    return {name: bench.check(name, "b") for name in subjects}


RIGHT = through(torch.ops.gemmill)


def lacking(change: Callable[[GemmOperands], GemmOperands]) -> Subject:
    return Subject(bind=lambda x, i: RIGHT(change(replace(x, weights=x.weights[i : i + 1])), 0))


@pytest.mark.parametrize("k", [4096, 14336, 32768])
def test_long_sums_that_lack_a_little_are_wrong(k: int) -> None:
    """Within the tolerance of random operands: small integers show them."""
    found = faults_of(
        gemm(op=MeasuredOp.FP8, m=9, n=48, k=k),
        right=lacking(lambda x: x),
        short=lacking(lambda x: replace(x, a=x.a[:, :-128], weights=(x.weights[0][:-128],))),
        small=lacking(lambda x: replace(x, a_scales=0.9 * x.a_scales)),
    )
    assert found["right"] is None
    for name in ("short", "small"):
        assert found[name] is not None and found[name]["fault"] == "wrong"
    assert k < 14336 or found["short"]["detail"].startswith("of the rows looked at with small integers, ")


@pytest.mark.parametrize("op", list(MeasuredOp))
def test_the_reference_passes(op: MeasuredOp) -> None:
    """Every class of calls, with exact operands where sums are of floating-point numbers."""
    (found,) = faults_of(gemm(op=op, m=130, n=144, k=4352), right=Subject(bind=RIGHT)).values()
    assert found is None


class Arena:
    """A build whose workspaces are `used` bytes."""

    def __init__(self, used: int) -> None:
        self.used = used

    def set_arena(self, address: int | None, size: int = 0) -> None:
        self.address = address

    def arena_used(self) -> int:
        return self.used


def with_workspace(writes_at: int, call: int) -> Subject:
    """Writes a byte of its workspace of 64 bytes, at the given call."""
    arena, calls = Arena(64), []

    def write(x: GemmOperands, i: int) -> None:
        RIGHT(x, i)()
        calls.append(i)
        if len(calls) == call:
            ctypes.memset(arena.address + writes_at, 0, 1)

    return Subject(bind=lambda x, i: partial(write, x, i), build=arena, workspace=True)


@pytest.mark.parametrize("call", [1, 2, 3])
def test_writes_around_the_workspace_are_found_in_every_call(call: int, monkeypatch) -> None:
    monkeypatch.setattr("gemmill.tuner.bench.ARENA_BYTES", 4096)
    workload = gemm(op=MeasuredOp.FP8, m=3, n=48, k=64)
    found = faults_of(
        workload,
        inside=with_workspace(63, call),
        behind=with_workspace(64, call),
        before=with_workspace(-1, call),
        far=with_workspace(4096 + GUARD_BYTES - 1, call),
    )
    assert found.pop("inside") is None
    for verdict in found.values():
        assert verdict == {"fault": "out of bounds", "detail": "bytes around its workspace changed"}


def writing(place: Callable[[GemmOperands], int], call: int) -> Subject:
    """Writes an element next to its output, at the given call."""
    calls = []

    def write(x: GemmOperands, i: int) -> None:
        RIGHT(x, i)()
        calls.append(i)
        if len(calls) == call:
            x.out.as_strided((1,), (1,), place(x)).zero_()

    return Subject(bind=lambda x, i: partial(write, x, i))


@pytest.mark.parametrize(("call", "pad"), [(1, 0), (2, PAD), (3, 0)])
def test_writes_around_the_output_are_found_in_every_call(call: int, pad: int) -> None:
    m, n = 3, 48
    found = faults_of(
        gemm(op=MeasuredOp.FP8, m=m, n=n, k=64),
        before=writing(lambda x: x.out.storage_offset() - 1, call),
        behind=writing(lambda x: x.out.storage_offset() + m * (n + pad), call),
    )
    for verdict in found.values():
        assert verdict["fault"] == "out of bounds"
        assert verdict["detail"] == f"bytes around its output changed, rows {pad} elements apart"
    if pad:
        (between,) = faults_of(
            gemm(op=MeasuredOp.FP8, m=m, n=n, k=64),
            between=writing(lambda x: x.out.storage_offset() + n + pad - 1, call),
        ).values()
        assert between["fault"] == "out of bounds"


def test_guards_see_each_byte() -> None:
    """The first and last of every band."""
    first = GUARD_BYTES
    arena = GuardedArena(64, CPU)
    arena.used = 16
    for place in (0, first - 1, first, first + 15, first + 16, first + 63, first + 64, first + 64 + GUARD_BYTES - 1):
        arena._memory.fill_(GUARD)
        arena._memory[place] = 0
        assert arena.is_intact() == (first <= place < first + 16), place
