"""Rotations of a compressed cache in the weights around it, so that attention need not rotate."""

from torch import Tensor

from gemmill.families.kv_cache.formats import HEAD_DIMS, RotationKind
from gemmill.families.kv_cache.reference.rotations import rotate

SIDES = ("out", "in")


def fold_rotation(weight: Tensor, *, head_dim: int, seed: int | None, side: str) -> Tensor:
    """A weight with heads rotated as a cache of `seed` rotates them, in the weight's dtype (rounded once from float64).

    side "out" is for weights that make queries, keys or values: [heads * head_dim, hidden], or a bias [heads *
    head_dim]. Give such queries to attention with a seed of -1. Store such keys with rotated_keys, and such values with
    rotated_values. W_q and W_k may be rotated only where nothing stands between weight and attention: a rotary
    embedding does. W_v always may.

    side "in" is for weights that read attention's output: [hidden, heads * head_dim]. Ask attention for rotated_out, or
    a seed of -1. Without a seed the rotation has no signs, as that of vLLM's keys.

    Raises ValueError for another side or shape.
    """
    axis = 0 if side == "out" else weight.dim() - 1
    if side not in SIDES or head_dim not in HEAD_DIMS:
        raise ValueError(
            f"side {side!r} with head_dim {head_dim} was asked for; sides are {' and '.join(SIDES)}, head dims "
            f"{', '.join(map(str, HEAD_DIMS))}: choose of these."
        )
    is_matrix = weight.dim() == 2 or (weight.dim() == 1 and side == "out")
    if not is_matrix or not weight.is_floating_point() or weight.shape[axis] % head_dim:
        raise ValueError(
            f"A weight {weight.dtype} {list(weight.shape)} was given for side {side!r}; it is of a float type, with a multiple of "
            f"{head_dim} in dimension {axis}: pass the plain weight, before it is quantised."
        )
    last = weight.double().movedim(axis, -1)
    kind = RotationKind.HADAMARD if seed is None else RotationKind.RANDOM_HADAMARD
    turned = rotate(last.unflatten(-1, (-1, head_dim)), kind, seed or 0)
    folded: Tensor = turned.flatten(-2).movedim(-1, axis).contiguous().to(weight.dtype)
    return folded
