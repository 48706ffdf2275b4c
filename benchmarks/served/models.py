"""Models that `engine.py` serves with random weights: configs of public models, each with a quantisation as checkpoints have it."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_LLAMA_8B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
"""Llama-3.1-8B."""
_QWEN3_30B = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
"""Qwen3-30B-A3B."""
_DEEPSEEK_V2_LITE = {
    "architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2",
    "hidden_size": 2048,
    "intermediate_size": 10944,
    "moe_intermediate_size": 1408,
    "num_hidden_layers": 27,
    "first_k_dense_replace": 1,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "q_lora_rank": None,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 64,
    "n_shared_experts": 2,
    "num_experts_per_tok": 6,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
    "vocab_size": 102400,
    "max_position_embeddings": 163840,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn",
        "factor": 40,
        "original_max_position_embeddings": 4096,
        "beta_fast": 32,
        "beta_slow": 1,
        "mscale": 0.707,
        "mscale_all_dim": 0.707,
    },
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
"""DeepSeek-V2-Lite, whose attention is over latents."""

_CODES = {"num_bits": 8, "symmetric": True}
_FP8_CHANNEL = {
    "quant_method": "compressed-tensors",
    "format": "float-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head", "re:.*mlp.gate$"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {**_CODES, "type": "float", "strategy": "channel", "dynamic": False},
            "input_activations": {**_CODES, "type": "float", "strategy": "token", "dynamic": True},
        }
    },
}
_FP8_STATIC = _FP8_CHANNEL | {
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {**_CODES, "type": "float", "strategy": "tensor", "dynamic": False},
            "input_activations": {**_CODES, "type": "float", "strategy": "tensor", "dynamic": False},
        }
    },
}
_INT8_CHANNEL = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {**_CODES, "type": "int", "strategy": "channel", "dynamic": False},
            "input_activations": {**_CODES, "type": "int", "strategy": "token", "dynamic": True},
        }
    },
}
_FP8_BLOCK = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
    "modules_to_not_convert": ["lm_head"],
}
_NVFP4 = {
    "quant_method": "modelopt",
    "quant_algo": "NVFP4",
    "group_size": 16,
    "ignore": ["lm_head", "*.mlp.gate"],
    "producer": {"name": "modelopt", "version": "0.33"},
}


@dataclass(frozen=True)
class Model:
    """A model that an engine serves."""

    name: str
    config: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    """Arguments of the engine that belong to this model."""

    def written(self, folder: Path) -> Path:
        """`folder`, with config.json in it."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config, indent=1), encoding="utf-8")
        return folder


def _made(base: dict[str, Any], quantisation: dict[str, Any] | None) -> dict[str, Any]:
    config = base | ({"quantization_config": quantisation} if quantisation else {})
    if quantisation is _FP8_BLOCK and "num_experts" in base:  # routers are bf16, by their names
        gates = [f"model.layers.{layer}.mlp.gate" for layer in range(base["num_hidden_layers"])]
        config["quantization_config"] = quantisation | {"modules_to_not_convert": ["lm_head", *gates]}
    return config


MODELS = {
    name: Model(name, _made(base, quantisation), settings)
    for name, base, quantisation, settings in (
        ("llama-3.1-8b-fp8", _LLAMA_8B, _FP8_CHANNEL, {}),
        ("llama-3.1-8b-fp8-static", _LLAMA_8B, _FP8_STATIC, {}),
        ("llama-3.1-8b-fp8-block", _LLAMA_8B, _FP8_BLOCK, {}),
        ("llama-3.1-8b-int8", _LLAMA_8B, _INT8_CHANNEL, {}),
        ("llama-3.1-8b-nvfp4", _LLAMA_8B, _NVFP4, {}),
        ("llama-3.1-8b-turboquant", _LLAMA_8B, None, {"kv_cache_dtype": "turboquant_4bit_nc"}),
        ("qwen3-30b-a3b-fp8", _QWEN3_30B, _FP8_CHANNEL, {}),
        ("qwen3-30b-a3b-fp8-block", _QWEN3_30B, _FP8_BLOCK, {}),
        ("qwen3-30b-a3b-nvfp4", _QWEN3_30B, _NVFP4, {}),
        ("deepseek-v2-lite", _DEEPSEEK_V2_LITE, None, {}),
    )
}


def model_of(given: str, layers: int = 0) -> Model:
    """A built-in model by its name, or that of a folder with config.json. `layers` takes the first so many, 0 all.

    Raises ValueError where there is neither.
    """
    if given in MODELS:
        model = MODELS[given]
    elif (config := Path(given) / "config.json").is_file():
        model = Model(Path(given).resolve().name, json.loads(config.read_text(encoding="utf-8")))
    else:
        raise ValueError(f"no model {given!r}: expected a folder with config.json, or one of {', '.join(MODELS)}")
    if layers:
        model = Model(f"{model.name}-{layers}-layers", model.config | {"num_hidden_layers": layers}, model.settings)
    return model


def has_weights(folder: str) -> bool:
    """Whether a folder has weights in safetensors."""
    return any(Path(folder).glob("*.safetensors"))
