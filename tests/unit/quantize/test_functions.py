"""`gemmill.quantize` has one function each for a tensor, a module and a checkpoint."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import gemmill.quantize
from gemmill import quantize
from gemmill.checkpoints.folder import open_checkpoint
from gemmill.nn import QuantLinear
from stored import save


def test_a_module_and_a_checkpoint_of_it_get_the_codes_of_their_tensors(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 64)).bfloat16(), torch.randn(3, 64).bfloat16()
    source = save(tmp_path / "in.safetensors", {name: tensor.detach() for name, tensor in model.named_parameters()})
    wanted = [quantize.quantize_weight(model[i].weight.detach(), "mxfp8") for i in (0, 2)]
    made = quantize.quantize_checkpoint(source, str(tmp_path / "out.safetensors"), "mxfp8", keep=["2.*"])
    found = open_checkpoint(made.out)
    assert torch.equal(found.read("0.weight").view(torch.uint8), wanted[0].codes.view(torch.uint8))
    assert found.tensors["2.weight"].dtype == "BF16" and [layer.name for layer in made.layers] == ["0"]
    errors = quantize.quantize_module(model, "mxfp8", activations="bf16")
    assert made.layers[0] in errors and len(errors) == 2
    assert torch.equal(model[0](x), QuantLinear.from_checkpoint(found, "0", format="mxfp8", activations="bf16")(x))


def test_a_checkpoints_options_are_those_of_the_command(tmp_path: Path) -> None:
    source = save(tmp_path / "in.safetensors", {f"{name}.weight": torch.randn(8, 64) for name in "abc"})
    seen = save(tmp_path / "seen.safetensors", {"a": torch.randn(2, 64)})
    fp8, out, back = (tmp_path / f"{name}.safetensors" for name in ("fp8", "out", "back"))
    quantize.quantize_checkpoint(source, fp8, "channel", names="lightx2v", only=("a.*", "b.*"))
    more = {"source_format": "channel", "requantize": True, "scale_rounding": "ocp", "names": "deepseek-v4"}
    made = quantize.quantize_checkpoint(fp8, out, "mxfp4", only=["a.*"], inputs=str(seen), device="cpu", **more)
    (layer,) = made.layers
    assert layer.name == "a" and layer.outputs > 0 and "a.scale" in open_checkpoint(out)
    quantize.quantize_checkpoint(out, back, "bf16", source_format="mxfp4", only=["a.*"])
    assert open_checkpoint(back).tensors["a.weight"].dtype == "BF16"


def test_the_stub_has_every_name() -> None:
    stub = ast.parse(Path(gemmill.quantize.__file__).with_suffix(".pyi").read_text())
    places = {a.asname: node.module for node in stub.body if isinstance(node, ast.ImportFrom) for a in node.names}
    assert sorted(places) == sorted(quantize.__all__) and set(places) <= set(dir(quantize))
    for name, module in places.items():
        assert getattr(quantize, name) is getattr(sys.modules[module], name), name
    with pytest.raises(AttributeError, match=r"^module 'gemmill.quantize' has no attribute 'quantize_model'$"):
        quantize.quantize_model  # noqa: B018


def test_weights_alone_import_no_layers() -> None:
    code = "import gemmill.quantize, sys; print(sorted({'gemmill.nn', 'gemmill.checkpoints'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
