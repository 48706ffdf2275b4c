"""Machine code that other programs put into a file as data.

The CuTe DSL's objects hold theirs as a constant, which cuobjdump does not look for.
The layout of ELF is in the System V ABI, chapter 4.
"""

import struct
from collections.abc import Iterator

_MAGIC = b"\x7fELF\x02\x01"
_EM_CUDA = 190
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_CODE = ".text."


def embedded_cubins(data: bytes) -> Iterator[bytes]:
    """Each whole file of CUDA machine code within `data`, in order."""
    at = data.find(_MAGIC)
    while at >= 0:
        size = _size_of_cubin(data, at)
        if size:
            yield data[at : at + size]
        at = data.find(_MAGIC, at + max(size, 1))


def flags_of(cubin: bytes) -> int:
    """The flags that tell what a cubin was made for: the same for the same architecture and assembler."""
    return int(_HEADER.unpack_from(cubin)[7])


def code_of(cubin: bytes) -> Iterator[tuple[str, bytes]]:
    """Each function of a cubin and its instructions, in the order of sections."""
    _, _, _, _, _, _, table, _, _, _, _, size, count, of_names = _HEADER.unpack_from(cubin)
    sections = [_SECTION.unpack_from(cubin, table + i * size) for i in range(count)]
    names = sections[of_names][4]
    for name, _, _, _, offset, length, *_ in sections:
        whole = cubin[names + name : cubin.index(b"\0", names + name)].decode()
        if whole.startswith(_CODE):
            yield whole.removeprefix(_CODE), cubin[offset : offset + length]


def _size_of_cubin(data: bytes, at: int) -> int:
    """Bytes of the CUDA file that begins at `at`, 0 if none does. Its tables come last, so they tell where it ends."""
    if len(data) - at < _HEADER.size:
        return 0
    _, _, machine, _, _, programs, sections, _, _, program_size, program_count, section_size, section_count, _ = (
        _HEADER.unpack_from(data, at)
    )
    size = int(max(programs + program_size * program_count, sections + section_size * section_count))
    return size if machine == _EM_CUDA and at + size <= len(data) else 0
