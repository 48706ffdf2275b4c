"""The whole program, dry, on GEMMs; and a contender in another process."""

import json
import multiprocessing
import sys
import threading
from argparse import Namespace

import pytest
import torch

import run as program
from gemmill.families.blockscaled.cases.measured import BlockScaledMaker
from gemmill.families.scaled_mm.cases.measured import GemmMaker
from gemmill.registry import REGISTRY
from gemmill.tuner.workloads import workload_of
from gemms import MeasuredOp, gemm
from harness.contenders import FieldError, WrongResult, ops_contender
from harness.remote import RemoteContender, RemoteError, serve
from harness.statistics import Sample
from harness.timers import DryTimer
from peers import humming
from timed import families

pytestmark = pytest.mark.usefixtures("home")  # without builds: a dry run with the stand-ins


def test_comparison_writes_its_record(tmp_path, capsys):
    assert program.main(["scaled_mm", "--dry-run", "--out-dir", str(tmp_path), "--name", "x", "--commit", "abc"]) == 0
    record = json.loads((tmp_path / "x.json").read_text())
    assert record["kind"] == "comparison" and record["dry_run"] and record["commit"] == "abc"
    assert {row["op"] for row in record["rows"]} == {"fp8", "int8", "int8_azp", "fp8_groups", "fp8_groups_32", "bf16"}
    assert all("gemmill" in row["contenders"] for row in record["rows"])
    assert record["host"]["fp8"]["gemmill"]["median_us"] == 3.0
    assert record["summary"][0]["worst_ratio"] > 1
    of_bf16 = next(row for row in record["rows"] if row["op"] == "bf16")
    assert of_bf16["best_peer"] == "torch mm" and of_bf16["failures"] == {}
    assert "geometric mean" in capsys.readouterr().out


def test_every_family_is_timed_by_the_same_program(tmp_path, capsys):
    """The same keys in the record and in its rows, except the names of sizes."""
    assert set(families()) == {family.name for family in REGISTRY.families}
    records = []
    for family, options in (
        ("scaled_mm", ["--shapes", "8x32x64"]),
        ("quant", ["--shapes", "8x256"]),
        ("blockscaled", ["--shapes", "8x32x64"]),
    ):
        assert program.main([family, "--dry-run", *options, "--out-dir", str(tmp_path), "--name", family]) == 0
        records.append(json.loads((tmp_path / f"{family}.json").read_text()))
        assert f"written: {tmp_path / family}.json" in capsys.readouterr().out
    first, *others = records
    for record in others:
        assert set(first) == set(record) and set(first["summary"][0]) == set(record["summary"][0])
    rows = [set(record["rows"][0]) - set(record["rows"][0]["sizes"]) for record in records]
    assert rows[0] == rows[1] == rows[2]


def test_the_family_comes_first(capsys):
    for arguments in ([], ["--dry-run"], ["nothing"], ["--dry-run", "quant"]):
        with pytest.raises(SystemExit, match="2"):
            program.main(arguments)
    assert f"the family comes first, of {', '.join(families())}" in capsys.readouterr().err


def test_sweep_times_every_variant(tmp_path):
    arguments = [
        "scaled_mm",
        "--dry-run",
        "--variants",
        "--shapes",
        "8x32x64",
        "--op",
        "int8",
        "--out-dir",
        str(tmp_path),
        "--name",
        "s",
    ]
    assert program.main(arguments) == 0
    record = json.loads((tmp_path / "s.json").read_text())
    assert record["kind"] == "sweep"
    assert [shape[0] for shape in record["shapes"]] == ["int8", "int8_azp"]
    assert sum(name.startswith("sm90a_") for name in record["contenders"]) >= 4


def test_by_backend(tmp_path, capsys):
    arguments = [
        "scaled_mm",
        "--dry-run",
        "--by-backend",
        "--shapes",
        "8x32x64",
        "--op",
        "fp8",
        "--out-dir",
        str(tmp_path),
    ]
    assert program.main([*arguments, "--name", "b"]) == 0
    record = json.loads((tmp_path / "b.json").read_text())
    assert record["kind"] == "backends" and record["best"][0]["shape"] == ["fp8", 8, 32, 64]
    assert record["best"][0]["fastest"]["cutlass"][0].startswith("sm90a_cutlass_")
    assert "cutedsl us" in capsys.readouterr().out


def test_the_same_calls_under_the_contract_of_batch_invariance(tmp_path):
    arguments = ["kv_cache", "--dry-run", "--batch-invariant", "--op", "decode 4", "--out-dir", str(tmp_path)]
    assert program.main([*arguments, "--name", "i"]) == 0
    assert {"gemmill", "gemmill batch-invariant"} <= json.loads((tmp_path / "i.json").read_text())["rows"][0][
        "contenders"
    ].keys()


def test_limit_leaves_shapes_out_and_says_so(tmp_path, capsys):
    arguments = [
        "scaled_mm",
        "--dry-run",
        "--op",
        "fp8",
        "--limit-seconds",
        "-1",
        "--out-dir",
        str(tmp_path),
        "--name",
        "l",
    ]
    assert program.main(arguments) == 1
    assert len(json.loads((tmp_path / "l.json").read_text())["left_out"]) == 3
    assert "3 shapes left out, from fp8 16 x 48 x 64 on" in capsys.readouterr().out


def test_no_gpu_is_said(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert program.main(["scaled_mm"]) == 2
    assert "no GPU: nothing can be timed here; --dry-run runs the program without one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--m", "1,x"], "--m '1,x' is not a list of positive numbers such as 1,16,64"),
        (["--models", "gpt"], "no model begins with 'gpt'"),
        (["--shapes", "3x4"], "shape '3x4' is not MxNxK"),
        (["--op", "fp4"], "--op 'fp4' is none of fp8, int8"),
    ],
)
def test_bad_options(arguments, sentence, capsys):
    with pytest.raises(SystemExit, match="2"):
        program.main(["scaled_mm", "--dry-run", *(["--shapes", "grid"] if arguments[0] == "--m" else []), *arguments])
    assert sentence in capsys.readouterr().err


def test_no_variant_matches(tmp_path, capsys):
    assert program.main(["scaled_mm", "--dry-run", "--variants", "--match", "nothing", "--out-dir", str(tmp_path)]) == 2
    assert "no loaded variant has 'nothing' in its name" in capsys.readouterr().err


HUMMING_LAYER = """
import torch
from gemmill.formats.quantise import BlockScaled
from gemmill.vocab.format import MXFP4, NVFP4

class HummingLayer(torch.nn.Module):
    def __init__(self, shape_n, shape_k, weight_config, torch_dtype, input_config=None):
        super().__init__()
        self.format, self.has_scale = NVFP4 if "quant_algo" in weight_config else MXFP4, input_config is not None

    def load_from_tensors(self, tensors):
        self.tensors = tensors

    def transform(self):
        scales = self.tensors["weight_scale"].view(torch.uint8)
        self.values = BlockScaled(format=self.format, codes=self.tensors["weight"], scales=scales).values()
        self.values *= float(self.tensors.get("weight_scale_2", torch.ones(1)))

    def forward(self, inputs, outputs, input_scale=None):
        assert (input_scale is not None) is self.has_scale
        scaled = inputs.double() * (1.0 if input_scale is None else input_scale.double())
        return outputs.copy_((scaled @ self.values.t()).float())
"""


def test_humming_is_given_the_same_weights(tmp_path, monkeypatch):
    """A layer that computes as Humming's documentation says passes for right; a folder without one is refused."""
    for name in ("humming", "humming.layer"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    maker, sizes = BlockScaledMaker(torch.device("cpu"), 0), {"m": 8, "n": 32, "k": 64}
    operands = [(op, maker.make(workload_of(op, sizes))) for op in humming.OPS]
    with pytest.raises(FieldError, match="Humming in nowhere cannot be used: No module named 'humming'"):
        humming.contenders("blockscaled", Namespace(humming="nowhere"), [])
    (tmp_path / "humming").mkdir()
    (tmp_path / "humming" / "__init__.py").touch()
    (tmp_path / "humming" / "layer.py").write_text(HUMMING_LAYER)
    (contender,) = humming.contenders("blockscaled", Namespace(humming=str(tmp_path), humming_jobs=0), [])
    for op, x in operands:
        assert contender.takes(x.workload) and contender.prepare(x, DryTimer(), 1)
        humming._call_once(str(tmp_path), x.workload)
        x.out.fill_(torch.nan)
        contender.call(x, 0)()
        assert x.made.wanted(x.call).compare(x.out).ok, op
    for name in ("humming", "humming.layer"):
        monkeypatch.delitem(sys.modules, name, raising=False)


HUMMING_FP8 = """
import torch


class HummingLayer(torch.nn.Module):
    def __init__(self, shape_n, shape_k, weight_config, input_config, torch_dtype):
        super().__init__()
        assert weight_config == {"quant_method": "fp8", "weight_block_size": [32, 32]}
        assert input_config == {"dtype": "float8e4m3", "quant_mode": "dynamic_group", "group_size": 32}
        self.shape = shape_n, shape_k

    def load_from_tensors(self, tensors):
        self.values = tensors["weight"].double() * self.spread(tensors["weight_scale_inv"], 0)[: self.shape[0]]

    def spread(self, scales, rows):
        scales = scales.double() if rows else scales.double().repeat_interleave(32, 0)
        return scales.repeat_interleave(32, 1)[:, : self.shape[1]]

    def transform(self):
        self.is_ready = True

    def forward(self, inputs, outputs, input_scale):
        assert self.is_ready
        return outputs.copy_((inputs.double() * self.spread(input_scale, 1)) @ self.values.t())
"""


def test_humming_is_given_blocks_of_32(tmp_path, monkeypatch):
    for name in ("humming", "humming.layer"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "humming").mkdir()
    (tmp_path / "humming" / "__init__.py").touch()
    (tmp_path / "humming" / "layer.py").write_text(HUMMING_FP8)
    (contender,) = humming.contenders("scaled_mm", Namespace(humming=str(tmp_path)), [])
    x = GemmMaker(torch.device("cpu"), 0).make(workload_of("fp8_groups_32", {"m": 8, "n": 72, "k": 128}))
    assert contender.takes(x.workload) and not contender.takes(workload_of("fp8_groups", {"m": 8, "n": 72, "k": 128}))
    contender.call(x, 0)()
    assert x.expected().compare({"out": x.out}).ok
    for name in ("humming", "humming.layer"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_folder_of_deep_gemm_that_is_none(tmp_path, capsys):
    assert program.main(["scaled_mm", "--dry-run", "--deep-gemm", str(tmp_path), "--out-dir", str(tmp_path)]) == 2
    sentence = f"DeepGEMM in {tmp_path} cannot be used: {tmp_path} is no folder of a Python package"
    assert sentence in capsys.readouterr().err


def test_library_of_vllm_that_cannot_be_loaded(tmp_path, capsys):
    library = tmp_path / "missing.so"
    assert program.main(["scaled_mm", "--dry-run", "--vllm-so", str(library), "--out-dir", str(tmp_path)]) == 2
    assert f"vLLM's library {library} cannot be used" in capsys.readouterr().err


def subject_of_ops():
    return ops_contender("gemmill", "gemmill")


@pytest.fixture
def remote(monkeypatch):
    """A RemoteContender whose other side is a thread with the stand-in."""
    here, there = multiprocessing.Pipe()
    maker = GemmMaker(torch.device("cpu"), 4096)
    contender = {"made": subject_of_ops}
    thread = threading.Thread(target=serve, args=(there, lambda: contender["made"](), maker, DryTimer()), daemon=True)
    thread.start()
    far = RemoteContender.__new__(RemoteContender)
    far.name, far._pipe = "vllm", here
    yield far, contender
    here.close()
    thread.join(10)
    assert not thread.is_alive()


def test_remote_contender(remote):
    far, _ = remote
    operands = GemmMaker(torch.device("cpu"), 4096).make(gemm(op=MeasuredOp.FP8, m=4, n=32, k=64))
    prepared = far.prepare(operands, DryTimer(), 20)
    assert prepared.round() == pytest.approx(1.01)
    prepared.close()
    assert isinstance(far.host_us(operands, DryTimer()), Sample)


def test_remote_failure_is_reported_and_survived(remote):
    far, contender = remote

    def fail():
        raise WrongResult("all of it is wrong")

    contender["made"] = fail
    with pytest.raises(RemoteError, match="WrongResult: all of it is wrong"):
        far._ask("ready")
    contender["made"] = subject_of_ops
    far._ask("ready")
