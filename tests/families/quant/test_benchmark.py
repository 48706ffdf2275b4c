"""benchmarks/run.py quant, dry; and its parts: sizes, the check of results, the figures."""

import json
from functools import partial
from types import SimpleNamespace

import pytest
import torch

import run as program
from gemmill.families.quant.contract import SCHEMAS as QUANT_SCHEMAS
from gemmill.runtime.schemas import BY_NAME
from harness.contenders import WrongResult
from timed.quant.calls import KINDS, QuantOperandMaker, kinds_named, parse_shapes, workloads_of
from timed.quant.contenders import check
from timed.workload import Workload

pytestmark = pytest.mark.usefixtures("home")  # without builds: the ops run on the CPU


def workload(case: str, m: int = 17, hidden: int = 256) -> Workload:
    return KINDS[case].at(m=m, hidden=hidden)


def test_a_dry_run_writes_its_record(tmp_path, capsys):
    assert program.main(["quant", "--dry-run", "--out-dir", str(tmp_path), "--name", "q", "--commit", "abc"]) == 0
    record = json.loads((tmp_path / "q.json").read_text())
    assert record["dry_run"] and record["commit"] == "abc" and record["copy_gbps"] > 0
    assert {row["op"] for row in record["rows"]} == set(KINDS)
    assert all(row["contenders"]["gemmill"]["median_us"] > 0 and not row["failures"] for row in record["rows"])
    assert record["host"]["silu_and_mul_quant"]["gemmill"]["median_us"] == 3.0
    assert {kind.case.op for kind in KINDS.values()} == {op.name for op in QUANT_SCHEMAS}, "every op is timed"
    assert "host time of one call, silu_and_mul_quant, us: gemmill 3.00" in capsys.readouterr().out


def test_ops_shapes_and_time_are_limited(tmp_path, capsys):
    arguments = [
        "quant",
        "--dry-run",
        "--ops",
        "silu,static",
        "--shapes",
        "4096x256",
        "--out-dir",
        str(tmp_path),
        "--name",
        "q",
    ]
    assert program.main(arguments) == 0
    rows = json.loads((tmp_path / "q.json").read_text())["rows"]
    assert len(rows) == 23 and all("silu" in row["op"] or "static" in row["op"] for row in rows)
    assert program.main([*arguments, "--limit-seconds", "-1"]) == 1
    assert "23 shapes left out, from static_scaled_fp8_quant 17 x 256 on" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--ops", "gelu,relu"], "no op has 'relu' in its name: there are static_scaled_fp8_quant"),
        (["--shapes", "table,3"], "shape '3' is neither table, grid nor MxHIDDEN, two positive numbers as in 16x4096"),
    ],
)
def test_bad_options(arguments, sentence, capsys):
    with pytest.raises(SystemExit, match="2"):
        program.main(["quant", "--dry-run", *arguments])
    assert sentence in capsys.readouterr().err


def test_what_cannot_be_timed_is_said(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert program.main(["quant"]) == 2
    assert "no GPU: nothing can be timed here" in capsys.readouterr().err
    assert program.main(["quant", "--dry-run", "--vllm-so", str(tmp_path / "missing.so")]) == 2
    assert f"vLLM's library {tmp_path / 'missing.so'} cannot be used" in capsys.readouterr().err


def test_every_case_is_a_right_call_and_its_bytes_are_those_of_its_tensors():
    for name, kind in KINDS.items():
        case = kind.case
        operands = QuantOperandMaker(torch.device("cpu"), 1).make(workload(name))
        assert operands.copies == 2
        check(operands, partial(getattr(torch.ops.gemmill, case.op).default, *operands.given[0]))
        moved = 0
        for parameter, value in zip(BY_NAME[case.op].parameters, operands.given[0], strict=True):
            if isinstance(value, torch.Tensor):
                moved += value.numel() * value.element_size() * (2 if parameter.name == "residual" else 1)
        assert operands.workload.bytes == moved, name


@pytest.mark.parametrize("spoiled", ["codes", "scales"])
def test_a_wrong_result_is_not_timed(spoiled):
    operands = QuantOperandMaker(torch.device("cpu"), 1).make(workload("dynamic_per_token_scaled_fp8_quant"))
    out, x, scales, _ = operands.given[0]

    def wrong():
        torch.ops.gemmill.dynamic_per_token_scaled_fp8_quant(out, x, scales, None)
        if spoiled == "codes":
            out.view(torch.uint8)[16, 7] ^= 4
        else:
            scales[16] *= 1.01

    with pytest.raises(
        WrongResult, match=r"wrong result in the first and last rows of .* 17 x 256: . codes and . scales"
    ):
        check(operands, wrong)


def test_codes_one_step_off_pass_for_a_peer_only():
    operands = QuantOperandMaker(torch.device("cpu"), 1).make(workload("static_scaled_int8_quant"))
    out, x, scale, _ = operands.given[0]

    def truncating():
        torch.ops.gemmill.static_scaled_int8_quant(out, x, scale, None)
        out.clamp_(max=126).add_(1)

    check(operands, truncating, codes_apart=1.0)
    with pytest.raises(WrongResult):
        check(operands, truncating)


def test_shapes_and_cases_are_named():
    assert list(parse_shapes("table,3x64"))[-2:] == [(4096, 14336), (3, 64)]
    assert len(list(parse_shapes("grid"))) == 35
    assert kinds_named("int8_quant azp") == ("dynamic_scaled_int8_quant azp", "vllm_dynamic_scaled_int8_quant azp")
    ordered = workloads_of(SimpleNamespace(op="per_token_group_quant_int8_azp", shapes="4096x256,1x64,1x64", draw=None))
    assert [(p.m, p.hidden) for p in ordered] == [(1, 64), (4096, 256)]


def test_a_sweep_of_variants_is_refused(capsys):
    with pytest.raises(SystemExit, match="2"):
        program.main(["quant", "--dry-run", "--variants"])
    assert "quant has one variant for each call: there is nothing to choose among" in capsys.readouterr().err


def test_wrong_values_of_weights_are_not_timed():
    operands = QuantOperandMaker(torch.device("cpu"), 1).make(workload("nvfp4_weight_dequant"))
    out, blocks = operands.given[0]

    def wrong():
        torch.ops.gemmill.nvfp4_weight_dequant(out, blocks)
        out[8, 7] += 1

    with pytest.raises(WrongResult, match=r"^wrong result in .*: 1 values differ$"):
        check(operands, wrong)
