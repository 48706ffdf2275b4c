"""Users' epilogues as visitors of CUTLASS's, and the codes that they store."""

from dataclasses import replace
from typing import cast

import pytest
import torch

from gemmill.emit import emit
from gemmill.epilogue import (
    ColumnOut,
    ColumnS32,
    RowOut,
    RowS32,
    Scalar,
    Value,
    epilogue,
    maximum,
    tanh,
    where,
)
from gemmill.families.scaled_mm import own
from gemmill.families.scaled_mm.accepts import accepted
from gemmill.families.scaled_mm.bounds import outside_of_own, own_interval
from gemmill.families.scaled_mm.cases.own import of_config
from gemmill.families.scaled_mm.classes import class_of, classes_of
from gemmill.families.scaled_mm.reference import own_mm
from gemmill.registry import REGISTRY
from gemmill.space.names import parse_name, to_name
from gemmill.vocab import Accumulation, Arch, Backend, DType, TileScheduler
from own_epilogues import codes, integers, visitors


@pytest.mark.parametrize("arch", Arch)
def test_visitors(arch: Arch) -> None:
    assert bool(visitors(integers, arch)) is (arch is Arch.SM90A), "s8 is offered there alone"
    made = visitors(codes, arch)
    assert {config.operands.out_dtype for config in made} == {DType.E4M3, DType.BF16}
    for config in made:
        assert config.tag == own.VISITOR_TAG and parse_name(to_name(config)) == config
        assert REGISTRY.check(config), REGISTRY.check(config).reason
        assert config.design.alignment_d * config.operands.out_dtype.bits == 128
        assert next(of_config(config)).op == codes.name
    (told,) = {
        class_of(code) for config in made for code in classes_of(accepted(config)) if class_of(code).out is DType.E4M3
    }
    assert (told.operand, told.own) == (DType.E4M3, own.class_of_epilogue(codes.traced))


def test_what_visitors_cannot_do() -> None:
    config = next(config for config in visitors(codes) if config.operands.out_dtype is DType.E4M3)
    split = replace(config, design=replace(config.design, tile_scheduler=TileScheduler.SPLIT_K))
    assert REGISTRY.check(split).reason == "pingpong with splitk is no collective of CUTLASS's: it has no visitors"
    of_dsl = replace(config, backend=Backend.CUTEDSL)
    assert REGISTRY.check(of_dsl).reason == "out e4m3 of e4m3 operands is not offered: it is bf16 or f16"


def test_a_visitor_has_each_step_once() -> None:
    def steps(acc: Value, gain: RowOut, at: Scalar) -> Value:
        x = -abs(acc) / gain + 1.5
        return where(x >= at, x, maximum(tanh(acc), float("-inf")))

    (config, *_) = visitors(epilogue(results=("e4m3",))(steps))
    text = emit(config).text
    for line in (
        "float operator()(Arguments const& given, float v0, float v1) const {",
        "float const v2 = given.scalar0;",
        "auto const v3 = fabsf(v0);",
        "auto const v4 = -v3;",
        "auto const v5 = v4 / v1;",
        "auto const v6 = __uint_as_float(0x3FC00000u);",
        "auto const v8 = v7 >= v2;",
        "auto const v10 = __uint_as_float(0xFF800000u);",
        "auto const v11 = fmaxf(v9, v10);",
        "auto const v12 = v8 ? v7 : v11;",
        "return v12;",
        "epilogue::SteppedNode<Steps, ElementD, epilogue::Accumulator, AlongM<ElementD>>;",
        "return {accumulator, row0, {x.scalar0}};",
    ):
        assert text.count(line) == 1, line


def test_a_visitor_of_integers_wraps_and_reads_what_is_absent() -> None:
    half, seven = cast(Value, -0.5), cast(Value, -7)

    def steps(acc: Value, zero: RowS32, shift: ColumnOut = half, sums: ColumnS32 = seven) -> Value:
        x = maximum(-(acc - zero * sums), 5)
        return where(abs(x) > zero, x, 0) + shift

    (config, *_) = visitors(epilogue(operands=("s8",))(steps))
    text = emit(config).text
    for line in (
        "float operator()(Arguments const& given, int v0, int v1, float v2, int v3) const {",
        "auto const v4 = static_cast<int>(static_cast<unsigned>(v1) * static_cast<unsigned>(v3));",
        "auto const v5 = static_cast<int>(static_cast<unsigned>(v0) - static_cast<unsigned>(v4));",
        "auto const v6 = static_cast<int>(0u - static_cast<unsigned>(v5));",
        "auto const v7 = static_cast<int>(5);",
        "auto const v8 = max(v6, v7);",
        "auto const v9 = abs(v8);",
        "auto const v10 = v9 > v1;",
        "auto const v13 = static_cast<float>(v12);",
        "static_cast<int32_t const*>(x.row0), x.row0_step != 0);",
        "static_cast<ElementD const*>(x.column0), x.column0_step != 0, ElementD(-0x1.0000000000000p-1));",
        "static_cast<int32_t const*>(x.column1), x.column1_step != 0, int32_t(-0x1.c000000000000p+2));",
        "return {accumulator, row0, column0, column1, {}};",
    ):
        assert text.count(line) == 1, line


def test_codes_saturate() -> None:
    a = torch.tensor([[448.0], [-448.0], [1.0], [float("nan")]]).to(torch.float8_e4m3fn)
    out = codes(
        a,
        torch.ones(1, 1).to(torch.float8_e4m3fn),
        torch.ones(4),
        torch.full((1,), 2.0),
        -3.0,
        out_dtype=torch.float8_e4m3fn,
    )
    assert out.dtype is torch.float8_e4m3fn and out.float()[:2].flatten().tolist() == [-448.0, 0.0]
    assert out.float()[2].item() == -5.5 and out.float()[3].isnan().item()
    alone = epilogue(results=("e4m3",))(codes.function)
    assert (
        alone(a, torch.ones(1, 1).to(torch.float8_e4m3fn), torch.ones(4), torch.ones(1), 1.0).dtype
        is torch.float8_e4m3fn
    )


def test_bounds_find_a_neighbouring_code() -> None:
    case = next(of_config(next(c for c in visitors(codes) if c.operands.out_dtype is DType.E4M3)))
    given, _ = replace(case, product=replace(case.product, data="integers"))._made(torch.device("cpu"))
    given["out"].copy_(own_mm(codes.traced, given))
    ends = own_interval(codes.traced, given, Accumulation.EXACT)
    assert not outside_of_own(given["out"], ends).any()
    moved = (given["out"].view(torch.uint8) ^ 1).view(torch.float8_e4m3fn)
    assert outside_of_own(moved, ends).double().mean() > 0.9
