"""The program that times batch invariance, without a GPU: the files that it reads of vLLM's wheel, and its lines about peers."""

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

import gemmill
import invariance
from gemmill.runtime.holding import holds_here
from harness.contenders import FieldError
from peers import vllm_invariant

JIT = "@triton.jit\ndef {}(x):\n    return x\n"
SOURCES = {
    vllm_invariant.CONFIGS: (
        "from typing import NamedTuple\nfrom vllm.platforms import current_platform\n"
        "_TILES: dict[tuple[int, int], int] | None = None\n"
        "class Tile(NamedTuple):\n    n: int\n"
        "def _get_matmul_config(m, n, k, dtype, default):\n    return Tile(current_platform.get_device_capability().major)\n"
    ),
    vllm_invariant.MATMUL: (
        "import vllm.envs as envs\nLEFT_OUT = envs.NOTHING\ndef _matmul_launch_metadata():\n    pass\n"
        + JIT.format("_compute_pid")
        + JIT.format("matmul_kernel_persistent")
        + "def matmul_persistent(a, b, bias=None):\n"
        "    assert _get_matmul_config(*a.shape, b.shape[1], a.dtype, {}).n >= 9 and num_compute_units(None) > 1\n"
        "    return (a.double() @ b.double()).to(a.dtype)\n"
    ),
    vllm_invariant.ROWS: (
        "def is_weak_contiguous(x):\n    return True\n"
        + JIT.format("scaled_mm_kernel")
        + "def triton_scaled_mm(a, b, a_scales, b_scales, out_dtype, bias):\n"
        "    assert use_tensor_descriptor(None) is False and a_scales.shape[1] == b_scales.shape[1] == 1\n"
        "    return (a.double() * a_scales @ (b.double() * b_scales.t())).to(out_dtype)\n"
    ),
    vllm_invariant.BLOCKS: (
        JIT.format("_w8a8_triton_block_scaled_mm")
        + "def w8a8_triton_block_scaled_mm(a, b, a_scales, b_scales, block_size, output_dtype):\n"
        "    assert envs.VLLM_BATCH_INVARIANT and not current_platform.is_rocm() and a_scales.is_contiguous()\n"
        "    group = block_size[0]\n"
        "    whole = b_scales.repeat_interleave(group, 0).repeat_interleave(group, 1)[: b.shape[0], : b.shape[1]]\n"
        "    a = a.double() * a_scales.repeat_interleave(group, 1)[:, : a.shape[1]]\n"
        "    return (a @ (b.double() * whole).t()).to(output_dtype)\n"
    ),
}


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as vLLM's, whose functions multiply by torch; and a Triton that compiles nothing."""
    triton = ModuleType("triton")
    triton.jit = lambda function: function  # type: ignore[attr-defined]
    triton.language = ModuleType("triton.language")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.setitem(sys.modules, "triton.language", triton.language)
    for name, text in SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def run(tmp_path: Path, *more: str) -> int:
    told = ["--cpu", "--classes", "fp8,bf16,fp8_groups,int8", "--weights", "64x128", "--rows", "1,512"]
    return invariance.main([*told, "--out-dir", str(tmp_path), "--name", "i", *more])


def test_vllms_kernels_are_timed_beside_the_order_that_is_held(wheel, capsys):
    assert run(wheel, "--vllm-sources", str(wheel)) == 0
    record = json.loads((wheel / "i.json").read_text())
    timed = {(row["op"], tuple(row["peers"])) for row in record["rows"]}
    assert timed == {
        ("fp8", ("vllm triton",)),
        ("bf16", ("vllm triton",)),
        ("fp8_groups", ("vllm triton",)),
        ("int8", ()),
    }
    assert all({"free", "held"} <= row["rounds_us"].keys() and not row["peers_refused"] for row in record["rows"])
    assert {(part["op"], part["shapes"]) for part in record["peers"]} == {("fp8", 2), ("bf16", 2), ("fp8_groups", 2)}
    assert "bf16 M <= 128: vllm triton / held " in capsys.readouterr().out


def test_a_peer_with_a_wrong_result_is_not_timed_and_the_others_are(wheel):
    path = wheel / vllm_invariant.MATMUL
    path.write_text(path.read_text().replace("(a.double() @ b.double())", "(a.double() @ b.double() + 1)"))
    assert run(wheel, "--vllm-sources", str(wheel)) == 0
    rows = json.loads((wheel / "i.json").read_text())["rows"]
    for row in rows:
        wrong = row["peers_refused"].get("vllm triton", "")
        assert wrong.startswith("WrongResult: wrong result of bf16") if row["op"] == "bf16" else not wrong
        assert len(row["rounds_us"]["held"]) == 9


def test_ratios_of_peers_are_means_over_few_and_many_rows():
    rows = [
        {"op": "bf16", "m": m, "n": 8, "k": 8, "peers": {"p": ratio}} for m, ratio in ((1, 2.0), (64, 8.0), (4096, 1.5))
    ]
    few, many = invariance.peers_of(rows)
    assert (few["geometric_mean"], few["least"], few["least_shape"], few["shapes"]) == (4.0, 2.0, [1, 8, 8], 2)
    assert (many["geometric_mean"], many["side"]) == (1.5, "M > 128")


def test_another_releases_files_are_told_in_a_sentence(wheel, tmp_path, capsys):
    assert run(tmp_path, "--vllm-sources", str(tmp_path / "none")) == 2
    assert "cannot be read: [Errno 2] No such file or directory" in capsys.readouterr().err
    (wheel / vllm_invariant.ROWS).write_text("def is_weak_contiguous(x):\n    return True\n")
    with pytest.raises(FieldError) as caught:
        vllm_invariant.functions(wheel)
    assert f"{vllm_invariant.ROWS} has no function scaled_mm_kernel: it is another release's" in str(caught.value)
    assert "a folder with files of the wheel of 0.33.0" in str(caught.value)


def test_the_held_order_is_timed_under_constant_weights_too(wheel, monkeypatch):
    promises = []
    prepare = invariance.LocalContender.prepare

    def noting(self, *told):
        promises.append((self.name, gemmill.runtime.ops._constant_weights, holds_here()))
        return prepare(self, *told)

    monkeypatch.setattr(invariance.LocalContender, "prepare", noting)
    assert run(wheel, "--vllm-sources", str(wheel), "--constant-weights") == 0
    assert set(promises) == {
        ("free", False, False),
        ("held", False, True),
        ("held, constant weights", True, True),
        ("vllm triton", False, False),
    }
    assert not gemmill.runtime.ops._constant_weights  # what follows has not made it
    of_bf16 = {part["peer"] for part in json.loads((wheel / "i.json").read_text())["peers"] if part["op"] == "bf16"}
    assert of_bf16 == {"vllm triton", "held, constant weights", "vllm triton, constant weights"}


def test_without_a_folder_nothing_of_vllm_is_read(tmp_path):
    assert run(tmp_path) == 0
    assert json.loads((tmp_path / "i.json").read_text())["peers"] == []
