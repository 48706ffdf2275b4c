"""`gemmill tune` as a command: its options, its output, and its sentences."""

import json
import re
from pathlib import Path

import pytest
import torch

from faulty import HERE, FaultySpec
from gemmill.tuner import executors
from gemmill.tuner.protocol import TuneError, WorkerSpec
from gemmill.tuner.worker import Worker, WorkerDied, WorkerError

DECODE = "sm90a_cutlass_e4m3_e4m3_f32_bf16_scaledbias_channel_t64x16x256_c1x1x1_basic_fast_splitk_swapab_s4_a16b16d8"


class Faulty(executors.LocalExecutor):
    """One of whose variants is wrong."""

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__(FaultySpec(**vars(spec), faults={DECODE: "wrong"}), "faulty")


def test_a_dry_sweep_from_shapes_to_report(gemmill, home: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(HERE))
    monkeypatch.setattr("gemmill.tuner.executors.LocalExecutor", Faulty)
    shapes, table, report = tmp_path / "s.csv", tmp_path / "t.json", tmp_path / "r.html"
    shapes.write_text("m,n,k\n1,64,128\n16,64,128\n")
    arguments = ["--dry-run", "--shapes", shapes, "--table", table, "--report", report, "--rounds", 2, "--repeat", 2]
    outcome = gemmill("tune", *arguments)
    assert outcome.code == 0, outcome.err
    assert "2 shapes on dry run" in outcome.out and f"table: {table}" in outcome.out
    assert re.search(r"run 2 against run 1: \d of 2 winners flip", outcome.out)
    assert f"fp8 1 x 64 x 128: {DECODE}: wrong: of the rows looked at" in outcome.err
    assert not re.search(r"[━╸]", outcome.err), "a bar is for terminals"
    assert len(json.loads(table.read_text())["rows"]) == 2
    assert "a dry run: the times are invented" in report.read_text()
    (journal,) = (home / "tune").glob("*.jsonl")
    assert f"journal: {journal}" in outcome.out
    made = gemmill("table", "show", table, "--json")
    assert json.loads(made.out)["device"] == "dry run"


def test_lines_of_misses_that_are_none_are_left_out_and_told(gemmill, home: Path, tmp_path: Path) -> None:
    misses, table = tmp_path / "misses", tmp_path / "t.json"
    good = '{"op": "fp8", "m": 3, "n": 64, "k": 128, "trust": "model"}'
    misses.write_text(f"{good[:20]}\n{good.replace('128', '0')}\n{good}\n")
    outcome = gemmill("tune", "--dry-run", "--misses", misses, "--table", table, "--rounds", 1, "--no-peers")
    assert outcome.code == 0, outcome.err
    assert f"gemmill: 2 lines left out, the first: {misses}, line 1 is not JSON: " in outcome.err
    assert len(json.loads(table.read_text())["rows"]) == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            [],
            "no shapes: name a file with --shapes, recorded misses with --misses, or a model with --model (llama-3-8b, ",
        ),
        (["--model", "gpt"], "no model 'gpt': it is neither a readable config.json nor one of llama-3-8b, "),
        (
            ["--model", "llama-3-8b", "--op", "fp9"],
            "--op 'fp9': there are fp8, int8, int8_azp, fp8_groups, fp8_groups_32, bf16, nvfp4_bf16, ",
        ),
        (["--model", "llama-3-8b", "--m", "1,x"], "--m '1,x' is not a list of positive numbers such as 1,2,4"),
        (
            ["--shapes", "s.json", "--tp", "1,2"],
            "--tp without --model: it divides the weights of a model, leave it out",
        ),
        (["--model", "llama-3-8b", "--margin", "3"], "'3' is not a share such as 3% or 0.03"),
    ],
)
def test_bad_options_are_sentences(gemmill, home: Path, arguments: list[str], sentence: str) -> None:
    outcome = gemmill("tune", "--dry-run", *arguments)
    assert outcome.code == 2 and sentence in outcome.err and outcome.err.count("\n") == 1


def test_a_bad_row_of_shapes_is_named(gemmill, home: Path, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    path.write_text('[{"m": 1, "n": 64, "k": 128}, {"m": 1, "n": -1, "k": 128}]')
    outcome = gemmill("tune", "--dry-run", "--shapes", path)
    assert (outcome.code, outcome.err) == (
        2,
        f"gemmill: {path}, row 2 has n = -1, expected a whole number from 1 to 2147483647\n",
    )


def test_no_build_is_a_sentence(gemmill, home: Path) -> None:
    outcome = gemmill("tune", "--model", "llama-3-8b")
    assert outcome.code == 3 and outcome.err.startswith("gemmill: no build of gemmill in ")


@pytest.mark.parametrize(
    "error", [WorkerError("build x is for sm90a, this GPU is sm100a"), WorkerDied("its process ended", hung=False)]
)
def test_a_process_that_does_not_start_is_a_sentence(gemmill, put_build, monkeypatch, error: Exception) -> None:
    put_build()

    def ask(self, *_arguments, **_more):
        raise error

    monkeypatch.setattr(Worker, "ask", ask)
    outcome = gemmill("tune", "--model", "llama-3-8b", "--m", "1")
    assert (outcome.code, outcome.err.splitlines()[-1]) == (
        3,
        f"gemmill: the measuring process does not start: {error}",
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_no_gpu_is_a_sentence() -> None:
    with Worker(WorkerSpec(builds=())) as worker, pytest.raises(TuneError) as caught:
        executors.facts_of(worker)
    assert str(caught.value) == (
        "the measuring process does not start: no GPU that torch can use; --dry-run runs the whole sweep without one, "
        "with invented times"
    )
