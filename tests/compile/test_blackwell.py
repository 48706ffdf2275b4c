"""The templates for later architectures, compiled and inspected: nothing here runs a kernel."""

import pytest

from gemmill import settings
from gemmill.build.driver import build
from gemmill.build.options import BuildOptions
from gemmill.build.sass import architectures
from gemmill.build.toolchain import ToolchainPaths
from gemmill.manifest.reading import check_extension
from gemmill.space.selections import select
from gemmill.vocab import Arch

TENSOR_CORE = {Arch.SM100A: "UTCQMMA", Arch.SM120A: "QMMA"}


@pytest.mark.parametrize("arch", TENSOR_CORE)
def test_smoke_selection(arch: Arch, toolchain: ToolchainPaths) -> None:
    # In a home of its own, which keeps the objects for the next run: no one must load these builds by chance.
    made = build(select("smoke", arch), BuildOptions(home=settings.home() / "inspected"))
    assert made.rejected == ()
    extension = check_extension(made.manifest, made.folder)
    assert architectures(extension, toolchain.cuobjdump) == (arch.gencode.split("=")[-1],)
    for entry in made.manifest.entries:
        assert entry.config.arch is arch and entry.config.problem.a_dtype == "e4m3"
        assert entry.sass.get(TENSOR_CORE[arch], 0) > 0, f"FP8 does not reach the tensor core: {entry.sass}"
        assert entry.sass.get("UTMALDG", 0) >= 2, "both operands are promised to travel by TMA"
        assert not {"LDL", "STL"} & entry.sass.keys() and entry.spill_bytes == 0, "the kernel spills to local memory"
