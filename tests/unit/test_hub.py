"""`gemmill export --hub`: a folder as Hugging Face's kernels load it."""

import base64
import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gemmill.wheel import Abi, WheelError, package, write_hub_folder
from interpreters import Done, run_script

MACHINE = "torch-stable-abi211-cu135-x86_64-linux"
LOADED = """
import importlib.util, json, sys
from pathlib import Path

import torch

folder = Path(sys.argv[1])
name = json.loads((folder / "metadata.json").read_text())["id"]
spec = importlib.util.spec_from_file_location(name, folder / "__init__.py")
module = sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
codes, scales = module.per_token_group_fp8_quant(torch.ones(2, 256, dtype=torch.bfloat16), 128)
print(module.__name__, module.__version__, codes.shape, scales.shape, sys.modules["gemmill"].__file__)
"""
"""The import of a fitting folder by `kernels` (importer.py of 0.17), and a call."""


@pytest.fixture
def fits(monkeypatch) -> None:
    monkeypatch.setattr(package, "audit", lambda path: Abi(machine="x86_64", glibc=(2, 28)))


@pytest.fixture
def hub(gemmill, put_build, fits, tmp_path) -> Path:
    put_build(build_id="hopper", torch_target="2.11")
    put_build(build_id="blackwell", arch="sm100a", torch_target="2.11")
    outcome = gemmill("export", "--hub", "--experimental", "--out", tmp_path / "hub")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"{tmp_path / 'hub' / 'build' / MACHINE} (")
    assert outcome.out.endswith("): hopper for sm90a, blackwell for sm100a\n")
    return tmp_path / "hub"


def test_contents(hub, home) -> None:
    folder = hub / "build" / MACHINE
    assert sorted(path.name for path in folder.iterdir()) == ["__init__.py", "gemmill", "metadata.json"]
    told = json.loads((folder / "metadata.json").read_text())
    digest = told.pop("digest")
    assert told.pop("id").startswith("_gemmill_cuda_")
    assert told == {
        "name": "gemmill",
        "version": 1,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": "cuda", "archs": ["10.0a", "9.0a"]},
    }
    for build in ("hopper", "blackwell"):
        for file in (home / "builds" / build).iterdir():
            assert (folder / "gemmill" / "_builds" / build / file.name).read_bytes() == file.read_bytes()
    assert {path.name for path in hub.iterdir()} == {"LICENSE", "NOTICE", "README.md", "THIRD_PARTY.md", "build"}
    assert (hub / "README.md").read_text().startswith("---\nlicense: apache-2.0\ntags:\n- kernels\n---\n")

    assert digest == {"algorithm": "sha256", "files": digests_in(folder)}


def digests_in(folder: Path) -> dict[str, str]:
    """The digests of a folder's files but metadata.json, as the Hub spells them."""
    return {
        str(path.relative_to(folder)): base64.b64encode(hashlib.sha256(path.read_bytes()).digest()).decode()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "metadata.json"
    }


def test_a_folder_for_cpus(hub) -> None:
    folder = hub / "build" / "torch-cpu"
    told = json.loads((folder / "metadata.json").read_text())
    assert told["id"].startswith("_gemmill_cpu_") and told["version"] == 1
    assert told["backend"] == {"type": "cpu"} and told["digest"]["files"] == digests_in(folder)
    assert not list(folder.rglob("*.so")) and not (folder / "gemmill" / "_builds").exists()
    done = run(LOADED, hub, variant="torch-cpu")
    assert done.stderr == "" and done.stdout.endswith(f" {folder}/gemmill/__init__.py\n")


def run(code: str, folder: Path, path: str = "", variant: str = MACHINE) -> Done:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GEMMILL_")}
    environment |= {"PYTHONPATH": path, "XDG_CACHE_HOME": str(folder / "none"), "PYTHONDONTWRITEBYTECODE": "1"}
    return run_script(code, str(folder / "build" / variant), environment=environment, folder=folder)


def test_it_is_loaded(hub) -> None:
    done = run(LOADED, hub)
    name = json.loads((hub / "build" / MACHINE / "metadata.json").read_text())["id"]
    assert (done.stdout, done.stderr) == (
        f"{name} 0.1.0 torch.Size([2, 256]) torch.Size([2, 2]) {hub}/build/{MACHINE}/gemmill/__init__.py\n",
        "",
    )


REAL = """
import sys
from pathlib import Path

import torch
from kernels import LocalLayerRepository, Mode, get_local_kernel, kernelize, replace_kernel_forward_from_hub, use_kernel_mapping
from kernels._rust import Digest, Metadata
from transformers.integrations.finegrained_fp8 import FP8Linear

folder = Path(sys.argv[1])
for variant in (folder / "build").iterdir():
    metadata = Metadata.read_from_file(variant / "metadata.json")
    metadata.digest.validate(Digest.hash_variant(metadata.digest.algorithm, variant))
module = get_local_kernel(folder)
codes, scales = module.per_token_group_fp8_quant(torch.ones(2, 256, dtype=torch.bfloat16), 128)
layer = FP8Linear(256, 128, block_size=(128, 128), has_bias=True).requires_grad_(False).bfloat16()
torch.manual_seed(0)
layer.weight = torch.nn.Parameter(torch.randn(128, 256).to(torch.float8_e4m3fn), requires_grad=False)
layer.weight_scale_inv = torch.nn.Parameter(torch.tensor([[0.5, 2.0]]), requires_grad=False)
layer.bias.data.fill_(3)
replace_kernel_forward_from_hub(FP8Linear, "FP8Linear")
with use_kernel_mapping({"FP8Linear": {"cpu": LocalLayerRepository(folder, layer_name="FP8Linear")}}):
    kernelize(layer, mode=Mode.INFERENCE | Mode.TORCH_COMPILE, device="cpu", use_fallback=False)
x = torch.randn(3, 256, dtype=torch.bfloat16)
floats = layer.weight.float() * layer.weight_scale_inv.repeat_interleave(128, 1).repeat_interleave(128, 0)
exact = x.float() @ floats.t() + 3
assert (layer(x).float() - exact).norm() < 0.05 * exact.norm()
print(module.__version__, codes.shape, layer.forward.__func__.__module__)
"""
"""Hugging Face's own library: digests, the folder of this machine, and `kernelize`."""


def test_the_librarys_own_functions_take_the_folder(hub, tmp_path) -> None:
    for name in ("kernels._rust", "transformers"):
        pytest.importorskip(name)
    shutil.copytree(hub, tmp_path / "elsewhere")
    done = run(REAL, tmp_path / "elsewhere", variant="..")
    assert (done.stdout, done.returncode) == ("0.1.0 torch.Size([2, 256]) gemmill.nn.hub_layers\n", 0), done.stderr


def test_a_process_has_one_gemmill(hub) -> None:
    ours = Path(__file__).parents[2] / "generator"
    done = run(f"import gemmill\n{LOADED}", hub, str(ours))
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: gemmill of {ours / 'gemmill'} is imported already, and its ops are registered: a process has one, leave "
        "one of the two out"
    )


def test_a_folder_is_replaced_whole(hub, gemmill) -> None:
    other = hub / "build" / "torch-stable-abi211-cu135-aarch64-linux"
    other.mkdir()
    (hub / "build" / MACHINE / "left.py").touch()
    assert gemmill("export", "--hub", "--build", "hopper", "--out", hub).code == 0
    assert sorted(path.name for path in (hub / "build").iterdir()) == ["torch-cpu", other.name, MACHINE]
    assert not (hub / "build" / MACHINE / "left.py").exists()
    assert [path.name for path in (hub / "build" / MACHINE / "gemmill" / "_builds").iterdir()] == ["hopper"]


def test_an_older_folder_stays_where_a_new_one_cannot_come(hub, home, monkeypatch) -> None:
    rename, folder = Path.rename, hub / "build" / MACHINE
    before = (folder / "metadata.json").read_bytes()

    def broken(self: Path, to: Path) -> Path:
        if (self / "metadata.json").exists() and (self / "metadata.json").read_bytes() != before and to == folder:
            raise OSError("no room")
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", broken)
    with pytest.raises(OSError, match="no room"):
        write_hub_folder([home / "builds" / "hopper"], hub)
    assert (folder / "metadata.json").read_bytes() == before
    assert sorted(path.name for path in folder.parent.iterdir()) == ["torch-cpu", MACHINE]


def test_a_newer_c_library_is_told(gemmill, put_build, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(package, "audit", lambda path: Abi(machine="x86_64", glibc=(2, 34)))
    put_build()
    assert gemmill("export", "--hub", "--out", tmp_path / "hub").err == (
        "gemmill: it asks for glibc 2.34, and kernels of the Hub may ask for 2.28: build on a machine with 2.28 before you "
        "publish it\n"
    )


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("*", "--hub"), "--hub with NAME: it writes whole builds, leave NAME out"),
        (("--hub", "-m", "16"), "--hub with -m: it writes whole builds, leave -m out"),
        ((), "name a variant, a saved call by --from, or builds by --hub: `gemmill list` has the names"),
    ],
)
def test_what_does_not_go_together(gemmill, arguments, sentence) -> None:
    outcome = gemmill("export", *arguments)
    assert (outcome.code, outcome.err) == (2, f"gemmill: {sentence}\n")


def test_builds_of_one_torch(put_build, fits, home, tmp_path) -> None:
    toolchain = put_build(build_id="one", torch_target="2.11").toolchain
    put_build(build_id="two", arch="sm100a", torch_target="2.12")
    put_build(build_id="three", arch="sm120f", torch_target="2.11", toolchain=replace(toolchain, nvcc="13.6.1"))
    for other, sentence in (
        ("two", "the builds are for torch 2.11 and 2.12: build all with one"),
        ("three", "the builds are for CUDA 13.5 and 13.6: build all with one"),
    ):
        with pytest.raises(WheelError) as caught:
            write_hub_folder([home / "builds" / name for name in ("one", other)], tmp_path / "hub")
        assert str(caught.value) == sentence and not (tmp_path / "hub").exists()
