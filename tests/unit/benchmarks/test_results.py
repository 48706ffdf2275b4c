"""The record, the table and the figures."""

import json
from argparse import Namespace

import pytest

from gemmill.tuner.choice import steady_us
from gemms import MeasuredOp, gemm
from harness.contenders import ops_contender
from harness.devices import commit_of, environment
from harness.measuring import Measurement
from harness.results import peers_record, row_record, sides_record, summary_record, summary_text, table
from harness.statistics import sample
from harness.sweep import sweep_record, sweep_table
from harness.written import write_json
from peers.torch_ops import contenders
from timed.quant.calls import KINDS

PEERS = contenders("scaled_mm", Namespace(), [])
NAMES = [contender.name for contender in (ops_contender("gemmill", "gemmill"), *PEERS)]


COPY_GBPS = 4000.0
ROW_WISE, TENSOR_WISE = "torch row-wise", "torch tensor-wise"


def measured(m, us, op=MeasuredOp.FP8, failures=None):
    """Measurements of one round, in microseconds by contender."""
    samples = {name: sample([value]) for name, value in us.items()}
    return Measurement(workload=gemm(op=op, m=m, n=4096, k=8192), samples=samples, failures=failures or {})


def test_ratio_is_against_the_fastest_peer():
    row = row_record(measured(16, {"gemmill": 10.0, ROW_WISE: 12.0, TENSOR_WISE: 9.0}), PEERS, COPY_GBPS)
    assert (row["best_peer"], row["ratio"]) == ("torch tensor-wise", 0.9)
    assert row["gbps"] == pytest.approx((16 * 8192 + 4096 * 8192 + 2 * 16 * 4096) / 10e-6 / 1e9, rel=1e-3)
    assert row["tflops"] == pytest.approx(2 * 16 * 4096 * 8192 / 10e-6 / 1e12, abs=0.05)


def test_a_step_of_the_clocks_between_rounds_leaves_the_ratio():
    """Medians alone would say 1.1 / 1.0: the step falls between the two contenders' turns of the middle round."""
    found = Measurement(
        workload=gemm(op=MeasuredOp.FP8, m=2048, n=4096, k=8192),
        samples={"gemmill": sample([1.0, 1.0, 1.1, 1.1, 1.1]), ROW_WISE: sample([1.0, 1.0, 1.0, 1.1, 1.1])},
        failures={},
    )
    assert row_record(found, PEERS, COPY_GBPS)["ratio"] == 1.0
    assert found.samples["gemmill"].median_us == 1.1 and found.samples[ROW_WISE].median_us == 1.0


def test_drift_is_taken_out_of_contenders_that_ran_in_few_rounds():
    """The first round was slow for all; one contender was dropped after it."""
    taken = {"x": sample([2.0, 1.0, 1.0]), "y": sample([4.0, 2.0, 2.0]), "dropped": sample([6.0])}
    assert steady_us({name: found.rounds_us for name, found in taken.items()}) == pytest.approx(
        {"x": 1.0, "y": 2.0, "dropped": 3.0}
    )


def test_a_peer_that_computes_less_is_not_compared_with():
    row = row_record(measured(32, {"gemmill": 10.0, "torch._int_mm": 5.0}, op=MeasuredOp.INT8), PEERS, COPY_GBPS)
    assert list(row["contenders"]) == ["gemmill", "torch._int_mm"]
    assert row["ratio"] is None and row["best_peer"] is None


def test_a_failed_subject_has_no_ratio():
    row = row_record(measured(16, {ROW_WISE: 12.0}, failures={"gemmill": "no"}), PEERS, COPY_GBPS)
    assert row["ratio"] is None and row["tflops"] is None


def test_summary_takes_both_sides_apart():
    rows = [
        row_record(measured(m, {"gemmill": 10.0, ROW_WISE: us}), PEERS, COPY_GBPS)
        for m, us in ((16, 20.0), (128, 5.0), (129, 9.0))
    ]
    low, high = summary_record(rows)
    assert (low["side"], low["shapes"], low["geometric_mean"], low["worst_ratio"]) == ("M <= 128", 2, 1.0, 0.5)
    assert low["worst_shape"] == [128, 4096, 8192]
    assert (high["side"], high["geometric_mean"]) == ("M > 128", 0.9)
    text = summary_text([low, high], [], {"fp8": {"gemmill": {"median_us": 3.0}}})
    assert "fp8 M <= 128: geometric mean 1.000 over 2 shapes, worst 0.500 at 128 x 4096 x 8192" in text
    assert "host time of one call, fp8, us: gemmill 3.00" in text


def test_the_figures_of_memory_alone():
    """Of a family whose sizes have other names: the same rows and the same summary."""

    def found(m: int, us: float, peer_us: float) -> dict:
        samples = {"gemmill": sample([us, us]), ROW_WISE: sample([peer_us, peer_us])}
        workload = KINDS["static_scaled_fp8_quant"].at(m=m, hidden=14336)
        return row_record(Measurement(workload=workload, samples=samples, failures={}), PEERS, COPY_GBPS)

    rows = [found(1, 2.0, 3.0), found(16, 2.5, 2.0), found(4096, 44.0, 88.0)]
    assert (rows[2]["bytes"], rows[2]["ratio"], rows[2]["tflops"]) == (3 * 4096 * 14336 + 4, 2.0, None)
    assert rows[2]["gbps"] == pytest.approx(4003.7, abs=0.1) and rows[2]["fraction"] == pytest.approx(1.0009, abs=1e-4)
    low, high = summary_record(rows)
    assert (low["worst_ratio"], low["worst_shape"], low["least_fraction_shape"]) == (0.8, [16, 14336], [1, 14336])
    assert (high["geometric_mean"], high["least_fraction"]) == (2.0, rows[2]["fraction"])
    assert "16 x 14336" in table(rows, NAMES) and list(rows[0])[:3] == ["op", "m", "hidden"]


def test_each_peer_alone_is_compared_over_the_shapes_that_it_computed():
    rows = [
        row_record(measured(16, {"gemmill": 10.0, ROW_WISE: 20.0, TENSOR_WISE: 5.0}), PEERS, COPY_GBPS),
        row_record(measured(4096, {"gemmill": 10.0, ROW_WISE: 12.5}, failures={TENSOR_WISE: "no"}), PEERS, COPY_GBPS),
        row_record(measured(32, {"gemmill": 10.0, "torch._int_mm": 5.0}, op=MeasuredOp.INT8), PEERS, COPY_GBPS),
    ]
    peers = peers_record(rows)
    assert [(part["op"], part["peer"], part["shapes"], part["geometric_mean"]) for part in peers] == [
        ("fp8", ROW_WISE, 2, pytest.approx((2.0 * 1.25) ** 0.5, abs=1e-4)),
        ("fp8", TENSOR_WISE, 1, 0.5),
    ]
    text = summary_text([], peers, {})
    assert text.splitlines()[0] == "fp8 against torch row-wise alone: geometric mean 1.581 over 2 shapes"


def test_other_sides_of_gemmill_are_summed_up_by_their_longest_time():
    """As under batch invariance: held / free, not its inverse; a failed side counts nowhere."""
    held = ops_contender("gemmill", "gemmill batch-invariant")
    times = ((16, 12.5), (64, 10.0), (4096, None))
    rows = [
        row_record(measured(m, {"gemmill": 10.0} | ({held.name: us} if us else {})), PEERS, COPY_GBPS, [held])
        for m, us in times
    ]
    (part,) = sides_record(rows)
    assert part == {
        "op": "fp8",
        "side": held.name,
        "shapes": 2,
        "geometric_mean": pytest.approx(1.25**0.5, abs=1e-4),
        "worst": 1.25,
        "worst_shape": [16, 4096, 8192],
    }
    text = summary_text([], [], {}, [part])
    assert text == (
        "fp8: gemmill batch-invariant / gemmill 1.118 in the geometric mean over 2 shapes, worst 1.250 at 16 x 4096 x 8192"
    )


def test_table_shows_failures_and_spread():
    noisy = Measurement(
        workload=gemm(op=MeasuredOp.FP8, m=1, n=2, k=3),
        samples={"gemmill": sample([1.0, 2.0, 3.0])},
        failures={"torch row-wise": "no"},
    )
    text = table([row_record(noisy, PEERS, COPY_GBPS)], NAMES)
    head, line = text.splitlines()
    assert "torch row-wise" in head and "torch._int_mm" not in head
    assert "2.00!" in line and "failed" in line


def test_json_is_whole_or_not_at_all(tmp_path):
    path = tmp_path / "new" / "x.json"
    write_json({"a": [1, 2.5]}, path)
    assert json.loads(path.read_text()) == {"a": [1, 2.5]}
    with pytest.raises(ValueError):
        write_json({"a": float("nan")}, path)
    assert json.loads(path.read_text()) == {"a": [1, 2.5]}
    assert [p.name for p in path.parent.iterdir()] == ["x.json"]


def test_sweep_record_is_a_matrix():
    found = [measured(1, {"gemmill": 3.14159}), measured(2, {"gemmill": 2.0, ROW_WISE: 4.0}, failures={"v": "no"})]
    record = sweep_record(found)
    assert record["contenders"] == ["gemmill", "torch row-wise"]
    assert record["shapes"] == [["fp8", 1, 4096, 8192], ["fp8", 2, 4096, 8192]]
    assert record["us"] == [[3.142, None], [2.0, 4.0]]
    assert record["rounds"] == [[1, 0], [1, 1]]
    assert record["failures"] == [{}, {"v": "no"}]


def test_sweep_table_names_the_fastest_variant():
    text = sweep_table(
        [measured(1, {"gemmill": 3.0, "x": 2.5, "y": 2.0, ROW_WISE: 4.0})], "gemmill", ["x", "y"], ["torch row-wise"]
    )
    assert text.splitlines()[1].split() == "fp8 1 x 4096 x 8192 3.00 2.00 4.00 0 y".split()


def test_environment_is_json():
    facts = json.loads(json.dumps(environment()))
    assert facts["torch"] and "gpu" in facts


def test_commit_outside_a_checkout(tmp_path):
    assert commit_of(tmp_path) == "unknown"
