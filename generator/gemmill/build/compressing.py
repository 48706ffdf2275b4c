"""Machine code of the CuTe DSL's objects, compressed as nvcc compresses its own.

The DSL wraps a kernel's machine code as `fatbinary` does, and leaves it as it is. The CUDA runtime also loads
compressed code, so this module links each object with a compressed file in its place. The cache keeps that object next
to the first.
"""

import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from gemmill import settings
from gemmill.build.cache import Entry
from gemmill.build.cubins import sections_of_code
from gemmill.build.errors import BuildError
from gemmill.build.files import digest
from gemmill.build.sources import Source, SourceKind
from gemmill.build.workshop import Workshop
from gemmill.writing import work_folder

COMPRESSION = ("-64", "--compress-mode=size")
"""Flags of fatbinary that leave a quarter of the bytes."""
_SECONDS = 0.05


def objects_of(entries: Sequence[Entry], variants: Iterable[Source], workshop: Workshop) -> list[Path]:
    """The objects to link for these entries. Raises BuildError, OSError."""
    of_dsl = {source.key for source in variants if source.kind is SourceKind.DSL}
    wanted = {_compressed(entry, workshop): entry for entry in entries if of_dsl.issuperset(entry.members)}
    known = _known(wanted, workshop)
    _compress({source: entry for source, entry in wanted.items() if source.key not in known}, workshop)
    if len(known) < len(wanted):
        known = _known(wanted, workshop)
    paths = {entry.key: known[source.key] for source, entry in wanted.items() if source.key in known}
    return [paths.get(entry.key) or workshop.cache.object_path(entry) for entry in entries]


def _compressed(entry: Entry, workshop: Workshop) -> Source:
    """The compressed object as a source of its own, so that the cache keeps it as it keeps others."""
    made_from = [entry.object_sha256, list(COMPRESSION), workshop.toolchain.compiler_build, workshop.arch.sm]
    name = next(iter(entry.members.values()))
    return Source(kind=SourceKind.DSL, name=name, path=PurePosixPath(name), key=digest(made_from), seconds=_SECONDS)


def _known(wanted: Iterable[Source], workshop: Workshop) -> dict[str, Path]:
    found = workshop.cache.lookup(list(wanted)).entries
    return {key: workshop.cache.object_path(entry) for entry in found for key in entry.members}


def _compress(missing: Mapping[Source, Entry], workshop: Workshop) -> None:
    """Put the compressed objects into the cache. One that holds no file of machine code alone stays as it is."""
    folder = work_folder(workshop.options.home_dir)
    folder.mkdir(parents=True)
    try:
        with ThreadPoolExecutor(workshop.options.job_count) as pool:
            made = pool.map(lambda entry: _compressed_object(entry, folder, workshop), missing.values())
            for source, path in zip(missing, made, strict=True):
                if path is not None:
                    known = {"cpu_seconds": _SECONDS, "peak_memory_bytes": 0}
                    workshop.cache.publish(path, {source.key: source.name}, [], **known)
                    path.unlink()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _compressed_object(entry: Entry, folder: Path, workshop: Workshop) -> Path | None:
    """The object with its machine code compressed, in a folder. Raises BuildError, OSError."""
    path = workshop.cache.object_path(entry)
    section, _, cubin = next(sections_of_code(path.read_bytes()), ("", b"", b""))
    if not section:
        return None
    assert workshop.dsl is not None  # its digest is part of its objects' keys
    plain, packed, made = (folder / f"{entry.key}.{kind}" for kind in ("cubin", "fatbin", "o"))
    plain.write_bytes(cubin)
    number = workshop.arch.sm.removeprefix("sm_")
    told = [f"--create={packed}", f"--ident={next(iter(entry.facts))}", f"--image3=kind=elf,sm={number},file={plain}"]
    _run([workshop.toolchain.fatbinary, *COMPRESSION, *told])
    _run([workshop.dsl.objcopy, "--update-section", f"{section}={packed}", path, made])
    plain.unlink()
    packed.unlink()
    return made


def _run(command: Sequence[str | Path]) -> None:
    try:
        done = subprocess.run(
            list(map(str, command)), env=settings.compiler_environment(), capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise BuildError(
            f"cannot run {command[0]} ({error.strerror}): reinstall it, or name a toolkit with GEMMILL_CUDA_HOME"
        ) from None
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise BuildError(f"{command[0]} failed: {lines[0]}")
