"""Whole runs: each kind of finding is found in a real process, and the other calls are made."""

import json
import os
import shlex
from pathlib import Path

import pytest
import torch

from gemmill.fuzz import child
from gemmill.fuzz.breakages import break_call, draw_call
from gemmill.fuzz.campaign import Budget, call_alone, fuzz
from gemmill.fuzz.findings import FaultKind, FuzzError, FuzzSpec
from gemmill.numerics import batches
from gemmill.numerics.batches import Limits
from gemmill.numerics.call import CPU_LIMITS
from gemmill.numerics.memory import Memory
from gemmill.runtime.schemas import BY_NAME
from unit.fuzz.sabotaged import SabotagedSpec

OPS = ("dynamic_scaled_fp8_quant", "cutlass_scaled_mm", "rms_norm_per_block_quant")
BROKEN_KINDS = (FaultKind.ACCEPTED, FaultKind.SENTENCE, FaultKind.TOUCHED)
SEED = 11


@pytest.fixture
def sabotaged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls are made by a process that commits the faults of its spec."""
    monkeypatch.setattr("gemmill.fuzz.campaign.PROGRAM", "unit.fuzz.sabotaged")
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))


def indices(count: int, *, broken: bool) -> list[int]:
    """The first broken calls with a sentence, or the first legal ones that write something."""
    found = []
    for index in range(200):
        call, breakage = draw_call(OPS[index % len(OPS)], SEED, index, CPU_LIMITS)
        fits = breakage is None and all(slot.numel for slot in call.slots.values() if slot.written)
        if broken and breakage is not None:
            memory = Memory(call.slots, torch.device("cpu"))
            arguments = {name: call.plain.get(name) for name in BY_NAME[call.op].arguments}
            arguments |= {name: memory.tensor(name) for name in call.slots}
            found_one = break_call(call.op, arguments, memory, breakage)
            fits = found_one is not None and found_one.sentence is not None
        if fits and (breakage is not None) is broken:
            found.append(index)
    return found[:count]


def faults(*kinds: FaultKind) -> dict[str, str]:
    broken = indices(len(BROKEN_KINDS), broken=True)
    legal = indices(len(kinds), broken=False)
    return {str((broken if kind in BROKEN_KINDS else legal).pop(0)): kind.value for kind in kinds}


@pytest.mark.usefixtures("sabotaged")
def test_every_kind_is_found_and_the_run_goes_on() -> None:
    committed = faults(*(kind for kind in FaultKind if kind not in (FaultKind.NOT_REPEATABLE, FaultKind.BATCH)))
    told = []
    spec = SabotagedSpec(ops=OPS, seed=SEED, faults=committed)
    report = fuzz(spec, Budget(calls=70, call_seconds=5.0), told.append)
    found = {str(finding.index): finding for finding in report.findings if str(finding.index) in committed}
    assert {index: finding.kind.value for index, finding in found.items()} == committed
    assert sorted(told, key=lambda finding: finding.index) == list(report.findings)
    assert report.where == "on the CPU, where the ops run the reference"
    assert (report.calls, report.legal + report.broken) == (70, 70) and report.legal > report.broken > 0
    details = {finding.kind: finding.detail for finding in found.values()}
    assert details[FaultKind.CRASH] == "its process ended at only by signal 6"
    assert details[FaultKind.HANG] == "no answer to only within 5 s: it was killed"
    assert details[FaultKind.REFUSED] == "a legal call raised RuntimeError: the op was told to refuse"
    assert details[FaultKind.OUT_OF_BOUNDS].startswith(
        "1 bytes of or around the arguments changed that are no output's"
    )
    assert "and the call raised nothing; the checks say '" in details[FaultKind.ACCEPTED]
    assert "; the error is RuntimeError: 'the op was told to refuse', the checks' '" in details[FaultKind.SENTENCE]
    assert details[FaultKind.TOUCHED].startswith("bytes") or " bytes of or around " in details[FaultKind.TOUCHED]
    assert details[FaultKind.UNJUDGED].startswith("making or judging the call raised ")


@pytest.mark.usefixtures("sabotaged")
def test_a_call_alone_is_the_one_of_the_run() -> None:
    committed = faults(FaultKind.WRONG)
    index = int(next(iter(committed)))
    op = OPS[index % len(OPS)]
    alone = call_alone(SabotagedSpec(ops=(op,), seed=SEED, faults=committed), index)
    assert [finding.kind for finding in alone.findings] == [FaultKind.WRONG]
    assert alone.findings[0].reproducer == f"gemmill fuzz --op {op} --seed {SEED} --only {index} --cpu"
    assert alone.call == str(draw_call(op, SEED, index, CPU_LIMITS)[0]) and not alone.broken


@pytest.mark.parametrize("is_wrong", [False, True])
def test_rows_alone_and_in_batches_are_one_call_of_many(monkeypatch: pytest.MonkeyPatch, is_wrong: bool) -> None:
    """On a GPU, whose other calls go on; a command makes it alone."""
    monkeypatch.setattr(child, "PAIRED_SHARE", 4)
    monkeypatch.setattr(child, "PAIRS", Limits(pairs=1, seconds=60.0, most_rows=8, most_columns=128, batches=2))
    monkeypatch.setattr(child.Child, "_is_paired", lambda self, index: index % 4 == 3)
    monkeypatch.setattr(batches, "POOL", 13)
    if is_wrong:
        monkeypatch.setattr(batches.Subject, "differing", lambda self, rows, kept, found: kept)
    process = child.Child(FuzzSpec(ops=OPS[:1], seed=SEED))
    answer = process.run(0, 8)
    assert answer["tally"]["legal"] + answer["tally"]["broken"] == 8
    assert {found["index"]: found["kind"] for found in answer["found"]} == dict.fromkeys(
        (3, 7) if is_wrong else (), FaultKind.BATCH
    )
    alone = process.only(3)
    assert alone["call"] == "rows alone and in batches, of quant" and bool(alone["found"]) is is_wrong
    if is_wrong:
        assert " has other bits than alone, as have " in alone["found"][0]["detail"]


@pytest.mark.usefixtures("sabotaged")
def test_calls_do_not_depend_on_the_number_of_processes() -> None:
    committed = faults(FaultKind.WRONG, FaultKind.REFUSED, FaultKind.SENTENCE)
    spec = SabotagedSpec(ops=OPS, seed=SEED, faults=committed)
    one, two = (fuzz(spec, Budget(calls=100, jobs=jobs)) for jobs in (1, 2))
    assert one.findings == two.findings and len(one.findings) >= 3
    assert (one.legal, one.broken) == (two.legal, two.broken)


def test_a_run_ends_after_its_time() -> None:
    report = fuzz(FuzzSpec(ops=OPS), Budget(seconds=0.0))
    assert (report.calls, report.findings) == (0, ())


def test_a_process_that_cannot_be_started_is_one_sentence() -> None:
    with pytest.raises(FuzzError, match=r"the process that makes the calls cannot be started: .*no_such_build"):
        fuzz(FuzzSpec(ops=OPS, gpu=True, build="no_such_build"), Budget(calls=1))


def test_the_command_finds_nothing_wrong_with_the_cpu_path(gemmill, draws: int) -> None:
    calls = 500 * draws
    outcome = gemmill("fuzz", "--cpu", "--calls", str(calls), "--jobs", "2", "--json")
    report = json.loads(outcome.out)
    assert report["findings"] == [], outcome.err
    assert (outcome.code, report["ok"], report["calls"], report["left_out"]) == (0, True, calls, 0)
    assert report["broken"] > calls / 8


@pytest.mark.usefixtures("sabotaged")
def test_the_command_fails_with_the_finding_and_how_to_see_it_again(gemmill, monkeypatch: pytest.MonkeyPatch) -> None:
    committed = faults(FaultKind.WRONG)
    index = int(next(iter(committed)))
    monkeypatch.setattr(
        "gemmill.cli.fuzz._spec",
        lambda ops, seed, gpu, build: SabotagedSpec(ops=tuple(ops), seed=seed, faults=committed),
    )
    arguments = [part for op in OPS for part in ("--op", op)]
    outcome = gemmill("fuzz", *arguments, "--seed", str(SEED), "--calls", str(index + 1))
    line = next(line for line in outcome.err.splitlines() if f"--only {index} " in line)
    assert outcome.code == 1 and line.startswith("gemmill: wrong: gemmill fuzz --op ")
    assert "elements of " in line or "elements are wrong" in line
    again = gemmill(*shlex.split(line.split(": ")[2])[1:])
    assert again.code == 1 and line in again.err
    assert again.out.startswith("a legal call: ") and again.out.endswith("1 finding\n")


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("--op", "no_such_op"), 2, "no op 'no_such_op': there are cutlass_scaled_mm, "),
        (("--gpu",), 3, "--gpu runs kernels and torch finds no GPU: `gemmill fuzz --cpu` runs the ops' CPU path"),
    ],
)
def test_usage(gemmill, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int, sentence: str) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    outcome = gemmill("fuzz", *arguments)
    assert outcome.code == code and outcome.err.startswith(f"gemmill: {sentence}")
