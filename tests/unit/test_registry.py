"""Declarations of families that contradict themselves or one another: one sentence each."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from examined import examine, examine_binding
from gemmill.families.quant.family import FAMILY as QUANT
from gemmill.families.scaled_mm.config import KernelConfig, Launch
from gemmill.families.scaled_mm.family import CUTEDSL, CUTLASS, FAMILY
from gemmill.family import (
    Aspect,
    Check,
    ClassAxis,
    Classes,
    Family,
    Field,
    Layout,
    Op,
    OpSchema,
    OpSet,
    Registry,
    Tensor,
)
from gemmill.locations import kernels_dir, templates_dir
from gemmill.registry import REGISTRY
from gemmill.vocab import Backend, DType

Make = Callable[..., KernelConfig]
WIDE = Launch(swizzle=4)
UNSWIZZLED = tuple(field for field in CUTLASS.grammar.fields if "launch.swizzle" not in field.paths)


def test_contracts_agree() -> None:
    REGISTRY.check_contracts()


@pytest.mark.parametrize("family", REGISTRY.families, ids=lambda family: family.name)
def test_names_and_sources_are_what_is_declared(family: Family) -> None:
    examine(family, (family.home or templates_dir().parent) / "templates")


@pytest.mark.parametrize("family", REGISTRY.families, ids=lambda family: family.name)
def test_a_binding_reads_what_the_ops_have(family: Family) -> None:
    examine_binding(family, (family.home or kernels_dir().parent) / "kernels")


@pytest.mark.parametrize(
    ("tensors", "values", "sentence"),
    [
        (
            '"input", "out", "weigth"',
            "",
            "toys/binding.cpp reads 'weigth', and no op has an argument of that name, of input, out",
        ),
        (
            '"input", "out"',
            '"M", "L"',
            "toys/binding.cpp reads 'L', and no op has a size of that name, of K, M, input, out",
        ),
        ('"out"', '"M"', "toys/binding.cpp does not read 'input', of out"),
    ],
)
def test_what_a_binding_lacks(tensors: str, values: str, sentence: str, tmp_path: Path) -> None:
    (tmp_path / "toys").mkdir()
    declared = f'Family const toys{{\n    "toys",\n    {{{tensors}}},\n    {{{values}}},\n}};\n'
    (tmp_path / "toys" / "binding.cpp").write_text(declared)
    x, out = (Tensor(role, "M K", (DType.F32,), Layout.ROWS) for role in ("input", "out"))
    op = Op(
        schema=OpSchema("halve(Tensor input) -> Tensor"), tensors=(x, out), contract=(Check(Aspect.WHOLE, "input"),)
    )
    with pytest.raises(ValueError) as error:
        examine_binding(replace(FAMILY, name="toys", asks=OpSet(ops=(op,)), epilogues=None), tmp_path)
    assert re.sub(r", op '\w+'", "", str(error.value)) == f"family 'toys': {sentence}"


def test_a_family_that_is_not_declared_to_cpp(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^family 'toys' is declared to C\+\+ by no file of "):
        examine_binding(replace(FAMILY, name="toys"), tmp_path)


@pytest.mark.parametrize(
    ("families", "sentence"),
    [
        ((FAMILY, replace(QUANT, kernels=(CUTLASS,))), "families 'scaled_mm' and 'quant' both have kernels of tag 'cutlass'"),
        ((replace(FAMILY, kernels=(CUTLASS, CUTLASS)),), "families 'scaled_mm' and 'scaled_mm' both have kernels of tag 'cutlass'"),
        ((FAMILY, replace(QUANT, tuning=FAMILY.tuning)), "families 'scaled_mm' and 'quant' both measure a class 'fp8'"),
        ((FAMILY, replace(QUANT, name="scaled_mm")), "two families have one name, of scaled_mm, scaled_mm"),
        ((replace(FAMILY, name="Scaled-MM"),), "family 'Scaled-MM': 'Scaled-MM' is no lower-case identifier, which names are made of"),
        (
            (replace(FAMILY, kernels=(replace(CUTLASS, tag="cut_lass"),)),),
            "family 'scaled_mm': tag 'cut_lass' has an underscore, which parts fields of names",
        ),
    ],
)  # fmt: skip
def test_words_that_contradict(families: tuple[Family, ...], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        Registry(families)


def test_a_class_axis_that_no_op_has() -> None:
    x, out = (Tensor(role, "M K", (DType.F32,), Layout.ROWS) for role in ("input", "out"))
    axes = Classes((ClassAxis(name="rows", expression="L", values={0: 0, 1: 1}),))
    op = Op(
        schema=OpSchema("halve(Tensor input) -> Tensor"),
        tensors=(x, out),
        contract=(Check(Aspect.WHOLE, "input"), axes),
    )
    sentence = (
        "family 'toys': class axis 'rows' is told by 'L', and no op has a size of that name, of K, M, class, input, out"
    )
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        Registry((replace(FAMILY, name="toys", asks=OpSet(ops=(op,))),)).check_contracts()


def toys(*configs: KernelConfig, **changes: Any) -> Family:
    kernels = (replace(CUTLASS, **changes),)
    return replace(FAMILY, name="toys", kernels=kernels, selections={"smoke": lambda _: configs})


def test_a_config_of_no_kernels(make_config: Make) -> None:
    sentence = "family 'toys': selection 'smoke' has a config of tag 'cutedsl', its kernels are of 'cutlass'"
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
        examine(toys(make_config(backend=Backend.CUTEDSL)), templates_dir())


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"grammar": replace(CUTLASS.grammar, config=int)}, "a config is KernelConfig, declared is int"),
        (
            {"grammar": replace(CUTLASS.grammar, fields=(Field("b_{operands.a_dtype}"),))},
            "field 'b_e4m3' of the name of CONFIG is no word of letters and digits, which fields are made of",
        ),
        (
            {"grammar": replace(CUTLASS.grammar, fields=CUTLASS.grammar.fields[:5])},
            "name e4m3_e4m3_f32_bf16_scaledbias of CONFIG is not read back: it does not tell design",
        ),
        (
            {
                "grammar": replace(
                    CUTLASS.grammar, fixed={"backend": Backend.CUTLASS, "launch.swizzle": 4}, fields=UNSWIZZLED
                )
            },
            "name NAME of CONFIG is read back as OTHER",
        ),
        (
            {"spell": lambda config: replace(CUTLASS.spell(config), template="scaled_mm/cutlass/gone.cu.jinja")},
            f"template 'scaled_mm/cutlass/gone.cu.jinja' of NAME is not in {templates_dir()}",
        ),
        (
            {"spell": CUTEDSL.spell},
            "template 'dsl/kernel.py.jinja' is for nvcc, which compiles what comes of .cu.jinja",
        ),
    ],
)
def test_what_no_config_of_the_kernels_holds(make_config: Make, changes: dict[str, Any], sentence: str) -> None:
    config = make_config()
    sentence = sentence.replace("CONFIG", str(config)).replace("OTHER", str(replace(config, launch=WIDE)))
    sentence = sentence.replace("NAME", "_".join(CUTLASS.grammar.words(config)))
    with pytest.raises(ValueError) as error:
        examine(toys(config, **changes), templates_dir())
    assert str(error.value) == f"family 'toys', kernels 'cutlass': {sentence}"
