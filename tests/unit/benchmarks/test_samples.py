"""benchmarks/samples.py: a journal of many shapes for the model's fit (dry)."""

from itertools import islice

import pytest
import torch

import samples as program
from gemmill.tuner.journal import read_journal
from gemms import MeasuredOp

pytestmark = pytest.mark.usefixtures("home")  # without builds: a dry run with the stand-ins

ARGUMENTS = ["--seed", "3", "--dry-run", "--name", "x", "--commit", "abc", "--rows", "2", "--classes", "fp8,bf16"]


def run(tmp_path, *more):
    return program.main([*ARGUMENTS, "--out-dir", str(tmp_path), *more])


def test_a_journal_that_goes_on_where_it_ended(tmp_path, capsys):
    assert run(tmp_path, "--limit-s", "60", "--most", "2") == 0
    assert "times of 2 shapes" in capsys.readouterr().out
    first = read_journal(tmp_path / "x.jsonl.xz")
    assert first.setup["seed"] == 3 and first.setup["commit"] == "abc" and first.setup["dry_run"]
    assert run(tmp_path, "--limit-s", "60", "--most", "12") == 0
    record = read_journal(tmp_path / "x.jsonl.xz")
    assert {workload.op for workload, _, _ in record.entries} == {MeasuredOp.FP8, MeasuredOp.BF16}
    assert list(record.entries)[: len(first.entries)] == list(first.entries)
    for entry in record.entries.values():
        names = entry.outcome.rounds_us
        assert names and all(name.startswith("sm90a_") and len(us) == 2 for name, us in names.items())


def test_the_end_is_kept(tmp_path, capsys):
    assert run(tmp_path, "--limit-s", "-1") == 1
    assert "0 times of 0 shapes" in capsys.readouterr().out


def test_one_shape_of_so_many_has_all_variants(tmp_path):
    assert run(tmp_path, "--limit-s", "60", "--most", "8", "--sieve", "0+1", "--all-every", "8") == 0
    counts = [len(e.outcome.rounds_us) for e in read_journal(tmp_path / "x.jsonl").entries.values()]
    assert counts[0] > 2 and set(counts[1:]) == {1}


def test_another_family_with_deep_weights():
    asked = ["--seed", "3", "--family", "blockscaled", "--limit-s", "60", "--least-k", "14336", "--rows", "3"]
    options = program.parse(asked)
    assert options.classes.split(",") == ["nvfp4_bf16", "mxfp4_bf16", "mxfp4_e4m3", "nvfp4", "mxfp8"]
    found = list(islice(program.workloads(options), 30))
    assert {workload.op for workload in found} == set(options.classes.split(","))
    assert min(workload.k for workload in found) >= 14336
    shallow = program.parse([*asked, "--least-k", "0"])
    assert min(workload.k for workload in islice(program.workloads(shallow), 30)) < 14336


def test_times_of_another_family(tmp_path):
    asked = ["--seed", "3", "--family", "blockscaled", "--classes", "mxfp4_bf16", "--rows", "1", "--most", "1"]
    assert program.main([*asked, "--dry-run", "--limit-s", "60", "--name", "y", "--out-dir", str(tmp_path)]) == 0
    (entry,) = read_journal(tmp_path / "y.jsonl.xz").entries.values()
    assert entry.outcome.workload.op == "mxfp4_bf16"
    assert entry.outcome.rounds_us and all("mxfp4" in name for name in entry.outcome.rounds_us)


def test_another_seed_is_another_journal(tmp_path, capsys):
    assert run(tmp_path, "--limit-s", "-1") == 1
    assert run(tmp_path, "--limit-s", "-1", "--seed", "4") == 2
    assert "x.jsonl is of another sweep (seed was 3, is 4)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--classes", "fp4"], "--classes 'fp4' is none of fp8, int8, int8_azp, fp8_groups, fp8_groups_32, bf16"),
        (["--sieve", "all"], "--sieve 'all' is not two numbers such as 16+12"),
    ],
)
def test_bad_options(arguments, sentence, capsys):
    with pytest.raises(SystemExit, match="2"):
        program.main(["--seed", "1", "--limit-s", "1", *arguments])
    assert sentence in capsys.readouterr().err


def test_no_gpu_is_said(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert program.main(["--seed", "1", "--limit-s", "1"]) == 2
    assert "no GPU: nothing can be timed here; --dry-run runs the program without one" in capsys.readouterr().err
