"""The quantisation ops on CPU tensors, their sentences for bad input, and the questions to builds about them."""

import random
from typing import Any

import pytest
import torch

import gemmill
from families.quant.random_calls import Breakage, empty_call, some_call
from gemmill.families.quant import ops as quant_ops
from gemmill.families.quant import reference
from gemmill.families.quant import selections as quant_selections
from gemmill.families.quant.call import config_of
from gemmill.families.quant.config import Activation, QuantConfig, ScaleFormat, Scaling
from gemmill.families.quant.contract import SCHEMAS as QUANT_SCHEMAS
from gemmill.runtime import checks, operands
from gemmill.runtime.schemas import BY_NAME
from gemmill.vocab import Arch, DType

E4M3, S8 = torch.float8_e4m3fn, torch.int8


def values(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def bits(tensor: torch.Tensor) -> list:
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor).view(torch.uint8).tolist()


def same(got: tuple, wanted: tuple) -> bool:
    return all(bits(g) == bits(w.reshape(g.shape)) for g, w in zip(got, wanted, strict=True))


def test_the_ops_are_those_of_the_space_in_its_order() -> None:
    assert [op.name for op in QUANT_SCHEMAS] == [op.name for op in quant_ops.QUANT_OPS]


@pytest.mark.parametrize("op", [op.name for op in QUANT_SCHEMAS])
def test_schemas_are_torchs(op: str) -> None:
    assert str(getattr(torch.ops.gemmill, op).default._schema) == f"gemmill::{BY_NAME[op].schema}"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_token_and_tensor_ops_are_the_reference(dtype: torch.dtype) -> None:
    x, ub = values(3, 5, 40, dtype=dtype), torch.tensor([1.5])
    rows = x.reshape(15, 40)
    assert same(gemmill.dynamic_scaled_fp8_quant(x), reference.tensor_quant(rows, DType.E4M3))
    assert same(gemmill.dynamic_tensor_scaled_int8_quant(x)[:2], reference.tensor_quant(rows, DType.S8))
    with_azp = gemmill.dynamic_tensor_scaled_int8_quant(x, symmetric=False)
    assert same(with_azp, reference.tensor_quant_with_azp(rows))
    assert all(found.shape == (1,) for found in with_azp[1:])
    bounded = gemmill.dynamic_per_token_scaled_fp8_quant(x, ub)
    assert bounded[1].shape == (3, 5, 1) and same(bounded, reference.token_quant(rows, DType.E4M3, scale_ub=ub))
    assert same(gemmill.dynamic_scaled_int8_quant(x)[:2], reference.token_quant(rows, DType.S8))
    assert same(
        gemmill.dynamic_scaled_int8_quant(x, symmetric=False),
        reference.token_quant_with_azp(rows, reference.least_step_of(rows.shape[-1])),
    )


@pytest.mark.parametrize("symmetric", [True, False])
def test_row_sums_are_those_of_the_codes(symmetric: bool) -> None:
    x = values(3, 5, 1003)
    codes, scales, sums, azp = gemmill.dynamic_scaled_int8_quant_row_sums(x, symmetric)
    wanted = gemmill.dynamic_scaled_int8_quant(x, symmetric)
    assert same((codes, scales), wanted[:2]) and (azp is None if symmetric else same((azp,), wanted[2:]))
    assert sums.dtype is torch.int32 and sums.shape == (3, 5, 1)
    assert sums[..., 0].tolist() == codes.long().sum(-1).tolist()


def test_row_sums_of_rows_without_elements_are_zero() -> None:
    assert gemmill.dynamic_scaled_int8_quant_row_sums(values(4, 0), symmetric=False)[2].tolist() == [[0]] * 4


def test_static_ops_are_the_reference() -> None:
    x, one, azp = values(6, 32), torch.tensor([0.02]), torch.tensor([-7], dtype=torch.int32)
    assert same((gemmill.static_scaled_fp8_quant(x, one),), (reference.static_quant(x, one, DType.E4M3),))
    assert same((gemmill.static_scaled_int8_quant(x, one, azp),), (reference.static_quant(x, one, DType.S8, azp=azp),))
    gated = reference.static_quant(x, one, DType.E4M3, activation=Activation.SILU)
    assert same((gemmill.silu_and_mul_quant(x, one),), (gated,))


@pytest.mark.parametrize(
    ("shape", "group", "block"),
    [
        ((6,), (1, -1), (1, 32)),
        ((32,), (-1, 1), (6, 1)),
        ((3,), (2, -1), (2, 32)),
        ((6,), (1, 32), (1, 32)),
        ((4,), (-1, 8), (6, 8)),
        ((4,), (6, 8), (6, 8)),
        ((3, 4), None, (2, 8)),
        ((3, 4), (2, 8), (2, 8)),
        ((1, 4), (-1, 8), (6, 8)),
    ],
)
def test_given_scales_of_blocks(shape: tuple, group: tuple | None, block: tuple) -> None:
    x = values(6, 32)
    scales = torch.rand(shape) * 0.1 + 0.01
    rows, columns = block
    blocks = scales.reshape(6 // rows, 32 // columns)
    wide = blocks.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    assert same((gemmill.static_scaled_fp8_quant(x, scales, group),), (reference.static_quant(x, wide, DType.E4M3),))


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [E4M3, S8])
def test_group_ops_are_the_reference(dtype: torch.dtype, transposed: bool) -> None:
    x, out = values(5, 512), DType.E4M3 if dtype is E4M3 else DType.S8
    wanted = reference.group_quant(x, 64, out, activation=Activation.SILU, smallest_scale=reference.SMALLEST_SCALE[out])
    codes, scales = gemmill.silu_and_mul_per_block_quant(x, 64, dtype, is_scale_transposed=transposed)
    assert same((codes, scales), wanted) and scales.stride() == ((1, 5) if transposed else (4, 1))
    weight = values(512)
    residual = values(5, 512) + 1
    *wanted, added = reference.rms_norm_quant(x, weight, 1e-6, out, group_size=128, residual=residual.clone())
    got = gemmill.rms_norm_per_block_quant(
        x, weight, 1e-6, dtype, 128, residual=residual, is_scale_transposed=transposed
    )
    assert same((*got, residual), (*wanted, added))
    *wanted, _ = reference.rms_norm_quant(x, weight, 1e-6, out)
    assert same(gemmill.rms_norm_dynamic_per_token_quant(x, weight, 1e-6, dtype), tuple(wanted))
    normed, _ = reference.rms_normed(x, weight, 1e-6)
    given = gemmill.static_scaled_fp8_quant(normed, torch.tensor([0.02]))
    assert same((gemmill.rms_norm_static_fp8_quant(x, weight, torch.tensor([0.02]), 1e-6),), (given,))
    residual = values(5, 512) + 1
    normed, added = reference.rms_normed(x, weight, 1e-6, residual.clone())
    given = gemmill.static_scaled_fp8_quant(normed, torch.tensor([0.02]))
    got = gemmill.fused_add_rms_norm_static_fp8_quant(x, residual, weight, torch.tensor([0.02]), 1e-6)
    assert same((got, residual), (given, added))
    wanted = reference.token_quant(x, out, activation=Activation.SILU)
    assert same(gemmill.silu_and_mul_per_token_quant(x, dtype), wanted)


@pytest.mark.parametrize("activation", [Activation.SILU, Activation.GELU_TANH, Activation.GELU_ERF])
@pytest.mark.parametrize("dtype", [E4M3, S8])
def test_ops_that_are_told_their_activation(dtype: torch.dtype, activation: Activation) -> None:
    x, out, name = values(5, 512), DType.E4M3 if dtype is E4M3 else DType.S8, activation.op_argument
    least = reference.SMALLEST_SCALE[out]
    for pow2, layout, strides in (
        (False, (False, False), (4, 1)),
        (True, (True, False), (1, 5)),
        (True, (True, True), (1, 8)),
    ):
        scale_format = ScaleFormat.POWER_OF_TWO if pow2 else ScaleFormat.F32
        wanted = reference.group_quant(
            x, 64, out, activation=activation, smallest_scale=least, scale_format=scale_format
        )
        codes, scales = gemmill.act_and_mul_per_block_quant(x, 64, name, dtype, None, pow2, *layout)
        assert same((codes, scales), wanted) and scales.stride() == strides
    wanted = reference.token_quant(x, out, activation=activation)
    assert same(gemmill.act_and_mul_per_token_quant(x, name, dtype), wanted)
    scale = torch.tensor([0.02])
    wanted = reference.static_quant(x, scale, out, activation=activation)
    assert same((gemmill.act_and_mul_quant(x, scale, name, dtype),), (wanted,))


@pytest.mark.parametrize("group", [32, 64, 128])
def test_per_token_group_ops_are_the_reference(group: int) -> None:
    x = values(5, 640 if group < 128 else 1280, dtype=torch.float16)
    for pow2, layout in ((False, (False, False)), (True, (True, False)), (True, (True, True))):
        scale_format = ScaleFormat.POWER_OF_TWO if pow2 else ScaleFormat.F32
        wanted = reference.group_quant(x, group, DType.E4M3, smallest_amax=1e-10, scale_format=scale_format)
        codes, scales = gemmill.per_token_group_fp8_quant(x, group, 1e-10, pow2, *layout)
        assert same((codes, scales), wanted)
        assert scales.stride() == ((scales.shape[1], 1) if not layout[0] else (1, 8 if layout[1] else 5))
    wanted = reference.group_quant(x, group, DType.S8, smallest_amax=1e-10)
    assert same(gemmill.per_token_group_quant_int8(x, group), wanted)
    for layout, stride in (((False, False), (x.shape[1] // group, 1)), ((True, False), (1, 5)), ((True, True), (1, 8))):
        got = gemmill.per_token_group_quant_int8_azp(x, group, *layout)
        assert same(got, reference.group_quant_with_azp(x, group)) and got[1].stride() == got[2].stride() == stride


def test_packed_scales_are_padded_with_zeros() -> None:
    x = values(5, 640)
    codes, scales = reference.group_quant(
        x, 128, DType.E4M3, smallest_amax=1e-10, scale_format=ScaleFormat.PACKED_UE8M0
    )
    memory = torch.full((2, 8), -1, dtype=torch.int32)
    packed, out = memory.t()[:5], torch.empty_like(codes)
    torch.ops.gemmill.per_token_group_fp8_quant_packed(x, out, packed, 128, 1e-10, -448.0, 448.0)
    assert same((out, packed), (codes, reference.pack_ue8m0(scales)))
    assert memory[0, 5:].tolist() == [0, 0, 0]
    assert memory[1, 5:].tolist() == [-1, -1, -1]  # of the last word they need not be in the tensor's memory


@pytest.mark.parametrize("op", [op.name for op in QUANT_SCHEMAS])
def test_right_calls_run_and_wrong_ones_write_nothing(op: str) -> None:
    rng, refused = random.Random(op), 0
    for _ in range(60):
        getattr(torch.ops.gemmill, op).default(*some_call(op, rng, Breakage.NONE))
        arguments = some_call(op, rng, Breakage.SOME)
        before = [bits(a) if isinstance(a, torch.Tensor) and a.dim() and a.numel() else None for a in arguments]
        try:
            getattr(torch.ops.gemmill, op).default(*arguments)
        except RuntimeError as error:
            refused += 1
            assert str(error).startswith(f"{op}: ")
            after = [bits(a) if isinstance(a, torch.Tensor) and a.dim() and a.numel() else None for a in arguments]
            assert before == after
    assert refused > 10


def silu_call(**changes: Any) -> list[Any]:
    call = {
        "out": torch.empty(4, 256, dtype=E4M3),
        "input": values(4, 512),
        "scales": torch.empty(4, 2),
        "group_size": 128,
        "scale_ub": None,
        "is_scale_transposed": False,
    }
    return list((call | changes).values())


SHARED = torch.zeros(4, 512, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"group_size": 16}, "group_size is 16, expected 32 or 64 or 128"),
        (
            {"out": torch.empty(4, 192, dtype=E4M3), "input": values(4, 384)},
            "rows of 192 values are not a multiple of group_size 128",
        ),
        (
            {"scales": torch.empty(4, 3)},
            "scales has shape [4, 3] and strides [3, 1] with is_scale_transposed=False: expected [4, 2] with strides [2, 1] "
            "or a larger row stride",
        ),
        (
            {"scales": torch.empty(2, 4).t()},
            "scales has shape [4, 2] and strides [1, 4] with is_scale_transposed=False: expected [4, 2] with strides [2, 1] "
            "or a larger row stride",
        ),
        (
            {"is_scale_transposed": True},
            "scales has shape [4, 2] and strides [2, 1] with is_scale_transposed=True: expected [4, 2] with strides [1, 4], "
            "or [2, 4] with strides [4, 1]",
        ),
        ({"scales": torch.empty(4, 2).half()}, "scales is float16, expected float32"),
        (
            {"out": torch.empty(4, 256, dtype=S8), "scale_ub": torch.ones(1)},
            "scale_ub is given and out is int8: only scales of float8_e4m3fn have an upper bound",
        ),
        ({"scale_ub": torch.ones(2)}, "scale_ub has shape [2]: expected one value"),
        (
            {"input": values(512, 4).t()},
            "input of [4, 512] has strides [1, 4]: its last stride must be 1, and its other dimensions must follow one another "
            "at one stride; call input.contiguous()",
        ),
        ({"input": values(4, 512, dtype=torch.float32)}, "input is float32, expected bfloat16 or float16"),
        (
            {"input": values(4, 511)},
            "input is [4, 511]: its rows hold gate, then up, so their length 511 must be even",
        ),
        (
            {"out": torch.empty(3, 256, dtype=E4M3)},
            "out is [3, 256], expected [4, 256] for an input of [4, 512]",
        ),
        (
            {"out": torch.empty(256, dtype=S8).expand(4, 256)},
            "out has row stride 0 for rows of 256: its rows overlap",
        ),
        (
            {"input": SHARED, "out": SHARED.view(S8)[:, :256]},
            "out overlaps input in memory: results would overwrite values still to be read",
        ),
    ],
)  # fmt: skip
def test_bad_input_is_refused_with_a_sentence(changes: dict, sentence: str) -> None:
    with pytest.raises(RuntimeError) as error:
        torch.ops.gemmill.silu_and_mul_per_block_quant(*silu_call(**changes))
    assert str(error.value) == f"silu_and_mul_per_block_quant: {sentence}"


@pytest.mark.parametrize(
    ("op", "arguments", "sentence"),
    [
        (
            "static_scaled_fp8_quant",
            lambda x: [torch.empty(4, 512, dtype=E4M3), x, torch.ones(4)],
            "scale has shape [4]: expected one value; [4] with group_shape [1, -1] or [512] with [-1, 1]; or two dimensions "
            "that divide [4, 512] into blocks of the group shape",
        ),
        *(
            (
                "static_scaled_fp8_quant",
                lambda x, n=n, shape=shape: [torch.empty(4, 512, dtype=E4M3), x, torch.ones(n), shape],
                f"scale has shape [{n}] with group_shape {shape}: expected one value; [4] with group_shape [1, -1] or [512] with "
                "[-1, 1]; or two dimensions that divide [4, 512] into blocks of the group shape",
            )
            for n, shape in ((2, [3, -1]), (4, [2, 256]), (3, [2, -1]))
        ),
        (
            "static_scaled_fp8_quant",
            lambda x: [torch.empty(4, 512, dtype=E4M3), x, torch.ones(1), [4]],
            "group_shape is [4]: expected two sizes, of rows and columns, -1 for all",
        ),
        (
            "static_scaled_int8_quant",
            lambda x: [torch.empty(4, 512, dtype=S8), x, torch.ones(4), None],
            "scale has shape [4]: expected one value, for the tensor",
        ),
        (
            "dynamic_scaled_int8_quant",
            lambda x: [torch.empty(4, 512, dtype=S8), x, torch.ones(4), torch.zeros(3, dtype=torch.int32)],
            "azp has shape [3]: expected 4 values, one for each row",
        ),
        (
            "dynamic_per_token_scaled_fp8_quant",
            lambda x: [torch.empty(4, 512, dtype=S8), x, torch.ones(4), None],
            "result is int8, expected float8_e4m3fn",
        ),
        (
            "per_token_group_quant_int8",
            lambda x: [x, torch.empty(4, 512, dtype=S8), torch.ones(4, 4), 128, 1e-10, -127.0, 127.0],
            "codes are to lie in [-127.0, 127.0], expected [-128.0, 127.0]: all that the type holds",
        ),
        (
            "per_token_group_fp8_quant_packed",
            lambda x: [x, torch.empty(4, 512, dtype=E4M3), torch.ones(4, 1).int().t(), 64, 1e-10, -448.0, 448.0],
            "output_s_packed has shape [1, 4] and strides [1, 1]: expected [4, 2] with strides [1, 4] or a larger second one",
        ),
        (
            "per_token_group_quant_int8_azp",
            lambda x: [x, torch.empty(4, 512, dtype=S8), torch.ones(4, 4), torch.ones(4, 4).int().t(), 128],
            "output_azp has shape [4, 4] and strides [1, 4], expected those of output_s: [4, 4] and [4, 1]",
        ),
        (
            "act_and_mul_quant",
            lambda x: [torch.empty(4, 256, dtype=E4M3), x, torch.ones(1), "relu"],
            "activation is 'relu', expected 'silu', 'gelu_tanh' or 'gelu'",
        ),
        (
            "act_and_mul_per_block_quant",
            lambda x: [torch.empty(4, 256, dtype=E4M3), x, torch.ones(4, 2), "gelu", 16],
            "group_size is 16, expected 32 or 64 or 128",
        ),
        (
            "act_and_mul_per_token_quant",
            lambda x: [torch.empty(4, 256, dtype=S8), x, torch.ones(4), "gelu", torch.ones(1)],
            "scale_ub is given and result is int8: only scales of float8_e4m3fn have an upper bound",
        ),
        (
            "rms_norm_dynamic_per_token_quant",
            lambda x: [torch.empty(4, 512, dtype=S8), x, torch.ones(512), torch.ones(4), 1e-6, None, None],
            "weight is float32, expected bfloat16",
        ),
        (
            "rms_norm_dynamic_per_token_quant",
            lambda x: [torch.empty(4, 512, dtype=S8), x, torch.ones(512).bfloat16(), torch.ones(4), 1e-6, None, x],
            "input overlaps residual in memory: results would overwrite values still to be read",
        ),
    ],
)  # fmt: skip
def test_sentences_of_the_other_ops(op: str, arguments: Any, sentence: str) -> None:
    with pytest.raises(RuntimeError) as error:
        getattr(torch.ops.gemmill, op)(*arguments(values(4, 512)))
    assert str(error.value) == f"{op}: {sentence}"


def test_they_compile_as_one_graph() -> None:
    @torch.compile(fullgraph=True, backend="aot_eager")
    def layer(x: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor) -> tuple:
        first = gemmill.rms_norm_dynamic_per_token_quant(x, weight, 1e-6, S8, residual=residual)
        return (*first, *gemmill.act_and_mul_per_block_quant(residual, 64, "gelu"))

    x, weight = values(4, 256), values(256)
    residual, again = torch.ones(4, 256).bfloat16(), torch.ones(4, 256).bfloat16()
    got = layer(x, weight, residual)
    codes, scales = gemmill.rms_norm_dynamic_per_token_quant(x, weight, 1e-6, S8, residual=again)
    assert same((*got, residual), (codes, scales, *gemmill.act_and_mul_per_block_quant(again, 64, "gelu"), again))


@pytest.fixture
def quant_build(smoke_build, make_manifest, monkeypatch):
    """A build of the default selection's quantisation kernels."""
    from gemmill.runtime import ops
    from gemmill.runtime.variant_table import make_variant_table

    manifest = make_manifest(*quant_selections.default(Arch.SM90A))
    symbols = [entry.symbol for entry in manifest.entries]
    build = type(smoke_build)(manifest, make_variant_table(manifest.entries, symbols, ()))
    monkeypatch.setattr(ops, "_active", build)
    return build


def test_every_right_call_has_its_variant(quant_build) -> None:
    rng = random.Random(0)
    for op in QUANT_SCHEMAS:
        for _ in range(20):
            arguments = some_call(op.name, rng, Breakage.NONE)
            wanted = config_of(checks.check(op, operands.of_arguments(op, arguments)), Arch.SM90A)
            choice = gemmill.explain(op.name, *arguments)
            assert choice.entry.config == wanted and op.name in choice.entry.ops
            assert len(choice.trace) == len(quant_build.table.entries) - 1


def test_explain_says_what_others_lack_and_pins_are_kept(quant_build) -> None:
    choice = gemmill.explain("silu_and_mul_per_block_quant", *silu_call())
    assert str(choice).splitlines()[0] == "sm90a_quant_group_bf16_e4m3_silu_g128f32_sym (only)"
    reasons = {rejected.name: rejected.reason for rejected in choice.trace}
    assert reasons["sm90a_quant_group_bf16_e4m3_silu_g64f32_sym"] == "it has group_size=64, the call needs 128"
    other = "sm90a_quant_group_f16_e4m3_silu_g128f32_sym"
    with gemmill.use_variant(other) as entry:
        assert entry.name == other
        pinned = gemmill.explain("silu_and_mul_per_block_quant", *silu_call())
    assert pinned.entry is None and pinned.trace[0].reason == "it has in_dtype=f16, the call needs bf16"
    assert quant_build.pinned == -1


def test_supports_answers_from_the_manifest(quant_build) -> None:
    assert gemmill.supports("silu_and_mul_per_block_quant", dtype="bf16", out_dtype=S8, group_size=64)
    assert not gemmill.supports("silu_and_mul_per_block_quant", group_size=16)
    assert not gemmill.supports("silu_and_mul_quant", dtype=torch.float32)
    assert not gemmill.supports("cutlass_scaled_mm")
    config = QuantConfig.of(Scaling.TENSOR, DType.F16, out_dtype=DType.E4M3)
    assert config in [entry.config for entry in gemmill.variants(op="dynamic_scaled_fp8_quant")]


def test_an_empty_tensor_has_scale_and_zero_point_0() -> None:
    codes, scale, azp = gemmill.dynamic_tensor_scaled_int8_quant(torch.empty(0, 64), symmetric=False)
    assert codes.shape == (0, 64) and (scale.item(), azp.item()) == (0.0, 0)


def test_the_lowest_of_a_tensor_has_the_lowest_code() -> None:
    x = torch.tensor([[-1.0, 0.0], [0.5, 4.1]])
    codes, scale, azp = gemmill.dynamic_tensor_scaled_int8_quant(x, symmetric=False)
    assert codes.min() == codes[0, 0] == -128 and codes.max() == codes[1, 1] == 127
    assert torch.allclose((codes.float() - azp) * scale, x, atol=scale.item() / 2 * 1.01)


def packed_call(x: torch.Tensor, out: torch.Tensor, packed: torch.Tensor) -> None:
    torch.ops.gemmill.per_token_group_fp8_quant_packed(x, out, packed, 128, 1e-10, -448.0, 448.0)


@pytest.mark.parametrize(
    ("shape", "strides"), [((1, 2), (1, 4)), ((1, 2), (8, 4)), ((1, 2), (0, 4)), ((1, 1, 2), (3, 7, 4))]
)
def test_packed_scales_of_one_row_are_padded_wherever_it_claims_to_lie(shape: tuple, strides: tuple) -> None:
    x = values(*shape[:-1], 640)
    memory = torch.full((32,), -1, dtype=torch.int32)
    out = torch.empty(x.shape, dtype=E4M3)
    packed_call(x, out, memory.as_strided(shape, strides))
    codes, scales = reference.group_quant(
        x.view(1, 640), 128, DType.E4M3, smallest_amax=1e-10, scale_format=ScaleFormat.PACKED_UE8M0
    )
    words = reference.pack_ue8m0(scales)[0].tolist()
    assert same((out.view(1, 640),), (codes,))
    assert memory.tolist() == [words[0], 0, 0, 0, words[1], *[-1] * 27]


@pytest.mark.parametrize(("rows", "of_out", "zeroed"), [(1, 4, 4), (3, 4, 4), (5, 6, 6), (5, 11, 8), (4, 6, 4)])
def test_rows_that_pad_the_codes_of_packed_scales_are_zeroed(rows: int, of_out: int, zeroed: int) -> None:
    x = values(rows, 640)
    out = torch.full((of_out + 1, 656), 0xFF, dtype=torch.uint8)
    wanted, packed = gemmill.per_token_group_fp8_quant_packed(x, 128)
    packed_call(x, out.view(E4M3)[:of_out, :640], packed)
    assert same((out.view(E4M3)[:rows, :640],), (wanted,))
    assert not out[rows:zeroed, :640].any()
    assert (out[zeroed:] == 0xFF).all() and (out[:, 640:] == 0xFF).all()


def test_fewer_rows_of_codes_than_of_input_are_refused() -> None:
    with pytest.raises(RuntimeError) as error:
        packed_call(values(3, 640), torch.empty(2, 640, dtype=E4M3), torch.empty(2, 4).int().t()[:3])
    assert str(error.value) == (
        "per_token_group_fp8_quant_packed: output_q is [2, 640], expected [3, 640] or [3 or more, 640] for an input of [3, 640]"
    )


@pytest.mark.parametrize("shape", [(2, 0), (3, 0, 2), (0, 3)])
@pytest.mark.parametrize("op", [op.name for op in QUANT_SCHEMAS if "input" in op.arguments])
def test_dense_empty_tensors_are_taken(op: str, shape: tuple) -> None:
    rng = random.Random(op)
    for _ in range(10):
        getattr(torch.ops.gemmill, op).default(*empty_call(op, shape, rng))


@pytest.mark.parametrize("dtype", [E4M3, S8])
def test_rows_without_elements_have_the_scale_of_zeros(dtype: torch.dtype) -> None:
    x, zeros = torch.empty(2, 3, 0, dtype=torch.bfloat16), torch.zeros(2, 3, 16, dtype=torch.bfloat16)
    calls = [
        lambda x: gemmill.silu_and_mul_per_token_quant(x, dtype),
        lambda x: gemmill.rms_norm_dynamic_per_token_quant(x, torch.ones(x.shape[-1]).bfloat16(), 1e-6, dtype),
        gemmill.dynamic_per_token_scaled_fp8_quant if dtype is E4M3 else gemmill.dynamic_scaled_int8_quant,
        *([] if dtype is E4M3 else [lambda x: gemmill.dynamic_scaled_int8_quant(x, symmetric=False)]),
    ]
    for call in calls:
        empty, wanted = call(x), call(zeros)
        assert empty[0].shape == (2, 3, 0)
        assert [bits(t) for t in empty[1:] if t is not None] == [bits(t) for t in wanted[1:] if t is not None]


def test_a_bound_that_is_nan_bounds_nothing() -> None:
    x, nan = values(4, 256), torch.tensor([float("nan")])
    weight = values(256)
    for call in (
        lambda ub: gemmill.dynamic_per_token_scaled_fp8_quant(x, ub),
        lambda ub: gemmill.silu_and_mul_per_block_quant(x, 64, scale_ub=ub),
        lambda ub: gemmill.silu_and_mul_per_token_quant(x, scale_ub=ub),
        lambda ub: gemmill.rms_norm_dynamic_per_token_quant(x, weight, 1e-6, E4M3, ub),
    ):
        assert same(call(nan), call(None))


def test_of_several_scales_of_a_tensor_the_first_is_written() -> None:
    x, scales = values(4, 64), torch.full((4, 3), -1.0)
    codes = torch.empty(4, 64, dtype=E4M3)
    torch.ops.gemmill.dynamic_scaled_fp8_quant(codes, x, scales[:, 1:2])
    wanted = gemmill.dynamic_scaled_fp8_quant(x)
    assert same((codes, scales[0, 1:2]), wanted)
    assert (scales == -1.0).sum() == 11
    with pytest.raises(RuntimeError) as error:
        torch.ops.gemmill.dynamic_scaled_fp8_quant(codes, x, torch.empty(0, 1))
    assert str(error.value) == (
        "dynamic_scaled_fp8_quant: scale has shape [0, 1]: expected one value, for the tensor, or more, of which the first "
        "is written"
    )


@pytest.mark.parametrize("size", [32, 64])
def test_the_largest_scale_of_four_fine_groups_is_that_of_the_coarse_one(size: int) -> None:
    x, weight = values(5, 512), values(1, 512)[0]
    found = {
        group: (
            gemmill.rms_norm_per_block_quant(x, weight, 1e-6, E4M3, group)[1],
            gemmill.silu_and_mul_per_block_quant(x, group)[1],
        )
        for group in (size, 128)
    }
    for fine, coarse in zip(found[size], found[128], strict=True):
        assert fine.shape[1] == coarse.shape[1] * (128 // size)
        assert torch.equal(fine.unflatten(1, (-1, 128 // size)).amax(dim=2), coarse)
        assert not torch.equal(fine[:, :1].expand(-1, fine.shape[1]), fine), "the data shows it"
