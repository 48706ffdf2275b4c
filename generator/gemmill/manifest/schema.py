"""The values in a manifest."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gemmill.vocab import Arch


class ManifestError(Exception):
    """Why a manifest or its extension cannot be used: the file, its contents, the expected ones and the remedy."""


class OtherVersionError(ManifestError):
    """A manifest that nobody has changed and that another version of gemmill wrote."""

    def __init__(self, text: str, data: Mapping[str, Any]) -> None:
        super().__init__(text)
        self.data = data
        """Its unchecked contents."""


SCHEMA_VERSION = 11
"""Of the manifest, and of the numbers that runtime and extension exchange."""

EMULATION = "-DGEMMILL_EMULATION"
"""The compiler flag of builds whose machine code emulates instructions of another architecture."""

DIGEST = "digest"
"""The key next to a manifest's fields whose value is the digest of them all."""


def own_digest(data: Mapping[str, Any]) -> str:
    """SHA-256 over everything in a manifest's JSON but the digest itself. Raises UnicodeEncodeError for half a character."""
    fields = {name: value for name, value in data.items() if name != DIGEST}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class KernelEntry:
    """One variant of the extension: its config, the ops that it serves and, after compilation, its cost."""

    name: str
    family: str
    """The name of its family."""
    config: Any
    """Of the type that its kernels declare, a Config."""
    symbol: str
    """C symbol of the launch function; variants that differ in launch settings alone share it."""
    ops: tuple[str, ...]
    """Ops that it can serve; none for a kernel that only its symbol calls."""
    epilogue: str = ""
    """The user's epilogue that it ends in, as its family writes it; empty for none."""
    source_digest: str = ""
    """SHA-256 of the inputs of the machine code (gemmill.build.provenance), which tuned rows record."""
    compile_seconds: float = 0.0
    """CPU seconds, a shared translation unit's divided evenly."""
    peak_memory_bytes: int = 0
    """Of the compiler process that made it."""
    code_bytes: int = 0
    """Machine code, of all kernels where the variant has several."""
    registers: int = 0
    """A thread, of the kernel that needs most."""
    spill_bytes: int = 0
    """Stores and loads to local memory, as ptxas counts them."""
    sass: dict[str, int] = field(default_factory=dict)
    """How often the instructions that matter occur: QGMMA, IGMMA, UTMALDG, UTMASTG, ..."""
    sass_digest: str = ""
    """SHA-256 of the machine code's instructions: two builds in which it is the same run the same kernel."""


@dataclass(frozen=True, kw_only=True)
class RejectedEntry:
    """A requested variant that the extension lacks."""

    name: str
    error: str
    """First error line of the compiler."""


@dataclass(frozen=True, kw_only=True)
class Toolchain:
    """The tools that made a build."""

    nvcc: str
    """Version string of the CUDA compiler."""
    cuda_major: int
    cutlass: str
    cutedsl: str
    """Version of the CuTe DSL; empty where the build had none."""
    host_compiler: str
    flags: tuple[str, ...]
    """Compiler flags with paths normalised."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """One build. A manifest from a file has every field; one of a selection without a build has no extension."""

    schema_version: int
    build_id: str
    gemmill_version: str
    created: str = ""
    """UTC, ISO 8601."""
    arch: str
    selection: str
    extension: str = ""
    """File name of the extension, next to the manifest."""
    extension_sha256: str = ""
    extension_bytes: int = 0
    torch_target: str = ""
    """Oldest torch that can load the extension, for example 2.11."""
    toolchain: Toolchain
    entries: tuple[KernelEntry, ...]
    rejected: tuple[RejectedEntry, ...] = ()

    @property
    def is_emulated(self) -> bool:
        """Whether it emulates `arch` on GPUs of another architecture: it serves only by name."""
        return EMULATION in self.toolchain.flags

    @property
    def runs_on(self) -> str:
        """The architecture of the GPUs that run it."""
        return str(Arch(self.arch).emulated_on) if self.is_emulated else self.arch

    @property
    def made_for(self) -> str:
        """The architecture in words: `sm90a`, or `sm120f, emulated on sm90a`."""
        return f"{self.arch}, emulated on {self.runs_on}" if self.is_emulated else self.arch
