"""Layouts of scales, with checks by hand: static_scales_fit and group_scales_fit in kernels/quant/scales.cpp."""

from dataclasses import dataclass

from gemmill.family import Judged


@dataclass(frozen=True, kw_only=True)
class StaticScales:
    """The rows and columns of given scales: each serves `group` of them."""

    group: tuple[int, int]
    counts: tuple[int, int]
    """Groups of rows, and of columns."""
    strides: tuple[int, int]
    """Elements from one scale to the next, along rows and along columns.

    A stride is 0 where the scales of one dimension lie along the other.
    """


def static_scales(call: Judged) -> StaticScales | None:
    """How the scales of a call belong to rows and columns; None where they fit neither the codes nor the group
    shape."""
    scales, shape, sizes = call.tensor("scales"), _group_shape(call), (call["rows"], call["hidden"])
    if scales.numel == 1:
        return StaticScales(group=(1, 1), counts=(1, 1), strides=(0, 0))
    if not call["takes_group_shape"]:
        return None
    if len(scales.shape) == 1 and shape is not None:
        sides = [(max(size, 1), 1) if n == -1 else (n, size // n) for n, size in zip(shape, sizes, strict=True)]
        (rows, by_row), (columns, by_column) = sides
        whole = all(n == -1 or size % n == 0 for n, size in zip(shape, sizes, strict=True))
        if not whole or 1 not in (by_row, by_column) or scales.shape[0] != by_row * by_column:
            return None
        strides = (0, scales.strides[0]) if by_row == 1 else (scales.strides[0], 0)
        return StaticScales(group=(rows, columns), counts=(by_row, by_column), strides=strides)
    if len(scales.shape) != 2:
        return None
    if any((n > 1) if not size else (n < 1 or size % n) for n, size in zip(scales.shape, sizes, strict=True)):
        return None
    groups = tuple(size // n if size else 1 for n, size in zip(scales.shape, sizes, strict=True))
    for asked, found, n, size in zip(shape or groups, groups, scales.shape, sizes, strict=True):
        if size and asked != found and not (asked == -1 and n == 1):
            return None
    return StaticScales(
        group=(groups[0], groups[1]),
        counts=(scales.shape[0], scales.shape[1]),
        strides=(scales.strides[0], scales.strides[1]),
    )


def _group_shape(call: Judged) -> tuple[int, ...] | None:
    shape = call["group_shape"] if call["takes_group_shape"] else None
    return None if shape is None else tuple(shape)


def static_fault(call: Judged) -> str | None:
    """The sentence for given scales that fit neither the codes nor the group shape."""
    shape, rows, hidden = _group_shape(call), call["rows"], call["hidden"]
    if shape is not None and (len(shape) != 2 or any(n != -1 and n < 1 for n in shape)):
        return f"group_shape is {list(shape)}: expected two sizes, of rows and columns, -1 for all"
    if static_scales(call) is not None:
        return None
    found = f"{call['scales'].name} has shape {call['scales'].shape}"
    if not call["takes_group_shape"]:
        return f"{found}: expected one value, for the tensor"
    asked = "" if shape is None else f" with group_shape {list(shape)}"
    return (
        f"{found}{asked}: expected one value; [{rows}] with group_shape [1, -1] or [{hidden}] with [-1, 1]; or "
        f"two dimensions that divide [{rows}, {hidden}] into blocks of the group shape"
    )


def group_strides(call: Judged) -> tuple[int, int] | None:
    """Strides of scales by row and by group (by word, if packed); None where shape or strides do not fit the call.

    Strides that no access takes become those of the layout. Padding goes to the place of a second row.
    """
    scales, rows, columns, transposed = call.tensor("scales"), call["rows"], call["words"], call["is_scale_transposed"]
    packed, padded = call["packed"], call["scale_rows"]

    def fitting(m: int, g: int, m_major: bool) -> tuple[int, int] | None:
        if rows <= 1 or not columns:
            m = 1 if m_major else columns
        if columns <= 1 or not rows:
            g = padded if m_major else 1
        fits = (m == 1 and g >= padded) if m_major else (g == 1 and m >= columns)
        return (m, g) if fits else None

    if scales.shape in ((rows, columns), (*call.tensor("input").shape[:-1], columns)):
        m, g = scales.strides[0] if len(scales.shape) == 2 else scales.stride_of_rows, scales.strides[-1]
        if m is None:
            return None
        layouts = (True,) if packed else (False, True) if transposed < 0 else (bool(transposed),)
        if found := next(filter(None, (fitting(m, g, m_major) for m_major in layouts)), None):
            return found
    if transposed > 0 and not packed and scales.shape == (columns, rows):
        return fitting(scales.strides[1], scales.strides[0], True)
    return None


def group_fault(call: Judged) -> str | None:
    """The sentence for scales of groups whose shape or strides do not fit."""
    if group_strides(call) is not None:
        return None
    rows, words, transposed = call["rows"], call["words"], call["is_scale_transposed"]
    found = f"{call['scales'].name} has shape {call['scales'].shape} and strides {call['scales'].strides}"
    shape = f"[{rows}, {words}]"
    if call["packed"]:
        return f"{found}: expected {shape} with strides [1, {call['scale_rows']}] or a larger second one"
    row_major, m_major = f"strides [{words}, 1]", f"strides [1, {rows}]"
    if transposed < 0:
        return f"{found}: expected {shape} with {row_major} or {m_major}, or a larger row stride"
    if transposed:
        return (
            f"{found} with is_scale_transposed=True: expected {shape} with {m_major}, or [{words}, {rows}] with "
            f"strides [{rows}, 1]"
        )
    return f"{found} with is_scale_transposed=False: expected {shape} with {row_major} or a larger row stride"
