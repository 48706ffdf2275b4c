"""Quantise a transformers model, save it, load it again and compare the three.

    python examples/transformers_model.py                                   # a tiny Llama of random weights
    python examples/transformers_model.py --model /models/Llama-3.1-8B --format block128 --out /models/quantised

Needs `pip install 'gemmill[models]'`. On a CPU the reference computes; on an H100 or H200 the kernels do.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from gemmill.nn.transformers import GemmillConfig


def tiny(folder: Path) -> Path:
    """A Llama with random weights, written to a folder."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=512,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


@torch.no_grad()
def main(arguments: list[str] | None = None) -> float:
    """Returns the norm of the logits' difference to bf16, as a share of their norm."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder of a model; by default a tiny one is made")
    parser.add_argument("--format", default="channel", help="weights: channel, int8, block128, nvfp4, mxfp4, ...")
    parser.add_argument("--out", type=Path, help="folder for the quantised model")
    options = parser.parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    with tempfile.TemporaryDirectory() as scratch:
        source = options.model or tiny(Path(scratch) / "floats")
        out = options.out or Path(scratch) / "quantised"
        floats = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16).to(device)
        quantised = AutoModelForCausalLM.from_pretrained(
            source, dtype=torch.bfloat16, quantization_config=GemmillConfig(options.format)
        ).to(device)
        quantised.save_pretrained(out)
        loaded = AutoModelForCausalLM.from_pretrained(out).to(device)

        tokens = torch.randint(0, floats.config.vocab_size, (1, 32), device=device)
        expected, found = floats(tokens).logits.float(), quantised(tokens).logits.float()
        error = float((found - expected).norm() / expected.norm())
        assert torch.equal(loaded(tokens).logits.float(), found), "a loaded model computes the same bits"
        text = loaded.generate(tokens, max_new_tokens=8, do_sample=False)[0, -8:].tolist()
        size = sum(file.stat().st_size for file in out.glob("*.safetensors"))
    print(
        f"{options.format} on {device}: logits differ by {error:.4f} of their norm, {size / 1e6:.2f} MB, next tokens {text}"
    )
    return error


if __name__ == "__main__":
    main()
