"""Steps of contracts for activations and for results."""

from gemmill.families.gated_mm.config import GROUP
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
    Let("groups", f"hidden // {GROUP}"),
)
WHOLE_GROUPS: tuple[Step, ...] = (
    Require(
        f"hidden % {GROUP} == 0",
        f"{{b.name}} is {{b.shape}}, {{hidden}} results: scales are of {GROUP} each, store bfloat16 or give static_scale",
    ),
    Check(Aspect.DTYPE, "out_scales"),
)
