"""The search for the CuTe DSL. This process does not import it: it runs in processes of its own."""

import re
import shutil
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from gemmill.build.errors import BuildError
from gemmill.build.files import digest

OLDEST_DSL = (4, 8)
"""The first release of the DSL that exports the arguments that the kernels take."""
DISTRIBUTION = "nvidia-cutlass-dsl"
INSTALL = "install it with `pip install 'gemmill[dsl]'`"


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
    build: str
    """Digest of the DSL and of Python, whose parser reads the kernels' syntax trees."""


def is_installed() -> bool:
    """Whether there is a CuTe DSL, of whatever release."""
    try:
        metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return False
    return True


def find_dsl(cuda_major: int) -> DslPackage:
    """The DSL to compile with. Raises BuildError, whose sentence names the package to install."""
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
    return DslPackage(
        version=found.version,
        worker=(sys.executable, "-m", "gemmill.build.dsl_worker"),
        runtime=runtime,
        objcopy=Path(objcopy),
        build=digest(list(sys.version_info[:2]), _versions()),
    )


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
