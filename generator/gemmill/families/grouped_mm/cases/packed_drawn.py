"""Random calls of grouped GEMMs with packed weights."""

import torch

from gemmill.families.grouped_mm.config import FP4_PAIRS
from gemmill.families.grouped_mm.packed_ops import GROUPED_FP4_MM
from gemmill.formats.layout import BLOCK_COLUMNS, SIDE, STAGE_COLUMNS
from gemmill.numerics.call import EXACT, WITHIN, LegalCall, Limits
from gemmill.numerics.draw import Draw
from gemmill.numerics.expert_slots import aligned, dense, first_poisoned, in_slots, routed
from gemmill.numerics.layouts import TIDY, matrix
from gemmill.numerics.memory import Slot
from gemmill.vocab import DType, Format

_MOST_EXPERTS, _MOST_ROWS = 40, 200


def drawn_packed(op: str, draw: Draw, limits: Limits) -> LegalCall:
    """A call of one of the ops."""
    dtype, format = draw.one_of(FP4_PAIRS)
    is_masked = op != GROUPED_FP4_MM.name
    indexed = not is_masked and draw.chance(0.4)
    exact, tidy = draw.chance(0.6), draw.chance(TIDY)
    experts, n = 1 + draw.log_uniform(_MOST_EXPERTS), 1 + draw.size(512)
    k = format.group * (1 + draw.log_uniform(1024 // format.group))
    while experts * n * k > limits.elements and experts > 1:
        experts //= 2
    most = max(min(_MOST_ROWS, limits.elements // k), 1)
    counts = [0 if draw.chance(0.3) else draw.log_uniform(most) for _ in range(experts)]
    slot = max(*counts, 1, draw.below(64)) if is_masked else 0
    if draw.chance(0.05):
        counts, slot = [0] * experts, 0
    spare = draw.one_of((0, 0, 5))
    rows = experts * slot if is_masked else sum(counts) + 2 * spare
    tokens = 1 + draw.below(2 * rows + 2) if indexed else rows
    values, scales = ("integers", "powers") if exact else ("normal", "scales")
    torch_dtype = getattr(torch, dtype.torch_name)
    slots = {
        "out": matrix(draw, torch.bfloat16, rows, n, None, written=True, tidy=tidy),
        "a": aligned(draw, matrix(draw, torch_dtype, tokens, k, values), True),
        "b": _blocks(dtype, format, experts, n, k, exact),
        "b_scales": dense(torch.float32, (experts, n), scales),
    }
    if dtype is DType.E4M3:
        slots["a_scales"] = dense(torch.float32, (tokens, 1), scales)
    if draw.chance(0.5):
        slots["alpha"] = dense(torch.float32, (experts,), scales)
    if draw.chance(0.5):
        slots["bias"] = dense(torch.bfloat16, (experts, n), values)
    slots |= routed(draw, counts, rows, tokens, spare=spare, masked=is_masked, indexed=indexed)
    slots = first_poisoned(draw, slots, exact=exact)
    if is_masked:
        for name in ("out", "a") + (("a_scales",) if dtype is DType.E4M3 else ()):
            slots[name] = in_slots(draw, slots[name], experts, slot)
    return LegalCall(
        op=op,
        slots=slots,
        plain={"format": str(format)} | ({"expected_rows": draw.below(64)} if is_masked else {}),
        offsets={name: draw.below(1 << 30) for name in slots},
        judged=EXACT if exact else WITHIN,
    )


def _blocks(dtype: DType, format: Format, experts: int, n: int, k: int, exact: bool) -> Slot:
    """Random bytes in place of packed weights: they are codes and scales."""
    folded = dtype is DType.E4M3
    columns = BLOCK_COLUMNS if folded else SIDE
    of_block = SIDE * columns // 2 + SIDE * columns // format.group
    shape = (experts, -(-n // SIDE), -(-k // STAGE_COLUMNS) * (STAGE_COLUMNS // columns), of_block)
    return dense(torch.uint8, shape, f"{format}_{'folded' if folded else 'blocks'}{'_powers' if exact else ''}")
