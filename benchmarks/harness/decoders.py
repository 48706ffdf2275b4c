"""Decoders whose caches can be replaced: one of random weights, and checkpoints by transformers.

Weights at random have the spectra of trained ones. Singular values fall as a power of their rank, so a few directions carry the
keys, and scores spread as widely as trained heads' do. Keys have an offset in four channels, as models with a bias have.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

Layers = list[tuple[Tensor, Tensor]]
"""Keys and values of each layer, each [tokens, KV heads, head dim]."""
Restored = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Keys and values [tokens, KV heads, head dim] as a cache hands them back."""
_RANK_OFFSET, _DECAY = 1 / 32, 0.5
"""Singular value i of n falls as (i + n / 32)^-1/2."""
_SCORE_SPREAD, _LOGIT_SPREAD = 2.5, 3.0
"""Deviations of scores and of logits. With 32K keys of such scores about 60 carry a row's weight."""
_OUTLIERS, _OUTLIER_SIZE = 4, 8.0
"""Channels of keys with an offset, and its size in deviations."""
_ROTARY_BASE = 500_000.0


class Decoder(Protocol):
    """A model that hands out its cache, and goes on from another."""

    def prefill(self, tokens: Tensor) -> Layers:
        """Keys and values of int64 tokens [tokens], by exact attention."""
        ...

    def logits(self, tokens: Tensor, past: Layers, restored: Restored) -> Tensor:
        """Logits f32 [tokens, vocabulary] of tokens behind `past`, whose own keys and values pass `restored`."""
        ...


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """A decoder of random weights."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int = 128
    vocabulary: int = 8192

    @property
    def width(self) -> int:
        """Elements of a hidden vector."""
        return self.heads * self.head_dim


class RandomDecoder:
    """RMS norms, rotary embeddings, grouped heads, gated MLPs: Llama's layers with random weights, in bf16 (f32 on a CPU)."""

    def __init__(self, sizes: Sizes, seed: int, device: torch.device) -> None:
        """Draw all weights on the CPU, so that devices have the same."""
        self.sizes, self.device = sizes, device
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        generator = torch.Generator().manual_seed(seed)
        width, keys = sizes.width, sizes.kv_heads * sizes.head_dim

        def weight(rows: int, columns: int, gain: float = 1.0) -> Tensor:
            return self._put(gain * trained_like(rows, columns, generator, device))

        depth = (2 * sizes.layers) ** -0.5
        self.embedding = self._put(torch.randn(sizes.vocabulary, width, generator=generator))
        self.head = self._put(_LOGIT_SPREAD * width**-0.5 * torch.randn(sizes.vocabulary, width, generator=generator))
        self.layers = [
            {
                "q": weight(width, width, _SCORE_SPREAD),
                "k": weight(keys, width),
                "k_offset": self._put(offsets(sizes, generator)),
                "v": weight(keys, width),
                "out": weight(width, width, depth),
                "gate": weight(2 * width, width),
                "up": weight(2 * width, width),
                "down": weight(width, 2 * width, 2 * depth),
            }
            for _ in range(sizes.layers)
        ]

    def _put(self, x: Tensor) -> Tensor:
        return x.to(self.device, self.dtype)

    def prefill(self, tokens: Tensor) -> Layers:
        """As `Decoder.prefill`."""
        found: Layers = []

        def keep(keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
            found.append((keys, values))
            return keys, values

        self._hidden(tokens, None, keep)
        return found

    def logits(self, tokens: Tensor, past: Layers, restored: Restored) -> Tensor:
        """As `Decoder.logits`."""
        return linear(self._normed(self._hidden(tokens, past, restored)), self.head).float()

    def _normed(self, x: Tensor) -> Tensor:
        return rms_norm(x, x.shape[-1:], eps=1e-6)

    def _hidden(self, tokens: Tensor, past: Layers | None, restored: Restored) -> Tensor:
        sizes = self.sizes
        begin = 0 if past is None else len(past[0][0])
        turned = rotary(torch.arange(begin, begin + len(tokens), device=self.device), sizes.head_dim)
        x = self.embedding[tokens]
        for layer, own in enumerate(self.layers):
            y = self._normed(x)
            q = turn(linear(y, own["q"]).unflatten(-1, (sizes.heads, -1)), turned)
            k = turn(linear(y, own["k"], own["k_offset"]).unflatten(-1, (sizes.kv_heads, -1)), turned)
            keys, values = restored(k, linear(y, own["v"]).unflatten(-1, (sizes.kv_heads, -1)))
            if past is not None:
                keys, values = (torch.cat(pair) for pair in zip(past[layer], (keys, values), strict=True))
            x = x + linear(attended(q, keys, values).flatten(-2), own["out"])
            y = self._normed(x)
            x = x + linear(silu(linear(y, own["gate"])) * linear(y, own["up"]), own["down"])
        return x


def trained_like(rows: int, columns: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """A random weight f32 [rows, columns] whose singular values fall as a power of their rank; its products of vectors of
    independent elements of variance 1 have variance 1."""
    rank = min(rows, columns)
    left, right = (torch.linalg.qr(torch.randn(n, rank, generator=generator).to(device))[0] for n in (rows, columns))
    sizes = (torch.arange(rank, device=device) + _RANK_OFFSET * rank) ** -_DECAY
    return left * (sizes * (rows / sizes.square().sum()) ** 0.5) @ right.T


def offsets(sizes: Sizes, generator: torch.Generator) -> Tensor:
    """The bias of keys f32 [KV heads x head dim]: large in some channels of each head, which turn slowly."""
    bias = torch.zeros(sizes.kv_heads, sizes.head_dim)
    for head in bias:
        slow = sizes.head_dim // 2 - 1 - torch.randperm(sizes.head_dim // 8, generator=generator)[:_OUTLIERS]
        head[slow] = _OUTLIER_SIZE * torch.randn(_OUTLIERS, generator=generator).sign()
    return bias.flatten()


def rotary(positions: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines f32 [positions, 1, head dim / 2]."""
    steps = torch.arange(head_dim // 2, device=positions.device) * (-2 * log(_ROTARY_BASE) / head_dim)
    angles = positions[:, None, None] * torch.exp(steps)
    return angles.cos(), angles.sin()


def turn(x: Tensor, turned: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary embeddings of x [tokens, heads, head dim]: element i turns with element i + head dim / 2."""
    (low, high), (cos, sin) = x.float().chunk(2, dim=-1), turned
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)


def attended(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Causal attention by torch: q [rows, heads, d] are the last of the tokens of keys and values [tokens, KV heads, d]."""
    from torch.nn.attention.bias import causal_lower_right  # imports torch's compiler, which takes 2 s

    rows, tokens = len(q), len(keys)
    mask = None if rows == tokens else causal_lower_right(rows, tokens)
    given = (x.transpose(0, 1)[None] for x in (q, keys, values))
    out = scaled_dot_product_attention(*given, attn_mask=mask, is_causal=mask is None, enable_gqa=True)
    return out[0].transpose(0, 1)


class Checkpoint:
    """A model of a folder, by transformers. All its layers have keys and values of every token."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        """Load it. Raises ImportError without transformers."""
        from transformers import AutoModelForCausalLM

        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).to(device).eval()

    def prefill(self, tokens: Tensor) -> Layers:
        """As `Decoder.prefill`."""
        from transformers import DynamicCache

        cache: Any = DynamicCache()
        self.model.model(input_ids=tokens[None], past_key_values=cache, use_cache=True)
        return [(of_tokens(layer.keys), of_tokens(layer.values)) for layer in cache.layers]

    def logits(self, tokens: Tensor, past: Layers, restored: Restored) -> Tensor:
        """As `Decoder.logits`."""
        out = self.model(input_ids=tokens[None], past_key_values=_cache(past, restored), use_cache=True)
        return out.logits[0].float()


def _cache(past: Layers, restored: Restored) -> Any:
    """A cache of transformers that holds `past`, and hands back new tokens as `restored` does."""
    from transformers.cache_utils import DynamicCache, DynamicLayer

    class Layer(DynamicLayer):
        def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            new = restored(of_tokens(key_states), of_tokens(value_states))
            updated: tuple[Tensor, Tensor] = super().update(*(x.transpose(0, 1)[None] for x in new), *args, **kwargs)
            return updated

    cache: Any = DynamicCache()
    cache.layers = []
    for keys, values in past:
        layer: Any = Layer()
        layer.lazy_initialization(keys, values)
        layer.keys, layer.values = (x.transpose(0, 1)[None] for x in (keys, values))
        cache.layers.append(layer)
    return cache


def of_tokens(x: Tensor) -> Tensor:
    """[1, KV heads, tokens, d] as [tokens, KV heads, d]."""
    return x[0].transpose(0, 1).contiguous()


def tokens_of(folder: Path, texts: Sequence[Path], count: int) -> Tensor:
    """The first `count` tokens of texts, by a folder's tokenizer. Raises ValueError where they are fewer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "\n\n".join(path.read_text(encoding="utf-8") for path in texts)
    found = tokenizer(text, return_tensors="pt").input_ids[0]
    if len(found) < count:
        raise ValueError(f"{count} tokens were asked for; {len(texts)} files have {len(found)}: give more by --text.")
    return found[:count]
