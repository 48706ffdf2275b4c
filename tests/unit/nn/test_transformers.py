"""`from_pretrained` with GemmillConfig, saved and loaded again."""

from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")

from gemmill.nn import QuantLinear  # noqa: E402
from gemmill.nn.transformers import GemmillConfig  # noqa: E402


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=64,
    )
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(tmp_path / "floats")
    return tmp_path


@pytest.mark.parametrize("format", ["channel", "int8", "block128"])
@torch.no_grad()
def test_a_model_is_quantised_saved_and_loaded(folder: Path, format: str) -> None:
    tokens = torch.arange(8, device="cpu").view(1, 8)
    load = transformers.AutoModelForCausalLM.from_pretrained
    model = load(folder / "floats", dtype=torch.bfloat16, quantization_config=GemmillConfig(format))
    assert isinstance(model.model.layers[1].mlp.up_proj, QuantLinear) and type(model.lm_head) is torch.nn.Linear
    floats = load(folder / "floats", dtype=torch.bfloat16)
    expected = model(tokens).logits
    error = (expected - floats(tokens).logits).float().norm() / expected.float().norm()
    assert 0 < error < 0.1
    model.save_pretrained(folder / "quantised")
    again = load(folder / "quantised")
    assert set(model.state_dict()) == set(again.state_dict())
    assert torch.equal(again(tokens).logits, expected)
    assert torch.equal(
        again.generate(tokens, max_new_tokens=4, do_sample=False),
        model.generate(tokens, max_new_tokens=4, do_sample=False),
    )


def test_refusals() -> None:
    with pytest.raises(ValueError, match="there is no layer of format 'fp9'"):
        GemmillConfig("fp9")
    with pytest.raises(ValueError, match="need calibrated inputs"):
        GemmillConfig("nvfp4", activations="nvfp4")
    with pytest.raises(ValueError, match="packed for other kernels"):
        GemmillConfig(packing="none")
