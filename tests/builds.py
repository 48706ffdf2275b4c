"""Builds without an extension: a manifest and the table that it gives."""

from collections.abc import Callable

import pytest

from gemmill.families import scaled_mm
from gemmill.families.scaled_mm.classes import Need, class_code
from gemmill.families.scaled_mm.config import KernelConfig
from gemmill.family import ShapedCall
from gemmill.manifest import Manifest
from gemmill.registry import REGISTRY
from gemmill.runtime import ops
from gemmill.runtime.invariance import Invariance
from gemmill.runtime.library import Build
from gemmill.runtime.tuned import Tuned
from gemmill.runtime.variant_table import VariantTable, make_variant_table
from gemmill.space.selections import select


class TableOnly(Build):
    """The facts of a build without its extension; the pin is kept here."""

    def __init__(self, manifest: Manifest, table: VariantTable) -> None:
        self.manifest = manifest
        self.table = table
        self.pinned = -1
        self.invariance = Invariance(table, (), (), 132)
        self.tuned = Tuned(choices=(), tables=())

    def pin(self, row: int) -> int:
        before, self.pinned = self.pinned, row
        return before


@pytest.fixture
def smoke_configs() -> tuple[KernelConfig, ...]:
    return REGISTRY.configs_of(scaled_mm.NAME, select("smoke").configs)


@pytest.fixture
def table_of(make_manifest: Callable[..., Manifest]) -> Callable[..., VariantTable]:
    """The table of configs, with measured choices if given."""

    def make(*configs: KernelConfig, tuned: tuple = ()) -> VariantTable:
        entries = make_manifest(*configs).entries
        return make_variant_table(entries, sorted({entry.symbol for entry in entries}), tuned)

    return make


@pytest.fixture
def smoke_build(
    make_manifest: Callable[..., Manifest],
    table_of: Callable[..., VariantTable],
    smoke_configs: tuple[KernelConfig, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> TableOnly:
    """The smoke selection as the active build."""
    build = TableOnly(make_manifest(*smoke_configs), table_of(*smoke_configs))
    monkeypatch.setattr(ops, "_active", build)
    return build


@pytest.fixture
def shaped_call() -> Callable[..., ShapedCall]:
    """A call, by default of e4m3 to bf16 with a bias, everything aligned."""

    def make(
        need: Need = Need.BIAS, operand: str = "float8_e4m3fn", out: str = "bfloat16", **changes: int
    ) -> ShapedCall:
        given = {"m": 16, "n": 4096, "k": 4096, "align_a": 16, "align_b": 16, "align_d": 16} | changes
        sizes, alignments = (tuple(given.values())[i : i + 3] for i in (0, 3))
        return ShapedCall(
            family=scaled_mm.NAME, call_class=class_code(need, operand, out), sizes=sizes, alignments=alignments
        )

    return make
