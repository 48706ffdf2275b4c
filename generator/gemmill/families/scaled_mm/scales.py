"""The kind of scales that a call has, and whether it may have them. Mirrors kernels/scaled_mm/group_scales.cpp."""

from gemmill.family import Judged
from gemmill.family.operand import INT32_MAX, TMA_BYTES, Call, Operand
from gemmill.vocab import SCALE_GROUPS, ScaleGroups, scale_groups_of


def fits_vector(scales: Operand, length: int, dim: int, *, either: bool = False) -> bool:
    """Whether the shape is that of one value, or of `length` along dimension `dim`, or along either."""
    if scales.numel == 1:
        return True
    along = scales.shape if either else scales.shape[dim : dim + 1]
    return scales.numel == length and (len(scales.shape) == 1 or (len(scales.shape) == 2 and length in along))


def groups_of_call(call: Call) -> ScaleGroups | None:
    """The groups that the scales of a call come in, by their shapes; None for scales per tensor or channel, or for
    wrong scales.

    At a K of one group the shapes may fit both. Scales whose values lie apart are then in groups, which have strides.
    """
    a, b, a_scales, b_scales = (_given(call, name) for name in ("a", "b", "a_scales", "b_scales"))
    (m, k), n = a.shape, b.shape[1]
    if _is_scale(a_scales, m, 0) and _is_scale(b_scales, n, 1):
        return None
    return scale_groups_of(a_scales.shape, b_scales.shape, m, n, k)


def _is_scale(scales: Operand, length: int, dim: int) -> bool:
    return fits_vector(scales, length, dim, either=True) and scales.is_vector


def group_strides(scales: Operand) -> tuple[int, int]:
    """Strides of scales in groups. A dimension of one element, along which no access steps, has stride 1."""
    first, second = (1 if n <= 1 else s for n, s in zip(scales.shape, scales.strides, strict=True))
    return first, second


def mn_major(a_scales: Operand, b_scales: Operand) -> bool:
    """Whether CUTLASS's blockwise kernels can read the scales.

    A's must lie as TMA wants them, and both must fit offsets of 32 bits.
    """
    return lies_for_tma(a_scales) and max(a_scales.span, b_scales.span) <= INT32_MAX


def lies_for_tma(a_scales: Operand) -> bool:
    """Whether A's scales are M-major, with data and stride along K at multiples of 16 bytes and columns apart."""
    along_m, along_k = a_scales.strides
    if a_scales.shape[0] > 1 and along_m != 1:
        return False
    if a_scales.shape[1] > 1 and along_k < a_scales.shape[0]:
        return False
    stride = along_k if a_scales.shape[1] > 1 else 0
    return (a_scales.data | stride * a_scales.element_bytes) % TMA_BYTES == 0


def _given(call: Call, name: str) -> Operand:
    operand = call[name]
    assert isinstance(operand, Operand)
    return operand


def scales_fault(judged: Judged) -> str | None:
    """The sentence for float32 scales that the op does not take."""
    a_scales, b_scales = judged.tensor("a_scales"), judged.tensor("b_scales")
    m, n, k = judged["M"], judged["N"], judged["K"]
    either = bool(judged["either_way"])
    vectors = fits_vector(a_scales, m, 0, either=either) and fits_vector(b_scales, n, 1, either=either)
    if either and vectors and a_scales.is_vector and b_scales.is_vector:
        return None
    groupable = judged["groups"] and judged.tensor("a").element_bytes == 1
    if groupable and (not vectors or groups_of_call(judged.call) is not None):
        return _fault_of_groups(a_scales, b_scales, m, n, k)
    return _fault_of_vector("a_scales", a_scales, m, 0) or _fault_of_vector("b_scales", b_scales, n, 1)


def _fault_of_vector(name: str, scales: Operand, length: int, dim: int) -> str | None:
    letter = "MN"[dim]
    vector = f"[{length}, 1]" if dim == 0 else f"[1, {length}]"
    if not fits_vector(scales, length, dim):
        return (
            f"{name} has shape {list(scales.shape)}: expected one value, or one for each of {letter} = {length} "
            f"({vector} or [{length}])"
        )
    if not scales.is_vector:
        return f"{name} has strides {list(scales.strides)}: its values must be contiguous"
    return None


def _fault_of_groups(a_scales: Operand, b_scales: Operand, m: int, n: int, k: int) -> str | None:
    if scale_groups_of(a_scales.shape, b_scales.shape, m, n, k) is None:
        return (
            f"a_scales is {list(a_scales.shape)} and b_scales is {list(b_scales.shape)}: for M, N, K = {m}, {n}, {k} expected one "
            f"value or [{m}, 1] for a, with one value or [1, {n}] for b; or along K in groups of {_told_groups(m, n, k)}"
        )
    for name, scales in (("a_scales", a_scales), ("b_scales", b_scales)):
        if 1 not in group_strides(scales):
            return f"{name} has strides {list(scales.strides)}: scales in groups must have stride 1 along one dimension"
    return None


def _told_groups(m: int, n: int, k: int) -> str:
    """The shapes that scales in groups have, by the size of a group."""
    shapes: dict[int, list[str]] = {}
    for groups in SCALE_GROUPS:
        shapes.setdefault(groups.size, []).append(f"{list(groups.b_shape(n, k))} ({groups.of_b})")
    of_a = {groups.size: list(groups.a_shape(m, k)) for groups in SCALE_GROUPS}
    return "; of ".join(f"{size}, {of_a[size]} with {' or '.join(told)}" for size, told in shapes.items())
