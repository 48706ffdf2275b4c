"""Machine code that other programs put into a file as data, by pyelftools.

The CuTe DSL's objects hold theirs as a constant, which cuobjdump does not look for.
"""

import io
import struct
from collections.abc import Iterator

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

_MAGIC = b"\x7fELF\x02\x01"
_CUDA = "EM_CUDA"
_CODE = ".text."
_HEADER_BYTES = 64
"""Of a 64-bit file."""
_FATBIN = struct.Struct("<IHHQ")
"""Head of a file that wraps machine code: magic number, version, bytes of this head, and of all that follows."""
_FATBIN_BEGINS = struct.pack("<IHH", 0xBA55ED50, 1, _FATBIN.size)
_FATBIN_FACTS = slice(_FATBIN.size + 24, _FATBIN.size + 32)
"""Release and architecture of the first machine code in the file."""


def embedded_cubins(data: bytes) -> Iterator[bytes]:
    """Each whole file of CUDA machine code within `data`, in order."""
    at = data.find(_MAGIC)
    while at >= 0:
        size = _size_of_cubin(data, at)
        if size:
            yield data[at : at + size]
        at = data.find(_MAGIC, at + max(size, 1))


def embedded_fatbins(data: bytes) -> Iterator[bytes]:
    """Each whole file within `data` that wraps machine code, compressed or not, in order."""
    at = data.find(_FATBIN_BEGINS)
    while 0 <= at <= len(data) - _FATBIN.size:
        end = at + _FATBIN.size + _FATBIN.unpack_from(data, at)[-1]
        if end <= len(data):
            yield data[at:end]
        at = data.find(_FATBIN_BEGINS, end if end <= len(data) else at + 1)


def facts_of_fatbin(fatbin: bytes) -> bytes:
    """Bytes that identify the target of a file's code: the same for the same architecture and assembler."""
    return fatbin[_FATBIN_FACTS]


def sections_of_code(data: bytes) -> Iterator[tuple[str, bytes, bytes]]:
    """Sections of an object that are one file of machine code and nothing else: name, that file, and its contents."""
    for section in ELFFile(io.BytesIO(data)).iter_sections():
        held = section.data()
        files, cubins = list(embedded_fatbins(held)), list(embedded_cubins(held))
        if len(files) == len(cubins) == 1 and held.startswith(files[0]) and not held[len(files[0]) :].strip(b"\0"):
            yield section.name, files[0], cubins[0]


def code_of(cubin: bytes) -> Iterator[tuple[str, bytes]]:
    """Each function of a cubin and its instructions, in the order of sections."""
    for section in ELFFile(io.BytesIO(cubin)).iter_sections():
        if section.name.startswith(_CODE):
            yield section.name.removeprefix(_CODE), section.data()


def _size_of_cubin(data: bytes, at: int) -> int:
    """Bytes of the CUDA file that begins at `at`, 0 if none does. Its tables come last, so they give its end."""
    try:
        header = ELFFile(io.BytesIO(data[at : at + _HEADER_BYTES])).header
    except ELFError:
        return 0
    tables = (("e_phoff", "e_phentsize", "e_phnum"), ("e_shoff", "e_shentsize", "e_shnum"))
    size = max(header[start] + header[entry] * header[count] for start, entry, count in tables)
    return size if header["e_machine"] == _CUDA and at + size <= len(data) else 0
