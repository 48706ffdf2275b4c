"""2:4 sparsity: of each four values along K at most two are not zero. The format keeps those two, and their places.

Values lie as [N, K/2], and the places of each four in 4 bits. Those are two bits for the first kept value's, then two
for the second's, of which the first is lower. With fewer than two nonzero values, one kept value is the fourth of the
four: 0 0 x 0 keeps x at 2 and 0 at 3. It is the first where the fourth alone is nonzero (0 0 0 x keeps 0 at 0 and x at
3). Of four zeros both places are 0. A negative zero is a zero.

Metadata lies as Hopper's sparse tensor core loads it: blocks of 64 rows and 128 columns follow one another along N, then along K.
In a block of 8-bit elements a row's 16 bytes lie in order. In one of 16-bit elements two rows eight apart share words, as the
PTX ISA lays sparse metadata out for wgmma. That is CUTLASS's Sm90GemmSparseConfig for tiles of 128 and more along K; bytes are
those of its SM90StructuredSparseCompressor. Rows and columns beyond the matrix have zeros.
"""

import torch
from torch import Tensor

from gemmill.formats.layout import META_COLUMNS, META_ROWS

GROUP, KEPT = 4, 2
ROW_BITS = 256
"""K is padded to a multiple of these bits of elements. Of them a row keeps 16 bytes."""
_INTEGERS = {1: torch.uint8, 2: torch.int16}


def kept_columns(k: int, element_bytes: int) -> int:
    """The columns of kept values: K/2, with rows padded to 16 bytes."""
    step = ROW_BITS // (8 * element_bytes)
    return -(-k // step) * step // KEPT


def meta_shape(n: int, k: int) -> tuple[int, int]:
    """The shape of metadata, uint8: a byte for each 8 columns, rows padded to 64 and columns to 128."""
    return -(-n // META_ROWS) * META_ROWS, -(-k // META_COLUMNS) * META_COLUMNS // 8


def compress(dense: Tensor) -> tuple[Tensor, Tensor]:
    """The kept values [N, kept_columns] and metadata uint8 of `meta_shape`, of a matrix [N, K] of elements of 8 or 16
    bits.

    Raises ValueError where K is no multiple of 4. So it does where more than two of four are not zero, naming the
    first such place.
    """
    n, k = dense.shape
    if k % GROUP:
        raise ValueError(f"a matrix of {k} columns has a group of {k % GROUP}: 2:4 sparsity is of four columns each")
    size = dense.element_size()
    bits = dense.contiguous().view(_INTEGERS[size]).unflatten(1, (k // GROUP, GROUP))
    filled = dense.reshape(n, k // GROUP, GROUP) != 0 if size == 2 or dense.dtype is torch.int8 else bits & 0x7F != 0
    if bool((crowded := filled.sum(dim=-1) > KEPT).any()):
        row, group = crowded.nonzero()[0].tolist()
        first = group * GROUP
        raise ValueError(
            f"row {row} has {int(filled[row, group].sum())} values that are not zero in columns {first} to {first + GROUP - 1}: "
            f"2:4 sparsity keeps {KEPT} of {GROUP}; prune the matrix first (gemmill.quantize.pruned)"
        )
    places = _places(filled)
    kept = torch.where(filled, bits, 0).gather(2, places)
    # The second place of an empty group is the first one's.
    kept[..., 1] = torch.where(places[..., 0] == places[..., 1], 0, kept[..., 1])
    values = bits.new_zeros((n, kept_columns(k, size)))
    values[:, : k // KEPT] = kept.flatten(1)
    return values.view(dense.dtype), packed_places(places, size)


def decompress(values: Tensor, meta: Tensor, k: int) -> Tensor:
    """The matrix [N, K] of kept values and metadata. Raises ValueError where a pattern is none that there can be, by its place."""
    n = values.shape[0]
    bits = values.contiguous().view(_INTEGERS[values.element_size()])[:, : k // KEPT].unflatten(1, (k // GROUP, KEPT))
    places = unpacked_places(meta, n, k, values.element_size())
    if fault := pattern_fault(places, bits):
        raise ValueError(fault)
    dense = bits.new_zeros((n, k // GROUP, GROUP))
    for i in range(KEPT):  # of an empty group both are zeros at one place
        dense.scatter_(2, places[..., i : i + 1], bits[..., i : i + 1])
    return dense.flatten(1).view(values.dtype)


def pattern_fault(places: Tensor, bits: Tensor | None = None, *, what: str = "row") -> str:
    """The sentence for the first group [.., groups, 2] whose places do not ascend, '' where there is none. `bits` are kept values:
    a group of zeros may have both at one place."""
    wrong = places[..., 0] >= places[..., 1]
    if bits is not None:
        wrong &= (places[..., 0] > places[..., 1]) | (bits != 0).any(dim=-1)
    if not bool(wrong.any()):
        return ""
    *where, group = wrong.nonzero()[0].tolist()
    first, second = places[(*where, group)].tolist()
    row = ", ".join(map(str, where))
    return (
        f"{what} {row} keeps places {first} and {second} of columns {GROUP * group} to {GROUP * group + GROUP - 1}: "
        "the first must be the lower"
    )


def _places(filled: Tensor) -> Tensor:
    """The places int64 [.., 2] of kept values, of groups [.., 4] of which two values at most are not zero."""
    count = filled.sum(dim=-1)
    # argmax of a number finds the first of the largest.
    first = filled.to(torch.uint8).argmax(dim=-1)
    last = GROUP - 1 - filled.flip(-1).to(torch.uint8).argmax(dim=-1)
    alone = count == 1
    first = torch.where(alone & (first == GROUP - 1), 0, first)
    last = torch.where(alone, GROUP - 1, torch.where(count == 0, 0, last))
    return torch.stack((first, last), dim=-1)


def packed_places(places: Tensor, element_bytes: int) -> Tensor:
    """The metadata, uint8 of `meta_shape`, of places [N, K/4, 2]."""
    n, groups = places.shape[:2]
    rows, columns = meta_shape(n, groups * GROUP)
    nibbles = places.new_zeros((rows, columns * 2), dtype=torch.uint8)
    nibbles[:n, :groups] = (places[..., 0] | places[..., 1] << 2).to(torch.uint8)
    split, order, _ = _block_order(element_bytes)
    stream = nibbles.reshape(_grid(rows, columns, split)).permute(order).reshape(-1, 2)
    return (stream[:, 0] | stream[:, 1] << 4).reshape(rows, columns)


def unpacked_places(meta: Tensor, n: int, k: int, element_bytes: int) -> Tensor:
    """The places int64 [N, K/4, 2] of metadata: the inverse."""
    rows, columns = meta_shape(n, k)
    split, order, inverse = _block_order(element_bytes)
    flat = meta.reshape(-1, 1)
    stream = torch.cat((flat & 0xF, flat >> 4), dim=1)
    grid = _grid(rows, columns, split)
    nibbles = stream.reshape([grid[i] for i in order]).permute(inverse).reshape(rows, columns * 2)[:n, : k // GROUP]
    return torch.stack((nibbles & 3, nibbles >> 2), dim=-1).long()


def _grid(rows: int, columns: int, split: tuple[tuple[int, ...], tuple[int, ...]]) -> list[int]:
    return [rows // META_ROWS, *split[0], columns * 8 // META_COLUMNS, *split[1]]


def _block_order(element_bytes: int) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], list[int], list[int]]:
    """How rows and groups of a block are split, the order in which the parts of [blocks, rows, blocks, groups] lie, outermost
    first, and its inverse."""
    if element_bytes == 1:
        split: tuple[tuple[int, ...], tuple[int, ...]] = ((META_ROWS,), (META_COLUMNS // GROUP,))
        order = [2, 0, 1, 3]
    else:
        # Rows: four of 16, of which halves and their eight rows; groups: four of 32 columns, halves of 16, and their four groups.
        split, order = ((4, 2, 8), (4, 2, 4)), [4, 0, 1, 6, 3, 5, 2, 7]
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return split, order, inverse
