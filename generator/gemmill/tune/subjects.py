"""What a measuring process can call: variants of loaded builds, peers, and stand-ins for a machine without a GPU."""

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from gemmill.numerics.measured import Bind, Operands, Peer, as_they_are, through
from gemmill.registry import REGISTRY
from gemmill.runtime.library import Build
from gemmill.runtime.ops import load
from gemmill.runtime.schemas import NAMESPACE
from gemmill.tune.checking import GUARD_BYTES, Fault, GuardedArena
from gemmill.tune.peers import peers_of, vllm_peer
from gemmill.tune.protocol import PEER, Candidate, WorkerSpec

ARENA_BYTES = 256 << 20
HANG_CYCLES = 1 << 40
"""Ten minutes and more of an H200's clock."""


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A candidate, ready to be called."""

    bind: Bind
    given: Callable[[Any], Any] = as_they_are
    """The operands as it takes them."""
    complete: bool = True
    """Whether it computes all of the op."""
    build: Build | None = None
    row: int = -1
    """Of the build's table, to be pinned; -1 where nothing is pinned."""
    workspace: bool = False

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """Calls inside are answered by this variant."""
        if self.build is None or self.row < 0:
            yield
            return
        before = self.build.pin(self.row)
        try:
            yield
        finally:
            self.build.pin(before)

    @contextmanager
    def workspace_in(self, arena: GuardedArena | None) -> Iterator[None]:
        """Calls inside have their workspace in the arena."""
        if self.build is None or arena is None or not self.workspace:
            yield
            return
        arena.reset()
        self.build.set_arena(arena.address, arena.size)
        try:
            yield
        finally:
            arena.used = self.build.arena_used()
            self.build.set_arena(None)


class Subjects(Protocol):
    """Finds subjects."""

    def find(self, candidate: Candidate) -> Subject:
        """The subject. Raises LookupError where there is none."""
        ...


class LoadedSubjects:
    """Variants of builds, and peers, on a GPU."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._builds = {folder: load(Path(folder)) for folder in spec.builds}
        self._peers = {peer.name: peer for peer in _peers(spec)}

    def find(self, candidate: Candidate) -> Subject:
        """The subject. Raises LookupError."""
        if candidate.build == PEER:
            return _of_peer(self._peers[candidate.name])
        build = self._builds[candidate.build]
        rows = build.table.rows_of(candidate.name)
        if not rows:
            raise LookupError(f"build {build.build_id} has no variant {candidate.name}")
        ops = getattr(torch.ops, f"{NAMESPACE}_{build.build_id}")
        workspace = build.needs_workspace(rows[0])
        return Subject(bind=through(ops), build=build, row=rows[0], workspace=workspace)


class StandIns:
    """The reference in the place of every variant: a dry run."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._peers = {peer.name for peer in _torch_peers()}

    def find(self, candidate: Candidate) -> Subject:
        """The reference, whatever the candidate is."""
        if candidate.build == PEER and candidate.name not in self._peers:
            raise LookupError(f"there is no peer {candidate.name} in a dry run")
        return Subject(bind=through(getattr(torch.ops, NAMESPACE)))


class FaultySubjects:
    """Subjects of which some go wrong on purpose, to see a sweep survive them."""

    def __init__(self, inner: Subjects, spec: WorkerSpec) -> None:
        self._inner = inner
        self._faults = {name: Fault(fault) for name, fault in spec.faults.items()}

    def find(self, candidate: Candidate) -> Subject:
        """The subject, with its fault."""
        found = self._inner.find(candidate)
        fault = self._faults.get(candidate.name)
        if fault is None:
            return found
        return Subject(bind=_faulty(found.bind, fault), build=found.build, row=found.row, workspace=found.workspace)


def find_subjects(spec: WorkerSpec) -> Subjects:
    """What the spec asks for. Raises whatever loading a build raises."""
    inner: Subjects = StandIns(spec) if spec.dry_run else LoadedSubjects(spec)
    return FaultySubjects(inner, spec) if spec.faults else inner


def invented_us(name: str, problem_us: float, seed: int, turn: int) -> float:
    """A time that depends on the name, with noise that depends on the seed: what a dry run measures."""

    def fraction(*parts: object) -> float:
        return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big") / 2**32

    return problem_us * (1.2 + fraction(name, problem_us)) * (1 + 0.01 * fraction(name, seed, turn))


def _torch_peers() -> list[Peer]:
    return [peer for family in REGISTRY.tunings for peer in peers_of(family)]


def _peers(spec: WorkerSpec) -> list[Peer]:
    peers = _torch_peers()
    if spec.vllm_library is not None:
        peers.append(vllm_peer(spec.vllm_library))
    return peers


def _of_peer(peer: Peer) -> Subject:
    return Subject(bind=peer.bind, given=peer.given, complete=peer.complete)


def _faulty(bind: Bind, fault: Fault) -> Bind:
    calls = 0

    def bound(x: Operands, i: int) -> Callable[[], Any]:
        call = bind(x, i)

        def run() -> Any:
            nonlocal calls
            calls += 1
            result = call()
            _COMMIT[fault](next(iter(x.outputs.values())), calls)
            return result

        return run

    return bound


def _crash(out: Tensor, _calls: int) -> None:
    if not out.is_cuda:
        os.abort()
    # An index out of range is an assertion on the device, which ends the context.
    out.flatten()[torch.full((1,), 1 << 40, dtype=torch.int64, device=out.device)].sum().item()


def _hang(out: Tensor, _calls: int) -> None:
    if out.is_cuda:
        torch.cuda._sleep(HANG_CYCLES)
        torch.cuda.synchronize()
    while True:
        time.sleep(1)


def _refuse(_out: Tensor, _calls: int) -> None:
    raise RuntimeError("this variant was told to refuse")


def _spoil(value: float) -> Callable[[Tensor, int], None]:
    def spoil(out: Tensor, _calls: int) -> None:
        out[-1, -1] = value

    return spoil


def _write_outside(out: Tensor, _calls: int) -> None:
    first = out.storage_offset()
    behind = first + (out.shape[0] - 1) * out.stride(0) + out.shape[1]
    out.as_strided((1,), (1,), behind + GUARD_BYTES // 4 if out.is_contiguous() else behind).zero_()


def _change(out: Tensor, calls: int) -> None:
    if calls % 2 == 0:
        out[0, 0] = torch.nextafter(out[0, 0], torch.full_like(out[0, 0], torch.inf))


_COMMIT: dict[Fault, Callable[[Tensor, int], None]] = {
    Fault.CRASH: _crash,
    Fault.HANG: _hang,
    Fault.REFUSED: _refuse,
    Fault.NAN: _spoil(torch.nan),
    Fault.WRONG: _spoil(1e4),
    Fault.OUT_OF_BOUNDS: _write_outside,
    Fault.NOT_REPEATABLE: _change,
}
