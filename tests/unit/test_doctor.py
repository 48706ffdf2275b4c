"""doctor: each finding from right, wrong and missing files and libraries."""

import ctypes
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gemmill.build.errors import BuildError
from gemmill.doctor import elf, examine, extension, machine
from gemmill.doctor.elf import ElfError, Library, defined_in, read_library
from gemmill.doctor.finding import Finding, State
from gemmill.vocab import Arch

TOOLS = "nvcc_version found_by home cutlass_version cutlass_include gxx_version gxx".split()
TORCH_LIB = Path(torch.__file__).parent / "lib"


@pytest.fixture(scope="module")
def libc10() -> Library:
    return read_library(TORCH_LIB / "libc10.so")


def test_a_librarys_tables(libc10) -> None:
    assert "libstdc++.so.6" in libc10.needed
    assert "_Znwm" in libc10.required  # operator new, from libstdc++
    assert "__gmon_start__" in libc10.optional
    assert not libc10.required & libc10.optional and "" not in libc10.required | libc10.optional


def test_what_a_library_defines_is_what_the_loader_finds_in_it() -> None:
    path = TORCH_LIB / "libc10.so"
    loaded, own = ctypes.CDLL(str(path)), "_ZTIN3c105ErrorE"  # the type of c10's exceptions
    assert hasattr(loaded, own) and hasattr(loaded, "_Znwm"), "of itself, and by way of libstdc++"
    assert defined_in(path, [own, "_Znwm", "no_such_symbol", ""]) == {own}


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"not a library at all" * 10, b"\x7fELF\x02\x01" + b"\0" * 20])
def test_what_is_not_a_library(tmp_path, content: bytes) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(content)
    with pytest.raises(ElfError, match="is not a"):
        read_library(path)


def test_a_library_that_was_cut_short(tmp_path) -> None:
    whole = (TORCH_LIB / "libc10.so").read_bytes()
    for part in (0.1, 0.5, 0.99):
        path = tmp_path / "short.so"
        path.write_bytes(whole[: int(len(whole) * part)])
        with pytest.raises(ElfError, match=r"short.so is not a whole shared library"):
            read_library(path)


def test_symbols_are_looked_for_where_the_loader_looks(libc10) -> None:
    assert extension.undefined_in(libc10, TORCH_LIB, libc10.required) == set()
    needs_torch = Library(needed=("libtorch_cpu.so",), required=frozenset(), optional=frozenset())
    symbols = frozenset({"aoti_torch_create_tensor_from_blob", "aoti_torch_no_such_function"})
    assert extension.undefined_in(needs_torch, TORCH_LIB, symbols) == {"aoti_torch_no_such_function"}
    needs_nothing = Library(needed=(), required=frozenset(), optional=frozenset())
    assert extension.undefined_in(needs_nothing, TORCH_LIB, symbols) >= {"aoti_torch_no_such_function"}
    needs_system = Library(needed=("libm.so.6",), required=frozenset(), optional=frozenset())
    assert extension.undefined_in(needs_system, TORCH_LIB, frozenset({"cosf", "no_such_cosine"})) == {"no_such_cosine"}


def symbols_of(monkeypatch, **tables) -> list[Finding]:
    empty = {"needed": ("libtorch_cpu.so",), "required": frozenset(), "optional": frozenset()}
    monkeypatch.setattr(elf, "read_library", lambda path: Library(**empty | tables))
    return list(extension.examine_symbols(Path("x.so")))


def test_missing_symbols_are_a_problem(monkeypatch) -> None:
    wanted = frozenset({f"aoti_torch_future_{i}" for i in range(7)} | {"aoti_torch_get_data_ptr"})
    (finding,) = symbols_of(monkeypatch, required=wanted)
    assert finding.state is State.PROBLEM
    assert finding.found == (
        "7 of 8 are not defined: aoti_torch_future_0, aoti_torch_future_1, aoti_torch_future_2, aoti_torch_future_3, "
        "aoti_torch_future_4 and 2 more"
    )
    assert finding.advice.startswith("build with this torch (")


def test_weak_symbols_may_be_missing(monkeypatch) -> None:
    symbols, optional = symbols_of(
        monkeypatch,
        required=frozenset({"aoti_torch_get_data_ptr"}),
        optional=frozenset({"aoti_torch_no_such_stream", "__gmon_start__"}),
    )
    assert (symbols.state, symbols.found) == (State.OK, "all 1 are defined by libtorch_cpu.so")
    assert (optional.state, optional.found) == (State.NOTE, "not in this torch: aoti_torch_no_such_stream")


def test_without_pyelftools_symbols_are_left_out(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "gemmill.doctor.elf", None)
    (finding,) = extension.examine_symbols(Path("x.so"))
    assert (finding.state, finding.found) == (State.NOTE, "not looked at: pyelftools is not installed")
    assert finding.advice == "pip install 'gemmill[cli]'"


def examined(manifest, folder) -> dict[str, Finding]:
    return {finding.subject: finding for finding in extension.examine_build(folder / "builds" / manifest.build_id)}


@pytest.fixture
def real_library(put_build, make_config):
    """A build whose extension is some whole shared library."""
    return put_build(make_config(), content=(TORCH_LIB / "libc10.so").read_bytes())


def test_a_build_that_fits(real_library, home, monkeypatch) -> None:
    class Toolchain:
        cuobjdump = Path("cuobjdump")

    monkeypatch.setattr(extension, "find_toolchain", Toolchain)
    monkeypatch.setattr(extension, "architectures", lambda path, tool: ("sm_90a",))
    monkeypatch.setattr(extension, "driver_cuda", lambda: (13, 0))
    found = examined(real_library, home)
    loss = found.pop("loss")
    assert {finding.state for finding in found.values()} == {State.OK}
    assert (loss.state, loss.advice) == (State.NOTE, "gemmill build --arch sm90a --select default")
    assert re.match(r"the build loses \d+\.\d% in the mean over \d+ measured shapes, \d+% at worst \(fp8 ", loss.found)
    assert found["build"].found.startswith("0123abcd4567 for sm90a, 1 variants of smoke (")
    assert found["sass"].found == "machine code for sm_90a"
    assert found["cuda"].found == "the build is of CUDA 13 (nvcc 13.5.0)"


def test_machine_code_for_another_architecture(real_library, home, monkeypatch) -> None:
    class Toolchain:
        cuobjdump = Path("cuobjdump")

    monkeypatch.setattr(extension, "find_toolchain", Toolchain)
    monkeypatch.setattr(extension, "architectures", lambda path, tool: ("sm_80",))
    sass = examined(real_library, home)["sass"]
    assert (sass.state, sass.found) == (State.PROBLEM, "machine code for sm_80, the manifest says sm_90a")


def test_without_cuobjdump_the_manifest_is_believed(real_library, home, monkeypatch) -> None:
    def missing() -> None:
        raise BuildError("no CUDA compiler: install it")

    monkeypatch.setattr(extension, "find_toolchain", missing)
    sass = examined(real_library, home)["sass"]
    assert (sass.state, sass.found, sass.advice) == (
        State.NOTE,
        "not inspected; the manifest says sm_90a",
        "no CUDA compiler: install it",
    )


@pytest.mark.parametrize(
    ("driver", "state"), [((12, 8), State.PROBLEM), ((13, 0), State.OK), ((14, 1), State.OK), (None, State.OK)]
)
def test_driver_against_build(real_library, home, monkeypatch, driver, state) -> None:
    monkeypatch.setattr(extension, "driver_cuda", lambda: driver)
    cuda = examined(real_library, home)["cuda"]
    assert cuda.state is state
    if state is State.PROBLEM:
        assert cuda.found == "the build is of CUDA 13, the driver runs up to 12.8"
        assert cuda.advice == "upgrade the driver, or build with a CUDA 12 toolkit"


def test_a_build_that_is_damaged(real_library, home) -> None:
    (home / "builds" / real_library.build_id / real_library.extension).write_bytes(b"cut short")
    (finding,) = examined(real_library, home).values()
    assert finding.state is State.PROBLEM and "is not the one in its manifest" in finding.found


def test_a_build_of_what_was_never_run(real_library, home, monkeypatch) -> None:
    assert "architecture" not in examined(real_library, home)
    monkeypatch.setattr(Arch, "has_run", False)
    finding = examined(real_library, home)["architecture"]
    assert (finding.state, finding.found) == (State.NOTE, "sm90a: compiled, never run on a GPU")
    assert finding.advice == "hold it against the reference: gemmill verify"


def test_no_build_is_a_note(home) -> None:
    where, build = extension.examine_builds()
    assert where.found == f"{home}, 0 builds"
    assert (build.state, build.found, build.advice) == (State.NOTE, "none", "gemmill build --select smoke")


@pytest.mark.parametrize(
    ("capabilities", "advice"),
    [
        ([(8, 0)], "no build will serve sm80a (A100): docs/not_there.md has what runs there instead"),
        (
            [(8, 9), (8, 9), (10, 3)],
            "no build will serve sm89a (L4, L40S and RTX 4090), sm103a (B300): docs/not_there.md has what runs there instead",
        ),
        ([(13, 7)], "no build will serve sm137a: docs/not_there.md has what runs there instead"),
        ([(8, 0), (9, 0)], "gemmill build --select smoke"),
    ],
)
def test_gpus_that_no_build_serves(home, put_build, monkeypatch, capabilities, advice) -> None:
    gpus = [SimpleNamespace(major=major, minor=minor) for major, minor in capabilities]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
    monkeypatch.setattr(torch.cuda, "get_device_properties", gpus.__getitem__)
    _, build = extension.examine_builds()
    assert (build.state, build.found, build.advice) == (State.NOTE, "none", advice)
    if (9, 0) not in capabilities:  # nor does a build of other GPUs' kernels
        put_build()
        _, build = extension.examine_builds()
        assert (build.state, build.found, build.advice) == (State.NOTE, "none for the GPUs of this machine", advice)
        assert "gemmill build" not in " ".join(finding.advice for finding in extension.examine_builds())


def test_a_named_build_that_is_not_there(home, monkeypatch) -> None:
    monkeypatch.setenv("GEMMILL_BUILD", "cafe")
    (finding,) = extension.examine_builds()
    assert finding.state is State.PROBLEM and finding.found.startswith("no build 'cafe'")


@pytest.mark.parametrize(
    ("version", "cuda", "state", "found"),
    [
        ("2.13.0+cpu", None, State.OK, "2.13.0+cpu, CPU only"),
        ("2.11.0+cu130", "13.0", State.OK, "2.11.0+cu130, CUDA 13.0"),
        ("2.10.1", "12.8", State.PROBLEM, "2.10.1, CUDA 12.8"),
    ],
)
def test_torch(monkeypatch, version, cuda, state, found) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    finding, gpu = machine.examine_torch()
    assert (finding.subject, finding.state, finding.found) == ("torch", state, found)
    assert finding.advice == ("" if state is State.OK else "upgrade to torch 2.11 or later")
    assert (gpu.state, gpu.advice) == (State.NOTE, "ops run their CPU reference")


def test_no_torch(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    (finding,) = machine.examine_torch()
    assert (finding.state, finding.advice) == (State.PROBLEM, "pip install torch")


@pytest.mark.parametrize(
    ("capability", "state"), [((9, 0), State.OK), ((12, 0), State.OK), ((12, 1), State.OK), ((8, 0), State.NOTE)]
)
def test_gpus(monkeypatch, capability, state) -> None:
    class Properties:
        name, major, minor, multi_processor_count, total_memory = "A GPU", *capability, 132, 140 << 30

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties)
    _, gpu = machine.examine_torch()
    assert gpu.state is state
    assert gpu.found == f"0: A GPU, capability {capability[0]}.{capability[1]}, 132 SMs, 140 GiB"
    assert bool(gpu.advice) == (state is State.NOTE)


def test_no_toolchain_is_a_note_with_its_sentence(monkeypatch) -> None:
    def missing() -> None:
        raise BuildError("no CUDA compiler: install it")

    monkeypatch.setattr(machine, "find_toolchain", missing)
    (finding,) = machine.examine_toolchain()
    assert (finding.state, finding.advice) == (State.NOTE, "no CUDA compiler: install it")


def test_no_dsl_is_a_note_with_its_sentence(monkeypatch) -> None:
    def missing(_: int) -> None:
        raise BuildError("no CuTe DSL: install it")

    monkeypatch.setattr(machine, "find_toolchain", lambda: SimpleNamespace(cuda_major=13, **dict.fromkeys(TOOLS, "x")))
    monkeypatch.setattr(machine, "find_dsl", missing)
    (finding,) = [finding for finding in machine.examine_toolchain() if finding.subject == "cute dsl"]
    assert (finding.state, finding.advice) == (State.NOTE, "no CuTe DSL: install it")
    assert finding.found == "not usable: builds have CUTLASS's variants only"
    package = SimpleNamespace(version="4.8.1", runtime=Path("/site/nvidia_cutlass_dsl/cu13/lib/libx.a"))
    monkeypatch.setattr(machine, "find_dsl", lambda cuda_major: package if cuda_major == 13 else None)
    (finding,) = [finding for finding in machine.examine_toolchain() if finding.subject == "cute dsl"]
    assert (finding.state, finding.found) == (State.OK, "4.8.1 (/site/nvidia_cutlass_dsl)")


def test_memory_says_how_many_compilers_a_build_runs(monkeypatch) -> None:
    monkeypatch.setattr(machine, "find_toolchain", lambda: SimpleNamespace(cuda_major=13, **dict.fromkeys(TOOLS, "x")))
    monkeypatch.setattr(machine, "find_dsl", lambda _: SimpleNamespace(version="4.8.1", runtime=Path("/a/b/c/d/e")))
    monkeypatch.setattr(machine, "free_memory", lambda: 12 << 29)

    def memory() -> Finding:
        return next(finding for finding in machine.examine_toolchain() if finding.subject == "memory")

    monkeypatch.setenv("GEMMILL_JOBS", "3")
    assert (memory().state, memory().found) == (State.OK, "6.0 GiB free: a build runs 3 of nvcc at a time")
    monkeypatch.setenv("GEMMILL_JOBS", "many")
    assert (memory().state, memory().advice) == (State.PROBLEM, "unset GEMMILL_JOBS, or set it to a number")


def test_the_command_prints_and_fails_on_problems(gemmill, monkeypatch) -> None:
    findings = [
        Finding(subject="one", state=State.OK, found="fine"),
        Finding(subject="two", state=State.NOTE, found="so", advice="gemmill[dsl]"),
    ]
    monkeypatch.setattr("gemmill.doctor.examine", lambda: findings)
    outcome = gemmill("doctor")
    assert outcome.code == 0
    assert any(line.split() == ["note", "two", "so", "gemmill[dsl]"] for line in outcome.out.splitlines())
    findings.append(Finding(subject="three", state=State.PROBLEM, found="broken", advice="mend it"))
    outcome = gemmill("doctor", "--json")
    assert outcome.code == 1
    answer = json.loads(outcome.out)
    assert answer["ok"] is False
    assert answer["findings"][2] == {"subject": "three", "state": "problem", "found": "broken", "advice": "mend it"}


def test_the_whole_report_of_this_machine(home) -> None:
    subjects = [finding.subject for finding in examine()]
    assert subjects[:3] == ["gemmill", "python", "torch"] and {"driver", "home", "build"} <= set(subjects)
    assert not home.exists(), "it looks, and writes nothing"
