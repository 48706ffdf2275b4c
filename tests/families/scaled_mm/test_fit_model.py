"""tools/fit_model.py: constants fitted to times, and their loss at held-out weights."""

import re
from pathlib import Path

import pytest

from gemmill.families.scaled_mm.model import FITTED, terms_of, time_ns
from gemmill.registry import REGISTRY
from gemmill.runtime.choosing import rejection
from gemmill.space.names import to_name
from gemmill.space.selections import select
from gemms import MeasuredOp, gemm

TOOLS = Path(__file__).resolve().parents[3] / "tools"
TRUE = FITTED._replace(latency=4000.0, store_element=0.4, filling=1.0, memory_bytes=3000.0)
WEIGHTS = [
    (1024, 8192),
    (2048, 16384),
    (4096, 4096),
    (6144, 7168),
    (28672, 4096),
    (512, 40960),
    (8192, 2048),
    (3072, 5120),
]
ROWS = (1, 17, 33, 65, 129, 200, 700, 3000)


@pytest.fixture
def tool(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))
    import fit_model

    return fit_model


@pytest.fixture
def times(tool):
    """As the model with other constants would have them, of every fourth variant."""
    configs = list(REGISTRY.configs_of("scaled_mm", select("default").configs))[::4]
    rows = {to_name(config): tool.row_of(to_name(config)) for config in configs}
    workloads = [gemm(op=MeasuredOp.FP8, m=m, n=n, k=k) for n, k in WEIGHTS for m in ROWS]
    return {
        p: {
            name: time_ns(terms_of(row, p.call, 132), TRUE) / 1e3
            for name, row in rows.items()
            if row.call_class == p.call.call_class and rejection(row, p.call) is None
        }
        for p in workloads
    }


def test_what_made_the_times_is_found_and_held_out_weights_gain(tool, times):
    to_fit, to_judge = (tool.samples_of(part) for part in tool.parts_of(times, 0.25, 1))
    assert {(p.n, p.k) for p in to_fit.workloads}.isdisjoint((p.n, p.k) for p in to_judge.workloads)
    assert len(to_judge.workloads) == 2 * len(ROWS)
    assert tool.losses(to_judge, TRUE).max() == 0
    before, value = tool.losses(to_judge, FITTED).mean(), tool.objective(to_fit)
    found = tool.fitted(value, FITTED, 1500)
    assert value(found) < value(FITTED) / 4
    assert tool.losses(to_judge, found).mean() < before / 2
    assert tool.fitted(value, FITTED, 60) == tool.fitted(value, FITTED, 60)


def test_losses_are_those_of_the_variant_that_comes_first(tool, times):
    workload = gemm(op=MeasuredOp.FP8, m=33, n=6144, k=7168)
    guesses = {name: time_ns(terms_of(tool.row_of(name), workload.call, 132), FITTED) for name in times[workload]}
    first = min(guesses, key=guesses.__getitem__)
    us = dict.fromkeys(guesses, 10.0) | {first: 13.0}
    assert tool.losses(tool.samples_of({workload: us}), FITTED).tolist() == [pytest.approx(0.3)]
    assert tool.samples_of({workload: us, gemm(op=MeasuredOp.FP8, m=1, n=16, k=16): {first: 1.0}}).workloads == (
        workload,
    )


def test_constants_of_the_mirror_are_the_models(tool, tmp_path):
    def mirrored(path):
        return dict(re.findall(r"constexpr double k(\w+) = ([\d.e+-]+);", path.read_text()))

    names = {"".join(word.capitalize() for word in name.split("_")): value for name, value in FITTED._asdict().items()}
    assert {name: float(value) for name, value in mirrored(tool.MIRROR).items()} == names
    model, mirror = tmp_path / "model.py", tmp_path / "model.cpp"
    model.write_text(tool.MODEL.read_text())
    mirror.write_text(tool.MIRROR.read_text())
    tool.written(FITTED._replace(latency=12.34), model, mirror)
    assert "    latency: float = 12.34\n" in model.read_text() and mirrored(mirror)["Latency"] == "12.34"
    assert model.read_text().count("\n") == tool.MODEL.read_text().count("\n")
    mirror.write_text("")
    with pytest.raises(ValueError, match=r"has 0 lines for products, expected one"):
        tool.written(FITTED, model, mirror)


def test_the_whole_program(tool, capsys):
    journal = TOOLS.parent / "benchmarks/results/tune-boxes-rest-h200-2026-11-22.jsonl.xz"
    tool.main([str(journal), "--evaluations", "30"])
    out = capsys.readouterr().out
    assert "today, held out: " in out and "fitted, fitted to: " in out and "model over measured, near the front:" in out
    assert re.search(r"fp8 +M +33 to +64: +\d+\.\d% in the mean", out) and "memory_bytes = " in out


def test_constants_that_are_not_named_are_held(tool):
    found = tool.fitted(lambda c: abs(c.promoted_unit - 60.0), FITTED, 400, only=("promoted_unit", "promoted_latency"))
    assert abs(found.promoted_unit - 60.0) < 1
    held = [name for name in FITTED._fields if name not in ("promoted_unit", "promoted_latency")]
    assert all(getattr(found, name) == getattr(FITTED, name) for name in held)


def test_a_constant_that_the_model_lacks_is_refused(tool, capsys):
    with pytest.raises(SystemExit):
        tool.main(["journal.jsonl", "--only", "promoted_unit,speed"])
    assert "--only speed: the model's constants are products, shared_bytes, " in capsys.readouterr().err
