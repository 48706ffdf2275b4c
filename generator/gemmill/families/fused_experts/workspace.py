"""Bytes of a call's workspace, before there is a call. Mirrors kernels/fused_experts/workspace.h."""

from collections.abc import Mapping

from gemmill.families.fused_experts.config import FINE_GROUP, GROUP

ALIGNED = 256
"""Each part of a workspace begins at a multiple of so many bytes. A workspace itself may begin anywhere."""
_FEWEST_ROWS, _FEWEST_COLUMNS = 8, 16
"""Rows of the smallest tile, and columns of a block."""
TILES = "tiles"
EXPRESSIONS: Mapping[str, str] = {
    "pairs": "M * topk",
    TILES: f"pairs // {_FEWEST_ROWS} + pairs + weights - most(pairs, weights)",
    "inner_groups": f"ceil(inner, {GROUP})",
    "inner_values": "pairs * inner",
    "pair_bytes": f"up(pairs * 4, {ALIGNED})",
}
"""Sizes of parts, in the language of contracts: tokens M, hidden K."""
_OF_PAIRS = "pairs * 4"
_EACH = (
    "tiles * 16",
    _OF_PAIRS,
    _OF_PAIRS,
    "M * 4",
    "tiles * inner_groups * 4",
    f"M * ceil(K, {_FEWEST_COLUMNS}) * 4",
)
_PLAIN = ("inner_values * 6", "pairs * K * 4")
"""Of 16-bit weights: grouped GEMMs leave gates, ups and results, and rows in the order of experts lie where others have parts."""
_PACKED_RESULTS = "inner_values * 2"
_CODED_ALONE = (
    "inner_values * 4",
    "M * K",
    f"M * ceil(K, {GROUP}) * 4",
    "inner_values",
    "pairs * inner_groups * 4",
)
_CODED = ("pairs * K * 4", *_CODED_ALONE[:-1], f"pairs * ceil(inner, {FINE_GROUP}) * 4")
"""Weights may have scales in groups of 32. More scales of x lie where grouped GEMMs leave room of others' parts."""
_SORTED, _STORED = (_OF_PAIRS,), (_OF_PAIRS,)


def expression_of(*, coded: bool) -> str:
    """Bytes of a workspace, in the language of contracts. `shared_bytes` counts the parts that every call has."""
    return f"shared_bytes + {_total(_CODED if coded else _PLAIN)}"


def packed_expression(*, coded: bool) -> str:
    """Bytes of a workspace of packed weights, in the language of contracts. `packed_bytes` counts the parts that all have.

    Where activations are codes, a counter of each sorted row is one part more.
    """
    return f"packed_bytes + {_total((*_CODED_ALONE, *_STORED) if coded else (_PACKED_RESULTS,))}"


def _total(parts: tuple[str, ...]) -> str:
    return " + ".join("pair_bytes" if part == _OF_PAIRS else f"up({part}, {ALIGNED})" for part in parts)


SHARED = f"{2 * ALIGNED} + {_total(_EACH)}"
"""Bytes of the parts that every call has. The first is a number of tiles."""
PACKED = f"shared_bytes + {_total((*_PLAIN[1:], *_SORTED))} + {ALIGNED}"
"""Bytes of the parts that every call with packed weights has.

Packed weights add a part: the token of each sorted row.
"""


def most_bytes(tokens: int, hidden: int, inner: int, topk: int, experts: int, coded: bool, packed: bool = False) -> int:
    """Bytes of a workspace for so many tokens, whatever kernel serves them. Raises ValueError for a size below 0."""
    sizes = {"tokens": tokens, "hidden": hidden, "inner": inner, "topk": topk, "experts": experts}
    for name, size in sizes.items():
        if size < 0:
            raise ValueError(f"{name} is {size}, expected 0 or more")
    pairs, groups = tokens * topk, -(-inner // GROUP)
    tiles = pairs // _FEWEST_ROWS + min(pairs, experts)
    parts = [
        4,
        tiles * 16,
        pairs * 4,
        pairs * 4,
        tokens * 4,
        tiles * groups * 4,
        tokens * -(-hidden // _FEWEST_COLUMNS) * 4,
    ]
    parts += [pairs * inner * (4 if coded else 2 if packed else 6), pairs * hidden * 4]
    if coded:
        scales = pairs * (groups if packed else -(-inner // FINE_GROUP)) * 4
        parts += [tokens * hidden, tokens * -(-hidden // GROUP) * 4, pairs * inner, scales]
    if packed:
        parts += [pairs * 4, *([pairs * 4] if coded else []), ALIGNED]
    return ALIGNED + sum(-(-part // ALIGNED) * ALIGNED for part in parts)
