"""The output of ptxas and cuobjdump on compiled kernels, by kernel symbol."""

import hashlib
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

SASS_OF_INTEREST = frozenset(
    "QGMMA IGMMA HGMMA IMMA HMMA QMMA OMMA UTCQMMA UTCOMMA UTCHMMA UTMALDG UTMASTG UBLKCP LDGSTS LDSM STSM LDL STL REDG ATOMG".split()
)
"""Opcodes of interest: the units of the machine that a kernel uses, as tensor cores, TMA, asynchronous copies, local
memory.
"""
_INSTRUCTION_BYTES = 16

_PROPERTIES = re.compile(r"Function properties for (\w+)")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_FUNCTION = re.compile(r"^\s*Function : (\w+)")
_RESOURCES = re.compile(r"^\s*Function (\w+):\s*\n\s*REG:(\d+)", re.MULTILINE)
_LOCAL = re.compile(r"\b(?:LDL|STL)((?:\.\w+)*) ")
_LOCAL_BYTES = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)")
_ADDRESS = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/")
_ENCODING = re.compile(r"/\* (0x[0-9a-f]{16}) \*/\s*$")


@dataclass(kw_only=True)
class KernelFacts:
    """One kernel as compiled."""

    registers: int = 0
    spill_bytes: int = 0
    code_bytes: int = 0
    sass: dict[str, int] = field(default_factory=dict)
    sass_digest: str = ""
    """SHA-256 of the encoded instructions; of several kernels, of their digests. It is empty without any."""


def is_of_variant(function: str, name: str) -> bool:
    """Whether a kernel belongs to the variant of a name.

    It is the variant's own, which the CuTe DSL numbers, or a template's for the variant's type.
    """
    own = f"gemmill_{name}_kernel"
    return function == own or function.startswith(f"{own}_") or f"{len(name)}{name}" in function


def facts_of(name: str, facts: Mapping[str, KernelFacts]) -> KernelFacts:
    """The facts of a variant: the largest register count of its kernels, and sums of the rest."""
    return merged(found for function, found in facts.items() if is_of_variant(function, name))


def merged(kernels: Iterable[KernelFacts]) -> KernelFacts:
    """The facts of several kernels together: the largest register count, and sums of the rest."""
    own = list(kernels)
    digests = sorted(found.sass_digest for found in own if found.sass_digest)
    sass: Counter[str] = sum((Counter(found.sass) for found in own), Counter())
    return KernelFacts(
        registers=max((found.registers for found in own), default=0),
        spill_bytes=sum(found.spill_bytes for found in own),
        code_bytes=sum(found.code_bytes for found in own),
        sass=dict(sorted(sass.items())),
        sass_digest=digests[0] if len(digests) == 1 else _digest(digests) if digests else "",
    )


def read_ptxas(text: str, facts: dict[str, KernelFacts]) -> None:
    """Put registers and spills, in bytes, from the output of `ptxas -v` into `facts`."""
    current: KernelFacts | None = None
    for line in text.splitlines():
        if match := _PROPERTIES.search(line):
            current = facts.setdefault(match[1], KernelFacts())
        elif current is not None and (match := _SPILLS.search(line)):
            current.spill_bytes = int(match[1]) + int(match[2])
        elif current is not None and (match := _REGISTERS.search(line)):
            current.registers = int(match[1])
            current = None


def read_sass(text: str, facts: dict[str, KernelFacts]) -> None:
    """Put instruction counts, code bytes and digest from the output of `cuobjdump -sass` into `facts`."""
    for name, *lines in _functions(text):
        found = facts.setdefault(name, KernelFacts())
        opcodes = [match[1] for line in lines if (match := _INSTRUCTION.match(line))]
        counts = Counter(code for code in opcodes if code in SASS_OF_INTEREST)
        encodings = [match[1] for line in lines if (match := _ENCODING.search(line))]
        found.code_bytes = _INSTRUCTION_BYTES * len(opcodes)
        found.sass = dict(sorted(counts.items()))
        found.sass_digest = _digest(encodings) if encodings else ""


def _functions(text: str) -> Iterator[list[str]]:
    """A list for each function: its name, then its lines."""
    current: list[str] | None = None
    for line in text.splitlines():
        if match := _FUNCTION.match(line):
            if current is not None:
                yield current
            current = [match[1]]
        elif current is not None:
            current.append(line)
    if current is not None:
        yield current


def _digest(words: Iterable[str]) -> str:
    return hashlib.sha256(" ".join(words).encode()).hexdigest()


def listings(listing: str, codes: Sequence[tuple[str, bytes]]) -> Iterator[str]:
    """Each function's listing, as `cuobjdump -sass` would give it.

    `listing` is the output of `nvdisasm -hex` on the functions' code, one after another.
    """
    ends = list(accumulate(len(code) for _, code in codes))
    lines: list[list[str]] = [[f"Function : {name}"] for name, _ in codes]
    current: list[str] = []
    for line in listing.splitlines():
        if match := _ADDRESS.match(line):
            current = lines[bisect_right(ends, int(match[1], 16))]
        current.append(line)
    return map("\n".join, lines)


def read_cubin(text: str) -> KernelFacts:
    """The facts of a machine-code file whose kernels all belong to one variant, from `cuobjdump -sass -res-usage`.

    Spills are bytes of the instructions that reach local memory, the same count as that of ptxas.
    """
    facts: dict[str, KernelFacts] = {}
    read_sass(text, facts)
    for function, registers in _RESOURCES.findall(text):
        facts.setdefault(function, KernelFacts()).registers = int(registers)
    whole = merged(facts.values())
    whole.spill_bytes = sum(_local_bytes(match[1]) for match in _LOCAL.finditer(text))
    return whole


def _local_bytes(modifiers: str) -> int:
    return next((_LOCAL_BYTES[word] for word in modifiers.split(".") if word in _LOCAL_BYTES), 4)
