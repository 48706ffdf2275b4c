"""`gemmill verify --report`: the file, its steps without a GPU, and that it tells nothing of whose machine it is."""

import dataclasses
import json
import os
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from gemmill.build.errors import BuildError
from gemmill.build.options import BuildResult
from gemmill.cli import build as cli_build
from gemmill.cli.exits import UnavailableError
from gemmill.manifest import EMULATION
from gemmill.report import making, memcheck
from gemmill.report.places import Places
from gemmill.tuner import executors
from gemmill.tuner.timed import time_variants
from unit.reporting import FAULTS
from unit.tune.test_sweep import DirectWorker

USER, HOST = "zelda7", "ganon42.example.org"
BUILD = "0123abcd4567"
SANITIZER = """#!/bin/sh
if [ "$1" = --version ]; then echo "Version 2026.1.0 (build 1)"; exit; fi
for name; do :; done
case $(cat "$(dirname "$0")/outcome") in
passed) echo "========= ERROR SUMMARY: 0 errors";;
reported) echo "========= Invalid __global__ write of size 4 bytes at $HOME/kernel.cu"; echo "========= ERROR SUMMARY: 1 error"; exit 9;;
unsupported) echo "========= Error: Device not supported";;
died) echo "gemmill: cannot launch $name"; exit 1;;
hung) exec sleep 600;;
esac
"""


@pytest.fixture(autouse=True)
def anonymous(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user and a host with names that a search finds if the report has them."""
    (tmp_path / USER).mkdir()
    monkeypatch.setenv("LOGNAME", USER)
    monkeypatch.setenv("HOME", str(tmp_path / USER))
    monkeypatch.setattr("platform.node", lambda: HOST)
    monkeypatch.setattr(memcheck, "find_sanitizer", lambda: None)


def on_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int] = (9, 0)) -> None:
    major, minor = capability
    properties = SimpleNamespace(
        name="A GPU", major=major, minor=minor, multi_processor_count=132, total_memory=140 << 30
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)


@pytest.fixture
def owner(monkeypatch: pytest.MonkeyPatch, home: Path, put_build, make_config):
    """A machine with a stand-in for its GPU. Call it with faults by name to put a build of three variants there."""
    on_gpu(monkeypatch)
    monkeypatch.setattr(making, "PROGRAM", "unit.reporting")
    for name, value in (("_ROWS", (16, 64)), ("_N", 64), ("_K", 128)):
        monkeypatch.setattr(making, name, value)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1]))
    monkeypatch.setattr(making, "time_variants", lambda *given, **how: time_variants(*given, **how | {"dry_run": True}))
    local = executors.LocalExecutor
    monkeypatch.setattr(local, "__init__", lambda self, spec: setattr(self, "_workers", [DirectWorker(spec)]))
    configs = [make_config(), make_config(stages=3), make_config(stages=4)]

    def put(faults: dict[int | str, str] | None = None, **changes):
        manifest = put_build(*configs, **{"rejected": ()} | changes)
        told = {manifest.entries[at].name if isinstance(at, int) else at: fault for at, fault in (faults or {}).items()}
        (home / "builds" / manifest.build_id / FAULTS).write_text(json.dumps(told))
        return manifest

    return put


def read(path: Path) -> dict:
    text = path.read_text()
    for told in (USER, HOST, HOST.partition(".")[0], str(path.parent), "/usr/", "/home/", "/tmp/"):
        assert told not in text, told
    return json.loads(text)


def test_a_whole_report(gemmill, owner, tmp_path) -> None:
    manifest = owner()
    path = tmp_path / "my_gpu.json"
    outcome = gemmill("verify", "--report", path)
    assert outcome.code == 0, outcome.err
    told = read(path)
    assert (told["schema"], told["version"]) == ("gemmill verify --report", 1)
    assert (told["complete"], told["ok"], told["failures"]) == (True, True, [])
    assert told["gpu"] == {"name": "A GPU", "capability": "9.0", "arch": "sm90a"}
    assert {"gemmill", "python", "torch", "gpu", "driver"} <= {row["subject"] for row in told["machine"]}
    assert told["build"]["build_id"] == BUILD and told["build"]["compiled_in_seconds"] is None
    assert (told["build"]["selection"], told["build"]["variants"], told["build"]["emulated"]) == ("smoke", 3, False)
    right = {"cases": 12, "wrong": 0, "worst_fraction": 0.25, "fault": ""}
    assert told["verify"] == [{"name": entry.name} | right for entry in manifest.entries]
    assert (told["memcheck"], told["memcheck_note"]) == ([], "not run: compute-sanitizer is not found")
    assert [(row["op"], row["sizes"]["m"]) for row in told["times"]] == [("fp8", 16), ("fp8", 64)]
    assert all(row["median_us"] > 0 and not row["fault"] for row in told["times"])
    assert "3 of 3 variants right" in outcome.out and f"{BUILD} for sm90a, 3 of smoke" in outcome.out
    assert "gemmill: memcheck: not run: compute-sanitizer is not found\n" in outcome.err


def test_variants_that_kill_their_process_do_not_end_the_report(gemmill, owner, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(making, "VARIANT_SECONDS", 2.0)
    monkeypatch.setattr("gemmill.tuner.worker.START_SECONDS", 30.0)
    manifest = owner({0: "crash", 1: "dead", 2: "M, N, K = 1, 1, 1: 1 of 1 elements are wrong"})
    path = tmp_path / "r.json"
    assert gemmill("verify", "--report", path).code == 1
    told = read(path)
    names = [entry.name for entry in manifest.entries]
    assert told["complete"] and not told["ok"] and len(told["times"]) == 2
    assert [row["cases"] for row in told["verify"]] == [None, None, 12] and told["verify"][2]["wrong"] == 2
    assert told["failures"] == [
        f"{names[0]}: its process ended at verify by signal 6",
        f"{names[1]}: CUDA error: an illegal memory access was encountered",
        f"{names[2]}: M, N, K = 1, 1, 1: 1 of 1 elements are wrong",
    ]


def test_a_variant_that_hangs_is_killed(gemmill, owner, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(making, "VARIANT_SECONDS", 1.0)
    manifest = owner({1: "hang"})
    assert gemmill("verify", "--report", tmp_path / "r.json").code == 1
    told = read(tmp_path / "r.json")
    assert told["failures"] == [f"{manifest.entries[1].name}: no answer to verify within 1 s: it was killed"]
    assert told["verify"][2]["wrong"] == 0


def test_a_build_that_cannot_be_loaded(gemmill, owner, tmp_path) -> None:
    owner({"load": f"no symbol in {tmp_path}/home/x.so of {USER}@{HOST}"})
    outcome = gemmill("verify", "--report", tmp_path / "r.json")
    told = read(tmp_path / "r.json")
    assert outcome.code == 1 and told["verify"] == told["times"] == []
    assert told["failures"] == [f"build {BUILD} cannot be loaded: no symbol in <folder>/x.so of <name>@<name>"]


def test_json_goes_to_stdout_alone(gemmill, owner, tmp_path) -> None:
    owner()
    outcome = gemmill("verify", "--report", tmp_path / "r.json", "--json")
    assert json.loads(outcome.out) == read(tmp_path / "r.json")


def test_an_emulated_build_has_no_times(gemmill, owner, tmp_path, make_manifest, monkeypatch) -> None:
    owner(arch="sm120f", toolchain=dataclasses.replace(make_manifest().toolchain, flags=(EMULATION,)))
    outcome = gemmill("verify", "--report", tmp_path / "r.json", "--build", BUILD)
    monkeypatch.setenv("GEMMILL_BUILD", BUILD)
    assert gemmill("verify", "--report", tmp_path / "r.json").out == outcome.out
    told = read(tmp_path / "r.json")
    assert outcome.code == 0 and "sm120f, emulated on sm90a" in outcome.out
    assert (told["build"]["emulated"], told["build"]["made_for"]) == (True, "sm120f, emulated on sm90a")
    assert told["times"] == [] and told["times_note"] == "left out: the build is emulated, so its times mean nothing"


def test_a_build_is_made_where_there_is_none(gemmill, owner, home, tmp_path, monkeypatch, make_manifest) -> None:
    asked = []

    def publish(selection, options):
        asked.append((selection.name, selection.arch))
        manifest = owner(rejected=make_manifest().rejected)
        result = BuildResult(folder=home / "builds" / BUILD, manifest=manifest, compile_seconds=3.0, reused=False)
        return result, f"build {BUILD} serves sm90a"

    monkeypatch.setattr(cli_build, "publish", publish)
    monkeypatch.setattr(cli_build, "what_can_be_compiled", lambda: "default")
    outcome = gemmill("verify", "--report", tmp_path / "r.json")
    assert asked == [("default", "sm90a")] and outcome.code == 1
    assert "gemmill: there is no build for sm90a: one is made, which takes long\n" in outcome.err
    told = read(tmp_path / "r.json")
    assert told["build"]["compiled_in_seconds"] >= 0 and len(told["verify"]) == 3
    assert told["build"]["not_compiled"] == [{"name": "sm90a_cutlass_bad", "error": "error: static assertion failed"}]
    assert told["failures"] == ["sm90a_cutlass_bad did not compile: error: static assertion failed"]


@pytest.mark.parametrize("error", [UnavailableError("no CUDA compiler"), BuildError("no CUDA compiler")])
def test_nothing_can_be_built(gemmill, owner, home, tmp_path, monkeypatch, error) -> None:
    def publish(selection, options):
        raise error

    monkeypatch.setattr(cli_build, "publish", publish)
    outcome = gemmill("verify", "--report", tmp_path / "r.json")
    assert outcome.code == 1 and outcome.err.endswith("gemmill: nothing was built: no CUDA compiler\n")
    assert read(tmp_path / "r.json")["failures"] == ["nothing was built: no CUDA compiler"]


def test_an_interrupt_leaves_what_is_there(gemmill, owner, tmp_path, monkeypatch) -> None:
    def interrupt(*given) -> None:
        raise KeyboardInterrupt

    owner()
    monkeypatch.setattr(making, "time_calls", interrupt)
    path = tmp_path / "r.json"
    outcome = gemmill("verify", "--report", path)
    assert outcome.code == 130
    assert outcome.err.endswith(f"gemmill: interrupted: {path} has the results until then\n")
    told = read(path)
    assert (told["complete"], told["ok"], len(told["verify"])) == (False, False, 3)


@pytest.mark.parametrize(
    ("outcome", "told"),
    [
        ("passed", "passed"),
        ("reported", "reported: Invalid __global__ write of size 4 bytes at <folder>/kernel.cu"),
        ("unsupported", "died: the process ended with 0: Error: Device not supported"),
        ("died", "died: the process ended with 1: gemmill: cannot launch NAME"),
        ("hung", "hung: no end within 1 s: it was killed"),
    ],
)
def test_memcheck(gemmill, owner, tmp_path, monkeypatch, outcome: str, told: str) -> None:
    manifest = owner()
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "compute-sanitizer"
    program.write_text(SANITIZER)
    program.chmod(0o755)
    (program.parent / "outcome").write_text(outcome)
    monkeypatch.setattr(memcheck, "find_sanitizer", lambda: str(program))
    monkeypatch.setattr(memcheck, "check", partial(memcheck.check, seconds=1.0 if outcome == "hung" else 60.0))
    code = gemmill("verify", "--report", tmp_path / "r.json").code
    report = read(tmp_path / "r.json")
    name = min(entry.name for entry in manifest.entries)
    assert report["memcheck_note"] == "compute-sanitizer 2026.1.0"
    (row,) = report["memcheck"]
    assert row["name"] == name and ": ".join(filter(None, [row["outcome"], row["detail"]])) == told.replace(
        "NAME", name
    )
    assert (code, report["failures"]) == (
        (0, []) if outcome == "passed" else (1, [f"{name}: memcheck: {told.replace('NAME', name)}"])
    )


def test_the_sanitizer_is_that_of_path(monkeypatch, tmp_path) -> None:
    monkeypatch.undo()
    program = tmp_path / "compute-sanitizer"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert memcheck.find_sanitizer() == str(program)


def test_without_a_gpu_nothing_is_written(gemmill, home, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    outcome = gemmill("verify", "--report", tmp_path / "r.json")
    assert (outcome.code, outcome.out, outcome.err) == (
        3,
        "",
        "gemmill: verify runs kernels and torch finds no GPU: make the report on a machine that has one; nothing was written\n",
    )
    assert not (tmp_path / "r.json").exists()


def test_a_gpu_without_kernels(gemmill, home, tmp_path, monkeypatch) -> None:
    on_gpu(monkeypatch, (8, 0))
    outcome = gemmill("verify", "--report", tmp_path / "r.json")
    assert outcome.code == 3 and not (tmp_path / "r.json").exists()
    assert outcome.err.startswith("gemmill: gemmill has no kernels for this GPU, sm80a (A100): it builds for sm90a (")


def test_where_no_report_can_be_written(gemmill, owner, tmp_path) -> None:
    owner()
    missing = tmp_path / "none" / "r.json"
    outcome = gemmill("verify", "--report", missing)
    said = f"gemmill: --report {missing}: there is no folder {missing.parent}, make it or name another file\n"
    assert (outcome.code, outcome.err) == (2, said)
    other = tmp_path / "notes.json"
    for content in ('{"mine": 1}', "[1]", "no JSON"):
        other.write_text(content)
        for path in (other, tmp_path):
            outcome = gemmill("verify", "--report", path)
            said = f"gemmill: --report {path}: it exists and is no report, which alone is replaced: name another file\n"
            assert (outcome.code, outcome.err) == (2, said)
        assert other.read_text() == content


def test_an_earlier_report_is_replaced(gemmill, owner, tmp_path) -> None:
    owner()
    path = tmp_path / "r.json"
    path.write_text('{"schema": "gemmill verify --report", "version": 1}')
    outcome = gemmill("verify", "--report", path)
    assert outcome.code == 0 and f"gemmill: {path} had an earlier report, which is replaced\n" in outcome.err
    assert read(path)["complete"] and [p.name for p in tmp_path.glob(".r.json*")] == []


@pytest.mark.parametrize("option", [["--quick"], ["--filter", "x"], ["--batch-invariant"]])
def test_options_that_do_nothing_beside_it(gemmill, home, tmp_path, option) -> None:
    outcome = gemmill("verify", "--report", tmp_path / "r.json", *option)
    said = f"gemmill: {option[0]} with --report: it runs all that the build has, leave {option[0]} out\n"
    assert (outcome.code, outcome.err) == (2, said)


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("nvcc 13.0.88 from PATH (/opt/cuda/bin)", "nvcc 13.0.88 from PATH (<path>)"),
        ("/home/jane/k.cu(12): error", "<path>(12): error"),
        ("~jane/k.cu, ~/k.cu", "<path>, <path>"),
        (f"{USER}: a, {HOST}: b, ganon42", "<name>: a, <name>: b, <name>"),
        ("zelda70 and azelda7 are others", "zelda70 and azelda7 are others"),
        ("300 GB/s, 1/2 of N/A; a / b", "300 GB/s, 1/2 of N/A; a / b"),
        ("file:///srv/x and https://build.corp/x", "<path> and <path>"),
    ],
)
def test_what_is_hidden(text: str, hidden: str) -> None:
    assert Places().hide({"/key/kept": [text]}) == {"/key/kept": [hidden]}


def test_folders_with_blanks_are_hidden(tmp_path) -> None:
    assert Places([tmp_path / "of Jane"]).hide(f"in {tmp_path}/of Jane/x.so") == "in <folder>/x.so"
