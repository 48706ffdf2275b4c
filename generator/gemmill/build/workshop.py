"""The workshop: the tools and folders of a build, found and opened once."""

import time
from dataclasses import dataclass
from pathlib import Path

from gemmill.build.cache import ObjectCache
from gemmill.build.dsl import DslPackage, find_dsl
from gemmill.build.dsl_body import Bodies
from gemmill.build.errors import BuildError, reported
from gemmill.build.files import FileMemo
from gemmill.build.ledger import Ledger
from gemmill.build.options import BuildOptions
from gemmill.build.own_code import OwnCode
from gemmill.build.remembered import KnownSources
from gemmill.build.sources import Flags, Keys, flags_for, kernel_folders, roots_of
from gemmill.build.toolchain import ToolchainPaths, find_launcher, find_toolchain
from gemmill.ownership import distrust
from gemmill.vocab import Arch, cannot_emulate


@dataclass(frozen=True, kw_only=True)
class Workshop:
    """Toolchain, cache and ledger of a build."""

    options: BuildOptions
    arch: Arch
    toolchain: ToolchainPaths
    dsl: DslPackage | None
    without_dsl: str
    """Why there is no CuTe DSL; empty where there is one."""
    flags: Flags
    keys: Keys
    opened: float
    """When the first key could be made, in seconds since the epoch."""
    roots: dict[str, Path]
    memo: FileMemo
    memo_path: Path
    known: KnownSources
    cache: ObjectCache
    ledger: Ledger
    launcher: tuple[str, ...]


def open_workshop(arch: Arch, options: BuildOptions) -> Workshop:
    """Find the toolchain, and open cache and ledger of a build. Writes nothing. Raises BuildError."""
    home, kernels = options.home_dir, options.kernels_folder
    if options.emulate and arch.emulated_on is None:
        raise BuildError(cannot_emulate(arch))
    _check_writers(home)
    memo_path = home / "memo" / "files.json"
    memo = FileMemo(memo_path)
    toolchain = find_toolchain(memo=memo)
    opened, dsl, without_dsl = time.time(), None, ""
    try:
        dsl = find_dsl(toolchain.cuda_major)
    except BuildError as error:
        without_dsl = str(error)
    roots = roots_of(toolchain, kernels)
    keys = keys_for(arch, options, toolchain, dsl, memo)
    return Workshop(
        options=options,
        arch=arch,
        toolchain=toolchain,
        dsl=dsl,
        without_dsl=without_dsl,
        flags=keys.flags,
        keys=keys,
        opened=opened,
        roots=roots,
        memo=memo,
        memo_path=memo_path,
        known=KnownSources(home / "memo" / f"sources-{_kind_of(arch, options)}.json", keys, kernels),
        cache=ObjectCache(home / "cache", roots, memo),
        ledger=Ledger(home / "cache", toolchain.cutlass_version),
        launcher=find_launcher(),
    )


def keys_for(
    arch: Arch,
    options: BuildOptions,
    toolchain: ToolchainPaths | None = None,
    dsl: DslPackage | None = None,
    memo: FileMemo | None = None,
) -> Keys:
    """The keys of a build's sources. Without a toolchain they distinguish sources, and name no object."""
    memo_path = options.home_dir / "memo" / "files.json"
    return Keys(
        flags=flags_for(arch, emulate=options.emulate),
        code=OwnCode(tuple(kernel_folders(options.kernels_folder).values()), memo or FileMemo(memo_path)),
        bodies=Bodies(),
        cuda=toolchain.compiler_build if toolchain else "",
        host=toolchain.host_build if toolchain else "",
        dsl=dsl.build if dsl else "",
        own_host_code=options.own_host_code,
    )


def _kind_of(arch: Arch, options: BuildOptions) -> str:
    """Distinguishes builds whose sources have other keys."""
    return f"{arch}{'-emulated' * options.emulate}{'-own-host-code' * options.own_host_code}"


def _check_writers(home: Path) -> None:
    with reported(home, "looking into the home"):
        for folder in (home, *(home / name for name in ("builds", "cache", "memo", "work")), *home.glob("cache/*")):
            if folder.exists() and (reason := distrust(folder, folder.stat())):
                raise BuildError(reason)
