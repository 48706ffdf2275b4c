"""From a Hugging Face model config to its linear layers as one rank of a tensor-parallel group computes them.

Dense parts only: the projections of attention, dense feed-forward layers and shared experts. It leaves out routed
experts, which are grouped GEMMs and another op, and embedding and output head, which are seldom quantised.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

Config = Mapping[str, Any]
"""The fields of a config.json."""

_NAMED = Path(__file__).parent / "models.json"


class ModelError(ValueError):
    """A config without the facts from which to derive layers; the text names the missing ones."""


@dataclass(frozen=True, kw_only=True, order=True)
class Layer:
    """One weight [n, k] of a rank."""

    name: str
    n: int
    k: int


@cache
def named_models() -> Mapping[str, Config]:
    """The shipped models by name, each with the fields of its published config that matter here."""
    return json.loads(_NAMED.read_text(encoding="utf-8"))


def read_model(named: str) -> Config:
    """A named model, or the config.json at a path. Raises ModelError."""
    from gemmill.typed_json import JsonError, read_json

    known = named_models()
    if named in known:
        return known[named]
    path = Path(named)
    if path.is_dir():
        path /= "config.json"
    if not path.is_file():
        raise ModelError(f"no model {named!r}: it is neither a readable config.json nor one of {', '.join(known)}")
    try:
        config = read_json(path, dict[str, Any], "name a Hugging Face config.json")
    except JsonError as error:
        raise ModelError(str(error)) from None
    return config.get("text_config", config) | (
        {} if "architectures" not in config else {"architectures": config["architectures"]}
    )


def layers_of(config: Config, tensor_parallel: int = 1) -> list[Layer]:
    """The layers of one of `tensor_parallel` ranks, each size once. Raises ModelError."""
    architecture, family = _architecture(config), _family(config)
    if family is None:
        known = ", ".join(name for names, _ in _FAMILIES for name in names)
        raise ModelError(
            f"architecture {architecture!r} is not one whose layers gemmill knows ({known}): name one of these in "
            f"`architectures` if its layers are the same, with {', '.join(_DENSE_FIELDS)}; or list the shapes in a file for --shapes"
        )
    reader = _Reader(config, architecture, tensor_parallel)
    by_size = {(layer.n, layer.k): layer for layer in reversed(list(family(reader)))}
    return list(reversed(by_size.values()))


def knows(config: Config) -> bool:
    """Whether the config alone determines the layers of its architecture."""
    return _family(config) is not None


def _family(config: Config) -> "Callable[[_Reader], Iterator[Layer]] | None":
    architecture = _architecture(config)
    return next((family for names, family in _FAMILIES if architecture in names), None)


def _architecture(config: Config) -> str:
    names = config.get("architectures")
    if isinstance(names, list) and names:
        return str(names[0])
    return str(config.get("model_type", "none: the config has no `architectures`"))


class _Reader:
    """Reads sizes from a config and divides them between ranks."""

    def __init__(self, config: Config, architecture: str, ranks: int) -> None:
        self._config = config
        self._architecture = architecture
        self.ranks = ranks

    def size(self, field: str, default: int | None = None) -> int:
        """A positive whole number."""
        value = self._config.get(field)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            found = "is missing" if value is None else f"is {value!r}"
            raise ModelError(f"a config of {self._architecture} needs `{field}`, a positive whole number: it {found}")
        return value

    def given(self, field: str) -> bool:
        """Whether a field is there and not null or zero."""
        return bool(self._config.get(field))

    def divided(self, what: str, size: int) -> int:
        """A rank's part of a dimension."""
        if size % self.ranks:
            raise ModelError(
                f"{what} = {size} of {self._architecture} is not divided by {self.ranks} ranks of tensor parallelism"
            )
        return size // self.ranks


def _feed_forward(r: _Reader, prefix: str, intermediate: int) -> Iterator[Layer]:
    hidden, own = r.size("hidden_size"), r.divided(f"the {prefix}intermediate size", intermediate)
    yield Layer(name=f"{prefix}gate_up", n=2 * own, k=hidden)
    yield Layer(name=f"{prefix}down", n=hidden, k=own)


def _attention(r: _Reader) -> Iterator[Layer]:
    hidden, heads = r.size("hidden_size"), r.size("num_attention_heads")
    key_value = r.size("num_key_value_heads", heads)
    width = r.size("head_dim", hidden // heads)
    # With more ranks than key-value heads, each rank keeps a copy of one.
    own = r.divided("num_attention_heads", heads) + 2 * max(1, key_value // r.ranks)
    yield Layer(name="qkv", n=own * width, k=hidden)
    yield Layer(name="o", n=hidden, k=r.divided("num_attention_heads", heads) * width)


def _latent_attention(r: _Reader) -> Iterator[Layer]:
    """Layers of DeepSeek's MLA. Every rank computes those that go down to the latents; heads divide those that come
    up.
    """
    hidden, heads = r.size("hidden_size"), r.divided("num_attention_heads", r.size("num_attention_heads"))
    latent, rope = r.size("kv_lora_rank"), r.size("qk_rope_head_dim")
    query, value = r.size("qk_nope_head_dim") + rope, r.size("v_head_dim")
    if r.given("q_lora_rank"):
        rank = r.size("q_lora_rank")
        yield Layer(name="qkv_a", n=rank + latent + rope, k=hidden)
        yield Layer(name="q_b", n=heads * query, k=rank)
    else:
        yield Layer(name="kv_a", n=latent + rope, k=hidden)
        yield Layer(name="q", n=heads * query, k=hidden)
    yield Layer(name="kv_b", n=heads * (query - rope + value), k=latent)
    yield Layer(name="o", n=hidden, k=heads * value)


def _dense(r: _Reader) -> Iterator[Layer]:
    yield from _attention(r)
    yield from _feed_forward(r, "", r.size("intermediate_size"))


def _experts(r: _Reader) -> Iterator[Layer]:
    """Attention, and the expert that every token goes through, where there is one."""
    yield from _attention(r)
    if r.given("shared_expert_intermediate_size"):
        yield from _feed_forward(r, "shared_", r.size("shared_expert_intermediate_size"))


def _deepseek(r: _Reader) -> Iterator[Layer]:
    yield from _latent_attention(r)
    if r.given("first_k_dense_replace"):
        yield from _feed_forward(r, "", r.size("intermediate_size"))
    if r.given("n_shared_experts"):
        yield from _feed_forward(r, "shared_", r.size("n_shared_experts") * r.size("moe_intermediate_size"))


_DENSE_FIELDS = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
_FAMILIES: tuple[tuple[tuple[str, ...], Callable[[_Reader], Iterator[Layer]]], ...] = (
    (("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"), _dense),
    (("MixtralForCausalLM", "Qwen2MoeForCausalLM", "Qwen3MoeForCausalLM"), _experts),
    (("DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"), _deepseek),
)
