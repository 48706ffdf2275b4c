"""QuantConfig: names that parse back, and contradictions that cannot be built."""

from dataclasses import fields

import pytest

from gemmill.families.quant.config import (
    Activation,
    Epilogue,
    Operands,
    QuantConfig,
    ScaleFormat,
    Scaling,
    all_configs,
)
from gemmill.families.quant.ops import QUANT_OPS
from gemmill.families.quant.selections import default
from gemmill.space.names import parse_name, symbol_of, to_name
from gemmill.vocab import Arch, DType

ALL = list(all_configs())
BASE = QuantConfig.of(Scaling.GROUP, DType.BF16, out_dtype=DType.E4M3, group_size=128)
AXES = [
    x.name for part in (QuantConfig, Operands, Epilogue) for x in fields(part) if x.name not in ("operands", "epilogue")
]


def changed(**axes: object) -> QuantConfig:
    """BASE with other fields, whatever part of it they are of."""
    return QuantConfig.of(**{name: getattr(BASE, name) for name in AXES} | axes)


def test_every_name_parses_back() -> None:
    assert [parse_name(to_name(config)) for config in ALL] == ALL


def test_names_and_symbols_are_distinct_c_identifiers() -> None:
    assert len({to_name(config) for config in ALL}) == len(ALL)
    assert all(symbol_of(config).isidentifier() for config in ALL)


def test_every_field_is_in_the_name() -> None:
    changes = {
        "scaling": {"scaling": Scaling.RMS_GROUP},
        "in_dtype": {"in_dtype": DType.F16},
        "out_dtype": {"out_dtype": DType.S8},
        "activation": {"activation": Activation.SILU},
        "group_size": {"group_size": 64},
        "scale_format": {"scale_format": ScaleFormat.PACKED_UE8M0},
        "vllm": {"vllm": True},
        "symmetric": {"out_dtype": DType.S8, "symmetric": False},
        "row_sums": {"scaling": Scaling.TOKEN, "group_size": 0, "out_dtype": DType.S8, "row_sums": True},
        "arch": {"arch": Arch.SM100A},
    }
    assert set(changes) == set(AXES)
    names = {to_name(changed(**change)) for change in changes.values()}
    assert len(names | {to_name(BASE)}) == len(changes) + 1


@pytest.mark.parametrize("family", Scaling)
def test_every_family_has_configs_of_both_codes(family: Scaling) -> None:
    codes = {DType.E4M3} if family is Scaling.RMS_STATIC else {DType.E4M3, DType.S8}
    if family.is_blocked:
        codes = {DType.E2M1} if family is Scaling.WEIGHT_DEQUANT else {DType.E2M1, DType.E3M2, DType.E4M3}
    assert {config.out_dtype for config in ALL if config.scaling is family} == codes


def test_the_sixteen_variants_of_the_fused_op_exist() -> None:
    # Both scale layouts are served by each of the eight.
    fused = [
        c
        for c in ALL
        if (c.activation, c.scale_format, c.vllm) == (Activation.SILU, ScaleFormat.F32, False)
        and c.group_size in (64, 128)
    ]
    assert len(fused) == 8


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"in_dtype": DType.S8}, "in_dtype=s8 out_dtype=e4m3: inputs are bf16, f16, f32, codes e4m3, s8 (dtypes)"),
        (
            {"group_size": 48},
            "group_size=48: groups of 32, 64, 128 are held by 2 to 32 lanes of one warp, 16 bytes each (groups)",
        ),
        (
            {"scaling": Scaling.TOKEN},
            "group_size=128 contradicts scaling=token: no scale belongs to a group (groups)",
        ),
        (
            {"scaling": Scaling.RMS_GROUP, "scale_format": ScaleFormat.POWER_OF_TWO},
            "scale_format=f32pow2 contradicts scaling=rmsgroup: powers of two are for group scales of group (scale_format)",
        ),
        (
            {"scaling": Scaling.RMS_GROUP, "activation": Activation.SILU},
            "activation=silu contradicts scaling=rmsgroup: activations are fused with static, token, group, block, experts (activation)",
        ),
        (
            {"scaling": Scaling.RMS_STATIC, "group_size": 0, "out_dtype": DType.S8},
            "out_dtype=s8 contradicts scaling=rmsstatic: by scales that are given, normed rows are coded as e4m3 (normed)",
        ),
        (
            {"group_size": 0, "activation": Activation.SILU},
            "group_size=0 contradicts activation=silu symmetric=True scale_format=f32: kernels of any group are for plain symmetric "
            "codes with a scale in f32 (groups)",
        ),
        (
            {"group_size": 0, "scale_format": ScaleFormat.PACKED_UE8M0},
            "group_size=0 contradicts activation=none symmetric=True scale_format=ue8m0x4: kernels of any group are for plain "
            "symmetric codes with a scale in f32 (groups)",
        ),
        (
            {"group_size": 0, "out_dtype": DType.S8, "symmetric": False},
            "group_size=0 contradicts activation=none symmetric=False scale_format=f32: kernels of any group are for plain "
            "symmetric codes with a scale in f32 (groups)",
        ),
        (
            {"symmetric": False},
            "symmetric=False contradicts out_dtype=e4m3: only s8 codes have a zero point (symmetry)",
        ),
        (
            {"symmetric": False, "out_dtype": DType.S8, "activation": Activation.SILU},
            "symmetric=False contradicts scaling=group activation=silu: zero points are for plain static, tensor, token and group (symmetry)",
        ),
        (
            {"symmetric": False, "out_dtype": DType.S8, "scale_format": ScaleFormat.PACKED_UE8M0},
            "symmetric=False contradicts scale_format=ue8m0x4: with a zero point the scale is f32 (symmetry)",
        ),
        (
            {"vllm": True, "activation": Activation.GELU_ERF},
            "vllm=True contradicts scaling=group out_dtype=e4m3 activation=geluerf symmetric=True: vLLM has no such kernel, or one "
            "with our codes (vllm)",
        ),
        (
            {"vllm": True, "scaling": Scaling.TOKEN, "group_size": 0, "out_dtype": DType.S8},
            "vllm=True contradicts scaling=token out_dtype=s8 activation=none symmetric=True: vLLM has no such kernel, or one with "
            "our codes (vllm)",
        ),
    ],
)
def test_a_contradiction_cannot_be_built(change: dict, text: str) -> None:
    with pytest.raises(ValueError) as error:
        changed(**change)
    assert str(error.value) == text


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "sm90a_quant_token",
            "it ends before in_dtype, expected e4m3, e5m2, e3m2, e2m1, s8, u8, bf16, f16, f32, s32 or s64",
        ),
        (
            "sm90a_quant_token_bf16_e4m3_none_g128f32_sym",
            "group_size=128 contradicts scaling=token: no scale belongs to a group (groups)",
        ),
        (
            "sm90a_quant_rmsgroup_bf16_e4m3_none_f32_sym",
            "group_size=0: groups of 32, 64, 128 are held by 2 to 32 lanes of one warp, 16 bytes each (groups)",
        ),
        (
            "sm90a_quant_group_bf16_e4m3_none_g48f32_sym",
            "group_size=48: groups of 32, 64, 128 are held by 2 to 32 lanes of one warp, 16 bytes each (groups)",
        ),
        (
            "sm90a_quant_token_bf16_e4m3_relu_f32_sym",
            "activation 'relu', expected none, silu, gelutanh, geluerf, onlygelutanh, onlygeluerf or modulate",
        ),
        (
            "sm90a_quant_token_bf16_e4m3_none_f32_skew",
            "row_sums 'skew', expected nothing or vllm, sym or asym, nothing or sums",
        ),
        (
            "sm90a_quant_group_bf16_e4m3_gelutanh_g64f32_vllmsym",
            "vllm=True contradicts scaling=group out_dtype=e4m3 activation=gelutanh symmetric=True: vLLM has no such kernel, or one with our codes (vllm)",
        ),
    ],
)
def test_what_is_no_name_is_refused_with_the_field(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match="is not a kernel name") as error:
        parse_name(name)
    assert reason in str(error.value)


@pytest.mark.parametrize("arch", Arch)
def test_block_scaled_formats_have_kernels_on_every_architecture(arch: Arch) -> None:
    built = set(default(arch))
    block_scaled = {config for op in QUANT_OPS if op.format for config in op.configs(arch)}
    if arch is Arch.SM100A:  # no GEMM reads weights in such blocks there
        block_scaled -= {config for config in block_scaled if config.scaling is Scaling.WEIGHT_DEQUANT}
    assert block_scaled and {config for config in built if config.scaling.is_blocked} == block_scaled
    assert (built == block_scaled) == (arch is Arch.SM100A)
    assert {config.arch for config in built} == {arch}
