"""tools/sanitized.py: kernels under compute-sanitizer. A script stands in for it, and for the process that makes the calls."""

import importlib.util
import json
import re
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gemmill.build.errors import BuildError
from gemmill.build.toolchain import find_toolchain
from gemmill.emit import emit
from gemmill.registry import REGISTRY
from gemmill.space.names import to_name
from gemmill.space.selections import select
from gemmill.vocab import DType

TOOLS = Path(__file__).parents[2] / "tools"


def load(name):
    """A module of tools/."""
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


runs = load("sanitizer_runs")
program = load("sanitized")
calls = load("sanitized_calls")

STAND_IN = """#!{python}
import json, os, sys, time
told = json.load(open({plan!r}))
if sys.argv[1:] in (["--version"], ["--help"]):
    print("Version 2026.4.0 (build 1)" if sys.argv[1] == "--version" else told["help"])
    sys.exit()
spec = json.load(open(sys.argv[-1]))
env = dict((name, os.environ.get(name)) for name in ("GEMMILL_ENDLESS_WAITS", "PYTORCH_NO_CUDA_MEMORY_CACHING"))
with open({log!r}, "a") as log:
    log.write(json.dumps(dict(arguments=sys.argv[1:], spec=spec, env=env)) + "\\n")
def say(**event):
    print("\\n@@sanitized " + json.dumps(event), flush=True)
def lines(key, name):
    for line in told.get(key, {{}}).get(name, []):
        print("========= " + line, flush=True)
print("========= COMPUTE-SANITIZER")
if spec["planted"]:
    if told["sees"]:
        print("========= Invalid write\\n=========     at gemmill_planted_" + spec["tool"] + "+0x10\\n========= ")
    sys.exit(9 if told["sees"] else 0)
if told.get("broken"):
    print("ImportError: no gemmill")
    sys.exit(1)
say(event="ready", device="NVIDIA H200")
if "early" in told:
    print("========= " + told["early"])
if told.get("early_for") in spec["names"]:
    print("======== Internal Sanitizer Error")
for name in spec["names"][: told.get("few", 1000)]:
    say(event="begin", name=name, call="op: M = 1")
    if name in told.get("hangs", []):
        time.sleep(600)
    if name in told.get("dies", []):
        print("Segmentation fault", flush=True)
        os._exit(11)
    lines("says", name)
    say(event="end", name=name, error=told.get("errors", {{}}).get(name, ""))
    lines("late", name)
print("========= ERROR SUMMARY: 0 errors\\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)")
sys.exit(told.get("exit", 9 if told.get("says") or told.get("late") else 0))
"""


@pytest.fixture
def machine(tmp_path, make_config, make_manifest, put_build, monkeypatch):
    """A build of three bodies with a stand-in. Its `run` takes the stand-in's behaviour and more options."""
    configs = [make_config(a_dtype=x, b_dtype=x) for x in (DType.E4M3, DType.S8, DType.BF16)]
    configs.append(make_config(tile_shape_mnk=(128, 256, 128)))
    monkeypatch.setattr(program, "commit_of", lambda folder: "abcdef0123456789")
    stand_in, plan, log = tmp_path / "compute-sanitizer", tmp_path / "plan.json", tmp_path / "log"
    stand_in.write_text(STAND_IN.format(python=sys.executable, plan=str(plan), log=str(log)))
    stand_in.chmod(0o755)
    names = [to_name(config) for config in configs]
    builds = []

    def put(digests="abcd", **changes):
        entries = make_manifest(*configs).entries
        own = [replace(x, sass_digest=digest * 64) for x, digest in zip(entries, digests, strict=True)]
        own[3] = replace(own[3], code_bytes=own[3].code_bytes + 16)
        builds.append(put_build(*configs, entries=tuple(own), build_id=f"0123abcd456{len(builds)}", **changes).build_id)

    def run(*more, sees=True, **told):
        plan.write_text(json.dumps({"sees": sees, "help": "--check-tensor-ops arg", **told}))
        log.write_text("")
        exceptions = tmp_path / "exceptions.toml"
        if not exceptions.exists():
            exceptions.write_text("")
        given = ["--build", builds[-1], "--sanitizer", stand_in, "--record", tmp_path / "record.json"]
        given += ["--exceptions", exceptions, "--tool", "memcheck", "--jobs", "1", *more]
        return program.main([str(x) for x in given])

    def started():
        return [json.loads(line) for line in log.read_text().splitlines()]

    def record():
        path = tmp_path / "record.json"
        rows = json.loads(path.read_text())["passed"] if path.exists() else []
        return {row["name"]: row for row in rows}

    put()
    return SimpleNamespace(run=run, put=put, started=started, record=record, names=names, folder=tmp_path)


def made(machine):
    """Variants whose calls were asked for, in the order of processes."""
    return [x["spec"]["names"] for x in machine.started() if not x["spec"]["planted"]]


def test_what_passed_is_remembered_by_its_machine_code(machine, capsys) -> None:
    assert machine.run() == 0
    e4m3, s8, bf16, _ = machine.names
    assert [sorted(x) for x in made(machine)] == [sorted([e4m3, s8, bf16])], "of a body the smallest, once"
    row = machine.record()[e4m3]
    assert (row["digest"], row["call"]) == ("a" * 64, "op: M = 1")
    assert row["passed"]["memcheck"].endswith(" abcdef012 NVIDIA H200, compute-sanitizer 2026.4.0")
    assert machine.run() == 0 and made(machine) == [], "the same machine code is not checked again"
    assert machine.run("--again") == 0 and len(made(machine)) == 1
    machine.put("aecd")
    assert machine.run() == 0 and made(machine) == [[s8]], "of a later build, what changed"
    assert machine.run("--tool", "synccheck") == 0 and len(made(machine)) == 1
    assert set(machine.record()[s8]["passed"]) == {"memcheck", "synccheck"}
    assert "memcheck           3         0" in capsys.readouterr().out


def test_a_body_passes_by_any_of_its_variants(machine) -> None:
    assert machine.run() == 0
    machine.put("fbca")
    assert machine.run() == 0 and made(machine) == [], "the wide tile has what the narrow one passed with"


def test_the_default_selection_alone_forgets(machine) -> None:
    assert machine.run() == 0
    machine.put("efcd")
    assert (
        machine.run() == 0
        and len(machine.record()) == 3
        and "a" * 64 in str(machine.folder.joinpath("record.json").read_text())
    )
    machine.put("ehcd", selection="default")
    assert machine.run() == 0
    assert sorted(row["digest"][0] for row in machine.record().values()) == ["c", "e", "h"]


def test_a_report_is_that_of_the_kernel_it_names_else_of_the_call_it_came_in(machine, capsys) -> None:
    e4m3, s8, bf16, _ = machine.names
    asked = sorted([e4m3, s8, bf16])
    first, second, third = asked
    race = [
        "Error: Race reported between Write access at somewhere+0x10",
        f"    and Read at gemmill_{first}_kernel+0x20",
    ]
    assert machine.run(late={third: race}, says={second: ["Invalid __global__ read of size 4 bytes"]}) == 1
    told = capsys.readouterr().out
    assert (
        f"memcheck: {first}: reported: Error: Race reported between Write access at somewhere+0x10; and Read at" in told
    )
    assert f"memcheck: {second}: reported: Invalid __global__ read of size 4 bytes" in told
    assert set(machine.record()) == {third}
    assert machine.run("--json") == 0 and made(machine) == [[x for x in program_order(machine) if x != third]]
    assert {row["state"] for row in json.loads(capsys.readouterr().out)} == {"passed"}


def program_order(machine):
    """Names in the order in which the program calls them."""
    manifest = program.read_manifest(next((machine.folder / "home" / "builds").iterdir()) / "manifest.json")
    return [body.name for body in program.bodies_of(manifest)]


def test_what_passed_once_and_is_reported_later_is_forgotten(machine) -> None:
    assert machine.run() == 0
    name = machine.names[1]
    assert machine.run("--again", says={name: ["Invalid __shared__ read"]}) == 1
    assert machine.record()[name]["passed"] == {}


def test_a_process_that_ends_in_a_call_is_followed_by_another(machine, capsys) -> None:
    first, second, third = program_order(machine)
    assert machine.run(dies=[first], errors={second: "RuntimeError: no variant takes it"}) == 1
    assert made(machine) == [[first, second, third], [second, third]]
    told = capsys.readouterr().out
    assert f"{first}: died: the process ended with 11: " in told and "Segmentation fault" in told
    assert f"{second}: refused: RuntimeError: no variant takes it" in told
    assert set(machine.record()) == {third}


def test_a_call_without_end_is_killed(machine, capsys) -> None:
    first, second, third = program_order(machine)
    assert machine.run("--call-seconds", "3", hangs=[second]) == 1
    assert f"{second}: hung: no end in time" in capsys.readouterr().out
    assert set(machine.record()) == {first, third}


def test_a_slice_ends_in_time_and_the_next_goes_on(machine) -> None:
    assert machine.run("--seconds", "0") == 3 and made(machine) == []
    assert machine.run("--batch", "2") == 0 and [len(x) for x in made(machine)] == [2, 1]
    assert machine.run("--list", "--tool", "racecheck") == 3 and machine.started() == []


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ({"sees": False}, "memcheck of .* ended with 0 and does not report a kernel that is wrong on purpose"),
        ({"broken": True}, "memcheck: no call began, and the process ended with 1: .*ImportError: no gemmill"),
        ({"early": "Internal Sanitizer Error: out of memory"}, "reports what is of no call: Internal Sanitizer Error"),
        ({"exit": 9}, "reports what is of no call: .*RACECHECK SUMMARY"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_a_tool_that_proves_nothing_lets_nothing_pass(machine, capsys, told, sentence) -> None:
    assert machine.run(**told) == 2 and machine.record() == {}
    assert re.search(f"^sanitized: .*{sentence}", capsys.readouterr().err, re.MULTILINE)


def test_what_a_tool_cannot_check_is_told_with_the_reason(machine, capsys) -> None:
    text = "[[unchecked]]\nvariants = 'sm90a_cutlass_s8_*'\ntool = 'memcheck'\nreason = 'it cannot see this.'\n"
    (machine.folder / "exceptions.toml").write_text(text)
    assert machine.run() == 0 and machine.names[1] not in made(machine)[0]
    assert f"memcheck: {machine.names[1]}: excepted: it cannot see this." in capsys.readouterr().out
    (machine.folder / "exceptions.toml").write_text(text.replace("'memcheck'", "'mercheck'"))
    assert machine.run() == 2
    assert "has tool 'mercheck' and reason 'it cannot see this.': a tool is one of memcheck," in capsys.readouterr().err


def test_the_committed_exceptions_name_variants() -> None:
    names = [to_name(config) for config in select("default").configs]
    for row in program.read_exceptions(program.EXCEPTIONS):
        assert any(program.fnmatch.fnmatch(name, row.variants) for name in names), row


def test_the_committed_record_is_of_this_form() -> None:
    for digest, row in program.read_record(program.RECORD).items():
        assert len(digest) == 64 and row.passed.keys() <= set(runs.TOOLS)


def test_options_are_those_that_the_release_has(machine) -> None:
    assert machine.run() == 0
    given = machine.started()[-1]
    assert given["arguments"][:4] == ["--tool", "memcheck", "--error-exitcode", "9"]
    assert "--kernel-name kernel_substring=gemmill" in " ".join(given["arguments"])
    assert "--check-tensor-ops yes" in " ".join(given["arguments"])
    assert given["env"] == {"GEMMILL_ENDLESS_WAITS": "1", "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    old = runs.Sanitizer(program=Path("x"), version="2023", help="")
    assert "--check-tensor-ops" not in old.command("memcheck", Path("y"), 0, 1)
    assert "--kernel-name" not in old.command("initcheck", Path("y"), 0, 1)
    assert not {"--port", "--racecheck-num-workers"} & {*old.command("racecheck", Path("y"), 1, 8)}
    new = runs.Sanitizer(program=Path("x"), version="2026", help="--initcheck-track-filtered-global-memory --port")
    assert "--kernel-name" in new.command("initcheck", Path("y"), 0, 1)
    assert "--port" not in new.command("memcheck", Path("y"), 0, 1)


def test_processes_that_run_at_once_have_their_own_ports_and_share_the_cores(machine, monkeypatch) -> None:
    monkeypatch.setattr(runs.os, "sched_getaffinity", lambda pid: range(16))
    told = {"help": "--port arg (=49152) --racecheck-num-workers arg"}
    assert machine.run("--jobs", "3", "--batch", "1", "--tool", "racecheck", **told) == 0
    assert sorted(made(machine)) == sorted([name] for name in program_order(machine) for _ in range(2))
    given = [x["arguments"] for x in machine.started() if not x["spec"]["planted"]]
    ports = [int(x[x.index("--port") + 1]) for x in given]
    assert sorted(ports[:3]) == sorted(ports[3:]) == [49152, 49162, 49172]
    assert [x[x.index("--racecheck-num-workers") + 1] for x in given if "racecheck" in x] == ["5"] * 3
    assert all(set(row["passed"]) == {"memcheck", "racecheck"} for row in machine.record().values())


def test_what_passed_beside_a_process_that_proves_nothing_is_kept(machine, capsys) -> None:
    first, *others = program_order(machine)
    assert machine.run("--jobs", "3", "--batch", "1", early_for=first) == 2
    assert set(machine.record()) == set(others)
    assert "reports what is of no call: Internal Sanitizer Error" in capsys.readouterr().err


def test_compute_sanitizer_is_looked_for(tmp_path, monkeypatch) -> None:
    for name in ("GEMMILL_CUDA_HOME", "CUDA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        runs.Trouble, match=r"is not in .*: install one with `pip install --target FOLDER nvidia-cuda-s"
    ):
        runs.find_sanitizer(tmp_path)
    package = tmp_path / "nvidia" / "cu13" / "bin" / "compute-sanitizer"
    package.parent.mkdir(parents=True)
    package.write_text("#!/bin/sh\necho Version 1.2.3 --help\n")
    package.chmod(0o755)
    assert runs.find_sanitizer(tmp_path).program == package
    monkeypatch.syspath_prepend(str(tmp_path))
    if not Path("/usr/local/cuda/bin/compute-sanitizer").exists():
        assert runs.find_sanitizer(None).program == package
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "nvidia" / "cu13"))
    found = runs.find_sanitizer(None)
    assert (found.program, found.version) == (package, "1.2.3")


def test_bodies_of_the_default_selection() -> None:
    configs = {config.compiled for config in select("default").configs}
    bodies = {program.structure_of(config) for config in configs}
    templates = {REGISTRY.kernels_of(x).spell(x).template for x in configs if REGISTRY.kernels_of(x).dsl is None}
    of_dsl = {f"{REGISTRY.family_of(x).name}/{x.tag}" for x in configs if REGISTRY.kernels_of(x).dsl is not None}
    assert {template for template, _ in bodies} == templates | of_dsl and len(of_dsl) == 4
    assert 300 < len(bodies) < 600 < len(configs)


def test_tiles_and_kinds_of_halves_are_no_other_body_and_operands_and_clusters_are(make_config) -> None:
    def body(**changes):
        return program.structure_of(make_config(**changes))

    assert body() == body(tile_shape_mnk=(128, 256, 128)) == body(out_dtype=DType.F16)
    assert body() != body(a_dtype=DType.S8, b_dtype=DType.S8)
    assert body() != body(cluster_shape_mnk=(2, 1, 1)) != body(cluster_shape_mnk=(1, 2, 1))
    assert emit(make_config()).text != emit(make_config(out_dtype=DType.F16)).text


def test_a_manifest_without_digests_is_refused(put_build, capsys) -> None:
    put_build()
    assert program.main(["--list"]) == 2
    assert "has no digest of sm90a_" in capsys.readouterr().err


@pytest.fixture
def on_cpu(make_manifest, monkeypatch):
    """Calls on the CPU, by the reference: returns the exit code and the events."""
    manifest = make_manifest()
    monkeypatch.setattr(calls.gemmill, "load", lambda build: SimpleNamespace(manifest=manifest))
    monkeypatch.setattr(calls.gemmill, "use_variant", lambda name: nullcontext())

    def run(end=float("inf")):
        said = []
        monkeypatch.setattr(calls, "say", lambda **event: said.append(event))
        spec = {"build": "x", "end": end, "names": [entry.name for entry in manifest.entries], "bytes": 1 << 16}
        return calls.make_calls(spec, calls.torch.device("cpu")), said

    return run


def test_a_line_is_said_before_and_after_each_call(on_cpu, monkeypatch) -> None:
    code, said = on_cpu()
    assert code == 0 and [x["event"] for x in said] == ["ready", "begin", "end"]
    assert said[1]["call"].startswith("cutlass_scaled_mm: M, N, K = ") and said[2]["error"] == ""
    assert on_cpu(end=0.0)[1] == said[:1]

    def fail(name):
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nand more")

    monkeypatch.setattr(calls.gemmill, "use_variant", fail)
    code, said = on_cpu()
    assert (code, said[2]["error"]) == (calls.DEAD, "CUDA error: an illegal memory access was encountered")


def test_the_call_without_a_small_dimension_before_one_that_is_too_large() -> None:
    def case(*sizes):
        values = [None, [calls.torch.zeros(size, dtype=calls.torch.uint8, device="cpu") for size in sizes], 3]
        return SimpleNamespace(sizes=sizes, arguments=lambda device: values)

    listed = [case(1, 1, 90), case(8, 9, 10), case(30, 1, 30), case(20, 20, 20), case(50, 60, 1)]
    assert calls.chosen(listed[:3], 100).sizes == (30, 1, 30)
    assert calls.chosen([case(8, 9, 10, 2), case(50, 1, 1, 1)], 100).sizes == (8, 9, 10, 2)
    assert calls.chosen([*listed, case(20, 20, 20)], 100).sizes == (20, 20, 20)
    assert calls.chosen([case(50, 60, 1), case(8, 9, 10)], 100).sizes == (50, 60, 1)
    assert calls.chosen([case(0)], 100).sizes == (0,)


def test_kernels_that_are_wrong_on_purpose_assemble(tmp_path) -> None:
    try:
        toolchain = find_toolchain()
    except BuildError as error:
        pytest.skip(str(error))
    ptxas = toolchain.nvcc.with_name("ptxas")
    if not ptxas.exists():
        pytest.skip("no ptxas beside nvcc")
    (tmp_path / "x.ptx").write_text(calls.PTX)
    command = [ptxas, "-arch=sm_90a", tmp_path / "x.ptx", "-o", tmp_path / "x.cubin"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(f".entry {calls.PLANTED}_{tool}(" in calls.PTX for tool in runs.TOOLS)
