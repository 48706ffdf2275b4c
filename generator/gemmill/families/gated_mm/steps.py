"""Steps of contracts for activations and for results."""

from gemmill.families.gated_mm.config import FINE_GROUP, GROUP
from gemmill.family import Aspect, Check, Let, OneOf, Require, Step, When
from gemmill.formats.layout import GATE_UP_ROWS

RESULTS = OneOf(
    "result",
    {
        "bf16": "dtype(out) == bfloat16 and out_scales == 0 and static_scale == 0",
        "static": "dtype(out) == float8_e4m3fn and out_scales == 0 and static_scale == 1",
        "groups": "dtype(out) == float8_e4m3fn and out_scales == 1 and static_scale == 0",
    },
    "{out.name} is {out.dtype}: bfloat16 has neither out_scales nor static_scale, float8_e4m3fn has one of the two",
)
STATIC = When("result == 1", (Check(Aspect.WHOLE, "static_scale"),))
OF_GROUPS = Require(
    "dtype(a) == float8_e4m3fn",
    "{a.name} is {a.dtype}, and {b_scales.name} of {b_scales.shape} are in groups: these come with float8_e4m3fn, give {a.dtype} "
    "scales of rows and columns",
)
HIDDEN: tuple[Step, ...] = (
    Require(
        f"N % {GATE_UP_ROWS} == 0",
        f"{{b.name}} is {{b.shape}}: gates and ups are packed in blocks of {GATE_UP_ROWS} columns by gemmill.quantize.prepack_gate_up",
    ),
    Let("hidden", "N // 2"),
)
K_GROUPS: tuple[Step, ...] = (
    Let("k_groups", f"ceil(K, {GROUP})"),
    Let("blocks", f"2 * ceil(hidden, {GROUP})"),
    Let("fine_k_groups", f"ceil(K, {FINE_GROUP})"),
    Let("fine_blocks", f"2 * ceil(hidden, {FINE_GROUP})"),
)
"""How many scales operands in groups have: of 128, and of 32."""
KINDS: tuple[Step, ...] = (
    Let("group_sizes", "in_groups - in_groups // 3"),
    Let("rows_scaled", "in_groups // 3"),
    Let("group", f"{GROUP} - {GROUP - FINE_GROUP} * (in_groups // 2)"),
    Let("groups", "hidden // group"),
    When(
        "in_groups in (1, 2)",
        (
            Require(
                "hidden % group == 0",
                "{b.name} is {b.shape}, {hidden} results: blocks of {group} gates and of {group} ups are whole, pad the weights with zeros",
            ),
        ),
    ),
)
"""Which groups a call has: in_groups is 0 for scales of rows and columns, 1 for blocks of 128, 2 for blocks of 32, 3 for rows of
32."""
WHOLE_GROUPS: tuple[Step, ...] = (
    Require(
        "hidden % group == 0",
        "{b.name} is {b.shape}, {hidden} results: scales are of {group} each, store bfloat16 or give static_scale",
    ),
    Check(Aspect.DTYPE, "out_scales"),
)
