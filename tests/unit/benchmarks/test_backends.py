"""The comparison of the two code generators."""

import pytest

from gemms import MeasuredOp, gemm
from harness.backends import backends_record, backends_text, twin_of
from harness.measuring import Measurement
from harness.statistics import sample

ONE = (
    "sm90a_cutlass_e4m3_e4m3_f32_bf16_scaledbias_channel_t128x128x128_c1x1x1_pingpong_fast_persistent_ab_sauto_a16b16d8"
)
OTHER = ONE.replace("pingpong", "cooperative")
TWIN = ONE.replace("_cutlass_", "_cutedsl_")


def test_best_of_each_and_twins():
    samples = {name: sample([us]) for name, us in {ONE: 3.0, OTHER: 2.0, TWIN: 1.5, "vllm": 1.0}.items()}
    found = Measurement(workload=gemm(op=MeasuredOp.FP8, m=1, n=2, k=3), samples=samples, failures={})
    record = backends_record([found], [ONE, OTHER, TWIN])
    assert record["best"] == [{"shape": ["fp8", 1, 2, 3], "fastest": {"cutlass": [OTHER, 2.0], "cutedsl": [TWIN, 1.5]}}]
    assert record["pairs"] == [{"shape": ["fp8", 1, 2, 3], "cutlass": ONE, "us": [3.0, 1.5]}]
    text = backends_text(record)
    assert "fastest of each, cutlass / cutedsl: geometric mean 1.333 over 1" in text
    assert "twins, cutlass / cutedsl: geometric mean 2.000 over 1" in text


@pytest.mark.parametrize(("name", "twin"), [(ONE, TWIN), (TWIN, None), ("vllm", None)])
def test_twin(name, twin):
    assert twin_of(name) == twin
