"""From objects to an extension and its manifest in one folder, which appears whole or not at all."""

import datetime
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gemmill import settings
from gemmill.build.cache import Entry
from gemmill.build.errors import BuildError, disk_full, first_error
from gemmill.build.files import file_digest, sync_file
from gemmill.build.inspect import facts_of
from gemmill.build.processes import ends_with_parent
from gemmill.build.provenance import source_digest
from gemmill.build.sources import EXPORTS, OWN_ROOT, TORCH_TARGET, Source, SourceKind, expand
from gemmill.build.workshop import Workshop
from gemmill.locations import checkout
from gemmill.manifest import (
    SCHEMA_VERSION,
    KernelEntry,
    Manifest,
    ManifestError,
    RejectedEntry,
    Toolchain,
    read_manifest,
    write_manifest,
)
from gemmill.manifest.reading import check_extension
from gemmill.registry import REGISTRY
from gemmill.space.names import symbol_of, to_name
from gemmill.space.selections import Selection
from gemmill.version import __version__
from gemmill.writing import work_folder

_LARGEST_SHOWN = 5
_GIT_SECONDS = 10.0


def intact_build(folder: Path) -> Manifest | None:
    """The manifest of a build whose extension is whole, or None."""
    try:
        manifest = read_manifest(folder / "manifest.json")
        check_extension(manifest, folder)
    except ManifestError:
        return None
    return manifest if manifest.build_id == folder.name else None


def publish(manifest: Manifest, target: Path, objects: Sequence[Path], workshop: Workshop) -> Manifest:
    """Link objects and libraries in a working folder and rename it to `target`.

    Raises BuildError, OSError; `target` is then as it was.
    """
    # In another folder than the target: a listing of the builds must not see one that is half made, or its folder vanish.
    temporary = work_folder(workshop.options.home_dir)
    temporary.mkdir(parents=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        extension = temporary / manifest.extension
        _link(extension, objects, workshop)
        size = extension.stat().st_size
        check_size(manifest, size, workshop.options.max_size)
        sync_file(extension)
        manifest = replace(manifest, extension_sha256=file_digest(extension), extension_bytes=size)
        write_manifest(manifest, temporary / "manifest.json")
        return _put_in_place(manifest, temporary, target, workshop)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def runtimes(variants: Sequence[Source], workshop: Workshop) -> list[Path]:
    """The static libraries that an extension of these variants needs, in the linker's order."""
    libraries = [workshop.toolchain.cudart_static]
    needs_dsl = not workshop.options.own_host_code
    if workshop.dsl is not None and needs_dsl and any(source.kind is SourceKind.DSL for source in variants):
        libraries.insert(0, workshop.dsl.runtime)
    return libraries


def _link(extension: Path, objects: Sequence[Path], workshop: Workshop) -> None:
    tools = workshop.toolchain
    # A response file: a build of many variants has more objects than a command line holds.
    response = extension.with_suffix(".objects")
    response.write_text("".join(f'"{path}"\n' for path in objects), encoding="utf-8")
    exports = extension.with_suffix(".exports")
    exports.write_text(EXPORTS, encoding="utf-8")
    # Objects first: a static library resolves only symbols that an earlier file refers to.
    flags = [*expand(workshop.flags.link, workshop.roots), f"-Wl,--version-script={exports}"]
    command = [str(tools.gxx), f"@{response}", *flags, "-o", str(extension)]
    try:
        done = subprocess.run(
            command,
            env=settings.compiler_environment(),
            capture_output=True,
            text=True,
            check=False,
            errors="replace",
            preexec_fn=ends_with_parent(),
        )
    except OSError as error:
        raise BuildError(f"cannot run {tools.gxx} ({error.strerror}): install g++") from None
    response.unlink()
    exports.unlink()
    if done.returncode == 0:
        return
    message = done.stderr or done.stdout
    if "No space left on device" in message:
        raise disk_full(f"linking in {extension.parent.parent}")
    lines = [line for line in message.splitlines() if "undefined reference" in line or "multiple definition" in line]
    raise BuildError(f"linking failed: {lines[0].strip() if lines else first_error(message)}")


def check_size(manifest: Manifest, size: int, max_size: int | None) -> None:
    """Check that an extension's `size` is at most `max_size`, both in bytes.

    Raises BuildError, which names the largest variants.
    """
    if max_size is None or size <= max_size:
        return
    kernels = {entry.symbol: entry for entry in manifest.entries}.values()
    largest = sorted(kernels, key=lambda entry: (-entry.code_bytes, entry.name))[:_LARGEST_SHOWN]
    listed = ", ".join(f"{entry.name} {entry.code_bytes:,}" for entry in largest)
    raise BuildError(
        f"the extension has {size:,} bytes, more than the {max_size:,} allowed: leave variants out with --filter, or allow more "
        f"with --max-size; bytes of machine code of the largest: {listed}"
    )


def _put_in_place(manifest: Manifest, temporary: Path, target: Path, workshop: Workshop) -> Manifest:
    for _ in range(3):
        try:
            temporary.rename(target)
            return manifest
        except OSError:
            if (theirs := intact_build(target)) is not None:
                return theirs  # another process was quicker, with the same build
            damaged = work_folder(workshop.options.home_dir)
            if not target.exists():
                raise
            target.rename(damaged)
            shutil.rmtree(damaged, ignore_errors=True)
    raise BuildError(f"{target} is being changed by other processes: build again")


def describe(
    selection: Selection,
    build_id: str,
    entries: Sequence[Entry],
    rejected: Sequence[RejectedEntry],
    sources: Mapping[str, Source],
    workshop: Workshop,
) -> Manifest:
    """The manifest of a build, without the facts of the linked file. `sources` are by symbol."""
    by_kernel = {name: entry for entry in entries for name in entry.members.values()}
    left_out = {row.name for row in rejected}
    tools = workshop.toolchain
    built = {symbol_of(config) for config in selection.configs if to_name(config.compiled) not in left_out}
    headers, flags = workshop.roots[OWN_ROOT], workshop.flags
    digests = {symbol: source_digest(sources[symbol], headers, flags) for symbol in built}
    kernels = []
    for config in selection.configs:
        compiled = to_name(config.compiled)
        if compiled in left_out:
            continue
        entry, symbol = by_kernel[compiled], symbol_of(config)
        facts = facts_of(compiled, entry.facts)
        kernels.append(
            KernelEntry(
                name=to_name(config),
                family=REGISTRY.family_of(config).name,
                config=config,
                symbol=symbol,
                ops=REGISTRY.ops_of(config),
                epilogue=REGISTRY.epilogue_of(config),
                source_digest=digests[symbol],
                compile_seconds=round(entry.cpu_seconds / len(entry.members), 2),
                peak_memory_bytes=entry.peak_memory_bytes,
                code_bytes=facts.code_bytes,
                registers=facts.registers,
                spill_bytes=facts.spill_bytes,
                sass=facts.sass,
                sass_digest=facts.sass_digest,
            )
        )
    return Manifest(
        schema_version=SCHEMA_VERSION,
        build_id=build_id,
        gemmill_version=_own_version(),
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        arch=str(selection.arch),
        selection=selection.name,
        extension=f"gemmill_{build_id}.so",
        torch_target=TORCH_TARGET,
        toolchain=Toolchain(
            nvcc=tools.nvcc_version,
            cuda_major=tools.cuda_major,
            cutlass=tools.cutlass_version,
            cutedsl=workshop.dsl.version if workshop.dsl else "",
            host_compiler=tools.gxx_version,
            flags=workshop.flags.for_kind(SourceKind.VARIANT),
        ),
        entries=tuple(kernels),
        rejected=tuple(rejected),
    )


def _own_version() -> str:
    """gemmill's version; of a checkout also its commit, and whether its files were changed.

    So builds of one release differ by it.
    """
    folder = checkout()
    if folder is None or not (folder / ".git").exists():  # unpacked, perhaps inside another repository
        return __version__
    ask = ["git", "-C", str(folder), "describe", "--always", "--dirty=.changed", "--abbrev=7", "--exclude=*"]
    try:
        done = subprocess.run(ask, capture_output=True, text=True, timeout=_GIT_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):  # no git, no repository, or somebody else's
        return __version__
    return f"{__version__}+g{done.stdout.strip()}"
