"""The digest of the inputs of a kernel's machine code. A measured time holds as long as the digest is the same.

Of CUDA it covers the device code of the compiled text and of gemmill's own headers, and the compiler's flags. It leaves
out everything after a line `// Host code: ...`, and comments, layout and names of files, since they say nothing to a
compiler. `dsl_body.py` has the digest of the CuTe DSL's kernels. Where the digest changes and the machine code does
not, measured times hold all the same (`runtime/machine_code.py`).
"""

import re
from pathlib import Path

from gemmill.build.files import digest
from gemmill.build.own_code import included, without_comments
from gemmill.build.sources import Flags, Source, SourceKind, kernel_folders

_HOST_CODE = re.compile(r"^// Host code: .*", re.MULTILINE | re.DOTALL)
_NAMES_A_FILE = re.compile(r"^[ \t]*#[ \t]*(?:include|pragma once)\b[^\n]*$", re.MULTILINE)
_NOT_OF_THE_CODE = ("-I", "-isystem", "-Xcompiler", "--compress-mode")
"""Beginnings of flags for the places of headers, the host compiler and the storage of machine code."""


def source_digest(source: Source, kernels: Path, flags: Flags) -> str:
    """The digest of a variant's kernel. It names headers from the folder `kernels`. Raises OSError."""
    if source.kind is SourceKind.DSL:
        return source.body
    paths = included(source.text, tuple(kernel_folders(kernels).values()))
    headers = {code_of(path.read_text(encoding="utf-8")) for path in paths} - {""}
    told = [flag for flag in flags.for_kind(SourceKind.VARIANT) if not flag.startswith(_NOT_OF_THE_CODE)]
    return digest(code_of(source.text), sorted(headers), told)


def code_of(text: str) -> str:
    """A CUDA source without host code at its end, comments, layout and the lines that name files."""
    device = _HOST_CODE.sub("", text)
    return " ".join(_NAMES_A_FILE.sub("", without_comments(device)).split())
