"""The calls that a measuring process can make: variants of loaded builds, peers, and stand-ins for a machine without
a GPU.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from gemmill.numerics.measured import Bind, Peer, as_they_are, through
from gemmill.registry import REGISTRY
from gemmill.runtime.library import Build
from gemmill.runtime.ops import load
from gemmill.runtime.schemas import NAMESPACE
from gemmill.tuner.checking import GuardedArena
from gemmill.tuner.peers import peers_of, vllm_peer
from gemmill.tuner.protocol import PEER, Candidate, WorkerSpec

ARENA_BYTES = 256 << 20


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A candidate, ready to be called."""

    bind: Bind
    given: Callable[[Any], Any] = as_they_are
    """The operands in the form that it takes."""
    complete: bool = True
    """Whether it computes all of the op."""
    build: Build | None = None
    row: int = -1
    """The row of the build's table to pin; -1 for none."""
    workspace: bool = False

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """This variant answers the calls inside."""
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


class LoadedSubjects:
    """The variants of builds and the peers, on a GPU."""

    def __init__(self, spec: WorkerSpec) -> None:
        """Raises whatever loading a build raises."""
        self._builds = {folder: load(Path(folder)) for folder in spec.builds}
        vllm = [] if spec.vllm_library is None else [vllm_peer(spec.vllm_library)]
        self._peers = {peer.name: peer for peer in [*_torch_peers(), *vllm]}

    def find(self, candidate: Candidate) -> Subject:
        """The subject. Raises LookupError where there is none."""
        if candidate.build == PEER:
            peer = self._peers[candidate.name]
            return Subject(bind=peer.bind, given=peer.given, complete=peer.complete)
        build = self._builds[candidate.build]
        rows = build.table.rows_of(candidate.name)
        if not rows:
            raise LookupError(f"build {build.build_id} has no variant {candidate.name}")
        ops = getattr(torch.ops, f"{NAMESPACE}_{build.build_id}")
        workspace = build.needs_workspace(rows[0])
        return Subject(bind=through(ops), build=build, row=rows[0], workspace=workspace)


class StandIns:
    """The reference in the place of every variant: a dry run."""

    def __init__(self) -> None:
        self._peers = {peer.name for peer in _torch_peers()}

    def find(self, candidate: Candidate) -> Subject:
        """The reference, whatever the candidate is."""
        if candidate.build == PEER and candidate.name not in self._peers:
            raise LookupError(f"there is no peer {candidate.name} in a dry run")
        return Subject(bind=through(getattr(torch.ops, NAMESPACE)))


def _torch_peers() -> list[Peer]:
    return [peer for family in REGISTRY.tunings for peer in peers_of(family)]
