"""cuobjdump's output on a finished extension."""

import re
import subprocess
import tempfile
from pathlib import Path

from gemmill.build.cubins import embedded_fatbins, facts_of_fatbin
from gemmill.build.errors import BuildError, reported
from gemmill.build.inspect import is_of_variant

_ELF = re.compile(r"^ELF file\s+\d+: .*\.(sm_\w+)\.cubin$", re.MULTILINE)

_NO_CODE = "does not contain device code"
"""cuobjdump's words on a library whose kernels are all the DSL's, which is no failure."""
_LISTED = re.compile(r"^[ \t]*Function : (\S+)$", re.MULTILINE)
_NEXT_FILE = re.compile(r"^Fatbin ", re.MULTILINE)
_FUNCTION = re.compile(r"^\s*(?:STT_)?FUNC\s.*?(\w+)$", re.MULTILINE)


def architectures(extension: Path, cuobjdump: Path) -> tuple[str, ...]:
    """The architectures that an extension holds machine code for, such as `sm_90a`. Raises BuildError."""
    with reported(extension, "reading machine code"):
        # Of the DSL's kernels, one of each kind: cuobjdump takes a tenth of a second each.
        kinds = {facts_of_fatbin(fatbin): fatbin for fatbin in embedded_fatbins(extension.read_bytes())}
        listed = "".join(_of_fatbin(fatbin, cuobjdump, "--list-elf") for fatbin in kinds.values())
    listed += _output([cuobjdump, "--list-elf", extension], may_be_empty=bool(kinds))
    return tuple(sorted(set(_ELF.findall(listed))))


def disassemble(extension: Path, cuobjdump: Path, name: str) -> str:
    """SASS of the kernels of the variant of this name. The name is without launch settings. Raises BuildError."""
    if (text := _disassemble_embedded(extension, cuobjdump, name)) is not None:
        return _only(text, name)
    listed = _FUNCTION.findall(_output([cuobjdump, "--dump-elf-symbols", extension]))
    functions = sorted({function for function in listed if is_of_variant(function, name)})
    if not functions:
        raise BuildError(f"{extension} has no kernel of {name}: it was built from other sources, run `gemmill build`")
    return _only(_output([cuobjdump, "--dump-sass", "--function", ",".join(functions), extension]), name)


def _only(listing: str, name: str) -> str:
    """A listing without the kernels of other variants in the same file of machine code."""
    head, *parts = _LISTED.split(listing)
    listed = zip(parts[::2], parts[1::2], strict=True)
    own = [(function, _NEXT_FILE.split(code)[0]) for function, code in listed if is_of_variant(function, name)]
    return head[max(0, head.rfind("Fatbin ")) :] + "".join(f"\t\tFunction : {function}{code}" for function, code in own)


def _disassemble_embedded(extension: Path, cuobjdump: Path, name: str) -> str | None:
    """SASS of the embedded file of machine code that has the kernel; None where no such file has it.

    Such files are the CuTe DSL's, which cuobjdump does not find by itself. Raises BuildError.
    """
    mark = f"gemmill_{name}_kernel".encode()
    with reported(extension, "reading machine code"):
        found = next((fatbin for fatbin in embedded_fatbins(extension.read_bytes()) if mark in fatbin), None)
        return None if found is None else _of_fatbin(found, cuobjdump, "--dump-sass")


def _of_fatbin(fatbin: bytes, cuobjdump: Path, option: str) -> str:
    with tempfile.NamedTemporaryFile(suffix=".fatbin") as file:
        file.write(fatbin)
        file.flush()
        return _output([cuobjdump, option, file.name])


def _output(command: list[str | Path], *, may_be_empty: bool = False) -> str:
    try:
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(
            f"{command[0]} cannot be run ({error.strerror}): name another toolkit with GEMMILL_CUDA_HOME"
        ) from None
    if done.returncode and not (may_be_empty and _NO_CODE in done.stdout + done.stderr):
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        raise BuildError(f"{Path(command[0]).name} failed on {command[-1]}: {lines[0]}")
    return done.stdout
