"""Activations and codes in float32, with the same bits as kernels of their own make.

Those are kernels/coding/activation.cuh and code.cuh. Each operation names its rounding, so that none is contracted. exp,
tanh and erf are those of CUDA 13.0's library.
"""

# mypy: ignore-errors
import cutlass.cute as cute
from cutlass import Float32, Int32

from gemmill.families.gated_mm.config import Activation

LARGEST_PLAIN_SUM = 2.0**126
"""The largest 1 + exp whose reciprocal is normal."""
LARGEST_PLAIN = 2.0**60
"""The largest value that is divided as it is: up to here no step of a quotient overflows."""
CODE_MAX, SMALLEST_SCALE = 448.0, 1.0 / (448.0 * 512.0)


def ptx(text: str, count: int, *given) -> tuple:
    """The float32 results of instructions: `count` of them."""
    return cute.arch.inline_ptx(text, write_only_types=[Float32] * count, read_only_args=list(given))


def rounded_pair(gate: Float32, up: Float32) -> tuple:
    """Gate and up rounded to bf16. A kernel of its own would have read the product in bf16."""
    return ptx(
        "{\n.reg .b32 both;\ncvt.rn.bf16x2.f32 both, {$r0}, {$r1};\n"
        "and.b32 {$w0}, both, 0xffff0000;\nshl.b32 {$w1}, both, 16;\n}",
        2,
        gate,
        up,
    )


def one_plus_exp(x: Float32) -> Float32:
    """1 + exp(-x)."""
    return ptx(
        "{\n.reg .f32 n, t, j, r;\n.reg .b32 e;\n"
        "neg.f32 n, {$r0};\nfma.rn.f32 t, n, 0f3BBB989D, 0f3F000000;\ncvt.sat.f32.f32 t, t;\n"
        "fma.rm.f32 j, t, 0f437C0000, 0f4B400001;\nadd.rn.f32 t, j, 0fCB40007F;\nneg.f32 t, t;\n"
        "fma.rn.f32 r, n, 0f3FB8AA3B, t;\nfma.rn.f32 r, n, 0f32A57060, r;\nmov.b32 e, j;\nshl.b32 e, e, 23;\n"
        "ex2.approx.ftz.f32 r, r;\nmov.b32 t, e;\nmul.rn.f32 r, r, t;\nadd.rn.f32 {$w0}, r, 0f3F800000;\n}",
        1,
        x,
    )


def plain_reciprocal(x: Float32) -> Float32:
    """1 / x, correctly rounded, for x and 1 / x normal."""
    return ptx(
        "{\n.reg .f32 y, n, r;\nrcp.approx.ftz.f32 y, {$r0};\nneg.f32 n, {$r0};\n"
        "fma.rn.f32 r, n, y, 0f3F800000;\nfma.rn.f32 {$w0}, y, r, y;\n}",
        1,
        x,
    )


def any_reciprocal(x: Float32) -> Float32:
    """1 / x, correctly rounded."""
    return ptx("rcp.rn.f32 {$w0}, {$r0};", 1, x)


def times(*factors: Float32) -> Float32:
    """The product of the factors, from the left. Each step is rounded."""
    total = factors[0]
    for factor in factors[1:]:
        total = ptx("mul.rn.f32 {$w0}, {$r0}, {$r1};", 1, total, factor)
    return total


def plus(x: Float32, y: Float32) -> Float32:
    """x + y, rounded."""
    return ptx("add.rn.f32 {$w0}, {$r0}, {$r1};", 1, x, y)


def tanh(x: Float32) -> Float32:
    """tanh(x), with the bits of CUDA's tanhf."""
    return ptx(
        "{\n.reg .pred p, q;\n.reg .f32 a, e, s, t;\nabs.f32 a, {$r0};\nmul.rn.f32 e, a, 0f4038AA3B;\n"
        "ex2.approx.ftz.f32 e, e;\nadd.rn.f32 e, e, 0f3F800000;\nrcp.approx.ftz.f32 e, e;\n"
        "fma.rn.f32 e, e, 0fC0000000, 0f3F800000;\nsetp.ge.f32 p, a, 0f41102CB4;\nselp.f32 e, 0f3F800000, e, p;\n"
        "copysign.f32 e, {$r0}, e;\nmul.rn.f32 s, {$r0}, {$r0};\nfma.rn.f32 t, s, 0f3C80F082, 0fBD563CAE;\n"
        "fma.rn.f32 t, t, s, 0f3E085941;\nfma.rn.f32 t, t, s, 0fBEAAA9ED;\nfma.rn.f32 t, t, s, 0f00000000;\n"
        "fma.rn.f32 t, t, {$r0}, {$r0};\nsetp.ge.f32 q, a, 0f3F19999A;\nselp.f32 {$w0}, e, t, q;\n}",
        1,
        x,
    )


_ERF = (
    (0x38EB4C3A, 0x38B1E96A),
    (0xBAAE005B, 0xBA574D20),
    (0x3C09919F, 0x3BAAD5EA),
    (0xBD24D99A, 0xBCDC1BE7),
    (0x3E235519, 0x3DE718AF),
    (0x3F69B4F9, 0xBEC093AC),
    (0x3F210A14, 0x3E0375D3),
)
"""Coefficients of erf, highest power first: far from zero, and near it."""


def erf(x: Float32) -> Float32:
    """erf(x), with the bits of CUDA's erff."""
    lines = ["{", ".reg .pred p;", ".reg .f32 a, s, c, t, e;", "abs.f32 a, {$r0};", "setp.ge.f32 p, a, 0f3F8060FE;"]
    lines += ["mul.rn.f32 s, {$r0}, {$r0};", "selp.f32 s, a, s, p;"]
    for i, (far, near) in enumerate(_ERF):
        lines.append(f"selp.f32 c, 0f{far:08X}, 0f{near:08X}, p;")
        lines.append("mov.f32 t, c;" if i == 0 else "fma.rn.f32 t, t, s, c;")
    lines += ["neg.f32 a, a;", "selp.f32 a, a, {$r0}, p;", "fma.rn.f32 t, t, a, a;", "ex2.approx.ftz.f32 e, t;"]
    lines += ["sub.rn.f32 e, 0f3F800000, e;", "copysign.f32 e, {$r0}, e;", "selp.f32 {$w0}, e, t, p;", "}"]
    return ptx("\n".join(lines), 1, x)


def prepared(activation: Activation, gate: Float32, up: Float32, numbers: tuple) -> tuple:
    """What the activation works on: the gate, the number whose sigmoid is taken, and the factor."""
    if activation is not Activation.SWIGLU:
        return gate, gate, up
    alpha, limit, beta = numbers
    gate = ptx("min.NaN.f32 {$w0}, {$r0}, {$r1};", 1, gate, limit)
    up = ptx(
        "{\n.reg .f32 low, held;\nneg.f32 low, {$r1};\nmin.NaN.f32 held, {$r0}, {$r1};\nmax.NaN.f32 {$w0}, held, low;\n}",
        1,
        up,
        limit,
    )
    return gate, times(gate, alpha), plus(up, beta)


def is_sigmoid(activation: Activation) -> bool:
    """Whether an activation is gate times a sigmoid. Its reciprocal may need more than `plain_reciprocal`."""
    return activation in (Activation.SILU, Activation.SWIGLU)


def gelu(activation: Activation, gate: Float32) -> Float32:
    """0.5 gate (1 + odd), where odd is an erf or a tanh."""
    if activation is Activation.GELU:
        odd = erf(times(gate, Float32(0.7071067811865476)))
    else:
        cube = times(gate, gate, gate)
        odd = tanh(times(Float32(0.7978845608028654), plus(gate, times(Float32(0.044715), cube))))
    return times(Float32(0.5), gate, plus(Float32(1.0), odd))


def larger(x: Float32, y: Float32) -> Float32:
    """The larger of x and |y|, where neither is NaN; else the other."""
    return ptx("{\n.reg .f32 a;\nabs.f32 a, {$r1};\nmax.f32 {$w0}, {$r0}, a;\n}", 1, x, y)


@cute.jit
def scale_of(maximum: Float32) -> tuple:
    """The scale of values whose largest magnitude is `maximum`, a factor, and a divisor.

    Values are multiplied by the factor first and then divided by the divisor. The factor is 1, but for maxima beyond
    LARGEST_PLAIN.
    """
    shrink, grow = Float32(1.0), Float32(1.0)
    if maximum > LARGEST_PLAIN:
        shrink, grow = Float32(2.0**-64), Float32(2.0**64)
    small = times(maximum, shrink)
    guess = times(small, Float32(1.0 / CODE_MAX))
    rest = ptx("{\n.reg .f32 n;\nneg.f32 n, {$r1};\nfma.rn.f32 {$w0}, {$r0}, 0f43E00000, n;\n}", 1, guess, small)
    scale = ptx(
        "{\n.reg .f32 n;\nneg.f32 n, {$r0};\nfma.rn.f32 {$w0}, n, {$r1}, {$r2};\n}",
        1,
        rest,
        Float32(1.0 / CODE_MAX),
        guess,
    )
    scale = ptx("max.f32 {$w0}, {$r0}, {$r1};", 1, times(scale, grow), Float32(SMALLEST_SCALE))
    divisor = times(scale, shrink)
    if maximum == Float32.inf:
        scale, shrink, divisor = maximum, Float32(0.0), Float32(1.0)
    return scale, shrink, divisor


def quotient(value: Float32, divisor: Float32, reciprocal: Float32) -> Float32:
    """value / divisor, whose code is that of the correctly rounded quotient (kernels/coding/code.cuh, Quotient)."""
    return ptx(
        "{\n.reg .f32 g, n;\nmul.rn.f32 g, {$r0}, {$r2};\nneg.f32 n, {$r0};\nfma.rn.f32 n, g, {$r1}, n;\nneg.f32 n, n;\n"
        "fma.rn.f32 {$w0}, n, {$r2}, g;\n}",
        1,
        value,
        divisor,
        reciprocal,
    )


def codes(values: list) -> Int32:
    """Four e4m3 codes, the first in the low byte.

    They are rounded to nearest, ties to even, and saturated. NaN is 0x7f.
    """
    return cute.arch.inline_ptx(
        "{\n.reg .b16 low, high;\ncvt.rn.satfinite.e4m3x2.f32 low, {$r1}, {$r0};\n"
        "cvt.rn.satfinite.e4m3x2.f32 high, {$r3}, {$r2};\nmov.b32 {$w0}, {low, high};\n}",
        write_only_types=[Int32],
        read_only_args=values,
    )


def halves(first: Float32, second: Float32) -> Int32:
    """Two bf16 numbers, the first in the low half."""
    return cute.arch.inline_ptx(
        "cvt.rn.bf16x2.f32 {$w0}, {$r1}, {$r0};", write_only_types=[Int32], read_only_args=[first, second]
    )
