"""`gemmill time`, dry: which variants it times at which sizes, and its output."""

import csv
import json

import pytest

from faulty import FaultySpec
from gemmill.space.selections import select
from gemmill.tuner.checking import Fault
from gemmill.tuner.executors import LocalExecutor
from gemmill.tuner.program import stand_in_build
from gemmill.tuner.timed import time_variants
from gemms import MeasuredOp, gemm

from .test_sweep import DirectWorker

SPLIT_K = "sm90a_cutlass_e4m3_e4m3_f32_bf16_scaledbias_channel_t64x16x256_c1x1x1_basic_fast_splitk_swapab_s4_a16b16d8"
OF_BF16 = "sm90a_cutlass_bf16_bf16_f32_bf16_scaledbias_channel_t64x64x64_c1x1x1_mmasync_fast_persistent_ab_sauto_a1b1d1"
SIZES = ["-m", "16", "-n", "64", "-k", "128", "--dry-run"]


class Direct(LocalExecutor):
    """An executor without a process."""

    def __init__(self, spec) -> None:
        self._workers = [DirectWorker(spec)]


def timed(*workloads, names=None, executor_of=Direct, **changes):
    settings = {"rounds": 3, "most": 20, "peers": False, "dry_run": True} | changes
    return time_variants(workloads, stand_in_build(select("smoke")), names, executor_of=executor_of, **settings)


def test_all_that_take_a_size_are_timed_the_fastest_first() -> None:
    small, large = gemm(op=MeasuredOp.FP8, m=16, n=64, k=128), gemm(op=MeasuredOp.FP8, m=64, n=64, k=128)
    rows = timed(large, small)
    assert [row.workload for row in rows] == [large] * (len(rows) // 2) + [small] * (len(rows) // 2)
    of_large = [row.median_us for row in rows if row.workload == large]
    assert len(of_large) > 2 and of_large == sorted(of_large)
    assert sum(row.chosen for row in rows) == 2
    for row in rows:
        assert row.least_us <= row.median_us and not row.fault
        assert row.tflops == pytest.approx(2 * row.workload.m * 64 * 128 / row.median_us / 1e6)
        assert row.gbps == pytest.approx(row.workload.bytes / row.median_us / 1e3)


def test_named_variants_alone_and_why_none_takes_a_size() -> None:
    workload = gemm(op=MeasuredOp.FP8, m=16, n=64, k=128)
    assert [row.name for row in timed(workload, names=frozenset({SPLIT_K, OF_BF16}))] == [SPLIT_K]
    (row,) = timed(workload, names=frozenset({OF_BF16}))
    assert row.median_us is None and "it computes bf16 x bf16 to bf16" in row.fault
    (row,) = timed(workload, names=frozenset({"sm90a_none"}))
    assert row.fault == "it is no kernel of fp8"


def test_a_fault_is_told_and_the_others_are_timed() -> None:
    def executor(spec):
        return Direct(FaultySpec(**vars(spec), faults={SPLIT_K: Fault.WRONG}))

    rows = timed(gemm(op=MeasuredOp.FP8, m=16, n=64, k=128), executor_of=executor)
    (faulty,) = [row for row in rows if row.fault]
    assert faulty.name == SPLIT_K and faulty.fault.startswith("wrong: ") and rows[-1] is faulty


@pytest.fixture
def without_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalExecutor, "__init__", lambda self, spec: setattr(self, "_workers", [DirectWorker(spec)]))


def test_the_command_prints_rows(gemmill, without_processes, tmp_path) -> None:
    outcome = gemmill("time", *SIZES, "-m", "16:48:16")
    assert outcome.code == 0 and "TFLOP/s" in outcome.out and "fp8  48 x 64 x 128" in outcome.out
    told = json.loads(gemmill("time", OF_BF16, *SIZES, "--json").out)
    assert [(row["op"], row["m"], row["name"]) for row in told["rows"]] == [("bf16", 16, OF_BF16)]
    path = tmp_path / "times.csv"
    assert gemmill("time", SPLIT_K, *SIZES, "--csv", path).code == 0
    (row,) = csv.DictReader(path.open())
    assert (row["op"], row["m"], row["name"]) == ("fp8", "16", SPLIT_K) and float(row["median_us"]) > 0
    assert gemmill("time", SPLIT_K, *SIZES, "--csv", "-").out == path.read_text()
    path.write_text("op,m,n,k,experts\nexperts_bf16,16,64,128,4\n")
    assert "experts_bf16" in gemmill("time", "--shapes", path, "--dry-run").out


def test_nothing_timed_is_code_1(gemmill, without_processes) -> None:
    outcome = gemmill("time", OF_BF16, *SIZES, "--op", "fp8")
    assert outcome.code == 1 and "it computes bf16 x bf16 to bf16" in outcome.out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-m", "1", "--dry-run"], "-n, -k not given: `gemmill time -m 16 -n 4096 -k 4096` times one size"),
        ([*SIZES, "-m", "1:2"], "-m '1:2' is not FIRST:LAST:STEP such as 512:4096:512"),
        ([*SIZES, "-m", "8:2:1"], "-m '8:2:1' begins at 8 and ends at 2: the last is the larger"),
        ([*SIZES, "-m", "x"], "-m 'x' is not a list of positive numbers such as 1,2,4"),
        (
            ["*nonsense*", *SIZES],
            "no variant of selection 'smoke' (124 variants) fits '*nonsense*': see `gemmill list` for their names",
        ),
        ([*SIZES, "--json", "--csv", "-"], "--json with --csv: leave one of them out"),
        ([*SIZES, "--shapes", "a.csv"], "--shapes with -m, -n or -k: the file has the sizes, leave one of them out"),
        ([*SIZES, "--op", "fp9"], "--op 'fp9' has no sizes m, n, k alone: there are fp8, "),
    ],
)
def test_sentences(gemmill, words: list[str], sentence: str) -> None:
    outcome = gemmill("time", *words)
    assert outcome.code == 2 and f"gemmill: {sentence}" in outcome.err
