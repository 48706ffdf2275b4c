"""Scales as ue8m0 bytes, or as int32 words of four of them, converted to float32 before the call of an op.

A byte stands for 2^(byte - 127), 255 for NaN. DeepSeek packs four bytes along K into a word, the first in its low bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BYTES = (torch.uint8, torch.float8_e8m0fnu)
"""Dtypes of a scale a byte."""
OF_WORD = 4
"""Scales of a word."""
NAN = 255


@dataclass(frozen=True, kw_only=True)
class Scales:
    """Scales of one operand, as a caller gave them."""

    name: str
    values: Tensor
    along_k: int
    """The dimension along K, from the last: -1 or -2."""
    rows: int
    """Rows of the operand; scales are of so many, or of blocks of as many as a group has elements."""
    k: int
    """Elements along K."""
    parts: int = 1
    """Parts of the rows of as many each, in which blocks begin again: 2 of gates and ups."""

    @property
    def are_words(self) -> bool:
        """Whether four lie in an int32."""
        return self.values.dtype is torch.int32

    def counts(self, size: int) -> tuple[tuple[int, int], ...]:
        """Numbers of scales, or of words, along rows and along K that there may be in groups of a size: of rows, of blocks."""
        groups = -(-self.k // size)
        along = -(-groups // OF_WORD) if self.are_words else groups
        return (self.rows, along), (self.parts * -(-self.rows // self.parts // size), along)

    def fits(self, size: int) -> bool:
        """Whether they can be of groups of a size."""
        if self.values.dim() < 2:
            return False
        found = self.values.shape[-3 - self.along_k], self.values.shape[self.along_k]
        return found in self.counts(size)


def as_float32(op: str, a: Scales, b: Scales, sizes: Sequence[int], *, check: bool) -> tuple[Tensor, Tensor]:
    """Scales of two operands of one call in float32. Bytes keep their shape and layout.

    Scales in float32, and those of other dtypes, come back as they are: the op checks them. `sizes` are the op's sizes
    of groups. Raises RuntimeError with one sentence for words of unknown groups, or of several alike, and with `check`
    for a byte of 255, which waits for the device.
    """
    size = _size_of_words(op, a, b, sizes) if a.are_words or b.are_words else 0
    found = []
    for x in (a, b):
        values = x.values
        if x.are_words:
            values = _of_words(x, -(-x.k // size))
        elif values.dtype in BYTES:
            values = values.view(torch.float8_e8m0fnu).float()
        if check and values is not x.values:
            _refuse_nan(op, x.name, values)
        found.append(values)
    return found[0], found[1]


def _size_of_words(op: str, a: Scales, b: Scales, sizes: Sequence[int]) -> int:
    """The elements along K of a group, which words do not determine. Both operands have the same."""
    fitting = [size for size in sizes if a.fits(size) and b.fits(size)]
    if len(fitting) == 1:
        return fitting[0]
    words = a if a.are_words else b
    shapes = f"{a.name} is {list(a.values.shape)} and {b.name} {list(b.values.shape)}"
    if fitting:
        raise RuntimeError(
            f"{op}: {shapes}, of int32 words: for K = {words.k} groups of {' or '.join(map(str, fitting))} have as many; give bytes, as "
            "words.view(torch.uint8) has them"
        )
    wanted = " or ".join(f"{words.counts(size)[0][1]} of groups of {size}" for size in sizes)
    raise RuntimeError(
        f"{op}: {shapes}: {words.name} are int32, words of {OF_WORD} ue8m0 bytes along K, and for K = {words.k} there are {wanted}; both operands "
        "have groups of one size"
    )


def _of_words(x: Scales, groups: int) -> Tensor:
    """Float32 scales of words, by one pass over them. Those of one group lie next to each other, as kernels read scales of A fastest: all
    rows have one stride."""
    words = x.values.movedim(x.along_k, 0).unsqueeze(
        -1
    )  # a dimension of one word, which a view as bytes makes one of four
    parts = words.view(torch.float8_e8m0fnu).movedim(-1, 1)
    scales = parts.to(torch.float32, memory_format=torch.contiguous_format)
    return scales.flatten(0, 1)[:groups].movedim(0, x.along_k)


def _refuse_nan(op: str, name: str, values: Tensor) -> None:
    wrong = values.isnan().nonzero()
    if len(wrong):
        raise RuntimeError(
            f"{op}: {name}{wrong[0].tolist()} is ue8m0 byte {NAN}, which is NaN: scales are bytes of 0 to {NAN - 1}, for 2^-127 to 2^127"
        )
