"""The wheel: which files, under which names, with which metadata. The same builds give the same bytes."""

import base64
import hashlib
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmill.locations import GENERATOR, own_file
from gemmill.manifest import Manifest, check_extension, read_manifest
from gemmill.registry import REGISTRY
from gemmill.runtime.builds import MANIFEST
from gemmill.version import __version__
from gemmill.vocab import Compiler
from gemmill.wheel.abi import Abi, WheelError, audit
from gemmill.writing import beside

_PACKAGE = Path(__file__).resolve().parents[1]
_EPOCH = (2020, 2, 2, 0, 0, 0)
"""The time of every file in the wheel."""
_EXTRA = "cli"
"""The one extra that a wheel keeps: the others are for building and tuning."""


_LINKED = "BSD-3-Clause AND LicenseRef-NVIDIA-CUDA-Toolkit"
"""Terms of the parts that every extension has, as an SPDX expression: THIRD_PARTY.md."""
_DSL_TERMS = "LicenseRef-NVIDIA-CUTLASS-DSL"
_PRIVATE = "Private :: Do Not Upload"
"""The classifier by which package indices refuse an upload."""


@dataclass(frozen=True, kw_only=True)
class Shipped:
    """A wheel or folder that was written."""

    path: Path
    manifests: tuple[Manifest, ...]
    """The manifests of the builds in it."""
    abi: Abi
    """The requirements of the builds on a machine."""

    @property
    def dsl_variants(self) -> int:
        """How many variants of the CuTe DSL are in it. THIRD_PARTY.md says what its licence has about them."""
        return dsl_variants(self.manifests)


def dsl_variants(manifests: Iterable[Manifest]) -> int:
    """How many variants of the CuTe DSL builds have. A build with such variants links its static library."""
    return sum(
        REGISTRY.kernels_of(entry.config).compiler is Compiler.CUTEDSL
        for manifest in manifests
        for entry in manifest.entries
    )


def write_wheel(folders: Sequence[Path], out: Path) -> Shipped:
    """Write a wheel of the runtime and of builds, one for each architecture, into the folder `out`: whole or not at
    all.

    Raises WheelError where the builds do not fit together or ask for more than every machine has, ManifestError,
    OSError.
    """
    manifests, abi = read_builds(folders)
    major = next(iter(manifests.values())).toolchain.cuda_major
    version = f"{__version__}+cu{major}"
    path = out / f"gemmill-{version}-{abi.tag}.whl"
    info = f"gemmill-{version}.dist-info"
    out.mkdir(parents=True, exist_ok=True)
    temporary = beside(path)
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            record = [_add(archive, name, data) for name, data in _contents(manifests, info, version, abi)]
            _add(archive, f"{info}/RECORD", "".join([*record, f"{info}/RECORD,,\n"]).encode())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return Shipped(path=path, manifests=tuple(manifests.values()), abi=abi)


def read_builds(folders: Sequence[Path]) -> tuple[dict[Path, Manifest], Abi]:
    """The manifests of builds that may be shipped together, and what all their extensions ask of a machine.

    Raises WheelError where the builds do not fit together or ask for more than every machine has, ManifestError.
    """
    manifests = {folder: read_manifest(folder / MANIFEST) for folder in folders}
    if not manifests:
        raise WheelError("no build is named: `gemmill build` makes one, `gemmill builds list` lists them")
    by_arch: dict[str, Manifest] = {}
    for manifest in manifests.values():
        if other := by_arch.get(manifest.arch):
            raise WheelError(
                f"builds {other.build_id} and {manifest.build_id} are both for {manifest.arch}: a wheel has one for each "
                "architecture, name one of them"
            )
        by_arch[manifest.arch] = manifest
    majors = {manifest.toolchain.cuda_major: manifest.build_id for manifest in manifests.values()}
    if len(majors) > 1:
        listed = ", ".join(f"{build} of CUDA {major}" for major, build in sorted(majors.items()))
        raise WheelError(f"the builds are of several CUDA releases ({listed}): build all with one toolkit")
    abis = [audit(check_extension(manifest, folder)) for folder, manifest in manifests.items()]
    machines = sorted({abi.machine for abi in abis})
    if len(machines) > 1:
        raise WheelError(f"the builds are for several machines ({', '.join(machines)}): make a wheel for each")
    return manifests, Abi(machine=machines[0], glibc=max(abi.glibc for abi in abis))


def package_files(manifests: dict[Path, Manifest]) -> Iterator[tuple[str, bytes]]:
    """The package `gemmill` with the runtime and the builds: paths and contents."""
    for path in sorted(_PACKAGE.rglob("*")):
        name = path.relative_to(_PACKAGE)
        if path.is_file() and name.parts[0] not in (*GENERATOR, "_builds", "_data") and "__pycache__" not in name.parts:
            yield f"gemmill/{name.as_posix()}", path.read_bytes()
    for folder, manifest in sorted(manifests.items(), key=lambda item: item[1].build_id):
        for file in (MANIFEST, manifest.extension):
            yield f"gemmill/_builds/{manifest.build_id}/{file}", (folder / file).read_bytes()


def project() -> dict[str, Any]:
    """What pyproject.toml says of the project."""
    told: dict[str, Any] = tomllib.loads(own_file("pyproject.toml").read_text(encoding="utf-8"))["project"]
    return told


def _contents(manifests: dict[Path, Manifest], info: str, version: str, abi: Abi) -> Iterator[tuple[str, bytes]]:
    yield from package_files(manifests)
    told = project()
    for file in told["license-files"]:
        yield f"{info}/licenses/{file}", own_file(file).read_bytes()
    yield f"{info}/METADATA", _metadata(told, version, dsl_variants(manifests.values()) > 0).encode()
    wheel = f"Wheel-Version: 1.0\nGenerator: gemmill {__version__}\nRoot-Is-Purelib: false\nTag: {abi.tag}\n"
    yield f"{info}/WHEEL", wheel.encode()
    points = {"console_scripts": told["scripts"], **told["entry-points"]}
    sections = (
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in named.items())
        for group, named in points.items()
    )
    yield f"{info}/entry_points.txt", "\n".join(sections).encode()


def _metadata(told: dict[str, Any], version: str, has_dsl: bool) -> str:
    """Core metadata, version 2.4, from what the project says of itself and what is linked."""
    extra = told["optional-dependencies"][_EXTRA]
    terms = f"{told['license']} AND {_LINKED}{f' AND {_DSL_TERMS}' if has_dsl else ''}"
    classifiers = [*told["classifiers"], *([_PRIVATE] if has_dsl else [])]
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {told['name']}",
        f"Version: {version}",
        f"Summary: {told['description']}",
        *(f"Author: {author['name']}" for author in told["authors"]),
        f"License-Expression: {terms}",
        *(f"License-File: {file}" for file in told["license-files"]),
        f"Keywords: {','.join(told['keywords'])}",
        *(f"Classifier: {classifier}" for classifier in classifiers),
        f"Requires-Python: {told['requires-python']}",
        *(f"Requires-Dist: {needed}" for needed in told["dependencies"]),
        f"Provides-Extra: {_EXTRA}",
        *(f"Requires-Dist: {needed}; extra == '{_EXTRA}'" for needed in extra),
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join(lines) + "\n\n" + own_file(told["readme"]).read_text(encoding="utf-8")


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> str:
    """Put a file into the archive. Return its line for RECORD."""
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
    archive.writestr(entry, data)
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"
