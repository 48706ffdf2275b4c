"""The templates for later architectures, compiled, inspected and shipped: nothing here runs a kernel."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gemmill.build.driver import build
from gemmill.build.options import BuildOptions, BuildResult
from gemmill.build.sass import architectures
from gemmill.build.toolchain import ToolchainPaths
from gemmill.families import scaled_mm
from gemmill.manifest.reading import check_extension
from gemmill.space.selections import select
from gemmill.vocab import Arch
from gemmill.wheel import write_wheel

TENSOR_CORE = {Arch.SM100A: "UTCQMMA", Arch.SM120F: "QMMA"}


@pytest.mark.parametrize("arch", TENSOR_CORE)
def test_smoke_selection(arch: Arch, toolchain: ToolchainPaths, inspected: Path) -> None:
    made = build(select("smoke", arch), BuildOptions(home=inspected))
    assert made.rejected == ()
    extension = check_extension(made.manifest, made.folder)
    assert architectures(extension, toolchain.cuobjdump) == (arch.gencode.split("=")[-1].rstrip("f"),), (
        "a family's machine code is listed by its first member"
    )
    assert all(entry.config.arch is arch for entry in made.manifest.entries)
    of_cutlass = [entry for entry in made.manifest.entries if entry.family == scaled_mm.NAME]
    assert of_cutlass
    for entry in of_cutlass:
        assert entry.config.operands.a_dtype == "e4m3"
        assert entry.sass.get(TENSOR_CORE[arch], 0) > 0, f"FP8 does not reach the tensor core: {entry.sass}"
        assert entry.sass.get("UTMALDG", 0) >= 2, "both operands are promised to travel by TMA"
        assert not {"LDL", "STL"} & entry.sass.keys() and entry.spill_bytes == 0, "the kernel spills to local memory"


def test_a_wheel_has_them_side_by_side(smoke: BuildResult, inspected: Path, tmp_path: Path) -> None:
    """Real extensions of all architectures: audited, in one wheel, each serving its own; none is loaded on a CPU."""
    folders = [smoke.folder, *(build(select("smoke", a), BuildOptions(home=inspected)).folder for a in TENSOR_CORE)]
    shipped = write_wheel(folders, tmp_path)
    with zipfile.ZipFile(shipped.path) as archive:
        archive.extractall(tmp_path / "site")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GEMMILL_")}
    environment |= {"PYTHONPATH": str(tmp_path / "site"), "XDG_CACHE_HOME": str(tmp_path / "none")}
    command = [sys.executable, "-m", "gemmill", "builds", "list", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    served = {told["arch"]: told["build"] for told in json.loads(done.stdout) if told["serves"]}
    assert served == {told.arch: told.build_id for told in shipped.manifests}
    assert set(served) == {"sm90a", *TENSOR_CORE}
