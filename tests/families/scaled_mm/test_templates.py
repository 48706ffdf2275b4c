"""Python decides, the template prints: every field of a config reaches its template, and no hole stays empty."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import jinja2
import pytest

from gemmill.build.sources import is_of_dsl
from gemmill.emit import emit, emit_unit
from gemmill.emit.render import TemplateError, environment, render
from gemmill.families import quant, scaled_mm
from gemmill.families.scaled_mm.config import Design, KernelConfig, Launch, Operands
from gemmill.families.scaled_mm.spelling.cutlass import spell
from gemmill.locations import templates_dir
from gemmill.registry import REGISTRY
from gemmill.space.names import symbol_of, to_name
from gemmill.space.selections import SELECTIONS, select
from gemmill.vocab import (
    Accumulation,
    Arch,
    Backend,
    DType,
    EpilogueKind,
    KernelSchedule,
    MainLoop,
    RasterOrder,
    ScaleGranularity,
    ScaleLayout,
    TileScheduler,
)

GROUPS = {
    "a_scale": ScaleGranularity.GROUP,
    "b_scale": ScaleGranularity.BLOCK,
    "group_size": 128,
    "scale_layout": ScaleLayout.STRIDED,
    "accumulation": Accumulation.PROMOTED,
}
BASES = {
    "cooperative": {},
    "pingpong": {"kernel_schedule": KernelSchedule.PINGPONG},
    "swapab": {"swap_ab": True, "tile_shape_mnk": (128, 16, 128), "tile_scheduler": TileScheduler.STREAM_K},
    "split_k": {
        "tile_scheduler": TileScheduler.SPLIT_K,
        "kernel_schedule": KernelSchedule.BASIC,
        "tile_shape_mnk": (64, 16, 256),
        "swap_ab": True,
        "stages": 4,
    },
    "few_rows": {
        "kernel_schedule": KernelSchedule.BASIC,
        "tile_shape_mnk": (64, 16, 256),
        "swap_ab": True,
        "stages": 5,
        "main_loop": MainLoop.FEW_ROWS,
    },
    "int8": {"a_dtype": DType.S8, "epilogue": EpilogueKind.SCALED_AZP_PER_TOKEN},
    "unaligned": {"kernel_schedule": KernelSchedule.MMA_SYNC},
    "group_unaligned": {**GROUPS, "kernel_schedule": KernelSchedule.MMA_SYNC},
    "blockwise": {**GROUPS, "scale_layout": ScaleLayout.MN_MAJOR},
    "sm100a": {"arch": Arch.SM100A},
    "sm120f": {"arch": Arch.SM120F},
}
VALUES: dict[str, tuple[Any, ...]] = {
    "a_dtype": tuple(DType),
    "b_dtype": tuple(DType),
    "accumulator_dtype": tuple(DType),
    "out_dtype": tuple(DType),
    "epilogue": tuple(EpilogueKind),
    "a_scale": tuple(ScaleGranularity),
    "b_scale": tuple(ScaleGranularity),
    "scale_layout": tuple(ScaleLayout),
    "group_size": (0, 64, 128),
    "tile_shape_mnk": (
        (256, 128, 128),
        (128, 64, 128),
        (128, 128, 256),
        (64, 64, 128),
        (64, 128, 64),
        (64, 32, 256),
        (64, 16, 128),
    ),
    "cluster_shape_mnk": ((1, 1, 1), (2, 1, 1), (1, 2, 1)),
    "kernel_schedule": tuple(KernelSchedule),
    "accumulation": tuple(Accumulation),
    "tile_scheduler": tuple(TileScheduler),
    "main_loop": tuple(MainLoop),
    "swap_ab": (False, True),
    "stages": (None, 2, 3),
    "slice_step": (None, 256, 512),
    "partial_sets": (2, 4),
    "alignment_a": (1, 4, 8, 16),
    "alignment_b": (1, 4, 8, 16),
    "alignment_d": (1, 4, 8, 16),
    "raster_order": tuple(RasterOrder),
    "swizzle": (1, 2, 4, 8),
    "splits": (0, 1, 2),
    "arch": tuple(Arch),
    "backend": tuple(Backend),
}
OF_KERNEL = [f.name for part in (Operands, Design) for f in fields(part)] + ["epilogue", "arch", "backend"]
TIED = ["b_dtype", "accumulator_dtype", "alignment_a", "alignment_b", "alignment_d"]
OF_LAUNCH = [f.name for f in fields(Launch)]


def body(config: KernelConfig) -> str:
    """The emitted text, without the name, in which every field shows anyway."""
    return emit(config).text.replace(to_name(config.compiled), "NAME")


def neighbours(make_config, base: dict, field: str) -> list[KernelConfig]:
    """Configs that differ from a base in one field, as far as they can be built and the rules let them be."""
    original = make_config(**base)
    found = []
    for value in VALUES[field]:
        try:
            config = make_config(**base | {field: value})
        except ValueError:
            continue
        if config != original and REGISTRY.check(config):
            found.append(config)
    return found


def test_the_table_above_has_every_field() -> None:
    assert set(VALUES) == {*OF_KERNEL, *OF_LAUNCH}


@pytest.mark.parametrize("base", BASES.values(), ids=BASES)
@pytest.mark.parametrize("field", OF_KERNEL)
def test_every_field_is_read_by_its_template(make_config, base: dict, field: str) -> None:
    """Two legal configs that do not share a compilation never have the same text, or other flags of the compiler."""
    original = make_config(**base)
    assert REGISTRY.check(original)
    for config in neighbours(make_config, base, field):
        texts = [(body(c), c.arch.gencode) for c in (config, original)]
        assert (texts[0] == texts[1]) == (config.compiled == original.compiled), to_name(config)


@pytest.mark.parametrize("field", TIED)
@pytest.mark.parametrize("base", ["cooperative", "pingpong", "swapab", "int8", "sm100a", "sm120f"])
def test_fields_that_the_rules_tie_together_are_read_one_by_one(make_config, base: str, field: str) -> None:
    """These have one value for each operand type; e5m2, which no rule accepts yet, ties none of them."""
    free = {k: v for k, v in BASES[base].items() if k != "a_dtype"} | {"a_dtype": DType.E5M2}
    texts = {body(make_config(**free | {field: value})) for value in VALUES[field]}
    assert len(texts) == len(VALUES[field])


@pytest.mark.parametrize("field", OF_KERNEL)
def test_fields_that_cannot_vary_are_the_reserved_ones(make_config, field: str) -> None:
    """Beyond the two tests above: one value of these goes with each backend, schedule and granularity. The DSL's kernels, which
    alone have a slice step and sets of partial sums, read them from their names."""
    varies = field in TIED or any(neighbours(make_config, base, field) for base in BASES.values())
    assert varies != (field in ("a_scale", "slice_step", "partial_sets"))


@pytest.mark.parametrize(
    ("field", "base"), [("raster_order", "cooperative"), ("swizzle", "cooperative"), ("splits", "split_k")]
)
def test_launch_settings_do_not_reach_the_text(make_config, field: str, base: str) -> None:
    others = neighbours(make_config, BASES[base], field)
    assert others
    assert {emit(config) for config in others} == {emit(make_config(**BASES[base]))}


@pytest.mark.parametrize("arch", Arch)
@pytest.mark.parametrize("name", SELECTIONS)
def test_all_that_is_selected_can_be_emitted(name: str, arch: Arch) -> None:
    files: dict = {}
    for config in select(name, arch).configs:
        file = emit(config)
        assert files.setdefault(file.path, file.text) == file.text
        if is_of_dsl(config):
            assert str(file.path) == f"{arch}/{REGISTRY.family_of(config).name}/{to_name(config.compiled)}.py"
            assert f'\nNAME = "{to_name(config.compiled)}"\n' in file.text
            continue
        assert str(file.path) == f"{arch}/{REGISTRY.family_of(config).name}/{to_name(config.compiled)}.cu"
        assert f'extern "C" int32_t {symbol_of(config)}(' in file.text
        if REGISTRY.family_of(config).name in (scaled_mm.NAME, quant.NAME):
            needs_workspace = "_streamk_" in symbol_of(config) or "_quant_tensor_" in symbol_of(config)
            assert (f"{symbol_of(config)}_workspace(" in file.text) is needs_workspace
    assert len(set(files.values())) == len(files) == len({config.compiled for config in select(name, arch).configs})


def test_emitted_text_is_tidy(make_config) -> None:
    for base in BASES.values():
        text = emit(make_config(**base)).text
        assert text.endswith("\n") and not text.endswith("\n\n")
        assert "\t" not in text and "{{" not in text and "{%" not in text
        assert not re.search(r"[ \t]\n", text)
        assert "\n\n\n" not in text


def test_a_unit_includes_its_files(make_config) -> None:
    files = [emit(make_config()), emit(make_config(stages=2))]
    assert emit_unit(files) == "".join(
        f'#include "sm90a/scaled_mm/{to_name(make_config(stages=s))}.cu"\n' for s in (None, 2)
    )


def test_an_empty_hole_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("one {{ two }}")
    assert environment(tmp_path).undefined is environment().undefined is jinja2.StrictUndefined
    with pytest.raises(TemplateError) as caught:
        render("t.jinja", {}, root=tmp_path)
    assert str(caught.value) == "template t.jinja: 'two' is undefined"


def test_a_template_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("line\n{% if %}")
    with pytest.raises(TemplateError) as caught:
        render("t.jinja", {}, root=tmp_path)
    assert re.match(r"template t\.jinja, line 2: ", str(caught.value))


def test_a_partial_that_is_missing(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{% include 'gone.jinja' %}")
    with pytest.raises(TemplateError) as caught:
        render("t.jinja", {}, root=tmp_path)
    assert str(caught.value) == f"template t.jinja needs gone.jinja, which does not exist in {tmp_path}"


@pytest.mark.parametrize("kind", EpilogueKind)
def test_every_epilogue_has_its_partial(kind: EpilogueKind) -> None:
    assert (templates_dir() / "gemm" / f"_{kind}.jinja").is_file()


def test_every_template_is_used(make_config) -> None:
    used = {spell(make_config(**base)).template for base in BASES.values()}
    assert used == {
        f"scaled_mm/cutlass/{p.name}" for p in (templates_dir() / "scaled_mm" / "cutlass").glob("[!_]*.jinja")
    }
