"""The loading of an extension: it checks the file before it opens it, and registers the ops of each new namespace."""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import torch

from gemmill import settings
from gemmill.family import Family, Op, ShapedCall
from gemmill.manifest import Manifest, ManifestError, open_extension
from gemmill.registry import REGISTRY
from gemmill.runtime import checks, handing, operands, packed
from gemmill.runtime.builds import read_build
from gemmill.runtime.choosing import Trust
from gemmill.runtime.declaring import declare
from gemmill.runtime.driver import driver_cuda
from gemmill.runtime.holding import Holding, holds_here
from gemmill.runtime.invariance import Invariance
from gemmill.runtime.notices import tell_loaded, tell_quarantined, tell_unbuilt
from gemmill.runtime.schemas import BY_NAME, OpSchema, add
from gemmill.runtime.select import Choice, Noted, select
from gemmill.runtime.serving import serving_of
from gemmill.runtime.tuned import Machine, Tuned, load_tuned, machine, shipped_rows
from gemmill.runtime.variant_table import VariantTable, make_variant_table
from gemmill.vocab import Arch, without_kernels

_DESCRIBE = ctypes.CFUNCTYPE(
    None, ctypes.c_char_p, ctypes.POINTER(ctypes.c_int64), ctypes.c_int64, ctypes.POINTER(ctypes.c_char), ctypes.c_int64
)
_RECORD = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int64)


class _Kernel(ctypes.Structure):
    _fields_ = [("symbol", ctypes.c_char_p), ("launch", ctypes.c_void_p), ("workspace", ctypes.c_void_p)]


class Build:
    """One loaded build: its manifest, and its extension with the table it selects from."""

    def __init__(self, folder: Path, gpu_arch: str | None = None, manifest: Manifest | None = None) -> None:
        """Load the build in a folder for a GPU of an architecture as `sm90a`, or for none; read its manifest unless it is given.

        Raises ManifestError with one sentence if it cannot be used here.
        """
        self.folder = folder
        self.manifest: Manifest = manifest or read_build(folder)
        _check_torch(self.manifest)
        _check_arch(self.manifest, gpu_arch)
        if gpu_arch is not None:
            _check_driver(self.manifest)
        # Never closed: the loader knows a library by its name, and would take a later file of that number for it.
        self._file = open_extension(self.manifest, folder)
        self._library = _load(self._file, folder / self.manifest.extension)
        self._declare()
        nowhere = Machine(arch=self.manifest.arch, device=None, driver=None)
        self._here = machine(self.manifest) if gpu_arch else nowhere
        self._kernels = self._read_kernels()
        for family, op in self.brought:
            add(family, op)
        self.read_tables()
        for family, op in REGISTRY.ops.values():
            declare(self._library, family, op)
        self._library.gemmill_set_programmatic_launch(int(settings.programmatic_launch()))
        if hasattr(self._library, "gemmill_set_endless_waits"):  # which older builds have not
            self._library.gemmill_set_endless_waits(int(settings.endless_waits()))
        if hasattr(self._library, "gemmill_hand_on"):  # nor this
            handing.listen(self._hand_on)
        self._describe = _DESCRIBE(self._write_refusal)
        self._library.gemmill_set_describe(self._describe)
        self.holding = Holding(self._library, self._choose_held, self.build_id)
        tell_loaded(self.manifest, self.tuned, folder)
        tell_quarantined(self.manifest, self.tuned)
        if gpu_arch is not None:
            tell_unbuilt(self.manifest, self.tuned)

    def __repr__(self) -> str:
        kept = self.manifest
        return f"Build({kept.build_id!r} for {kept.arch}, {len(self._kernels)} kernels, {str(self.folder)!r})"

    def read_tables(self) -> None:
        """Choose by the tables that there are now, the user's and the shipped ones. Calls of other threads go on
        meanwhile."""
        entries = self.manifest.entries
        symbols = [kernel.symbol.decode() for kernel in self._kernels]
        self.tuned: Tuned = load_tuned(entries, self._here)
        self.table: VariantTable = make_variant_table(entries, symbols, self.tuned.choices, self.tuned.quarantined)
        self.invariance = Invariance(
            self.table, self.tuned.choices, shipped_rows(self.manifest.arch), Arch(self.manifest.arch).sm_count
        )
        self._send_table()

    @cached_property
    def brought(self) -> tuple[tuple[Family, Op], ...]:
        """The ops that its kernels bring, which no family declares: users' epilogues."""
        found = {}
        for entry in self.manifest.entries:
            family = REGISTRY.named(entry.family)
            if family.epilogues and entry.epilogue:
                found[entry.epilogue] = family, family.epilogues.op(entry.epilogue)
        return tuple(found.values())

    def declare(self, family: Family, op: Op) -> None:
        """Declare an op to the extension that came after it was loaded. The next namespace registers it."""
        declare(self._library, family, op)

    @property
    def build_id(self) -> str:
        """The digest that names the build."""
        return self.manifest.build_id

    def register(self, namespace: str, device: str = "CUDA") -> int:
        """Give the ops of a namespace this build's kernels; the result goes to `unregister`."""
        return self._library.gemmill_register(namespace.encode(), device.encode())

    def unregister(self, registration: int) -> None:
        """Take a registration's kernels away again."""
        self._library.gemmill_unregister(registration)

    def _hand_on(self, op: str, to: str) -> None:
        if why := self._library.gemmill_hand_on(op.encode(), to.encode()):
            raise ValueError(f"op {op!r} cannot hand its calls on to {to}: {why.decode()}")

    def pin(self, row: int) -> int:
        """Pin a row for the calling thread (-1: none) and return the one pinned before."""
        return self._library.gemmill_pin(row)

    def assume_constant_weights(self, assumed: bool) -> None:
        """Let kernels read b before earlier kernels have ended, or not."""
        self._library.gemmill_set_constant_weights(int(assumed))

    def choose(self, call: ShapedCall, sm_count: int) -> tuple[int, Trust]:
        """The extension's own choice for a call: index of the row, or -1."""
        return packed.choose(self._library, self.table, call, sm_count)

    def note_choices(self, most: int, least_trust: Trust = Trust.NEAREST) -> None:
        """Note choices from now on that rest on no more than `least_trust`, `most` at a time; 0 ends that."""
        self._library.gemmill_note_choices(most, least_trust.value)

    def take_noted(self, most: int) -> list[Noted]:
        """Take the choices noted since, each once for each thread."""
        return list(packed.noted(self._library, self.table, most))

    def times_chosen(self, row: int, trust: Trust) -> int:
        """The number of choices of a row of the table; calls whose choice it remembers do not count."""
        return self._library.gemmill_times_chosen(row, trust.value)

    def set_arena(self, address: int | None, size: int = 0) -> None:
        """Take the calling thread's workspaces from this memory instead of torch's allocator; None ends that."""
        self._library.gemmill_set_arena(ctypes.c_void_p(address), ctypes.c_int64(size))

    def arena_used(self) -> int:
        """Bytes that the last workspace in the arena had; 0 if there was none since the arena was set."""
        return self._library.gemmill_arena_used()

    @contextmanager
    def recording(self) -> Iterator[list[tuple[str, bytes]]]:
        """Record launches: meanwhile the calling thread's reach no kernel. It takes their symbols and the bytes of
        their arguments.

        Raises ManifestError for a build that is too old to record.
        """
        if not hasattr(self._library, "gemmill_set_recorder"):
            raise ManifestError(
                f"build {self.build_id} is too old to be exported from: make it again with `gemmill build`"
            )
        taken: list[tuple[str, bytes]] = []
        take = _RECORD(lambda symbol, args, size: taken.append((symbol.decode(), ctypes.string_at(args, size))))
        self._library.gemmill_set_recorder(take)
        try:
            yield taken
        finally:
            self._library.gemmill_set_recorder(None)

    def explain(self, op: OpSchema, call: operands.Call, sm_count: int, *, traced: bool = True) -> Choice:
        """The choice for a call that passes the checks, with its trace if asked. Raises RuntimeError as the op would."""
        return self.select(serving_of(op).asked(checks.check(op, call)), sm_count, traced=traced)

    def select(self, call: ShapedCall, sm_count: int, *, traced: bool = True) -> Choice:
        """The choice for a call, with its trace if asked, by the pin and the contract of the calling thread."""
        invariance = self.invariance if holds_here() else None
        return select(self.table, call, sm_count, self.pinned_name(), invariance, traced=traced)

    def _choose_held(self, family: int, call: packed.PackedCall, sm_count: int) -> tuple[int, Trust]:
        """The choice for a call of the extension under the contract, which it remembers for the calling thread."""
        shaped = packed.shaped_call(list(self.table.families)[family], call)
        pinned = self.pinned_name()
        if pinned is None:
            row, trust, _ = self.invariance.choose(shaped, sm_count)
            return row, trust
        choice = select(self.table, shaped, sm_count, pinned, self.invariance)
        return choice.row, choice.trust

    def pinned_name(self) -> str | None:
        """The variant that the calling thread has pinned."""
        row = self.pin(-1)
        self.pin(row)
        return self.table.entries[row].name if row >= 0 else None

    def needs_workspace(self, row: int) -> bool:
        """Whether a row's kernel computes the size of its workspace."""
        return bool(self._kernels[self.table.rows[row].kernel].workspace)

    def _declare(self) -> None:
        lib = self._library
        lib.gemmill_register.restype = ctypes.c_void_p
        lib.gemmill_unregister.argtypes = [ctypes.c_void_p]
        if hasattr(lib, "gemmill_hand_on"):
            lib.gemmill_hand_on.restype = ctypes.c_char_p
        lib.gemmill_pin.restype = ctypes.c_int64
        lib.gemmill_pin.argtypes = [ctypes.c_int64]
        lib.gemmill_arena_used.restype = ctypes.c_int64
        packed.declare(lib)

    def _read_kernels(self) -> ctypes.Array[_Kernel]:
        count = ctypes.c_int.in_dll(self._library, "gemmill_kernel_count").value
        return (_Kernel * count).in_dll(self._library, "gemmill_kernels")

    def _send_table(self) -> None:
        packed.send(self._library, self.table)

    def _write_refusal(self, op: bytes, facts: Sequence[int], count: int, text: ctypes.Array, capacity: int) -> None:
        try:
            message = self._refusal(BY_NAME[op.decode()], [facts[i] for i in range(count)])
        except Exception as error:  # a callback must not raise: C++ is on the stack
            message = f"{op.decode()}: the call was refused, and describing it failed ({error!r})"
        encoded = message.encode()[: capacity - 1] + b"\0"
        ctypes.memmove(text, encoded, len(encoded))

    def _refusal(self, op: OpSchema, facts: list[int]) -> str:
        call = operands.of_facts(op, facts)
        try:
            choice = self.explain(op, call, Arch(self.manifest.arch).sm_count)
        except RuntimeError as error:
            return str(error)
        if choice.trust is Trust.PINNED:
            pinned = choice.trace[0]
            return f"{op.name}: the pinned variant {pinned.name} cannot take the call: {pinned.reason}"
        if choice.refused is not None:
            return f"{op.name}: {choice.refused}"
        return f"{op.name}: {serving_of(op).lacks(self.manifest, op, call, choice)}"


def _load(file: BinaryIO, path: Path) -> ctypes.CDLL:
    """The library in an open file. Nobody can have put another in its place since it was checked. Raises
    ManifestError."""
    name = f"/proc/self/fd/{file.fileno()}"
    try:
        return ctypes.CDLL(name, mode=ctypes.RTLD_LOCAL)
    except OSError as error:
        file.close()
        text = str(error).replace(name, path.name)
        raise ManifestError(
            f"the extension {path} cannot be loaded ({text}): `gemmill doctor` says what it lacks"
        ) from None


def _check_torch(manifest: Manifest) -> None:
    found = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    needed = tuple(int(part) for part in manifest.torch_target.split("."))
    if found < needed:
        raise ManifestError(
            f"build {manifest.build_id} needs torch {manifest.torch_target} or later, torch {torch.__version__} is installed: "
            "upgrade torch"
        )


def _check_driver(manifest: Manifest) -> None:
    """Refuse a driver that is too old, before any call.

    A driver runs no machine code of a later major release of CUDA than its own.
    """
    driver, major = driver_cuda(), manifest.toolchain.cuda_major
    if driver is not None and driver[0] < major:
        raise ManifestError(
            f"build {manifest.build_id} is of CUDA {major}, the driver runs up to {driver[0]}.{driver[1]}: upgrade the driver, or "
            f"build with a CUDA {driver[0]} toolkit"
        )


def _check_arch(manifest: Manifest, gpu_arch: str | None) -> None:
    if gpu_arch not in (None, manifest.runs_on):
        if gpu_arch not in set(Arch):
            raise ManifestError(f"build {manifest.build_id} is for {manifest.made_for}: {without_kernels(gpu_arch)}")
        raise ManifestError(
            f"build {manifest.build_id} is for {manifest.made_for}, this GPU is {gpu_arch}: its kernels cannot run here; "
            f"run `gemmill build --arch {gpu_arch}`"
        )
