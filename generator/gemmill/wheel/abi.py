"""The requirements of an extension on the machines that run it, read from its ELF tables."""

import re
from dataclasses import dataclass
from pathlib import Path

from gemmill.doctor.elf import ElfError, read_library

_MACHINES = {"EM_X86_64": "x86_64", "EM_AARCH64": "aarch64"}
"""ELF's name of a processor, and the platform's in a wheel's tag."""
_OF_TORCH = frozenset("libtorch.so libtorch_cpu.so libtorch_cuda.so libc10.so libc10_cuda.so".split())
_OF_THE_SYSTEM = frozenset(
    "libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1 libstdc++.so.6 libgcc_s.so.1 "
    "ld-linux-x86-64.so.2 ld-linux-aarch64.so.1".split()
)
_TORCH_CPP = re.compile(r"_Z(NK?|T[ISV]N?)(2at|3c10|5torch)\w*")
_OLDEST = (2, 28)
"""The C library that torch's own wheels ask for."""
_GLIBC_OF_GLIBCXX = {25: (2, 28), 28: (2, 31), 29: (2, 34), 30: (2, 35), 33: (2, 39)}
"""The C library of the distributions that first had libstdc++ up to GLIBCXX_3.4.N: of GCC 8, 10, 11, 12 and 14."""


class WheelError(Exception):
    """A wheel cannot be written; the text has the reason and the remedy."""


@dataclass(frozen=True, kw_only=True)
class Abi:
    """The requirements of an extension on a machine that loads it."""

    machine: str
    """The machine, as in a wheel's tag."""
    glibc: tuple[int, int]
    """The oldest C library that will do."""

    @property
    def tag(self) -> str:
        """The wheel's tag: any Python 3, this platform."""
        return f"py3-none-manylinux_{self.glibc[0]}_{self.glibc[1]}_{self.machine}"


def audit(extension: Path) -> Abi:
    """Compare an extension's requirements with those that every torch and Linux fulfils. Raises WheelError where it
    needs more.
    """
    try:
        library = read_library(extension)
    except (ElfError, OSError) as error:
        raise WheelError(f"{extension} cannot be audited ({error}): build again with `gemmill build`") from None
    if library.machine not in _MACHINES:
        raise WheelError(
            f"{extension.name} is for ELF machine {library.machine}: wheels are for {', '.join(_MACHINES.values())}"
        )
    if foreign := sorted(set(library.needed) - _OF_TORCH - _OF_THE_SYSTEM):
        raise WheelError(
            f"{extension.name} needs {', '.join(foreign)}, which neither torch nor every Linux has: link without, and build again"
        )
    if unstable := sorted(name for name in library.required if _TORCH_CPP.fullmatch(name)):
        raise WheelError(
            f"{extension.name} needs {unstable[0]}{f' and {len(unstable) - 1} more' if unstable[1:] else ''} of torch's C++ "
            "interface, which differs between releases: use the stable one, and build again"
        )
    return Abi(machine=_MACHINES[library.machine], glibc=max(_OLDEST, *map(_glibc_of, library.versions)))


def _glibc_of(version: str) -> tuple[int, int]:
    """The C library that a version of a symbol needs, as GLIBC_2.34 or GLIBCXX_3.4.21."""
    name, _, number = version.partition("_")
    parts = [int(part) for part in number.split(".") if part.isdecimal()]
    if name == "GLIBC" and len(parts) >= 2:
        return parts[0], parts[1]
    if name == "GLIBCXX" and len(parts) >= 3:
        fits = [glibc for last, glibc in _GLIBC_OF_GLIBCXX.items() if parts[2] <= last]
        if not fits:
            raise WheelError(
                f"a symbol of {version} is needed, of a C++ library later than GLIBCXX_3.4.{max(_GLIBC_OF_GLIBCXX)}: "
                "build with g++ 14 or earlier"
            )
        return fits[0]
    return _OLDEST
