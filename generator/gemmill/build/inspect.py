"""What ptxas and cuobjdump say about compiled kernels, by kernel symbol."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

SASS_OF_INTEREST = frozenset(
    "QGMMA IGMMA HGMMA IMMA HMMA QMMA UTCQMMA UTCHMMA UTMALDG UTMASTG UBLKCP LDGSTS LDSM STSM LDL STL REDG ATOMG".split()
)
"""Opcodes that tell which units of the machine a kernel uses: tensor cores, TMA, asynchronous copies, local memory."""
_INSTRUCTION_BYTES = 16

_PROPERTIES = re.compile(r"Function properties for (\w+)")
_SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_FUNCTION = re.compile(r"^\s*Function : (\w+)")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)")


@dataclass(kw_only=True)
class KernelFacts:
    """One kernel as compiled."""

    registers: int = 0
    spill_bytes: int = 0
    code_bytes: int = 0
    sass: dict[str, int] = field(default_factory=dict)


def is_of_variant(function: str, name: str) -> bool:
    """Whether a kernel belongs to the variant of a name: its own, or a template's for the variant's type."""
    return function == f"gemmill_{name}_kernel" or f"{len(name)}{name}" in function


def facts_of(name: str, facts: Mapping[str, KernelFacts]) -> KernelFacts:
    """What is known of a variant: the largest register count of its kernels, and sums of the rest."""
    own = [found for function, found in facts.items() if is_of_variant(function, name)]
    sass: Counter[str] = sum((Counter(found.sass) for found in own), Counter())
    return KernelFacts(
        registers=max((found.registers for found in own), default=0),
        spill_bytes=sum(found.spill_bytes for found in own),
        code_bytes=sum(found.code_bytes for found in own),
        sass=dict(sorted(sass.items())),
    )


def read_ptxas(text: str, facts: dict[str, KernelFacts]) -> None:
    """Registers and spills from `ptxas -v`, into `facts`."""
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
    """Instruction counts and code size from `cuobjdump -sass`, into `facts`."""
    current: KernelFacts | None = None
    counts: Counter[str] = Counter()
    for line in text.splitlines():
        if match := _FUNCTION.match(line):
            current, counts = facts.setdefault(match[1], KernelFacts()), Counter()
        elif current is not None and (match := _INSTRUCTION.match(line)):
            current.code_bytes += _INSTRUCTION_BYTES
            if match[1] in SASS_OF_INTEREST:
                counts[match[1]] += 1
                current.sass = dict(sorted(counts.items()))
