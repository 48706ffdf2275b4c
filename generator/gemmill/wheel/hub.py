"""A folder as Hugging Face's `kernels` loads it: from a repository of the Hub, or from a disk with `get_local_kernel`.

Its form is that of kernels 0.17 (https://huggingface.co/docs/kernels/kernel-requirements): a folder for each kind of
machine, `torch-stable-abi<torch>-cu<CUDA>-<machine>-linux`, with a module and `metadata.json`. The module holds the
same package as `gemmill wheel` writes. `torch-cpu` has it without builds: there functions run the reference. The metadata
has the digest of every other file, as `kernels verify` looks for them.
"""

import base64
import hashlib
import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from gemmill.emit.render import render
from gemmill.locations import own_file
from gemmill.manifest import Manifest
from gemmill.version import __version__
from gemmill.vocab import Arch
from gemmill.wheel.abi import Abi, WheelError
from gemmill.wheel.package import Shipped, package_files, project, read_builds
from gemmill.writing import beside

VERSION = 1
"""The version that callers name to `get_kernel`: a whole number, raised by a release that breaks their calls."""
CPU = "torch-cpu"
"""The folder for machines without a GPU, whatever their processor."""
OLDEST = (2, 28)
"""The newest C library that the Hub's kernels may ask for."""


def write_hub_folder(folders: Sequence[Path], out: Path) -> Shipped:
    """Write the runtime with builds, one for each architecture, and alone for CPUs, into folders below `out`/build.

    Each appears whole or not at all, in place of an older one. Folders for other machines stay.

    Raises WheelError where the builds do not fit together, were made for several releases of torch or CUDA, or ask for
    more than every machine has. Raises ManifestError and OSError too.
    """
    manifests, abi = read_builds(folders)
    target = out / "build" / _variant(list(manifests.values()), abi)
    archs = sorted({_capability(manifest.arch) for manifest in manifests.values()})
    _put(out / "build" / CPU, _contents({}, {"type": "cpu"}))
    _put(target, _contents(manifests, {"type": "cuda", "archs": archs}))
    (out / "README.md").write_text(render("export/hub_card.md.jinja", {"license": project()["license"].lower()}))
    for name in project()["license-files"]:
        shutil.copyfile(own_file(name), out / name)
    return Shipped(path=target, manifests=tuple(manifests.values()), abi=abi)


def _put(target: Path, files: Iterable[tuple[str, bytes]]) -> None:
    """Write files into a folder that takes the place of an older one, whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary, old = beside(target), beside(target)
    try:
        for name, data in files:
            path = temporary / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        if target.exists():
            target.rename(old)
        try:
            temporary.rename(target)
        except OSError:
            if old.exists():
                old.rename(target)
            raise
    finally:
        for folder in (temporary, old):
            shutil.rmtree(folder, ignore_errors=True)


def _variant(manifests: Sequence[Manifest], abi: Abi) -> str:
    """The name of the folder, which says the oldest torch and CUDA that can load it."""
    of_torch = {manifest.torch_target for manifest in manifests}
    of_cuda = {".".join(manifest.toolchain.nvcc.split(".")[:2]) for manifest in manifests}
    for what, found in (("torch", of_torch), ("CUDA", of_cuda)):
        if len(found) > 1:
            raise WheelError(f"the builds are for {what} {' and '.join(sorted(found))}: build all with one")
    torch, cuda = (found.pop().replace(".", "") for found in (of_torch, of_cuda))
    return f"torch-stable-abi{torch}-cu{cuda}-{abi.machine}-linux"


def _contents(manifests: dict[Path, Manifest], backend: dict[str, object]) -> Iterator[tuple[str, bytes]]:
    """The files of a folder. The metadata comes last, since it has the digests of the others."""
    digests = {}
    module = render("export/hub_init.py.jinja", {"version": __version__}).encode()
    for name, data in chain(package_files(manifests), [("__init__.py", module)]):
        digests[name] = base64.b64encode(hashlib.sha256(data).digest()).decode()
        yield name, data
    digests = dict(sorted(digests.items()))
    metadata = {
        "id": f"_gemmill_{backend['type']}_{hashlib.sha256(json.dumps(digests).encode()).hexdigest()[:12]}",
        "name": "gemmill",
        "version": VERSION,
        "license": project()["license"],
        "python-depends": [],
        "backend": backend,
        "digest": {"algorithm": "sha256", "files": digests},
    }
    yield "metadata.json", (json.dumps(metadata, indent=2) + "\n").encode()


def _capability(arch: str) -> str:
    """An architecture as the Hub spells it: 9.0a for sm90a."""
    major, minor = Arch(arch).capabilities[0]
    return f"{major}.{minor}{arch[-1]}"
