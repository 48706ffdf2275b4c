"""Layers of models that transformers knows, offline: configs are files here, and models have no weights."""

import json
import re
from pathlib import Path

import pytest

from gemmill.cli.shapes import workloads_of
from gemmill.tuner import hub_models
from gemmill.tuner.hub_models import layers_by_transformers, layers_named
from gemmill.tuner.models import Layer, ModelError, layers_of, read_model

pytest.importorskip("transformers", reason="pip install 'gemmill[models]'")

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 96,
}
LLAMA = SMALL | {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_key_value_heads": 2}
MOE = {"num_key_value_heads": 4, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
QWEN_MOE = (
    SMALL
    | MOE
    | {"architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "shared_expert_intermediate_size": 96}
)
DEEPSEEK = SMALL | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16,
    "v_head_dim": 12,
    "moe_intermediate_size": 32,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}
GPT2 = {"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 48, "n_layer": 1, "n_head": 4}


@pytest.fixture(autouse=True)
def offline(monkeypatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def write(tmp_path):
    def put(config: dict) -> str:
        (tmp_path / "config.json").write_text(json.dumps(config))
        return str(tmp_path)

    return put


@pytest.mark.parametrize(
    ("config", "ranks"),
    [(LLAMA, 1), (LLAMA, 2), (LLAMA, 4), (QWEN_MOE, 1), (QWEN_MOE, 2), (DEEPSEEK, 1), (DEEPSEEK, 2)],
    ids=lambda value: value["model_type"] if isinstance(value, dict) else str(value),
)
def test_both_ways_tell_the_same_of_architectures_that_both_know(write, config, ranks) -> None:
    folder = write(config)
    told = {(layer.n, layer.k): layer.name for layer in layers_by_transformers(folder, ranks)}
    assert told == {(layer.n, layer.k): layer.name for layer in layers_of(read_model(folder), ranks)}


def test_an_architecture_that_only_transformers_knows(write) -> None:
    folder = write(GPT2)
    expected = [
        Layer(name="c_attn", n=144, k=48),
        Layer(name="c", n=48, k=48),
        Layer(name="c_fc", n=192, k=48),
        Layer(name="c", n=48, k=192),
    ]
    assert layers_named(folder) == layers_named(f"{folder}/config.json") == expected
    asked = workloads_of(shapes=None, models=[folder], ops="fp8", tensor_parallel="1", m="16")
    assert {(workload.n, workload.k) for workload in asked} == {(layer.n, layer.k) for layer in expected}


def test_the_language_part_of_a_larger_model(write) -> None:
    parts = {"text_config": LLAMA, "vision_config": {"model_type": "clip_vision_model"}}
    folder = write({"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava"} | parts)
    assert {layer.name for layer in layers_by_transformers(folder)} == {"qkv", "o", "gate_up", "down"}


def test_weights_take_no_memory(write) -> None:
    """70 billion of them are made here."""
    folder = write(LLAMA | {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80})
    assert Layer(name="down", n=8192, k=28672) in layers_by_transformers(folder)


@pytest.mark.parametrize(
    ("config", "ranks", "sentence"),
    [
        (LLAMA, 3, "model.layers.0.self_attn.q_proj has a dimension of 64, which is not divided by 3 ranks"),
        (
            GPT2,
            2,
            "transformers does not say how ranks divide GPT2LMHeadModel: leave --tp out, or list the shapes in a",
        ),
        (
            {"model_type": "no_such"},
            1,
            "has model type `no_such` but Transformers does not recognize this architecture.",
        ),
        ({}, 1, "name another, or list the shapes in a file for --shapes"),
    ],
)
def test_what_cannot_be_told_is_a_sentence(write, config, ranks, sentence) -> None:
    with pytest.raises(ModelError, match=re.escape(sentence)):
        layers_by_transformers(write(config), ranks)


def test_an_id_is_asked_of_transformers(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(hub_models, "_on_meta", lambda named: (_ for _ in ()).throw(OSError(f"no {named}\nmore")))
    with pytest.raises(ModelError) as caught:
        layers_named("owner/some-model.7B")
    assert str(caught.value) == (
        "transformers cannot make 'owner/some-model.7B' (no owner/some-model.7B): name another, or list the shapes in a file for "
        "--shapes"
    )
    monkeypatch.chdir(tmp_path)
    for named in ("owner", "/owner/name", "owner/name/more"):
        with pytest.raises(ModelError, match=r"it is neither a readable config\.json nor one of llama-3-8b"):
            layers_named(named)
    Path("owner/name").mkdir(parents=True)
    Path("owner/name/config.json").write_text(json.dumps(LLAMA))
    assert layers_named("owner/name") == layers_of(LLAMA), "a folder that is there is no id"


def test_without_transformers(monkeypatch, write, gemmill) -> None:
    monkeypatch.setattr(hub_models, "PACKAGE", "no_such_package")
    outcome = gemmill("tune", "--model", "owner/name", "--dry-run")
    assert (outcome.code, outcome.err) == (
        2,
        "gemmill: the layers of 'owner/name' are read by transformers, which is not installed: `pip install 'gemmill[models]'`, or "
        "name a config.json of an architecture that gemmill knows\n",
    )
    with pytest.raises(ModelError) as caught:
        layers_named(write(GPT2))
    assert str(caught.value).startswith("architecture 'GPT2LMHeadModel' is not one whose layers gemmill knows (")
    assert str(caught.value).endswith("; or `pip install 'gemmill[models]'`, and transformers tells them")
    assert layers_named(write(LLAMA)), "what gemmill knows needs no transformers"
