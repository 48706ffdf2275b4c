"""Sources: the texts to compile, their flags, and the digest that names the result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Protocol

from gemmill.build.dsl_body import Bodies
from gemmill.build.errors import reported
from gemmill.build.files import digest
from gemmill.build.own_code import OwnCode
from gemmill.build.toolchain import ToolchainPaths
from gemmill.emit import emit
from gemmill.emit.adapter import ANY_CODE, ANY_ENTRY, emit_adapter, emit_host_code, has_host_code
from gemmill.family import Config
from gemmill.manifest import EMULATION
from gemmill.registry import REGISTRY
from gemmill.space.names import symbol_of, to_name
from gemmill.vocab import Arch, Compiler

BINDING = "extension"
"""The folder below kernels/ whose C++ files bind all families' kernels to torch. A family's own are in its folder."""
TORCH_TARGET = "2.11"
_TORCH_TARGET_VERSION = "0x020b000000000000"
OWN_ROOT = "gemmill"
"""The name of the root folder of gemmill's own headers."""
EXPORTS = "{ global: gemmill_*; local: *; };\n"
"""The linker's version script. It hides every other symbol, templates of the C++ library included."""
_PROGRAMMATIC_LAUNCH = {
    Arch.SM90A: ("-DCUTLASS_ENABLE_GDC_FOR_SM90=1",),
    Arch.SM100A: ("-DCUTLASS_ENABLE_GDC_FOR_SM100=1",),
    Arch.SM120F: ("-DCUTLASS_GDC_ENABLED=1",),
}
"""A kernel launches while its predecessors drain, so all must wait for these. An emulated sm120f build on another
architecture must, too (docs/notes/toolchain.md).
"""
_EMULATION = ("-DCUDA_CTA_RECONFIG_ACTIVATED=0", f"-I<{OWN_ROOT}>/emulation/include")
"""Emulated instructions are calls, for which ptxas has no registers where a warpgroup gave its own away. The headers that
have them come before CUTLASS's."""

# CPU seconds of a CUDA file with nvcc 13, and of a file of the binding with g++ 12.
# Measured on a 2-core x86-64 build machine, 2026-11-20.
CUDA_FILE_SECONDS = 12.0
BINDING_SECONDS = 3.0


class SourceKind(StrEnum):
    """The compiler that reads a source, and the facts to take from its object."""

    VARIANT = "variant"
    """An emitted CUDA kernel: compiled with others, inspected."""
    DSL = "cutedsl"
    """An emitted kernel of the CuTe DSL: one process compiles many, each into an object of its own, inspected."""
    KERNELS = "kernels"
    """A hand-written CUDA file: compiled alone."""
    BINDING = "binding"
    """C++ for the host compiler."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """One text to compile."""

    kind: SourceKind
    name: str
    """A variant's name, or a file's path below kernels/."""
    path: PurePosixPath
    """Path of the written file, relative to the folder in which the compiler runs."""
    key: str
    """The inputs of the object, except for toolchains' headers: see Keys."""
    body: str = ""
    """For a kernel of the CuTe DSL, the digest of its inputs (`dsl_body.py`), which its key covers."""
    symbol: str = ""
    """A variant's launch function."""
    tag: str = ""
    """Tag of a variant's kernels. The build compiles those of one tag together, for they include the same headers."""
    seconds: float
    """CPU seconds that compiling it may take on top of the cost of its unit."""
    written: str = ""
    """The text of a file."""
    config: Config | None = None
    """The config of a variant, which `text` renders: most builds have its object, and need no text."""

    @property
    def text(self) -> str:
        """The text that the compiler reads. Raises TemplateError."""
        return emit(self.config).text if self.config is not None else self.written

    @property
    def is_variant(self) -> bool:
        """Whether it was emitted for a config: a build goes on without one that does not compile."""
        return self.kind in (SourceKind.VARIANT, SourceKind.DSL)


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Compiler flags in which `<name>` stands for a root folder, so that they are the same on every machine."""

    cuda: tuple[str, ...]
    host: tuple[str, ...]
    adapter: tuple[str, ...]
    """Flags of the C++ between the table of kernels and a kernel of the CuTe DSL."""
    link: tuple[str, ...]

    def for_kind(self, kind: SourceKind) -> tuple[str, ...]:
        """The compiler flags of a source of this kind."""
        return {SourceKind.BINDING: self.host, SourceKind.DSL: self.adapter}.get(kind, self.cuda)


def kernel_folders(kernels: Path) -> dict[str, Path]:
    """The folders that `#include` searches, by name: gemmill's own, and one for each family that lies elsewhere."""
    outside = {family.name: family.home / "kernels" for family in REGISTRY.families if family.home is not None}
    return {OWN_ROOT: kernels, **outside}


def roots_of(toolchain: ToolchainPaths, kernels: Path) -> dict[str, Path]:
    """Folders with a name in flags and header lists, since each machine has them elsewhere."""
    return {
        **{name: folder.resolve() for name, folder in kernel_folders(kernels).items()},
        "cutlass": toolchain.cutlass_include.resolve(),
        "cuda": toolchain.home.resolve(),
        "torch": toolchain.torch_include.resolve(),
        "torchlib": toolchain.torch_lib.resolve(),
    }


def flags_for(arch: Arch, *, emulate: bool = False) -> Flags:
    """The flags of an architecture. They ask for SASS only: a driver refuses PTX of a later toolkit than its own.

    `emulate`: the machine code is for `arch.emulated_on`, where headers of gemmill's own replace instructions.
    """
    own = tuple(f"-I<{name}>" for name in kernel_folders(Path()))
    emulated = arch.emulated_on if emulate else None
    machine, emulation = emulated or arch, (EMULATION,) if emulated else ()
    return Flags(
        cuda=(
            *("-std=c++17", "-O3", f"-gencode={machine.gencode}", "--expt-relaxed-constexpr", "-DNDEBUG"),
            *emulation,
            *(_EMULATION if emulated else ()),
            *_PROGRAMMATIC_LAUNCH.get(arch, ()),
            "-DCUTLASS_ENABLE_DIRECT_CUDA_DRIVER_CALL=1",
            *("-Xcompiler=-fvisibility=hidden,-fPIC", "-Xptxas=-v"),
            # A third of the bytes, which the driver unpacks when a program first calls a kernel.
            "--compress-mode=size",
            *("-I.", *own, "-isystem=<cutlass>"),
        ),
        host=(
            *("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-DNDEBUG"),
            *(f"-DTORCH_TARGET_VERSION={_TORCH_TARGET_VERSION}", "-DUSE_CUDA"),
            *emulation,
            *own,
            *("-isystem<torch>", "-isystem<torch>/torch/csrc/api/include", "-isystem<cuda>/include"),
        ),
        adapter=("-std=c++17", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", *own),
        # -Bsymbolic: two builds in one process keep to their own symbols, which have the same names. Nothing reads the table of
        # local symbols, a fifth of the bytes, nor the CuTe DSL's data for its own loader.
        link=(
            *(
                "-shared",
                "-Wl,-Bsymbolic",
                "-Wl,--no-undefined",
                "-Wl,--exclude-libs,ALL",
                "-Wl,--strip-all",
                "-Wl,--gc-sections",
                "-Wl,--no-as-needed",
                "-L<torchlib>",
            ),
            *("-ltorch", "-ltorch_cpu", "-lc10", "-Wl,--as-needed", "-ldl", "-lrt", "-lpthread"),
        ),
    )


def expand(flags: Sequence[str], roots: Mapping[str, Path]) -> list[str]:
    """Flags with this machine's folders in them."""
    result = []
    for flag in flags:
        for name, path in roots.items():
            flag = flag.replace(f"<{name}>", str(path))
        result.append(flag)
    return result


def is_of_dsl(config: Config) -> bool:
    """Whether the CuTe DSL compiles a config's kernel."""
    return REGISTRY.kernels_of(config).compiler is Compiler.CUTEDSL


@dataclass(frozen=True, kw_only=True)
class Keys:
    """Makes the keys of sources, from the files as they are. A key has no place of a file in it."""

    flags: Flags
    code: OwnCode
    bodies: Bodies
    cuda: str
    """Digest of nvcc and its host compiler."""
    host: str
    """Digest of the host compiler."""
    dsl: str
    """Digest of the CuTe DSL; empty without one."""
    own_host_code: bool = False
    """Whether gemmill's host code launches kernels of the DSL, where it has some."""

    def of_text(self, kind: SourceKind, text: str) -> str:
        """The key of a C++ or CUDA text: its code and that of gemmill's headers, flags and compiler. Raises OSError."""
        compiler = self.host if kind is SourceKind.BINDING else self.cuda
        return digest(kind.value, self.code.digest(text), self.flags.for_kind(kind), compiler)

    def of_dsl(self, name: str, symbol: str, body: str) -> str:
        """The key of a kernel of the CuTe DSL: its inputs, the DSL, and the C++ that calls it. Raises OSError."""
        own = self.own_host_code and has_host_code(name)
        text = emit_host_code(symbol, name, ANY_CODE) if own else emit_adapter(symbol, name, ANY_ENTRY)
        adapter = self.code.digest(text)
        kind = SourceKind.DSL
        return digest(kind.value, symbol, body, self.dsl, adapter, self.flags.for_kind(kind), self.host)


class KnownRows(Protocol):
    """Rows of path, key and body, kept from an earlier build (gemmill.build.remembered)."""

    def get(self, name: str) -> list[str] | None:
        """The row of a variant; None for an unknown name."""

    def keep(self, name: str, row: list[str]) -> None:
        """Keep a row for the next build."""


def variant_source(config: Config, keys: Keys, known: KnownRows | None = None) -> Source:
    """The source of a config's compiled kernel. Raises TemplateError, OSError."""
    config = config.compiled
    name, symbol = to_name(config), symbol_of(config)
    kind = SourceKind.DSL if is_of_dsl(config) else SourceKind.VARIANT
    row = known.get(name) if known else None
    if row is None:
        file = emit(config)
        body = keys.bodies.what_makes(config) if kind is SourceKind.DSL else ""
        row = [str(file.path), keys.of_dsl(name, symbol, body) if body else keys.of_text(kind, file.text), body]
        if known:
            known.keep(name, row)
    path, key, body = row
    return Source(
        kind=kind,
        name=name,
        path=PurePosixPath(path),
        config=config,
        key=key,
        body=body,
        symbol=symbol,
        tag=config.tag,
        seconds=REGISTRY.kernels_of(config).seconds(config),
    )


def file_sources(kernels: Path, keys: Keys) -> list[Source]:
    """The hand-written sources: CUDA files of every family, and the binding's C++ files. Raises BuildError."""
    result = []
    with reported(kernels, "reading the hand-written kernels"):
        for path in hand_written(kernels):
            kind = SourceKind.KERNELS if path.suffix == ".cu" else SourceKind.BINDING
            name = f"{path.parent.name}/{path.name}"
            result.append(text_source(kind, name, path.read_text(encoding="utf-8"), keys))
    return result


def hand_written(kernels: Path) -> list[Path]:
    """The C++ and CUDA files that every extension has: the binding's own, and those of each family."""
    homes = {family.name: family.home / "kernels" if family.home else kernels for family in REGISTRY.families}
    folders = [kernels / BINDING, *(home / name for name, home in homes.items())]
    return [path for folder in folders for path in sorted(folder.glob("*")) if path.suffix in (".cpp", ".cu")]


def text_source(kind: SourceKind, name: str, text: str, keys: Keys) -> Source:
    """A source that is no variant. Raises OSError."""
    return Source(
        kind=kind,
        name=name,
        path=PurePosixPath(name),
        written=text,
        key=keys.of_text(kind, text),
        seconds=BINDING_SECONDS if kind is SourceKind.BINDING else CUDA_FILE_SECONDS,
    )
