"""Loading whole builds, in interpreters of their own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import gemmill

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
    command = [sys.executable, "-c", textwrap.dedent(HAS_KERNEL) + textwrap.dedent(code)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Overriding" not in done.stderr, "torch warns of kernels that take others' place"
    return done.stdout.splitlines()


def test_two_builds_in_one_process(home_of_probes) -> None:
    code = """
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
        import gemmill.compat.vllm
        gemmill.load()
        print(has_kernel("_C"), *map(torch.ops._C.cutlass_scaled_mm_supports_fp8, (80, 90)))
    """
    assert run_python(home_of_probes, code) == ["True False True"]
