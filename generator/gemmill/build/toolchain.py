"""The toolchain: a CUDA compiler, the CUTLASS headers, torch's headers and a host compiler.

The search imports none of them.
"""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from gemmill import settings
from gemmill.build.errors import BuildError
from gemmill.build.files import FileMemo, digest, file_digest
from gemmill.locations import installed

WHEEL_FOLDER = "cu13"
OLDEST_CUDA = (12, 9)
"""The first release that knows all architectures of vocab.Arch."""
_INSTALL_CUDA = "install it with `pip install 'gemmill[toolchain]'`, or name a toolkit with GEMMILL_CUDA_HOME"


@dataclass(frozen=True, kw_only=True)
class ToolchainPaths:
    """Everything that turns text into an extension."""

    home: Path
    found_by: str
    """Which of GEMMILL_CUDA_HOME, the PyPI wheels, CUDA_HOME and PATH gave the compiler."""
    nvcc: Path
    nvcc_version: str
    """For example `13.5.37`."""
    cuda_major: int
    cuobjdump: Path
    nvdisasm: Path
    include_dirs: tuple[Path, ...]
    lib_dirs: tuple[Path, ...]
    cudart_static: Path
    gxx: Path
    gxx_version: str
    cutlass_include: Path
    cutlass_version: str
    torch_include: Path
    torch_lib: Path
    compiler_build: str
    """Digest of everything about the CUDA compiler that can change its output."""
    host_build: str
    """Digest of everything about the host compiler that can change its output."""

    @property
    def fatbinary(self) -> Path:
        """The program that wraps machine code. nvcc calls it, so every toolkit has it there."""
        return self.nvcc.with_name("fatbinary")

    @property
    def programs(self) -> list[Path]:
        """Folders in which its programs look for each other: cuobjdump looks for nvdisasm on PATH."""
        return [self.home / "bin", self.nvdisasm.parent]


def find_toolchain(*, memo: FileMemo | None = None) -> ToolchainPaths:
    """The toolchain to build with. Raises BuildError, whose sentence names the package to install."""
    memo = memo or FileMemo(settings.home() / "memo" / "files.json")
    home, found_by = _find_cuda()
    nvcc = home / "bin" / "nvcc"
    text = memo.get(nvcc, lambda path: _output([path, "--version"]), kind="version")
    release = re.search(r"\bV(\d+)\.(\d+)\.(\d+)", text)
    if release is None:
        raise BuildError(f"{nvcc} --version printed no version ({_one_line(text)!r}): {_INSTALL_CUDA}")
    if (int(release[1]), int(release[2])) < OLDEST_CUDA:
        raise BuildError(
            f"{nvcc} is CUDA {release[0][1:]}, gemmill builds with {OLDEST_CUDA[0]}.{OLDEST_CUDA[1]} or later: {_INSTALL_CUDA}"
        )
    gxx = _find_gxx()
    gxx_text = memo.get(gxx.resolve(), lambda _: _output([gxx, "--version"]), kind="version")
    lib_dirs = tuple(d for d in (home / "lib", home / "lib64", home / "targets" / "x86_64-linux" / "lib") if d.is_dir())
    cutlass = _find_cutlass()
    torch = _find_torch()
    parts = [home / "nvvm" / "bin" / "cicc", home / "bin" / "ptxas", home / "bin" / "cudafe++"]
    host_build = digest(gxx_text)
    return ToolchainPaths(
        home=home,
        found_by=found_by,
        nvcc=nvcc,
        nvcc_version=release[0][1:],
        cuda_major=int(release[1]),
        cuobjdump=_tool(home, "cuobjdump"),
        nvdisasm=_tool(home, "nvdisasm"),
        include_dirs=tuple(d for d in (home / "include", home / "include" / "cccl") if d.is_dir()),
        lib_dirs=lib_dirs,
        cudart_static=_library(lib_dirs, "libcudart_static.a"),
        gxx=gxx,
        gxx_version=_one_line(gxx_text),
        cutlass_include=cutlass,
        cutlass_version=memo.get(cutlass / "cutlass" / "version.h", _cutlass_version, kind="cutlass"),
        torch_include=torch / "include",
        torch_lib=torch / "lib",
        # The wheels of nvcc, its optimiser and its assembler have versions of their own: digest all three.
        compiler_build=digest(text, host_build, [memo.get(p, file_digest) for p in parts if p.is_file()]),
        host_build=host_build,
    )


def find_launcher() -> tuple[str, ...]:
    """The program before each compiler call: GEMMILL_COMPILER_LAUNCHER, else ccache or sccache from PATH, else none.

    Raises BuildError where the named program is not on PATH.
    """
    named = settings.compiler_launcher()
    if named == "none":
        return ()
    if named:
        found = shutil.which(named)
        if found is None:
            raise BuildError(
                f"GEMMILL_COMPILER_LAUNCHER is {named!r}, which is not a program on PATH: install it, or set it to `none`"
            )
        return (found,)
    return next(((found,) for name in ("ccache", "sccache") if (found := shutil.which(name))), ())


def _find_cuda() -> tuple[Path, str]:
    if named := settings.cuda_home():
        if not (named / "bin" / "nvcc").is_file():
            raise BuildError(
                f"no CUDA compiler at {named / 'bin' / 'nvcc'}, which GEMMILL_CUDA_HOME names: correct it, or unset it"
            )
        return named, "GEMMILL_CUDA_HOME"
    for home in _wheel_homes():
        if (home / "bin" / "nvcc").is_file():
            return home, "PyPI wheels"
    system = settings.system_cuda_home()
    if system is not None and (system / "bin" / "nvcc").is_file():
        return system, "CUDA_HOME"
    if on_path := shutil.which("nvcc"):
        return _home_of(Path(on_path)), "PATH"
    raise BuildError(
        f"no CUDA compiler: none named by GEMMILL_CUDA_HOME, in the PyPI wheels, below CUDA_HOME or on PATH; {_INSTALL_CUDA}"
    )


def _wheel_homes() -> list[Path]:
    return [root / WHEEL_FOLDER for root in installed("nvidia")]


def _home_of(nvcc: Path) -> Path:
    """The toolkit of an nvcc on PATH, which may be a link or a script that starts the real one."""
    home = nvcc.resolve().parent.parent
    if (home / "include" / "cuda_runtime.h").is_file():
        return home
    top = re.search(
        r"^#\$ TOP=(.+)$", _output([nvcc, "--dryrun", "-c", "-x", "cu", "/dev/null", "-o", "/dev/null"]), re.MULTILINE
    )
    found = Path(top[1]).resolve() if top else home
    if not (found / "bin" / "nvcc").is_file():
        raise BuildError(f"{nvcc} is on PATH, but its toolkit was not found at {found}: name it with GEMMILL_CUDA_HOME")
    return found


def _tool(home: Path, name: str) -> Path:
    for toolkit in (home, *_wheel_homes()):  # any release reads an older one's objects
        if (toolkit / "bin" / name).is_file():
            return toolkit / "bin" / name
    if on_path := shutil.which(name):
        return Path(on_path)
    raise BuildError(
        f"no {name} in {home / 'bin'}, in the PyPI wheels or on PATH: install it with `pip install nvidia-cuda-{name}`"
    )


def _library(lib_dirs: tuple[Path, ...], name: str) -> Path:
    for folder in lib_dirs:
        if (folder / name).is_file():
            return folder / name
    searched = ", ".join(map(str, lib_dirs)) or "no library folder"
    raise BuildError(
        f"no {name} in {searched}: install it with `pip install nvidia-cuda-runtime`, or name a toolkit with GEMMILL_CUDA_HOME"
    )


def _find_gxx() -> Path:
    found = shutil.which("g++")
    if found is None:
        raise BuildError("no host C++ compiler: g++ is not on PATH; install it, for example with `apt install g++`")
    return Path(found)


def _find_cutlass() -> Path:
    if named := settings.cutlass_home():
        if not (named / "include" / "cutlass" / "version.h").is_file():
            raise BuildError(
                f"no CUTLASS at {named}, which GEMMILL_CUTLASS_HOME names: it has no include/cutlass/version.h"
            )
        return named / "include"
    for root in installed("cutlass_library"):
        include = root / "source" / "include"
        if (include / "cutlass" / "version.h").is_file():
            return include
    raise BuildError(
        "no CUTLASS headers: install them with `pip install --no-deps nvidia-cutlass==4.2.0.0`, or name a checkout with GEMMILL_CUTLASS_HOME"
    )


def _find_torch() -> Path:
    for root in installed("torch"):
        if (root / "lib").is_dir():
            return root
    raise BuildError("no torch to link against: install it with `pip install torch`")


def _cutlass_version(header: Path) -> str:
    found = dict(re.findall(r"#define CUTLASS_(MAJOR|MINOR|PATCH)\s+(\d+)", header.read_text(encoding="utf-8")))
    return ".".join(found.get(part, "?") for part in ("MAJOR", "MINOR", "PATCH"))


def _output(command: list[Path | str]) -> str:
    try:
        done = subprocess.run(command, env=settings.compiler_environment(), capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(
            f"cannot run {command[0]} ({error.strerror}): reinstall it, or name a toolkit with GEMMILL_CUDA_HOME"
        ) from None
    if done.returncode != 0:
        raise BuildError(f"{' '.join(map(str, command))} failed: {_one_line(done.stderr or done.stdout)}")
    return done.stdout + done.stderr


def _one_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else "no output"
