"""The search for the CuTe DSL. It is not imported here: it runs in processes of its own."""

import re
import shutil
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from gemmill import settings
from gemmill.build.errors import BuildError
from gemmill.build.files import FileMemo, digest
from gemmill.emit.adapter import ADAPTER
from gemmill.locations import templates_dir

OLDEST_DSL = (4, 8)
"""The first release of the DSL that exports the arguments that the kernels take."""
DISTRIBUTION = "nvidia-cutlass-dsl"
INSTALL = "install it with `pip install 'gemmill[dsl]'`"
_PACKAGE = Path(__file__).resolve().parents[1]
_MEANING = ("gemm/*.py", "families/*/dsl/*.py", "families/*/config.py", "vocab/*.py")
"""Files of gemmill that a DSL kernel is made from, beside its emitted file.

They are the kernel bodies, and what a config's fields mean.
"""


@dataclass(frozen=True, kw_only=True)
class DslPackage:
    """The CuTe DSL of this environment."""

    version: str
    worker: tuple[str, ...]
    """The command of a process that compiles: see dsl_worker.py."""
    runtime: Path
    """The static library that its objects call."""
    objcopy: Path
    """The program that gives the objects the symbols that they have in an extension."""
    made_from: tuple[tuple[str, str], ...]
    """Name and SHA-256 of gemmill's own files that every kernel is made from."""
    build: str
    """Digest of everything but the emitted file that can change what the DSL makes of it."""


def is_installed() -> bool:
    """Whether there is a CuTe DSL, of whatever release."""
    try:
        metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return False
    return True


def find_dsl(cuda_major: int, memo: FileMemo | None = None) -> DslPackage:
    """The DSL to compile with. Raises BuildError, which says what to install."""
    memo = memo or FileMemo(settings.home() / "memo" / "files.json")
    try:
        found = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        raise BuildError(f"no CuTe DSL: {DISTRIBUTION} is not installed; {INSTALL}") from None
    release = tuple(int(part) for part in re.findall(r"\d+", found.version)[:2])
    if release < OLDEST_DSL:
        wanted = ".".join(map(str, OLDEST_DSL))
        raise BuildError(
            f"{DISTRIBUTION} is {found.version}, gemmill compiles with {wanted} or later: "
            "upgrade it with `pip install --upgrade 'gemmill[dsl]'`"
        )
    folder = f"cu{cuda_major}"
    runtime = Path(
        str(found.locate_file(f"{DISTRIBUTION.replace('-', '_')}/{folder}/lib/libcuda_dialect_runtime_static.a"))
    )
    if not runtime.is_file():
        raise BuildError(f"{DISTRIBUTION} {found.version} has no runtime library for CUDA {cuda_major}: {INSTALL}")
    objcopy = shutil.which("objcopy")
    if objcopy is None:
        raise BuildError(
            "no objcopy on PATH, which the CuTe DSL's objects need: install it with `apt install binutils`"
        )
    own_files = made_from(memo)
    return DslPackage(
        version=found.version,
        worker=(sys.executable, "-m", "gemmill.build.dsl_worker"),
        runtime=runtime,
        objcopy=Path(objcopy),
        made_from=own_files,
        # The DSL reads its kernels' syntax trees, which Python makes.
        build=digest(list(sys.version_info[:2]), _versions(), own_files),
    )


def made_from(memo: FileMemo) -> tuple[tuple[str, str], ...]:
    """Name and SHA-256 of gemmill's own files that every DSL kernel is made from, by name. Raises OSError."""
    paths = {path.relative_to(_PACKAGE).as_posix(): path for pattern in _MEANING for path in _PACKAGE.glob(pattern)}
    paths[ADAPTER] = templates_dir() / ADAPTER
    return tuple((name, memo.get(path)) for name, path in sorted(paths.items()))


def _versions() -> list[tuple[str, str]]:
    """Name and version of the DSL's distribution, and of the installed ones that it requires whose names begin alike."""
    waiting, versions = [DISTRIBUTION], dict[str, str]()
    while waiting:
        try:
            found = metadata.distribution(waiting.pop())
        except metadata.PackageNotFoundError:
            continue
        if found.name in versions:
            continue
        versions[found.name] = found.version
        waiting += [
            match[0] for text in found.requires or () if (match := re.match(rf"{DISTRIBUTION}[\w-]*", text)) is not None
        ]
    return sorted(versions.items())
