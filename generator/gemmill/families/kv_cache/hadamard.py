"""Hadamard matrices of the possible sizes: 2^n, and 2^n times 12, 20 and 28.

A matrix of size base * 2^n is the Kronecker product of the base matrix and Sylvester's. Element (i, j) of a row seen as
[base, 2^n] meets the base matrix by i and Sylvester's by j. The base matrices are those of Dao's
fast-hadamard-transform (`csrc/code_gen.py`), computed instead of pasted. That of 12 is Paley's second construction with
q = 5. Those of 20 and 28 are Williamson's array with circulant blocks of 5 and 7 (Sloane's had.20.will and
had.28.will).
"""

import functools

BASES = (1, 12, 20, 28)
LARGEST_SIZE = 32768
_WILLIAMSON = {
    20: ("+----", "+----", "++--+", "+-++-"),
    28: ("+------", "++----+", "+-+--+-", "+--++--"),
}
"""First rows of the four circulant blocks A, B, C and D."""
_ARRAY = (((0, 1), (1, 1), (2, 1), (3, 1)), ((1, -1), (0, 1), (3, -1), (2, 1)),
          ((2, -1), (3, 1), (0, 1), (1, -1)), ((3, -1), (2, -1), (1, 1), (0, 1)))  # fmt: skip
"""Williamson's array: which block stands where, with its sign."""


def split(size: int) -> tuple[int, int]:
    """Base and exponent n of a size base * 2^n, with the smallest base that fits. Raises ValueError for sizes not
    offered."""
    for base in BASES:
        power, rest = divmod(size, base)
        if not rest and power > 0 and power & (power - 1) == 0 and size <= LARGEST_SIZE:
            return base, power.bit_length() - 1
    raise ValueError(
        f"A Hadamard transform of {size} columns was asked for; 2^n and 12, 20 and 28 times 2^n are offered, up to "
        f"{LARGEST_SIZE}: pad the rows or take a dense rotation."
    )


@functools.cache
def base_matrix(base: int) -> tuple[tuple[int, ...], ...]:
    """The Hadamard matrix of a base size, rows of 1 and -1."""
    if base == 1:
        return ((1,),)
    return _paley_12() if base == 12 else _williamson(_WILLIAMSON[base])


def _paley_12() -> tuple[tuple[int, ...], ...]:
    """Paley's second construction: a symmetric conference matrix from squares modulo 5, each entry a block of 2 x 2."""
    squares = {1, 4}
    core = [[0 if i == j else 1 if (i - j) % 5 in squares else -1 for j in range(5)] for i in range(5)]
    conference = [[0, 1, 1, 1, 1, 1], *([1, *row] for row in core)]
    zero, one = ((1, -1), (-1, -1)), ((1, 1), (1, -1))
    return tuple(
        tuple(entry for c in row for entry in (zero[r] if c == 0 else (c * one[r][0], c * one[r][1])))
        for row in conference
        for r in range(2)
    )


def _williamson(first_rows: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    order = len(first_rows[0])
    blocks = [[1 if sign == "+" else -1 for sign in row] for row in first_rows]
    return tuple(
        tuple(sign * blocks[block][(j - i) % order] for block, sign in row for j in range(order))
        for row in _ARRAY
        for i in range(order)
    )
