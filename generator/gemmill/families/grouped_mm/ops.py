"""The grouped GEMMs, and the contract of each."""

from gemmill.families.grouped_mm.config import OPERANDS, SCALE_GROUPS
from gemmill.families.grouped_mm.packed_ops import PACKED_OPS
from gemmill.families.grouped_mm.steps import ALPHA_AND_BIAS, end_of
from gemmill.family import (
    Aspect,
    Check,
    Layout,
    Let,
    OneOf,
    Op,
    OpSchema,
    OpSet,
    Require,
    ResultOf,
    Same,
    Step,
    Tensor,
    When,
    any_of,
)
from gemmill.gemm.config import RESULTS_OF
from gemmill.gemm.expert_rows import (
    IDS,
    IN_ORDER_OR_GATHERED,
    IN_SLOTS,
    MAP,
    OFFSETS,
    ROWS_APART,
    ROWS_USED,
    SEGMENTS,
    USED_ROWS,
    rows_at_one_stride,
)
from gemmill.vocab import DType, ScaleGranularity, ScaleGroups

GROUPED_MM = OpSchema(
    "grouped_mm(Tensor(a!) out, Tensor a, Tensor b, Tensor? a_scales, Tensor? b_scales, Tensor expert_offsets, "
    "Tensor? expert_map=None, Tensor? token_ids=None, Tensor? alpha=None, Tensor? bias=None) -> ()"
)
GROUPED_MM_MASKED = OpSchema(
    "grouped_mm_masked(Tensor(a!) out, Tensor a, Tensor b, Tensor? a_scales, Tensor? b_scales, Tensor rows, "
    "Tensor? expert_map=None, int expected_rows=0, Tensor? alpha=None, Tensor? bias=None) -> ()"
)

_B = Tensor("b", "weights N K", Same("a"))
_SCALES = (Tensor("a_scales", "M", (DType.F32,)), Tensor("b_scales", "N", (DType.F32,)))
_ENDS = (Tensor("alpha", "weights", (DType.F32,), Layout.VECTOR), Tensor("bias", "weights N", Same("out")))
_PLAIN, _CODES = ([dtype.torch_name for dtype in OPERANDS if (dtype.bits == 16) is plain] for plain in (True, False))
_MATRICES: tuple[Step, ...] = (
    Check(Aspect.DTYPE, "a b out"),
    OneOf(
        "scaled",
        {"no": f"dtype(a) in ({', '.join(_PLAIN)})", "yes": f"dtype(a) in ({', '.join(_CODES)})"},
        "{a.name} is {a.dtype}",
    ),
    When(
        "scaled == 0",
        (
            Require(
                "a_scales == 0 and b_scales == 0",
                "{a.name} is {a.dtype}, and a_scales or b_scales are given: operands of 16 bits have no scales",
            ),
        ),
    ),
    When(
        "scaled == 1",
        (
            Require(
                "a_scales == 1 and b_scales == 1",
                "{a.name} is {a.dtype}, and a_scales or b_scales are not given: operands of 8 bits have both",
            ),
            Check(Aspect.DTYPE, "a_scales b_scales"),
        ),
    ),
    Check(Aspect.RANK, "out a b"),
    Check(Aspect.SHAPE, "a b out"),
)


def _rows_of(groups: ScaleGroups) -> str:
    """The name of the number of an expert's scales along N."""
    return "N" if groups.b_scale is ScaleGranularity.GROUP else f"n_{groups.size}"


_OF_KINDS: tuple[Step, ...] = (
    *(
        Let(f"{x}_{size}", f"ceil({x.upper()}, {size})")
        for size in dict.fromkeys(g.size for g in SCALE_GROUPS)
        for x in "kn"
    ),
    Let("channels", "weights * N"),
    OneOf(
        "groups",
        {
            "channel": "dense(b_scales) == 1 and numel(b_scales) in (weights, channels) and "
            "(rank(b_scales) <= 2 or size(b_scales, 2) == 1)",
            **{
                groups.of_b: f"rank(b_scales) == 3 and size(b_scales, 0) == weights and size(b_scales, 1) == {_rows_of(groups)} and "
                f"size(b_scales, 2) == k_{groups.size}"
                for groups in SCALE_GROUPS
            },
        },
        "{b_scales.name} has shape {b_scales.shape}: for weights of {b.shape} there are scales of each expert ([{weights}]), "
        "of each column ([{weights}, {N}], contiguous), or of each "
        + any_of([f"{g.of_b} ([{{weights}}, {{{_rows_of(g)}}}, {{k_{g.size}}}])" for g in SCALE_GROUPS]),
    ),
    When(
        "groups == 0",
        (
            Require(
                "numel(a_scales) in (1, tokens) and dense(a_scales) == 1",
                "{a_scales.name} has shape {a_scales.shape} and strides {a_scales.strides}: with scales of columns there is one "
                "value, or one for each of {tokens} rows, without gaps",
            ),
        ),
    ),
)
_IN_GROUPS = (
    "{a_scales.name} has shape {a_scales.shape}, expected {expected}: a scale of each row for each {size} along K, as "
    "{b_scales.name} of {b_scales.shape} has them"
)
_ONLY_E4M3 = Require(
    "groups == 0 or dtype(a) in (float8_e4m3fn,)",
    "{a.name} is {a.dtype}: scales in groups come with float8_e4m3fn",
)


def _scales(shape: str, test: str) -> Step:
    """Conditions on scales of all kinds. Scales in groups have a shape of `k_groups` along K, and the condition `test`
    on it.
    """
    said = _IN_GROUPS.replace("{expected}", shape)
    in_groups = (
        When(f"groups == {i}", (Require(*(_of_size(text, groups.size) for text in (test, said))),))
        for i, groups in enumerate(SCALE_GROUPS, 1)
    )
    numbered = Let("rows_scaled", "groups // 3"), Let("group_sizes", "groups - rows_scaled")
    return When("scaled == 1", (*_OF_KINDS, *in_groups, *numbered, _ONLY_E4M3))


def _of_size(text: str, size: int) -> str:
    return text.replace("k_groups", f"k_{size}").replace("{size}", str(size))


_ENDED: tuple[Step, ...] = (
    *ALPHA_AND_BIAS,
    OneOf("ended", {"no": "alpha == 0 and bias == 0", "yes": "alpha == 1 or bias == 1"}, "alpha and bias"),
)
_CONTIGUOUS = Op(
    schema=GROUPED_MM,
    tensors=(
        Tensor("out", "M N", ResultOf("a", RESULTS_OF), Layout.ROWS),
        Tensor("a", "tokens K", OPERANDS, Layout.ROWS),
        _B,
        *_SCALES,
        *_ENDS,
        OFFSETS,
        MAP,
        IDS,
    ),
    contract=(
        *_MATRICES,
        *IN_ORDER_OR_GATHERED,
        *rows_at_one_stride("b"),
        _scales(
            "[{tokens}, {k_groups}]",
            "rank(a_scales) == 2 and size(a_scales, 0) == tokens and size(a_scales, 1) == k_groups",
        ),
        *SEGMENTS,
        *_ENDED,
        *end_of("expert_offsets"),
    ),
)
_MASKED = Op(
    schema=GROUPED_MM_MASKED,
    roles={"rows": "expert_offsets"},
    tensors=(
        Tensor("out", "experts slot N", ResultOf("a", RESULTS_OF)),
        Tensor("a", "experts slot K", OPERANDS),
        _B,
        *_SCALES,
        *_ENDS,
        ROWS_USED,
        MAP,
    ),
    contract=(
        *_MATRICES,
        *IN_SLOTS,
        *rows_at_one_stride("b"),
        *rows_at_one_stride("out"),
        ROWS_APART,
        _scales(
            "[{experts}, {slot}, {k_groups}], all rows at one stride",
            "rank(a_scales) == 3 and size(a_scales, 0) == experts and size(a_scales, 1) == slot and "
            "size(a_scales, 2) == k_groups and (experts <= 1 or slot <= 1 or step(a_scales, 0) == slot * step(a_scales, 1))",
        ),
        *USED_ROWS,
        *_ENDED,
        *end_of("expert_offsets"),
    ),
)
NAMES = (GROUPED_MM.name, GROUPED_MM_MASKED.name)
"""Names of the ops with unpacked weights."""
OPS = OpSet(ops=(_CONTIGUOUS, _MASKED, *PACKED_OPS))
