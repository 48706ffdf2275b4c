"""Small checkpoints on disk, of every kind of layers that docs/serving.md names, as an engine loads and loads them again.

Two layers of random weights, as transformers initialises them, converted by `gemmill.quantize.quantize_checkpoint` under
compressed-tensors' key names, or DeepSeek's of blocks of 32; kinds that the engine quantises itself keep the bf16 checkpoint.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LORA_RANK = 8
HIDDEN, HEADS, KV_HEADS, HEAD_DIM, LAYERS = 1024, 8, 2, 128, 2
_INPUT_SCALE = 1 / 32
"""Of activations, which are of a few units at most: e4m3's codes reach 448."""
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")

Json = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class LayerKind:
    """One kind of layers: a checkpoint and the engine's arguments for it."""

    layers: str
    """The kind in words, as the first column of docs/serving.md has it."""
    to: str | None = None
    """The format of `quantize_checkpoint`; without one the weights stay bf16."""
    names: str = "compressed-tensors"
    """The project whose key names the checkpoint has."""
    experts: bool = False
    depth: int = LAYERS
    """Layers; vLLM leaves the first and last two out of TurboQuant caches."""
    asymmetric: bool = False
    """Activations get zero points."""
    drafts: int = 0
    """Tokens that a draft model, the same checkpoint, proposes a step; 0 for no speculative decoding."""
    static: bool = False
    """Activations have one given scale."""
    latents: bool = False
    """Attention over latents (MLA), as DeepSeek-V2's."""
    settings: Json = field(default_factory=dict)
    """Arguments of the engine."""
    with_plugin: Json = field(default_factory=dict)
    """Arguments of the engine with the plugin alone, which vLLM does not know by itself."""
    absent: str = ""
    """Why vLLM 0.33 cannot be asked for it; empty where it can."""


KINDS = {
    "fp8-tensor": LayerKind(layers="FP8, a scale per tensor", settings={"quantization": "fp8"}),
    "fp8-channel": LayerKind(layers="FP8, scales per token and channel", to="channel"),
    "fp8-static": LayerKind(layers="FP8, scales per channel and a given one of activations", to="channel", static=True),
    "fp8-block": LayerKind(layers="FP8, scales of 1 x 128 and 128 x 128", to="block128"),
    "fp8-block32": LayerKind(layers="FP8, scales of 1 x 32 and 32 x 32", to="block32", names="deepseek"),
    "int8": LayerKind(layers="INT8, scales per token and channel", to="int8"),
    "int8-zero-points": LayerKind(layers="INT8 with zero points", to="int8", asymmetric=True),
    "nvfp4": LayerKind(layers="nvfp4 weights", to="nvfp4"),
    "mxfp4": LayerKind(layers="mxfp4 weights", to="mxfp4"),
    "fp8-experts": LayerKind(layers="FP8 experts, scales per token and channel", to="channel", experts=True),
    "fp8-experts-cutlass": LayerKind(
        layers="FP8 experts, `moe_backend=cutlass`", to="channel", experts=True, settings={"moe_backend": "cutlass"}
    ),
    "fp8-experts-block": LayerKind(layers="FP8 experts, scales of 1 x 128 and 128 x 128", to="block128", experts=True),
    "fp8-experts-block32": LayerKind(
        layers="FP8 experts, blocks of 32 x 32", to="block32", names="deepseek", experts=True
    ),
    "fp8-experts-deep-gemm": LayerKind(
        layers="FP8 experts, `moe_backend=deep_gemm`",
        to="block128",
        experts=True,
        settings={"moe_backend": "deep_gemm"},
    ),
    "nvfp4-experts": LayerKind(layers="nvfp4 experts", to="nvfp4", experts=True),
    "mxfp4-experts": LayerKind(layers="mxfp4 experts", to="mxfp4", experts=True),
    "turboquant": LayerKind(
        layers="TurboQuant cache `turboquant_4bit_nc`", depth=6, settings={"kv_cache_dtype": "turboquant_4bit_nc"}
    ),
    "turboquant-drafts": LayerKind(
        layers="TurboQuant cache `turboquant_4bit_nc`, a draft model's 3 tokens a step",
        depth=6,
        drafts=3,
        settings={"kv_cache_dtype": "turboquant_4bit_nc"},
    ),
    "latents": LayerKind(
        layers="cache of latents `gemmill_eden4`, next to bf16",
        latents=True,
        with_plugin={"attention_backend": "MLA_GEMMILL", "kv_cache_dtype": "gemmill_eden4"},
    ),
    "latents-e4m3": LayerKind(
        layers="cache of latents `gemmill_turboquant_mse4_e4m3`, next to bf16",
        latents=True,
        with_plugin={"attention_backend": "MLA_GEMMILL", "kv_cache_dtype": "gemmill_turboquant_mse4_e4m3"},
    ),
    "sparse-2-4": LayerKind(
        layers="2:4 sparse layers", absent="vLLM 0.33 has no scheme of compressed-tensors for 2:4 sparse weights"
    ),
}


def written(kind: LayerKind, folder: Path, device: str = "cpu") -> Path:
    """The folder of the kind's checkpoint below `folder`, made where it is missing. Kinds of one format share a folder."""
    of = "latents" if kind.latents else "experts" if kind.experts else "dense"
    floats = _floats(folder / f"{of}-{kind.depth}", kind)
    if kind.to is None:
        return floats
    from gemmill.quantize import quantize_checkpoint

    out = floats.with_name(f"{floats.name}-{kind.to}{'-asymmetric' * kind.asymmetric}{'-static' * kind.static}")
    if not (out / "config.json").is_file():
        quantize_checkpoint(
            floats,
            out,
            kind.to,
            names=kind.names,
            keep=("*lm_head*", "*embed_tokens*", "*mlp.gate.weight"),
            device=device,
        )
        if kind.asymmetric:
            _change_activations(out, symmetric=False)
        if kind.static:
            _change_activations(out, strategy="tensor", dynamic=False)
            _give_scales(out)
    return out


def _change_activations(folder: Path, **fields: Any) -> None:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"]["config_groups"]["group_0"]["input_activations"] |= fields
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")


def _give_scales(folder: Path) -> None:
    """Adds a scale of the activations to each quantised layer of a checkpoint."""
    import torch
    from safetensors.torch import load_file, save_file

    index = folder / "model.safetensors.index.json"
    listed = json.loads(index.read_text(encoding="utf-8")) if index.is_file() else None
    for shard in folder.glob("*.safetensors"):
        tensors = load_file(shard)
        layers = [name.removesuffix(".weight_scale") for name in tensors if name.endswith(".weight_scale")]
        given = torch.tensor([_INPUT_SCALE], dtype=torch.float32, device="cpu")
        scales = {f"{layer}.input_scale": given.clone() for layer in layers}
        copied = {name: x.clone() for name, x in tensors.items()}  # those lie in the file that is written
        save_file(copied | scales, shard, metadata={"format": "pt"})
        if listed is not None:
            listed["weight_map"] |= dict.fromkeys(scales, shard.name)
    if listed is not None:
        index.write_text(json.dumps(listed), encoding="utf-8")


def _floats(out: Path, kind: LayerKind) -> Path:
    """A Llama, a Qwen3 of 32 experts, or a DeepSeek-V2 without experts, with weights of bf16."""
    if (out / "config.json").is_file():
        return out
    import torch
    import transformers

    sizes: Json = {
        "hidden_size": HIDDEN,
        "intermediate_size": 2816,
        "num_hidden_layers": kind.depth,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": 8192,
        "max_position_embeddings": 8192,
        "tie_word_embeddings": False,
    }
    torch.manual_seed(0)
    if kind.latents:
        del sizes["head_dim"]
        sizes |= {"num_key_value_heads": HEADS, "q_lora_rank": None, "first_k_dense_replace": kind.depth}
        sizes |= {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": HEAD_DIM, "v_head_dim": HEAD_DIM}
        model = transformers.DeepseekV2ForCausalLM(transformers.DeepseekV2Config(**sizes))
    elif kind.experts:
        sizes |= {"moe_intermediate_size": 768, "num_experts": 32, "num_experts_per_tok": 4, "norm_topk_prob": True}
        model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(**sizes))
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    model.to(torch.bfloat16).save_pretrained(out)
    return out


def adapter(kind: LayerKind, folder: Path) -> Path:
    """A LoRA adapter of random weights below `folder`, as PEFT writes it: for the projections of attention; over latents, the last."""
    targets = ("o_proj",) if kind.latents else _ATTENTION
    folder = folder / f"adapter-{'-'.join(targets)}"
    if (folder / "adapter_config.json").is_file():
        return folder
    import torch
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator(device="cpu").manual_seed(1)
    tensors = {
        f"base_model.model.model.layers.{layer}.self_attn.{name}.lora_{part}.weight": 0.05
        * torch.randn(shape, dtype=torch.float32, device="cpu", generator=generator)
        for layer in range(LAYERS)
        for name, part, shape in _factors(targets)
    }
    save_file({name: x.to(torch.bfloat16) for name, x in tensors.items()}, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": LORA_RANK,
        "lora_alpha": 2 * LORA_RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(targets),
    }
    (folder / "adapter_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def _factors(targets: Sequence[str]) -> Iterator[tuple[str, str, tuple[int, int]]]:
    rows = {"q_proj": HEADS, "k_proj": KV_HEADS, "v_proj": KV_HEADS}
    for name in targets:
        n, k = (rows[name] * HEAD_DIM, HIDDEN) if name in rows else (HIDDEN, HEADS * HEAD_DIM)
        yield name, "A", (LORA_RANK, k)
        yield name, "B", (n, LORA_RANK)
