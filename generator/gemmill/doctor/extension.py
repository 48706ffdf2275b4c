"""Findings on whether the builds on this machine can be loaded. Checks read their files before anything loads them."""

import ctypes
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gemmill import settings
from gemmill.doctor.compilers import BuildError, architectures, find_toolchain
from gemmill.doctor.finding import Finding, note, ok, problem
from gemmill.doctor.machine import gpu_archs
from gemmill.locations import installed
from gemmill.manifest import Manifest, ManifestError, check_extension
from gemmill.runtime.builds import UnfitPackageError, find_builds, read_build, resolve, serving
from gemmill.runtime.driver import driver_cuda
from gemmill.vocab import Arch, named_gpu

if TYPE_CHECKING:
    from gemmill.doctor.elf import Library

_SHOWN = 5
TOLERABLE_LOSS = 0.03
"""The tolerable loss of a build: about the model's where all variants are built (docs/notes/tables.md)."""


def examine_builds() -> Iterator[Finding]:
    """All builds, and in full the one that would be loaded."""
    try:
        folders = find_builds()
        named = settings.build()
        chosen = resolve(named) if named else serving(None)[0] if folders else None
    except UnfitPackageError as error:
        yield problem("build", str(error), "install both packages in one version")
        return
    except ManifestError as error:
        yield problem("build", str(error), "name one with GEMMILL_BUILD, or make one current with gemmill builds use")
        return
    yield ok("home", f"{settings.home()}, {len(folders)} builds")
    archs = gpu_archs()
    if archs and not set(archs) & set(Arch):  # a build of another GPU's kernels says nothing of this machine
        advice = (
            f"no build will serve {', '.join(map(named_gpu, archs))}: docs/not_there.md has what runs there instead"
        )
        yield note("build", "none for the GPUs of this machine" if folders else "none", advice)
        return
    if chosen is None:
        yield note("build", "none", "gemmill build --select smoke")
        return
    yield from examine_build(chosen)


def examine_build(folder: Path) -> Iterator[Finding]:
    """One build: manifest, bytes, torch, symbols, machine code, driver."""
    try:
        manifest = read_build(folder)
        extension = check_extension(manifest, folder)
    except ManifestError as error:
        yield problem("build", str(error), "gemmill build")
        return
    found = f"{manifest.build_id} for {manifest.made_for}, {len(manifest.entries)} variants of {manifest.selection} ({folder})"
    yield ok("build", found)
    if not Arch(manifest.arch).has_run and not manifest.is_emulated:
        yield note(
            "architecture",
            f"{manifest.arch}: compiled, never run on a GPU",
            "hold it against the reference: gemmill verify",
        )
    yield from examine_symbols(extension)
    yield from _examine_code(manifest, extension)
    yield from _examine_cuda(manifest)
    yield from examine_tables(manifest)


def examine_symbols(extension: Path) -> Iterator[Finding]:
    """The symbols that an extension needs against those that torch's and the system's libraries define."""
    try:
        from gemmill.doctor.elf import ElfError, read_library
    except ModuleNotFoundError:
        yield note("symbols", "not looked at: pyelftools is not installed", "pip install 'gemmill[cli]'")
        return
    try:
        library = read_library(extension)
    except (ElfError, OSError) as error:
        yield problem("symbols", str(error), "gemmill build")
        return
    folder = torch_libraries()
    if folder is None:
        yield problem("symbols", "torch is not installed: nothing to hold them against", "pip install torch")
        return
    missing = sorted(undefined_in(library, folder, library.required))
    absent = sorted(undefined_in(library, folder, library.optional))
    if missing:
        listed = ", ".join(missing[:_SHOWN]) + (f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else "")
        advice = f"build with this torch ({importlib.metadata.version('torch')}): gemmill build"
        yield problem("symbols", f"{len(missing)} of {len(library.required)} are not defined: {listed}", advice)
    else:
        yield ok("symbols", f"all {len(library.required)} are defined by {', '.join(library.needed)}")
    torch_absent = [name for name in absent if "torch" in name]
    if torch_absent:
        yield note(
            "optional symbols",
            f"not in this torch: {', '.join(torch_absent)}",
            "a CPU-only torch has no CUDA streams; without torch::autograd's names calls do not refuse gradients",
        )


def examine_tables(manifest: Manifest) -> Iterator[Finding]:
    """The loss of the build by the tables' own times, and its quarantined variants."""
    if torch_libraries() is None:  # which another finding says
        return
    from gemmill.runtime.loss import loss_of
    from gemmill.runtime.tuned import Machine, load_tuned

    tuned = load_tuned(manifest.entries, Machine(arch=manifest.arch, device=None, driver=None))
    loss = loss_of(manifest.entries, tuned, Arch(manifest.arch).sm_count)
    if loss is not None:
        if loss.mean <= TOLERABLE_LOSS and not loss.none:
            yield ok("loss", f"the build {loss}")
        else:
            yield note("loss", f"the build {loss}", f"gemmill build --arch {manifest.arch} --select default")
    for name, why in tuned.quarantined.items():
        yield note("quarantine", f"{name} is not chosen: {why}", f"gemmill verify --filter {name}")


def torch_libraries() -> Path | None:
    """The folder of the installed torch's libraries, found without importing it."""
    return next((root / "lib" for root in installed("torch") if (root / "lib").is_dir()), None)


def undefined_in(library: "Library", torch_lib: Path, symbols: frozenset[str]) -> set[str]:
    """Those of `symbols` that neither torch's libraries nor the system's that the library needs define."""
    from gemmill.doctor.elf import defined_in

    left = set(symbols)
    for name in dict.fromkeys([*library.needed, "libtorch_cuda.so"]):
        path = torch_lib / name
        if path.is_file():
            left -= defined_in(path, left)
        else:
            left = {symbol for symbol in left if not _system_defines(name, symbol)}
    return left


def _system_defines(library: str, symbol: str) -> bool:
    try:
        return hasattr(ctypes.CDLL(library), symbol)
    except OSError:
        return False


def _examine_code(manifest: Manifest, extension: Path) -> Iterator[Finding]:
    expected = manifest.runs_on.replace("sm", "sm_", 1)
    try:
        found = architectures(extension, find_toolchain().cuobjdump)
    except BuildError as error:
        yield note("sass", f"not inspected; the manifest says {expected}", str(error))
        return
    if expected in found:
        yield ok("sass", f"machine code for {', '.join(found)}")
    else:
        text = f"machine code for {', '.join(found) or 'no architecture'}, the manifest says {expected}"
        yield problem("sass", text, "gemmill build")


def _examine_cuda(manifest: Manifest) -> Iterator[Finding]:
    driver = driver_cuda()
    major = manifest.toolchain.cuda_major
    if driver is not None and driver[0] < major:
        found = f"the build is of CUDA {major}, the driver runs up to {driver[0]}.{driver[1]}"
        yield problem("cuda", found, f"upgrade the driver, or build with a CUDA {driver[0]} toolkit")
    else:
        yield ok("cuda", f"the build is of CUDA {major} (nvcc {manifest.toolchain.nvcc})")
