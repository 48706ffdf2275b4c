"""What cuobjdump says about a finished extension."""

import re
import subprocess
from pathlib import Path

from gemmill.build.errors import BuildError
from gemmill.build.inspect import is_of_variant

_ELF = re.compile(r"^ELF file\s+\d+: .*\.(sm_\w+)\.cubin$", re.MULTILINE)

_FUNCTION = re.compile(r"^\s*(?:STT_)?FUNC\s.*?(\w+)$", re.MULTILINE)


def architectures(extension: Path, cuobjdump: Path) -> tuple[str, ...]:
    """The architectures that an extension holds machine code for, as `sm_90a`. Raises BuildError."""
    return tuple(sorted(set(_ELF.findall(_output([cuobjdump, "--list-elf", extension])))))


def disassemble(extension: Path, cuobjdump: Path, name: str) -> str:
    """SASS of the kernels of the variant of this name (launch settings left out). Raises BuildError."""
    listed = _FUNCTION.findall(_output([cuobjdump, "--dump-elf-symbols", extension]))
    functions = sorted({function for function in listed if is_of_variant(function, name)})
    if not functions:
        raise BuildError(f"{extension} has no kernel of {name}: it was built from other sources, run `gemmill build`")
    return _output([cuobjdump, "--dump-sass", "--function", ",".join(functions), extension])


def _output(command: list[str | Path]) -> str:
    try:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(
            f"{command[0]} cannot be run ({error.strerror}): name another toolkit with GEMMILL_CUDA_HOME"
        ) from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise BuildError(f"{Path(command[0]).name} failed on {command[-1]}: {lines[0]}")
    return done.stdout
