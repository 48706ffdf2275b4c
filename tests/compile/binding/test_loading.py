"""Loading whole builds, in interpreters of their own."""

import os
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

import gemmill
from gemmill.build.sources import expand, flags_for, roots_of
from gemmill.build.toolchain import ToolchainPaths
from gemmill.locations import kernels_dir
from gemmill.vocab import Arch
from interpreters import run_script

SOURCE = Path(gemmill.__file__).parent.parent
HAS_KERNEL = """
    import gemmill, torch
    def has_kernel(namespace):
        return torch._C._dispatch_has_kernel_for_dispatch_key(f"{namespace}::cutlass_scaled_mm", "CUDA")
"""


def run_python(home: Path, code: str, **settings: str) -> list[str]:
    """The lines that a new interpreter prints."""
    environment = {name: value for name, value in os.environ.items() if name != "GEMMILL_BUILD"}
    environment |= {"GEMMILL_HOME": str(home), "PYTHONPATH": str(SOURCE)} | settings
    done = run_script(textwrap.dedent(HAS_KERNEL) + textwrap.dedent(code), environment=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_two_builds_in_one_process(home_of_probes) -> None:
    code = """
        import os
        os.dup2(1, 2)  # torch would warn there of kernels that take others' place
        first = gemmill.load("aaaaaaaaaaaa")
        second = gemmill.load("bbbbbbbbbbbb")
        print(gemmill.active() is second, gemmill.load("bbbbbbbbbbbb") is second, first is not second)
        print(*map(has_kernel, ("gemmill", "gemmill_aaaaaaaaaaaa", "gemmill_bbbbbbbbbbbb")))
        with gemmill.use_variant(second.manifest.entries[3].name) as entry:
            print(entry.name == second.manifest.entries[3].name, first.pin(-1), second.pin(-1) >= 0)
        print(gemmill.load("aaaaaaaaaaaa") is first, gemmill.active() is first, has_kernel("gemmill"))
        a = torch.ones(2, 16, dtype=torch.int8)
        for namespace in ("gemmill", "gemmill_aaaaaaaaaaaa", "gemmill_bbbbbbbbbbbb"):
            out = torch.zeros(2, 2, dtype=torch.float16)
            getattr(torch.ops, namespace).cutlass_scaled_mm(out, a, a.t(), torch.ones(1), torch.ones(1), None)
            print(out.tolist())
    """
    assert run_python(home_of_probes, code) == [
        "True True True",
        "True True True",
        "True -1 True",
        "True True True",
        *["[[16.0, 16.0], [16.0, 16.0]]"] * 3,
    ]


def test_a_build_that_is_removed_while_it_is_loaded_goes_on_serving(home_of_probes, tmp_path) -> None:
    """A new call of the process finds its sentence; calls of before and after reach the same kernels."""
    shutil.copytree(home_of_probes / "builds", tmp_path / "builds")
    code = """
        import shutil
        from gemmill.compat import linear
        from gemmill.runtime import builds
        loaded = gemmill.load("aaaaaaaaaaaa")
        loaded.register("gemmill", "CPU")
        builds.remove(loaded.folder, force=True)
        print(loaded.folder.exists(), gemmill.active() is loaded, linear.absence(90))
        a, out = torch.ones(2, 16, dtype=torch.int8), torch.zeros(2, 2, dtype=torch.float16)
        torch.ops.gemmill.cutlass_scaled_mm(out, a, a.t(), torch.ones(1), torch.ones(1), None)
        print(gemmill.explain("cutlass_scaled_mm", out, a, a.t(), torch.ones(1), torch.ones(1), None).entry.config.operands.a_dtype)
        try:
            gemmill.load("aaaaaaaaaaab")
        except Exception as error:
            print(type(error).__name__, str(error).split(":")[0])
    """
    assert run_python(tmp_path, code) == [
        "False True None",
        "s8",
        "ManifestError no build 'aaaaaaaaaaab'",
    ]


def test_first_question_loads_the_build_that_is_named(home_of_probes) -> None:
    code = """
        print(gemmill.supports("cutlass_scaled_mm", dtype="e4m3"), gemmill.active().build_id)
        with gemmill.use_variant(gemmill.variants()[-1].name):
            pass
    """
    for build_id in ("aaaaaaaaaaaa", "bbbbbbbbbbbb"):
        assert run_python(home_of_probes, code, GEMMILL_BUILD=build_id) == [f"True {build_id}"]
    folder = str(home_of_probes / "builds" / "aaaaaaaaaaaa")
    assert run_python(Path("/nonexistent"), code, GEMMILL_BUILD=folder) == ["True aaaaaaaaaaaa"]


def test_vllms_names_follow_the_build(home_of_probes) -> None:
    code = """
        import gemmill.compat.vllm.ops
        for query in ("supports_fp8", "supports_block_fp8"):
            print(*map(getattr(torch.ops._C, f"cutlass_scaled_mm_{query}"), (80, 89, 90, 100, 120)))
        print(torch.ops._C.cutlass_scaled_mm.default is torch.ops.gemmill.vllm_cutlass_scaled_mm.default)
    """
    assert run_python(home_of_probes, code) == [*["False False True False False"] * 2, "True"]


@pytest.fixture(scope="session")
def stand_in(toolchain: ToolchainPaths, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that registers ops as vLLM's does, and computes nothing."""
    folder = tmp_path_factory.mktemp("vllm")
    roots, flags = roots_of(toolchain, kernels_dir()), flags_for(Arch.SM90A)
    source = Path(__file__).parent / "vllm_stand_in.cpp"
    command = [toolchain.gxx, *expand(flags.host, roots), source, *expand(flags.link, roots), "-o", folder / "_C.so"]
    subprocess.run(list(map(str, command)), check=True)
    return folder / "_C.so"


@pytest.mark.parametrize("first", ["the module", "vLLM's library"])
def test_vllms_library_may_be_loaded_before_or_after(first: str, home_of_probes, stand_in) -> None:
    steps = [f"torch.ops.load_library({str(stand_in)!r})", "held = torch.ops._C.dynamic_scaled_fp8_quant.default"]
    importing = "import gemmill.compat.vllm.ops"
    steps = [importing, *steps] if first == "the module" else [*steps, importing]
    code = (
        "\n".join(steps)
        + """
x = torch.ones(2, 64)
for op in (held, torch.ops._C.dynamic_scaled_fp8_quant, torch.ops._C.dynamic_scaled_fp8_quant.default):
    codes, scale = torch.zeros(2, 64).to(torch.float8_e4m3fn), torch.zeros(1)
    op(codes, x, scale)
    print(codes.float().unique().item(), torch.allclose(scale * 448, x[0, :1]))
print(torch.ops._C.of_vllm_alone(7), torch.ops._C.cutlass_group_gemm_supported(90))
print(*map(torch.ops._C.cutlass_scaled_mm_supports_fp8, (90, 100)))
"""
    )
    assert run_python(home_of_probes, code) == [*["448.0 True"] * 3, "8 True", "True False"]


REFUSED = """
gemmill.load("aaaaaaaaaaaa").register("gemmill", "CPU")
x, scale, codes = torch.ones(2, 64).bfloat16(), torch.ones(1), torch.zeros(2, 64, dtype=torch.int8)
for op in (torch.ops._C.dynamic_scaled_fp8_quant, torch.ops._C.dynamic_scaled_fp8_quant.default, *held):
    try:
        op(codes, x, scale)
        print(torch.ops._C.count_of_calls())
    except RuntimeError as error:
        print(error)
op(codes.to(torch.float8_e4m3fn), x, scale)
"""


@pytest.mark.parametrize("first", ["the module", "vLLM's library"])
def test_what_is_refused_under_vllms_name_goes_to_its_library(first: str, home_of_probes, stand_in) -> None:
    library = [
        f"torch.ops.load_library({str(stand_in)!r})",
        "held = [torch.ops._C.dynamic_scaled_fp8_quant.default]",
    ]
    steps = ["import gemmill.compat.vllm.ops", *library]
    steps = steps if first == "the module" else [*library, steps[0]]
    code = "\n".join(steps) + REFUSED + "print(torch.ops._C.count_of_calls())"
    assert run_python(home_of_probes, code) == ["1", "2", "3", "3"]


def test_what_is_refused_under_vllms_name_has_its_sentence_where_there_is_no_library(home_of_probes) -> None:
    code = "import gemmill.compat.vllm.ops\nheld = []" + REFUSED
    sentence = "vllm_dynamic_scaled_fp8_quant: result is int8, expected float8_e4m3fn"
    assert run_python(home_of_probes, code) == [sentence] * 2
