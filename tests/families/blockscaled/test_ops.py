"""The ops on the CPU: results, refusals and their sentences."""

from typing import Any

import pytest
import torch

import gemmill
from gemmill.families.blockscaled.cases.calls import CallSpec, arguments_of, folded, make_matrix, make_operands, packed
from gemmill.families.blockscaled.cases.checked import ROLES_OF, BlockScaledCase
from gemmill.families.blockscaled.ops import OPS_OF, SCHEMAS
from gemmill.families.blockscaled.pairs import (
    FOLDED_PAIRS,
    WEIGHT_PAIRS,
    Pair,
)
from gemmill.numerics.cases import cases_of_op
from gemmill.registry import REGISTRY
from gemmill.runtime.checks import check
from gemmill.runtime.operands import of_arguments
from gemmill.runtime.schemas import BY_NAME
from gemmill.vocab import DType
from gemmill.vocab.format import MXFP4

CPU = torch.device("cpu")
PAIRS = pytest.mark.parametrize("pair", list(Pair), ids=str)


def integer_sums(pair: Pair, m: int, n: int, k: int, **more: Any) -> tuple[CallSpec, dict[str, Any], torch.Tensor]:
    spec = CallSpec(m=m, n=n, k=k, pair=pair, data="integers", bias=True, **more)
    operands = make_operands(spec, CPU)
    total = torch.zeros(m, n, dtype=torch.float64)
    for j in range(k):
        total += operands.a[:, j, None] * operands.b[None, :, j]
    bias = operands.given["bias"].double()
    return spec, operands.given, (1.0 if spec.is_folded else 0.25) * total + bias


@PAIRS
@pytest.mark.parametrize("out_dtype", [DType.BF16, DType.F16])
def test_integers_are_summed_one_by_one(pair: Pair, out_dtype: DType) -> None:
    for op in OPS_OF[pair]:
        spec, given, wanted = integer_sums(pair, 5, 40, 96, out_dtype=out_dtype, op=op)
        if "bias" not in ROLES_OF[op]:
            wanted = wanted - given["bias"].double()
        out = torch.full((5, 40), torch.nan, dtype=getattr(torch, out_dtype.torch_name))
        getattr(torch.ops.gemmill, op).default(*arguments_of(op, ROLES_OF[op], given, out))
        assert torch.equal(out, wanted.to(out.dtype)), spec


def test_functions_allocate_what_the_ops_write() -> None:
    for pair in (Pair.NVFP4, Pair.MXFP4, Pair.MXFP8, Pair.MXFP8_MXFP6, Pair.MXFP8_MXFP4):
        _, given, wanted = integer_sums(pair, 3, 32, 64)
        function = getattr(gemmill, OPS_OF[pair][0])
        tensors = [given[name] for name in ("a", "b", "a_sf", "b_sf", "alpha")]
        assert torch.equal(function(*tensors, given["bias"]), wanted.bfloat16())
        assert function(*tensors, out_dtype=torch.float16).dtype is torch.float16
    _, given, wanted = integer_sums(Pair.NVFP4, 3, 32, 64)
    tensors = [given[name] for name in ("a", "b", "a_sf", "b_sf", "alpha")]
    assert torch.equal(
        gemmill.cutlass_scaled_fp4_mm(*tensors, torch.bfloat16), (wanted - given["bias"].double()).bfloat16()
    )
    for pair in WEIGHT_PAIRS:
        for prepacked in (True, False):
            _, given, wanted = integer_sums(pair, 3, 48, 320, prepacked=prepacked)
            tensors = [given[name] for name in ("a", "b", "b_sf", "alpha", "bias")]
            found = gemmill.fp4_weight_mm(*tensors, format=given["format"], prepacked=prepacked)
            assert torch.equal(found, wanted.bfloat16())


@pytest.mark.parametrize("prepacked", [True, False])
@pytest.mark.parametrize("grouped", [True, False])
def test_folded_weights(prepacked: bool, grouped: bool) -> None:
    """Every code by every scale, and sums of integers; of weights that do not fold too."""
    for pair in FOLDED_PAIRS if prepacked and not grouped else FOLDED_PAIRS[:1]:
        for data, m in (("integers", 5), ("single", 160)):
            spec = CallSpec(m=m, n=70, k=288, pair=pair, data=data, grouped=grouped, prepacked=prepacked)
            operands = make_operands(spec, CPU)
            tensors = [operands.given[name] for name in ("a", "b", "b_sf", "a_sf")]
            assert (tensors[1].dim() == 3) is prepacked and (tensors[2].dim() == 2) is grouped
            function = getattr(gemmill, OPS_OF[pair][0])
            wanted = operands.a @ operands.b.t()
            assert torch.equal(function(*tensors), wanted.float().bfloat16())
            assert torch.equal(function(*tensors, None, torch.float16), wanted.float().half())


def test_folded_weights_are_the_checkpoints() -> None:
    """Exactly, of mxfp4; of nvfp4 to half a step of e4m3, and by the global scale."""
    generator = torch.Generator().manual_seed(1)
    for pair in FOLDED_PAIRS:
        spec = CallSpec(m=1, n=70, k=160, pair=pair)
        weights = make_matrix(pair.b_format, 70, 160, "single", generator)
        values, found = weights.values(), folded(spec, weights).values()
        if pair is Pair.E4M3_MXFP4:
            assert torch.equal(found, values)
        else:
            row = values.abs().amax(dim=1, keepdim=True)
            assert ((2 * found - values).abs() <= torch.maximum(values.abs() / 16, row / 448 / 2**6)).all()
            assert (2 * found != values).any()


def test_rows_of_packed_weights_have_bases() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = make_matrix(MXFP4, 64, 128, "integers", generator)
    weights.scales[7] += 60
    a = torch.randint(-2, 3, (3, 128), generator=generator).bfloat16()
    given = packed(CallSpec(m=3, n=64, k=128, pair=Pair.FLOATS_MXFP4), weights)
    assert given["b_sf"][7] > 2.0**58 and (given["b_sf"] == 1.0).sum() == 63
    found = gemmill.fp4_weight_mm(a, given["b"], given["b_sf"], format="mxfp4")
    assert torch.equal(found, (a.double() @ weights.values().t()).float().bfloat16())


def test_codes_of_8_bits_may_be_bytes_or_floats() -> None:
    _, given, wanted = integer_sums(Pair.MXFP8, 3, 32, 64)
    as_floats = given["a"].view(torch.float8_e4m3fn), given["b"].view(torch.float8_e4m3fn)
    found = gemmill.cutlass_scaled_mxfp8_mm(*as_floats, given["a_sf"], given["b_sf"], given["alpha"], given["bias"])
    assert torch.equal(found, wanted.bfloat16())


def call_of(pair: Pair, **more: Any) -> dict[str, Any]:
    """A good call of M, N, K = 3, 64, 128 by its arguments' roles."""
    spec = CallSpec(m=3, n=64, k=128, pair=pair, bias=True, **more)
    return make_operands(spec, CPU).given | {"out": torch.empty(3, 64, dtype=torch.bfloat16)}


def test_folded_weights_times_no_rows() -> None:
    given = call_of(Pair.E4M3_MXFP4) | {
        "a": torch.empty(0, 128, dtype=torch.float8_e4m3fn),
        "out": torch.empty(0, 64).bfloat16(),
    }
    given["a_sf"] = given["a_sf"][:0]
    torch.ops.gemmill.mxfp4_fp8_mm.default(*[given[role] for role in ROLES_OF["mxfp4_fp8_mm"]])
    assert given["out"].shape == (0, 64)


def refused(op: str, given: dict[str, Any]) -> str:
    arguments = [given[role] for role in ROLES_OF[op]]
    with pytest.raises(RuntimeError) as caught:
        check(BY_NAME[op], of_arguments(BY_NAME[op], arguments))
    with pytest.raises(RuntimeError) as of_op:
        getattr(torch.ops.gemmill, op).default(*arguments)
    assert str(caught.value) in str(of_op.value)
    return str(caught.value).removeprefix(f"{op}: ")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"format": "int4"}, "format is 'int4', expected 'nvfp4', 'mxfp4', 'mxfp6' or 'mxfp8'"),
        (
            {"format": "mxfp6"},
            "b is [1, 4, 2304], expected [N, 112] = [64, 112]: mxfp6 weights for bfloat16 packed by "
            "gemmill.quantize.packed_rows.to_rows",
        ),
        (
            {"b": torch.zeros(1, 3, 2304, dtype=torch.uint8)},
            "b is [1, 3, 2304], expected [1, 4, 2304] for 64 x 128 weights packed by gemmill.quantize.fp4_blocks.to_blocks",
        ),
        ({"b_sf": torch.ones(63)}, "b_sf has shape [63]: expected 64 bases, one for each row of weights"),
        (
            {"b_sf": torch.zeros(64, 8, dtype=torch.uint8)},
            "b_sf is uint8, expected float32: bases of packed weights",
        ),
        (
            {"prepacked": False},
            "b_sf is float32, expected uint8 or float8_e4m3fn: scales of weights that are not packed",
        ),
        (
            {"prepacked": False, "b_sf": torch.zeros(64, 8, dtype=torch.uint8)},
            "b is [1, 4, 2304], expected [N, bytes of K codes] = [64, 64]",
        ),
        (
            {
                "prepacked": False,
                "b": torch.zeros(64, 64, dtype=torch.uint8),
                "b_sf": torch.zeros(128, 8, dtype=torch.uint8),
            },
            "b_sf is [128, 8], expected [N, K / 16] = [64, 8], not swizzled",
        ),
        (
            {"a": torch.zeros(3, 120).bfloat16()},
            "K is 120, which is not a multiple of nvfp4's group of 16",
        ),
        (
            {"a": torch.zeros(3, 128).half()},
            "out is bfloat16 and a is float16: they must have the same dtype",
        ),
        ({"alpha": torch.ones(2)}, "alpha has shape [2]: expected one value"),
        ({"bias": torch.zeros(65).bfloat16()}, "bias has shape [65], expected [N] = [64]"),
    ],
)
def test_sentences_of_weights(changes: dict[str, Any], sentence: str) -> None:
    assert refused("fp4_weight_mm", call_of(Pair.FLOATS_NVFP4) | changes) == sentence


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"b": torch.zeros(1, 1, 4608, dtype=torch.uint8)},
            "b is [1, 1, 4608], expected [1, 2, 4352], or of weights that do not fold [64, 80], for 64 x 128 weights packed by "
            "gemmill.quantize.folded_blocks.to_folded_blocks",
        ),
        (
            {"a": torch.zeros(3, 112).to(torch.float8_e4m3fn)},
            "K is 112, which is not a multiple of mxfp4's group of 32",
        ),
        ({"a": torch.zeros(3, 128).bfloat16()}, "a is bfloat16, expected float8_e4m3fn"),
        (
            {"a_sf": torch.ones(3, 2)},
            "a_scales has shape [3, 2] and b_base [64]: expected 3 and 64 values, one for each row, or [3, 1] and [64, 1]",
        ),
        ({"a_sf": torch.ones(3, 2)[:, :1]}, "a_scales has strides [2, 1]: scales must be contiguous"),
        ({"b_sf": torch.ones(64).bfloat16()}, "b_base is bfloat16, expected float32"),
    ],
)
def test_sentences_of_folded_weights(changes: dict[str, Any], sentence: str) -> None:
    assert refused("mxfp4_fp8_mm", call_of(Pair.E4M3_MXFP4) | changes) == sentence


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"b": torch.zeros(64, 32, dtype=torch.uint8)},
            "b is [64, 32], expected K/2 = 64 in its dimension 1",
        ),
        (
            {"a": torch.zeros(3, 60, dtype=torch.uint8), "b": torch.zeros(64, 60, dtype=torch.uint8)},
            "K is 120, which is not a multiple of nvfp4's group of 16",
        ),
        (
            {"a_sf": torch.zeros(3, 8, dtype=torch.uint8)},
            "a_sf is [3, 8], expected [a_rows, scales] = [128, 8]",
        ),
        (
            {"b_sf": torch.zeros(128, 8, dtype=torch.int32)},
            "b_sf is int32, expected uint8 or float8_e4m3fn",
        ),
        (
            {"b_sf": torch.zeros(128, 16, dtype=torch.uint8)[:, :8]},
            "b_sf has strides [16, 1]: swizzled scales must be contiguous",
        ),
        ({"a": torch.zeros(3, 64)}, "a is float32, expected uint8"),
        ({"out": torch.zeros(3, 64)}, "out is float32, expected bfloat16 or float16"),
        ({"out": torch.zeros(3, 63).bfloat16()}, "out is [3, 63], expected [M, N] = [3, 64]"),
    ],
)
def test_sentences_of_pairs(changes: dict[str, Any], sentence: str) -> None:
    assert refused("cutlass_scaled_nvfp4_mm", call_of(Pair.NVFP4) | changes) == sentence


def test_scale_bytes_that_are_no_numbers() -> None:
    given = call_of(Pair.MXFP4)
    given["b_sf"][0, 0] = 255
    torch.ops.gemmill.cutlass_scaled_mxfp4_mm(*[given[role] for role in ROLES_OF["cutlass_scaled_mxfp4_mm"]])
    assert given["out"][:, 0].isnan().all() and given["out"][:, 1:].isfinite().all(), "NaN, as kernels have it"


@pytest.mark.parametrize("op", [op.name for op in SCHEMAS])
def test_fakes_and_questions(op: str) -> None:
    """A call without data passes the op's checks."""
    names = REGISTRY.questions
    question = dict.fromkeys(names) | {n: q.default for n, q in names.items() if q.kind is bool} | {"azp": None}
    for told in ({"m": 3, "n": 64, "k": 96}, {"m": 1, "n": 33, "k": 256, "prepacked": False, "out": "f16"}):
        arguments = cases_of_op(op).asked(op, question | told)
        assert check(BY_NAME[op], of_arguments(BY_NAME[op], arguments))["M"] == told["m"]
        assert getattr(torch.ops.gemmill, op).default(*arguments) is None
    with pytest.raises(ValueError, match="wants -m, -n and -k, and no --hidden"):
        cases_of_op(op).asked(op, question | {"m": 3})


def test_a_wrong_result_is_told() -> None:
    spec = CallSpec(m=3, n=64, k=64, pair=Pair.FLOATS_NVFP4)
    wanted = make_operands(spec, CPU).wanted(spec)
    assert wanted.compare(wanted.rounded).ok
    assert wanted.compare(wanted.rounded * (1 + 2.0**-6)).wrong > 100
    assert not BlockScaledCase(spec=spec).run("cpu").report
