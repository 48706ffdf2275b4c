"""DSL kernels compiled ahead of time: the object's parts, the instructions that the schedule promises, no spills."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gemmill.build.toolchain import ToolchainPaths

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("cutlass") is None, reason="nvidia-cutlass-dsl is not installed"
)

PROGRAM = """
import sys
sys.argv[0] = "gemmill"  # a worker of the command: without torch
from pathlib import Path
from gemmill.families.scaled_mm.dsl.export import export
from gemmill.space.names import parse_name
for name in sys.argv[2:]:
    export(parse_name(name), name, Path(sys.argv[1]))
"""
FAST = (
    "sm90a_cutedsl_e4m3_e4m3_f32_bf16_scaledbias_channel_t128x128x128_c2x1x1_pingpong_fast_persistent_ab_sauto_a16b16d8"
)
SWAPPED = "sm90a_cutedsl_e4m3_e4m3_f32_f16_scaled_channel_t64x16x256_c1x1x1_basic_fast_persistent_swapab_sauto_a16b16d8"
SPLIT = "sm90a_cutedsl_s8_s8_s32_bf16_scaledazppertoken_channel_t64x16x512_c1x1x1_basic_exact_splitk_swapab_s5_a16b16d8"
PROMOTED = "sm90a_cutedsl_e4m3_e4m3_f32_bf16_scaledbias_channel_t256x128x128_c1x2x1_cooperative_promoted_persistent_ab_sauto_a16b16d8"
PLAIN = (
    "sm90a_cutedsl_bf16_bf16_f32_bf16_scaledbias_channel_t128x128x64_c2x1x1_pingpong_fast_persistent_ab_sauto_a8b8d8"
)
S8_GROUPS = "sm90a_cutedsl_s8_s8_s32_bf16_scaledbias_groupblock128strided_t128x128x128_c2x1x1_cooperative_exact_persistent_ab_sauto_a16b16d8"
GROUPS_32 = "sm90a_cutedsl_e4m3_e4m3_f32_bf16_scaledbias_groupblock32strided_t128x128x128_c2x1x1_cooperative_promoted_persistent_ab_sauto_a16b16d8"
NARROW_32 = "sm90a_cutedsl_e4m3_e4m3_f32_bf16_scaledbias_groupblock32strided_t64x64x128_c1x1x1_basic_promoted_persistent_swapab_sauto_a16b16d8"
FOURS_32 = NARROW_32.replace("sauto", "sauto_p4")
RESTARTED = "sm90a_cutedsl_e4m3_e4m3_f32_bf16_scaledbias_groupblock128strided_t128x64x128_c2x1x1_cooperative_promoted_restarted_ab_sauto_d256_a16b16d8"
WIDE_RESTARTED = RESTARTED.replace("t128x64", "t128x128")
NAMES = [FAST, SWAPPED, SPLIT, PROMOTED, PLAIN, S8_GROUPS, GROUPS_32, NARROW_32, FOURS_32, RESTARTED, WIDE_RESTARTED]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the objects and headers of all kernels here, made by one process."""
    folder = tmp_path_factory.mktemp("exported")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), *NAMES], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return folder


def sass(exported: Path, name: str, toolchain: ToolchainPaths, tmp_path: Path) -> str:
    """The machine code in an exported object, which holds the cubin as data."""
    data = (exported / f"{name}.o").read_bytes()
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(data[data.index(b"\x7fELF", 4) :])
    done = subprocess.run([toolchain.cuobjdump, "--dump-sass", cubin], capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize(
    ("name", "promised"),
    [
        (FAST, ("QGMMA.64x128x32", "UTMALDG.2D.MULTICAST", "UTMASTG", "STSM", "USETMAXREG")),
        (SWAPPED, ("QGMMA.64x16x32", "UTMALDG.2D", "UTMASTG", "STSM.16.MT88", "UTMAPF.L2")),
        (SPLIT, ("IGMMA.64x16x32", "UTMALDG.2D", "UCGABAR_ARV", "UTMAPF.L2")),
        (PROMOTED, ("QGMMA.64x128x32", "UTMALDG.2D.MULTICAST", "UTMASTG", "FADD", "USETMAXREG")),
        (PLAIN, ("HGMMA.64x128x16", "UTMALDG.2D.MULTICAST", "UTMASTG", "USETMAXREG")),
        (GROUPS_32, ("QGMMA.64x128x32", "UTMALDG.2D.MULTICAST", "UTMASTG", "USETMAXREG")),
        (NARROW_32, ("QGMMA.64x64x32", "UTMALDG.2D", "UTMASTG", "STSM.16.MT88")),
        (FOURS_32, ("QGMMA.64x64x32", "WARPGROUP.DEPBAR.LE gsb0, 0x3")),  # three are multiplied while one is promoted
        (RESTARTED, ("QGMMA.64x64x32", "WARPGROUP.DEPBAR.LE gsb0, 0x1", "FADD", "UTMASTG")),
        (WIDE_RESTARTED, ("QGMMA.64x128x32", "FADD", "UTMASTG", "USETMAXREG")),
        (S8_GROUPS, ("IGMMA.64x128x32", "I2F", "UTMALDG.2D.MULTICAST", "UTMASTG", "USETMAXREG")),
    ],
)
def test_the_code_has_what_the_schedule_promises(
    exported: Path, toolchain: ToolchainPaths, tmp_path: Path, name: str, promised: tuple[str, ...]
) -> None:
    code = sass(exported, name, toolchain, tmp_path)
    assert [instruction for instruction in promised if instruction not in code] == []
    assert re.findall(r"\b(?:STL|LDL)\b", code) == []
    # ptxas that cannot see through the use of accumulators waits for every single WGMMA.
    assert code.count("WARPGROUP.DEPBAR.LE gsb0, 0x0") < len(re.findall(r"[HQI]GMMA\.", code))


@pytest.mark.parametrize(
    "name", [name for name in NAMES if "_restarted_" not in name]
)  # which deal K to slices by a division
def test_no_division_holds_up_a_tile(exported: Path, toolchain: ToolchainPaths, tmp_path: Path, name: str) -> None:
    assert "MUFU.RCP" not in sass(exported, name, toolchain, tmp_path)  # with which every division by a variable begins


@pytest.mark.parametrize("name", NAMES)
def test_the_header_declares_what_a_launcher_calls(exported: Path, name: str) -> None:
    header = (exported / f"{name}.h").read_text()
    for symbol in (f"_mlir_{name}_cuda_init", f"_mlir_{name}_cuda_load_to_device", f"cute_dsl_{name}_wrapper"):
        assert symbol in header
    signature = re.search(rf"cute_dsl_{name}_wrapper\((.*?)\) {{", header)
    assert signature is not None
    assert [parameter.split()[-1].lstrip("*") for parameter in signature[1].split(", ")] == [
        "module", "call", "how", "ticket", "stream",
    ]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_the_host_code_runs_on_any_recent_processor(exported: Path, name: str) -> None:
    code = subprocess.run(["objdump", "-d", exported / f"{name}.o"], capture_output=True, text=True, check=True).stdout
    assert "<_mlir_" in code
    assert "zmm" not in code
