"""The arguments of a kernel that ends in a user's epilogue: vectors and numbers, each in its place."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch

from gemmill.families import scaled_mm
from gemmill.families.scaled_mm.classes import Need, class_code
from gemmill.families.scaled_mm.own import class_of_epilogue, op_of
from gemmill.locations import kernels_dir
from gemmill.registry import REGISTRY
from gemmill.runtime.declaring import declare
from gemmill.runtime.schemas import BY_NAME
from gemmill.wheel.reproducer import read_arguments
from own_epilogues import everything

M, N, K = 16, 32, 64
OP = op_of(everything.traced)
HEADER = (kernels_dir() / "scaled_mm" / "abi.h").read_text()


@pytest.fixture
def run(probe, with_table: Callable) -> Iterator[Callable]:
    """The op, served by kernels of the probe as if they ended in its epilogue."""
    family, library = REGISTRY.named(scaled_mm.NAME), torch.library.Library("own_probe", "FRAGMENT")
    number = class_code(Need.SCALE, "float8_e4m3fn", "bfloat16", own=class_of_epilogue(everything.traced))
    table, gemms = probe.build.table, probe.build.table.families[scaled_mm.NAME]
    of_gemms = [replace(row, call_class=number) for row in table.rows[gemms.start : gemms.stop]]
    with_table(rows=(*of_gemms, *table.rows[gemms.stop :]), tuned=())
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(REGISTRY.ops, OP.schema.name, (family, OP))
        patch.setitem(BY_NAME, OP.schema.name, OP.schema)
        library.define(OP.schema.schema)
        declare(probe.build._library, family, OP)
        registration = probe.build.register("own_probe", "CPU")
        yield getattr(torch.ops.own_probe, OP.schema.name).default
        probe.build.unregister(registration)


@pytest.mark.parametrize("one", ["a_scale other", "shift gain b_scale bias"])
def test_every_vector_and_number_has_its_place(one: str, run: Callable, probe) -> None:
    dtypes = {"gain": torch.bfloat16, "bias": torch.bfloat16, "shift": torch.int32, "other": torch.int32}
    lengths = dict.fromkeys(("a_scale", "shift", "gain"), M) | dict.fromkeys(("b_scale", "bias", "other"), N)
    given = {
        "out": torch.zeros(M, N, dtype=torch.bfloat16),
        "a": torch.zeros(M, K).to(torch.float8_e4m3fn),
        "b": torch.zeros(N, K).to(torch.float8_e4m3fn).t(),
        **{
            name: torch.ones(1 if name in one.split() else length, dtype=dtypes.get(name, torch.float32))
            for name, length in lengths.items()
        },
        "alpha": 1.5,
        "limit": 2.5,
    }
    with probe.build.recording() as launches:
        run(*(given[name] for name in OP.schema.arguments))
    ((_, told),) = launches
    found = {field.name: field.value for field in read_arguments(HEADER, told)[1]}
    wanted = {f"{along}3{end}": 0 for along in ("row", "column") for end in ("", "_step")}
    for name, length in lengths.items():
        wanted[OP.roles[name]] = given[name].data_ptr()
        wanted[f"{OP.roles[name]}_step"] = int(given[name].numel() == length)
    wanted |= {OP.roles["alpha"]: 1.5, OP.roles["limit"]: 2.5}
    assert {name: found[name] for name in wanted} == wanted
