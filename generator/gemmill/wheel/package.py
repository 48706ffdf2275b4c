"""Wheels: which files, under which names, with which metadata. The same builds give the same bytes.

`write_wheel` writes all in one: the package, its data and builds. `write_kernels` writes a package of one build, which pip
installs next to gemmill's own wheel of the same version.
"""

import base64
import hashlib
import tomllib
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gemmill.locations import own_file
from gemmill.manifest import Manifest, check_extension, read_manifest
from gemmill.registry import REGISTRY
from gemmill.runtime.builds import ENTRY_POINTS, MANIFEST
from gemmill.version import __version__
from gemmill.vocab import Compiler
from gemmill.wheel.abi import Abi, WheelError, audit
from gemmill.wheel.readme import absolute, urls
from gemmill.writing import beside

_PACKAGE = Path(__file__).resolve().parents[1]
_EPOCH = (2020, 2, 2, 0, 0, 0)
"""The time of every file in the wheel."""


_LINKED = "BSD-3-Clause AND LicenseRef-NVIDIA-CUDA-Toolkit"
"""Terms of the parts that every extension has, as an SPDX expression: THIRD_PARTY.md."""
_DSL_TERMS = "LicenseRef-NVIDIA-CUTLASS-DSL"
_PRIVATE = "Private :: Do Not Upload"
"""The classifier by which package indices refuse an upload."""


@dataclass(frozen=True, kw_only=True)
class Shipped:
    """A finished wheel or folder."""

    path: Path
    manifests: tuple[Manifest, ...]
    """The manifests of the builds in it."""
    abi: Abi
    """The requirements of the builds on a machine."""

    @property
    def dsl_variants(self) -> int:
        """How many variants of the CuTe DSL are in it. THIRD_PARTY.md quotes the licence's terms on them."""
        return dsl_variants(self.manifests)


def dsl_variants(manifests: Iterable[Manifest]) -> int:
    """How many variants of the CuTe DSL builds have. A build with such variants links its static library."""
    return sum(
        REGISTRY.kernels_of(entry.config).compiler is Compiler.CUTEDSL
        for manifest in manifests
        for entry in manifest.entries
    )


def write_wheel(folders: Sequence[Path], out: Path) -> Shipped:
    """Write a wheel of gemmill with builds in it, one for each architecture, into the folder `out`: whole or not at
    all.

    Raises WheelError where the builds do not fit together or ask for more than every machine has, ManifestError,
    OSError.
    """
    manifests, abi = read_builds(folders)
    major = next(iter(manifests.values())).toolchain.cuda_major
    version = f"{__version__}+cu{major}"
    told = project()
    points = {"console_scripts": told["scripts"], **told["entry-points"]}
    metadata = _metadata(told, version, manifests.values())
    path = _written(out, "gemmill", version, abi, package_files(manifests), metadata, points)
    return Shipped(path=path, manifests=tuple(manifests.values()), abi=abi)


def write_kernels(folder: Path, out: Path) -> Shipped:
    """Write a wheel of one build alone, as `gemmill-sm90a-cu13`, into the folder `out`: whole or not at all.

    Its version is gemmill's, which it requires. An entry point names its module, in which the runtime finds the build.

    Raises WheelError where the build needs more than every machine has, ManifestError, OSError.
    """
    manifests, abi = read_builds([folder])
    (manifest,) = manifests.values()
    kind = f"{manifest.arch}-cu{manifest.toolchain.cuda_major}"
    module = f"gemmill_{kind.replace('-', '_')}"
    files = [(f"{module}/__init__.py", f'"""gemmill\'s kernels for {manifest.arch}."""\n'.encode())]
    files += _build_files(manifests, f"{module}/builds")
    told = project() | {
        "name": f"gemmill-{kind}",
        "description": f"Kernels of gemmill for {manifest.arch}, built with CUDA {manifest.toolchain.cuda_major}",
        "dependencies": [f"gemmill=={__version__}", f"torch>={manifest.torch_target}"],
        "optional-dependencies": {},
    }
    points = {ENTRY_POINTS: {kind: module}}
    metadata = _metadata(told, __version__, manifests.values())
    path = _written(out, module, __version__, abi, files, metadata, points)
    return Shipped(path=path, manifests=(manifest,), abi=abi)


def read_builds(folders: Sequence[Path]) -> tuple[dict[Path, Manifest], Abi]:
    """The manifests of builds that may ship together, and the requirements of all their extensions on a machine.

    Raises WheelError where the builds do not fit together or ask for more than every machine has, ManifestError.
    """
    manifests = {folder: read_manifest(folder / MANIFEST) for folder in folders}
    if not manifests:
        raise WheelError("no build is named: `gemmill build` makes one, `gemmill builds list` lists them")
    by_arch: dict[str, Manifest] = {}
    for manifest in manifests.values():
        if manifest.is_emulated:
            raise WheelError(
                f"build {manifest.build_id} is for {manifest.made_for}, to be tested with: it is not shipped, leave it out"
            )
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
    """The package `gemmill` with its data and the builds: paths and contents."""
    for folder in sorted(_PACKAGE.iterdir()):
        if folder.name not in ("_builds", "_data"):
            yield from _files(folder, f"gemmill/{folder.name}")
    for source, target in _pyproject()["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"].items():
        yield from _files(own_file(source), target)
    yield from _build_files(manifests, "gemmill/_builds")


def project() -> dict[str, Any]:
    """The table `project` of pyproject.toml."""
    told: dict[str, Any] = _pyproject()["project"]
    return told


def _pyproject() -> dict[str, Any]:
    return tomllib.loads(own_file("pyproject.toml").read_text(encoding="utf-8"))


def _files(path: Path, name: str) -> Iterator[tuple[str, bytes]]:
    """A file under the name that it gets, or the files below a folder."""
    if path.is_file():
        yield name, path.read_bytes()
    elif path.name != "__pycache__":
        for inside in sorted(path.iterdir()):
            yield from _files(inside, f"{name}/{inside.name}")


def _build_files(manifests: Mapping[Path, Manifest], below: str) -> Iterator[tuple[str, bytes]]:
    for folder, manifest in sorted(manifests.items(), key=lambda item: item[1].build_id):
        for file in (MANIFEST, manifest.extension):
            yield f"{below}/{manifest.build_id}/{file}", (folder / file).read_bytes()


def _written(
    out: Path,
    name: str,
    version: str,
    abi: Abi,
    files: Iterable[tuple[str, bytes]],
    metadata: str,
    points: Mapping[str, Mapping[str, str]],
) -> Path:
    """The wheel of a package named `name`, whole or not at all."""
    path, info = out / f"{name}-{version}-{abi.tag}.whl", f"{name}-{version}.dist-info"
    out.mkdir(parents=True, exist_ok=True)
    temporary = beside(path)
    try:
        with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            record = [_add(archive, *file) for file in (*files, *_info(info, abi, metadata, points))]
            _add(archive, f"{info}/RECORD", "".join([*record, f"{info}/RECORD,,\n"]).encode())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _info(info: str, abi: Abi, metadata: str, points: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, bytes]]:
    """The files by which pip knows a package."""
    for file in project()["license-files"]:
        yield f"{info}/licenses/{file}", own_file(file).read_bytes()
    yield f"{info}/METADATA", metadata.encode()
    wheel = f"Wheel-Version: 1.0\nGenerator: gemmill {__version__}\nRoot-Is-Purelib: false\nTag: {abi.tag}\n"
    yield f"{info}/WHEEL", wheel.encode()
    sections = (
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in named.items())
        for group, named in points.items()
    )
    yield f"{info}/entry_points.txt", "\n".join(sections).encode()


def _metadata(told: dict[str, Any], version: str, manifests: Iterable[Manifest]) -> str:
    """Core metadata, version 2.4, from the project's own and from the linked libraries."""
    has_dsl = dsl_variants(manifests) > 0
    extras = told["optional-dependencies"]
    repository = _pyproject()["tool"]["gemmill"]["repository"]
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
        *(f"Project-URL: {label}, {url}" for label, url in urls(repository).items()),
        f"Keywords: {','.join(told['keywords'])}",
        *(f"Classifier: {classifier}" for classifier in classifiers),
        f"Requires-Python: {told['requires-python']}",
        *(f"Requires-Dist: {needed}" for needed in told["dependencies"]),
        *(f"Provides-Extra: {extra}" for extra in extras),
        *(f"Requires-Dist: {needed}; extra == '{extra}'" for extra, listed in extras.items() for needed in listed),
        "Description-Content-Type: text/markdown",
    ]
    return "\n".join(lines) + "\n\n" + absolute(own_file("README.md").read_text(encoding="utf-8"), repository)


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> str:
    """Put a file into the archive. Return its line for RECORD."""
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = (0o100755 if name.endswith(".so") else 0o100644) << 16
    archive.writestr(entry, data)
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"
