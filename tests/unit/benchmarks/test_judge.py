"""benchmarks/judge.py: random shapes that nobody tuned, their times (dry) and the verdict."""

import json
import math
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import gemmill
import judge as program
from gemmill.families.blockscaled.sweep import MeasuredOp as Fp4Op
from gemmill.families.scaled_mm.cases.measured import GemmMaker
from gemmill.runtime.choosing import Trust
from gemmill.runtime.select import Choice, Rejected
from gemms import MeasuredOp, gemm
from harness import stand_in
from harness.contenders import FieldError
from harness.drawing import (
    LADDER,
    LEAST_BYTES,
    LEAST_SIDE,
    MOST_BYTES,
    MOST_ROWS,
    MOST_SIDE,
    designed,
    drawings,
    drawn,
    held_weights,
    is_held,
    judged,
    ladders,
    table_rows,
)
from harness.judging import only_record, shape_record
from harness.lines import Lines, LinesError
from harness.measuring import Measurement
from harness.sieve import QuickDry, Sieve, Sieved, Variants, chosen_for, sieved
from harness.statistics import sample
from harness.verdict import class_record, verdict_text, worst_step
from peers import deep_gemm, humming
from peers.humming_experts import HummingExperts
from timed import families

pytestmark = pytest.mark.usefixtures("home")  # without builds: a dry run with the stand-ins


@pytest.mark.parametrize("op", [MeasuredOp.FP8, MeasuredOp.INT8, MeasuredOp.BF16, MeasuredOp.FP8_GROUPS])
def test_shapes_are_log_uniform_within_their_bounds(op):
    found = drawn(op, 400, 3, ())
    assert found == drawn(op, 400, 3, ()) and found != drawn(op, 400, 4, ())
    step_n, step_k = (64, 128) if op is MeasuredOp.FP8_GROUPS else (16, 16)
    for p in found:
        assert LEAST_SIDE <= p.n <= MOST_SIDE and p.n % step_n == 0
        assert LEAST_SIDE <= p.k <= MOST_SIDE and p.k % step_k == 0
        assert LEAST_BYTES <= p.n * p.k * op.operand.bits // 8 <= MOST_BYTES
        assert 1 <= p.m <= MOST_ROWS
    octaves = Counter(int(math.log2(p.m)) for p in found)
    assert set(octaves) == set(range(13)) and max(octaves.values()) < 3 * min(octaves.values())
    assert sum(p.m % 2 for p in found) > 150
    assert len({(p.n, p.k) for p in found}) > 390


@pytest.mark.parametrize("op", drawings()["blockscaled"].classes)
def test_weights_of_few_bits_have_whole_groups_and_as_many_bytes(op):
    for p in drawn(op, 200, 3, ()):
        of = Fp4Op(op).pair.b_format
        assert p.op == op and p.n % 16 == 0 and p.k % max(of.group, 16) == 0
        assert LEAST_BYTES <= p.n * p.k * of.bytes_per_value <= MOST_BYTES


def test_classes_of_other_families_hold_nothing():
    shipped = held_weights(())
    assert ("nvfp4_bf16", 8192, 8192) in shipped and is_held(("nvfp4_bf16", 8192, 8192), shipped)
    assert not is_held(("mxfp8", 8192, 8192), {("nvfp4_bf16", 8192, 8192), ("bf16", 8192, 8192)})
    assert is_held(("fp8", 8192, 8192), {("mxfp8", 1024, 1024), ("fp8", 8192, 8192)})


def test_no_shape_is_near_one_that_is_held():
    shipped = held_weights(())
    assert (MeasuredOp.FP8, 8192, 8192) in shipped
    assert is_held((MeasuredOp.FP8, 8192, 8192), shipped) and is_held((MeasuredOp.FP8, 8192 + 256, 8192), shipped)
    assert not is_held((MeasuredOp.FP8, 8192 + 1024, 8192 + 1024), {(MeasuredOp.FP8, 8192, 8192)})
    assert is_held((MeasuredOp.INT8, 8192, 8192), {(MeasuredOp.INT8_AZP, 8192, 8192)})
    assert not is_held((MeasuredOp.FP8_GROUPS, 8192, 8192), {(MeasuredOp.FP8, 8192, 8192)})
    free = drawn(MeasuredOp.FP8, 60, 5, ())
    held = [(p.op, p.n, p.k) for p in free[:20]]
    assert not any(is_held((p.op, p.n, p.k), held) for p in drawn(MeasuredOp.FP8, 60, 5, held))
    assert not any(is_held((p.op, p.n, p.k), held) for ladder in ladders(MeasuredOp.FP8, 9, 5, held) for p in ladder)


def test_weights_of_a_journal_are_held(tmp_path):
    row = {"kind": "outcome", "problem": {"op": "bf16", "m": 3, "n": 5120, "k": 2048}, "repeat": 0, "wave": 0}
    row |= {"present": None, "rounds_us": {}, "faults": {}, "device": {}, "state": {}, "date": "x"}
    row |= {"checking_seconds": 0, "seconds": 0, "error": None}
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"kind": "sweep", "schema_version": 2, "setup": {}}) + "\n" + json.dumps(row) + "\n")
    assert held_weights([path]) - held_weights(()) == {(MeasuredOp.BF16, 5120, 2048)}


def test_ladders_have_whole_tiles_and_one_row_more():
    (ladder,) = ladders(MeasuredOp.BF16, 1, 0, ())
    assert [p.m for p in ladder] == list(LADDER) and {16, 17, 128, 129, 1024, 1025} <= set(LADDER)
    assert len({(p.n, p.k) for p in ladder}) == 1


def test_a_designed_sweep_has_rows_of_every_size_and_some_just_above_a_tile():
    weights = designed(MeasuredOp.FP8, 0, 5)
    found = [p for _ in range(80) for p in next(weights)]
    assert len({(p.n, p.k) for p in found}) > 75 and all(1 <= p.m <= MOST_ROWS for p in found)
    assert set(range(12)) <= {int(math.log2(p.m)) for p in found}
    assert sum(p.m > 64 and 1 <= p.m % 64 <= 8 for p in found) > 40


def test_sieve_takes_the_likely_and_some_others():
    guesses = {f"v{i:03}": 1.0 + 0.1 * i for i in range(100)}
    small, large = gemm(op=MeasuredOp.FP8, m=1, n=4096, k=4096), gemm(op=MeasuredOp.FP8, m=8192, n=8192, k=8192)
    assert chosen_for(guesses, small, Sieve()) == sorted(guesses)
    assert chosen_for(guesses, large, Sieve()) == sorted(guesses)[:16]
    sieve = Sieve(best=5, others=10, seed=1)
    chosen = chosen_for(guesses, small, sieve)
    assert chosen[:5] == sorted(guesses)[:5] and len(set(chosen)) == 15
    assert chosen == chosen_for(guesses, small, sieve) != chosen_for(guesses, small, replace(sieve, seed=2))
    late = Counter(name for seed in range(200) for name in chosen_for(guesses, small, replace(sieve, seed=seed))[5:])
    assert sum(late[f"v{i:03}"] for i in range(5, 20)) > 4 * sum(late[f"v{i:03}"] for i in range(85, 100)) > 0
    assert chosen_for({}, large, Sieve()) == []


def test_a_failing_variant_costs_its_own_figure_only():
    def refuse(x, i):
        raise RuntimeError("not on this device\nsecond line")

    operands = GemmMaker(torch.device("cpu"), 4096).make(gemm(op=MeasuredOp.FP8, m=4, n=32, k=64))
    good = next(v for v in stand_in.variants("scaled_mm") if v.takes(operands.workload))
    bad = replace(good, name="sm90a_bad", bind=refuse)
    found = sieved(operands, Variants.of([good, bad], None), QuickDry(), Sieve())
    assert list(found.us) == [good.name] and found.failures == {"sm90a_bad": "not on this device"}


def test_lines_go_on_from_what_is_there(tmp_path):
    path, setup = tmp_path / "x.jsonl", {"kind": "judge", "seed": 1}
    lines = Lines(path, setup)
    lines.begin("a")
    lines.end("a", {"kind": "shape", "us": 1.0})
    lines.begin("b")
    lines.close()
    with path.open("a") as file:
        file.write('{"kind": "shape", "key": "b", "u')
    again = Lines(path, setup)
    assert again.results == {"a": {"key": "a", "kind": "shape", "us": 1.0}}
    assert again.lost == ["b"] and [again.waits(key) for key in "abc"] == [False, False, True]
    again.end("c", {"kind": "shape"})
    again.close()
    assert set(Lines(path, setup).results) == {"a", "c"}
    with pytest.raises(LinesError) as error:
        Lines(path, {"kind": "judge", "seed": 2})
    assert str(error.value) == f"{path} is of another run (seed was 1, is 2): name another with --name"


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ('{"kind": "shape"}', ": object missing required field `key`"),
        ('{"kind": "shape", "key": 1}', ", key: expected `str`, got `int`"),
        ("[]", ": expected `object`, got `array`"),
    ],
)
def test_a_whole_line_with_a_wrong_field_is_refused(tmp_path, line, sentence):
    path = tmp_path / "x.jsonl"
    path.write_text(f'{{"kind": "judge"}}\n{line}\n')
    with pytest.raises(LinesError) as error:
        Lines(path, {"kind": "judge"})
    assert str(error.value) == f"{path}, line 2{sentence}; take the line out, or name another file with --name"


def shape(m, ratio, regret, **changes):
    row = {"op": "fp8", "m": m, "n": 1024, "k": 2048, "trust": "model", "choice": "ours", "us": 10.0, "ratio": ratio}
    return row | {"regret": regret, "best_peer": "vllm", "fastest": "theirs"} | changes


def test_figures_of_a_class():
    rows = [shape(16, 2.0, 0.0), shape(128, 0.5, 0.3), shape(129, 0.95, None), shape(500, None, 0.1)]
    rows.append(shape(500, 0.1, 0.9, trust="exact"))
    rungs = [{"m": m, "us": us, "choice": f"c{m}"} for m, us in ((1, 5.0), (33, 12.0), (64, 8.0), (65, 9.0))]
    found = class_record("fp8", rows, [{"n": 1024, "k": 2048, "rungs": rungs}])
    few, many, middle = found["sides"].values()
    assert (found["shapes"], found["not_the_models"]) == (4, 1)
    assert (few["ratio"], few["worst"], few["under_0.93"], few["under_0.97"], few["regret"]) == (1.0, 0.5, 1, 1, 0.15)
    assert few["fastest_variant_ratio"] == pytest.approx((2.0 * 0.65) ** 0.5, abs=1e-4)
    assert (many["ratio"], many["compared"], many["under_0.93"], many["under_0.97"]) == (0.95, 1, 0, 1)
    assert (middle["compared"], middle["shapes"], middle["regret"], few["same_scales"]) == (0, 1, 0.1, None)
    assert found["worst_step"] == 1.5
    text = verdict_text([found], rows)
    assert (
        "M <= 128: 1.000 of the best peer (goal 1.1), worst 0.50 (goal 0.93), 1 under 0.93, 1 under 0.97 of 2" in text
    )
    assert "regret: 13.3% in the mean (goal 2%), 30.0% at worst (goal 12%)" in text
    assert "  0.50 at 128 x 1024 x 2048: 10.00 us by ours; vllm 5.00" in text
    assert "  +30% at 128 x 1024 x 2048: 10.00 us by ours; fastest theirs" in text
    assert "M of 33 takes 12.00 us by c33; 64 8.00 by c64" in text


def test_each_goal_of_a_class_has_its_figure():
    ratios = (
        {"torch row-wise": 2.0, "torch tensor-wise": 0.5},
        {"vllm": 1.5, "torch row-wise": 1.6, "torch tensor-wise": 4},
    )
    rows = [shape(m, min(found.values()), 0.0, ratios=found) for m in (128, 159, 700, 701) for found in ratios]
    rows += [
        shape(160, 0.4, 0.0, ratios={"torch tensor-wise": 0.4}),
        shape(200, 9.0, 0.0, ratios={"vllm": 9.0}, trust="exact"),
    ]
    sides = class_record("fp8", rows, [])["sides"]
    assert [(label, side["compared"]) for label, side in sides.items()] == [
        ("M <= 128", 2),
        ("M > 128", 7),
        ("160 <= M <= 700", 3),
    ]
    same = sides["160 <= M <= 700"]["same_scales"]
    assert same == {"compared": 2, "ratio": 1.7321, "worst": 1.5, "peers": ["torch row-wise", "vllm"]}
    assert sides["160 <= M <= 700"]["worst"] == 0.4 and sides["160 <= M <= 700"]["ratio"] == pytest.approx(
        0.3 ** (1 / 3), abs=1e-4
    )
    text = verdict_text([class_record("fp8", rows, [])], rows)
    assert (
        "M > 128: 1.732 of the best peer with the same scales (goal 1.2), worst 1.50 of 6: torch row-wise, vllm" in text
    )
    assert list(class_record("nvfp4", [row | {"op": "nvfp4"} for row in rows], [])["sides"]) == ["M <= 128", "M > 128"]
    of_sparse = class_record("fp8", rows, [], "sparse_mm")
    assert list(of_sparse["sides"]) == ["M <= 128", "M > 128"] and "goal 1.1" not in verdict_text(
        [of_sparse], rows, "sparse_mm"
    )


def test_one_rung_is_no_ladder():
    assert worst_step([{"m": 1, "us": 5.0, "choice": "x"}]) is None


def test_ratio_and_regret_are_those_of_the_same_rounds(monkeypatch):
    field = program.prepared(program.parse(["--seed", "1", "--dry-run"]))[0].field
    samples = {
        "gemmill": sample([10.0, 20.0, 30.0]),
        "torch row-wise": sample([11.0, 22.0, 33.0]),
        "sm90a_a": sample([8.0, 16.0, 24.0]),
        "sm90a_b": sample([9.0, 18.0, 27.0]),
    }
    found = Measurement(workload=gemm(op=MeasuredOp.FP8, m=3, n=1024, k=2048), samples=samples, failures={})
    quick = Sieved(rounds_us={"sm90a_a": (8.0, 7.0), "sm90a_b": (9.0,), "sm90a_c": (12.0,)}, failures={"sm90a_d": "no"})
    row = shape_record(found, quick, "sm90a_c", "model", ["sm90a_a", "sm90a_b"], field)
    assert (row["ratio"], row["best_peer"], row["regret"], row["fastest"]) == (1.1, "torch row-wise", 0.25, "sm90a_a")
    assert row["sieved_us"] == {"sm90a_a": 7.0, "sm90a_b": 9.0, "sm90a_c": 12.0} and row["failures"] == {
        "sm90a_d": "no"
    }


def test_the_loss_of_some_variants_is_that_of_the_same_rounds():
    samples = {
        "gemmill": sample([10.0, 20.0, 30.0]),
        "sm90a_a": sample([8.0, 16.0, 24.0]),
        "sm90a_b": sample([12.0, 20.0, 24.0]),
        "torch mm": sample([1.0]),
    }
    found = Measurement(
        workload=gemm(op=MeasuredOp.FP8, m=3, n=1024, k=2048), samples=samples, failures={"sm90a_c": "no"}
    )
    names = ["gemmill", "sm90a_a", "sm90a_b", "sm90a_c"]
    assert only_record(found, names, {"sm90a_b", "sm90a_c"}) == {
        "variant": "sm90a_b",
        "fastest": "sm90a_a",
        "loss": 0.25,
    }
    assert only_record(found, names, {"sm90a_a"}) == {"variant": "sm90a_a", "fastest": "sm90a_a", "loss": 0.0}
    assert only_record(found, names, {"sm90a_c"}) is None


def test_figures_of_some_variants_alone():
    only = {"variant": "mine", "fastest": "theirs"}
    rows = [
        shape(16, None, None, only=only | {"loss": loss}, trust=trust)
        for loss, trust in ((0.0, "model"), (0.21, "exact"))
    ]
    found = class_record("fp8", [*rows, shape(17, None, None, only=None)], [])
    assert found["only"] == {"shapes": 2, "without": 1, "loss": 0.1, "worst": 0.21}
    text = verdict_text([found], rows)
    assert "no variant of --only takes 1 shapes" in text
    assert "--only: 10.0% behind the best of all in the mean of 2, 21.0% at worst" in text
    assert "  +21% at 16 x 1024 x 2048: mine; fastest theirs" in text and text.count("mine") == 1
    assert class_record("fp8", [shape(16, None, None)], [])["only"] is None


def test_rows_of_the_shipped_table_are_judged_with_the_variants_of_a_filter(tmp_path, capsys):
    arguments = [*ARGUMENTS, "--out-dir", str(tmp_path), "--classes", "fp8,bf16", "--shapes", "1", "--rows", "2"]
    assert program.main([*arguments, "--ladders", "0", "--only", "compiler=nvcc"]) == 0
    out = capsys.readouterr().out
    assert out.count("behind the best of all in the mean of") == 2 and "best peer" not in out
    record = json.loads((tmp_path / "x.json").read_text())
    assert (record["only"], record["rows_each"], record["peers"]) == ("compiler=nvcc", 2, [])
    assert all("cutlass" in row["only"]["variant"] for row in record["rows"])
    assert program.main([*arguments, "--only", "compiler=gcc", "--name", "y"]) == 2
    assert (
        "--only: filter compiler=gcc: no variant has that compiler; the values are cutedsl, nvcc"
        in capsys.readouterr().err
    )


def test_rows_of_a_table_are_the_same_of_the_same_seed():
    found = table_rows(MeasuredOp.FP8, 5, 3)
    assert len(set(found)) == 5 and found == table_rows(MeasuredOp.FP8, 5, 3) != table_rows(MeasuredOp.FP8, 5, 4)
    assert set(table_rows(MeasuredOp.INT8, 10**6, 3)) >= set(table_rows(MeasuredOp.INT8, 5, 3))


ARGUMENTS = ["--seed", "7", "--dry-run", "--name", "x", "--shapes", "4", "--ladders", "1", "--commit", "abc"]


def test_the_whole_program_dry_and_again(tmp_path, capsys):
    arguments = [*ARGUMENTS, "--out-dir", str(tmp_path)]
    assert program.main([*arguments, "--limit-s", "-1"]) == 1
    assert "left out, from fp8" in capsys.readouterr().out
    assert program.main(arguments) == 0
    out = capsys.readouterr().out
    assert "== fp8: 3 shapes, 1 ladders" in out and "of the best peer" in out
    record = json.loads((tmp_path / "x.json").read_text())
    assert record["dry_run"] and record["seed"] == 7 and record["commit"] == "abc" and record["lost"] == []
    assert [row["op"] for row in record["rows"][:4]] == ["fp8", "bf16", "fp8_groups", "int8"]
    assert {row["best_peer"] for row in record["rows"]} == {None, "torch row-wise", "torch mm"}
    assert all(row["sieved_us"] and row["regret"] is not None for row in record["rows"])
    assert program.main(arguments) == 0
    assert json.loads((tmp_path / "x.json").read_text())["rows"] == record["rows"]


def test_block_scaled_calls_are_judged_too(tmp_path, capsys):
    arguments = [*ARGUMENTS, "--out-dir", str(tmp_path), "--family", "blockscaled", "--shapes", "2"]
    assert program.main([*arguments, "--classes", "nvfp4_bf16,mxfp4_e4m3,nvfp4"]) == 0
    out = capsys.readouterr().out
    assert all(f"== {op}: " in out for op in ("nvfp4_bf16", "mxfp4_e4m3", "nvfp4")) and "1 ladders" in out
    record = json.loads((tmp_path / "x.json").read_text())
    assert record["family"] == "blockscaled" and record["build"] is None
    assert {row["op"] for row in record["rows"]} == {"nvfp4_bf16", "mxfp4_e4m3", "nvfp4"}
    assert all(row["sieved_us"] and row["regret"] is not None for row in record["rows"])


def test_families_without_drawn_weights_are_judged_too(tmp_path, capsys):
    arguments = [*ARGUMENTS, "--out-dir", str(tmp_path), "--family", "quant", "--shapes", "2"]
    assert program.main([*arguments, "--classes", "per_token_group_fp8_quant,static_scaled_fp8_quant"]) == 0
    record = json.loads((tmp_path / "x.json").read_text())
    assert [found["op"] for found in record["verdict"]] == ["static_scaled_fp8_quant", "per_token_group_fp8_quant"]
    assert all(row["counted"] and row["us"] and row["sizes"] == ["m", "hidden"] for row in record["rows"])
    assert all(row["regret"] is None for row in record["rows"])  # no build is loaded: nothing to choose from
    assert "== per_token_group_fp8_quant: 1 shapes, 0 ladders" in capsys.readouterr().out


@pytest.mark.parametrize("family", judged())
def test_every_family_draws_calls_of_all_its_classes(family):
    """What --family judges by default: calls of each class, the same of the same seed, others of another one."""
    options = [program.parse(["--seed", seed, "--family", family, "--shapes", "4"]) for seed in ("3", "3", "4")]
    (first, _), (again, _), (other, _) = map(program.workloads_of, options)
    assert [*map(str, first)] == [*map(str, again)] != [*map(str, other)]
    assert {p.kind for p in first} == set(options[0].classes.split(","))
    assert {p.kind for p in first[: len(first) // 2]} == {
        p.kind for p in first
    }  # a run cut short says something of each


def test_all_families_are_judged():
    assert judged() == families()


def test_variants_that_take_a_call_run_beside_the_choice(tmp_path, monkeypatch, capsys):
    """`explain` names them; the sieve's fastest are timed again, pinned, and the regret is against them."""
    pinned, told = (
        [],
        [Rejected(name=name, reason="slower", us=us) for name, us in (("sm90a_b", 5.0), ("sm90a_c", 4.0))],
    )
    told.append(Rejected(name="sm90a_other", reason="other operands"))
    choice = Choice(entry=SimpleNamespace(name="sm90a_a"), trust=Trust.ONLY, trace=tuple(told))
    monkeypatch.setattr(gemmill, "explain", lambda op, *arguments: choice)
    monkeypatch.setattr(gemmill, "use_variant", lambda name: pinned.append(name) or nullcontext())
    monkeypatch.setattr(gemmill, "load", lambda build: None)
    judge, _ = program.prepared(
        program.parse([*ARGUMENTS, "--family", "quant", "--classes", "static_scaled_fp8_quant"])
    )
    judge = replace(judge, field=replace(judge.field, loaded=SimpleNamespace()))
    workload = program.workloads_of(program.parse([*ARGUMENTS, "--family", "quant"]))[0][0]
    row = judge.shape(workload)
    assert row["choice"] == "sm90a_a" and set(row["sieved_us"]) == {"sm90a_a", "sm90a_b", "sm90a_c"}
    assert {"gemmill", "sm90a_b", "sm90a_c"} <= set(row["contenders"]) and row["regret"] is not None
    assert {"sm90a_a", "sm90a_b", "sm90a_c"} == set(pinned) and row["trust"] == "only" and row["counted"]


def test_shapes_that_are_drawn_are_those_that_humming_compiles(monkeypatch):
    asked = []
    monkeypatch.setattr(humming, "humming_contender", lambda folder: None)
    monkeypatch.setattr(
        humming, "compile_ahead", lambda name, call, workloads, *rest: asked.extend(workloads) or "told"
    )
    options = program.parse([*ARGUMENTS, "--family", "blockscaled", "--classes", "mxfp8,nvfp4_bf16"])
    shapes, _ = program.workloads_of(options)
    options.humming, options.humming_jobs, options.drawn = "folder", 2, shapes
    humming.contenders("blockscaled", options, [])
    assert [p for p in asked if p in shapes] == [p for p in shapes if p.op == "nvfp4_bf16"] and len(asked) == 3


def test_layers_that_are_drawn_are_those_that_humming_compiles(monkeypatch):
    asked = []
    layer = HummingExperts(of=None)
    monkeypatch.setattr(humming, "experts_contender", lambda folder: layer)
    monkeypatch.setattr(
        humming, "compile_ahead", lambda name, call, workloads, *rest: asked.extend(workloads) or "told"
    )
    options = program.parse([*ARGUMENTS, "--family", "fused_experts", "--classes", "fp8_groups,nvfp4"])
    shapes, _ = program.workloads_of(options)
    options.humming, options.humming_jobs, options.drawn, options.vllm_so = "folder", 2, shapes, "/vllm/_C.so"
    assert humming.contenders("fused_experts", options, []) == [layer]
    assert asked == [p for p in shapes if p.kind == "nvfp4"] != []


def test_hummings_experts_want_the_library_that_sorts_rows(monkeypatch):
    loaded = []
    monkeypatch.setattr(humming, "experts_contender", lambda folder: HummingExperts(of=None))
    monkeypatch.setattr(humming.torch.ops, "load_library", loaded.append)
    options = program.parse([*ARGUMENTS, "--humming", "folder", "--vllm-moe-so", "/vllm/_moe_C.so"])
    assert humming.contenders("fused_experts", options, []) and loaded == ["/vllm/_moe_C.so"]
    options.vllm_moe_so = None
    with pytest.raises(FieldError, match="Humming's layers of experts want --vllm-moe-so, or --vllm-so beside which"):
        humming.contenders("fused_experts", options, [])


def test_grouped_layers_that_are_drawn_have_the_tokens_asked_for_and_deep_gemm_compiles_them(monkeypatch):
    asked = []
    monkeypatch.setattr(deep_gemm, "load_package", lambda folder: None)
    monkeypatch.setattr(deep_gemm, "forms_of", lambda package: ["form"])
    monkeypatch.setattr(
        deep_gemm.deep_gemm_experts, "compile_ahead", lambda *given: asked.extend(given[2]) or "compiled"
    )
    family = ["--family", "grouped_mm", "--classes", "fp8_groups,bf16", "--shapes", "2"]
    options = program.parse([*ARGUMENTS, *family, "--calls", "--tokens 5,7 --routing random"])
    options.dry_run = False
    shapes, _ = program.workloads_of(options)
    layers = [(p.kind, p.experts, p.n, p.k, p.top) for p in shapes]
    assert [p.tokens for p in shapes] == [5, 7] * 4 and layers[::2] == layers[1::2] and len(set(layers)) == 4
    options.deep_gemm, options.deep_gemm_jobs, options.drawn, notes = "folder", 2, shapes, []
    assert deep_gemm.contenders("grouped_mm", options, notes) == ["form"] and notes == ["compiled"]
    assert [p for p in shapes if p.kind == "fp8_groups"] == asked[:4]


def test_what_hung_is_not_tried_again(tmp_path, capsys):
    arguments = [*ARGUMENTS, "--out-dir", str(tmp_path), "--classes", "bf16"]
    assert program.main([*arguments, "--limit-s", "-1"]) == 1
    hung = str(program.workloads_of(program.parse(arguments))[0][0])
    with (tmp_path / "x.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "begun", "key": hung}) + "\n")
    assert program.main(arguments) == 0
    assert json.loads((tmp_path / "x.json").read_text())["lost"] == [hung]
    assert f"begun and never ended: {hung}" in capsys.readouterr().err


def test_another_seed_is_another_file(tmp_path, capsys):
    arguments = [*ARGUMENTS, "--out-dir", str(tmp_path), "--limit-s", "-1"]
    program.main(arguments)
    assert program.main([*arguments, "--seed", "8"]) == 2
    assert "x.jsonl is of another run (seed was 7, is 8): name another with --name" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--classes", "fp4"], "--classes 'fp4' is none of fp8, int8, int8_azp, fp8_groups, fp8_groups_32, bf16"),
        (["--family", "blockscaled", "--classes", "fp8,bf16"], "--classes 'fp8' is none of nvfp4_bf16, mxfp4_bf16,"),
        (["--family", "quant", "--classes", "qqq"], "no op has 'qqq' in its name: there are "),
        (
            ["--family", "quant", "--rows", "3"],
            "--rows, --between and --only take scaled_mm and blockscaled, not quant",
        ),
        (["--calls", "--tokens 3"], "--calls '--tokens 3': scaled_mm has none; --classes and --shapes say all"),
        (["--sieve", "some"], "--sieve 'some' is neither all nor two numbers such as 24+12"),
    ],
)
def test_bad_options(arguments, sentence, capsys):
    with pytest.raises(SystemExit, match="2"):
        program.main(["--seed", "1", *arguments])
    assert sentence in capsys.readouterr().err


def test_no_gpu_is_said(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert program.main(["--seed", "1"]) == 2
    assert "no GPU: nothing can be timed here; --dry-run runs the program without one" in capsys.readouterr().err


def test_classes_take_turns():
    assert program.turns([[1, 2, 3], [4], [5, 6]]) == [1, 4, 5, 2, 6, 3]
