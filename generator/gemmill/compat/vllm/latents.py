"""vLLM's attention over compressed latents (MLA): `--attention-backend MLA_GEMMILL --kv-cache-dtype gemmill_eden4`.

`latent_cache` registers the names; only vLLM imports this module, where somebody asks for the backend. New tokens are
stored in 4 bits, and decodes attend over the codes. A prefill is vLLM's own, over latents that `latent_cache` restores.
"""

from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from vllm.model_executor.layers.attention.mla_attention import (
    MLACommonBackend,
    MLACommonImpl,
    MLACommonMetadataBuilder,
    QueryLenSupport,
)
from vllm.v1.attention.backend import AttentionCGSupport

import gemmill
from gemmill.compat.linear import unusable
from gemmill.compat.vllm.latent_cache import BACKEND, FORMATS, SEED, token_bytes
from gemmill.families.kv_cache.formats import PAGE_SIZES
from gemmill.families.kv_cache.latent import E4M3_TOKEN_BYTES, LATENT_DIM, ROTARY_DIM
from gemmill.runtime import ops, served


class GemmillLatentBuilder(MLACommonMetadataBuilder):
    """vLLM's, with drafts among the decodes where each sequence has as many."""

    _cudagraph_support = AttentionCGSupport.UNIFORM_BATCH
    query_len_support = QueryLenSupport.UNIFORM


class GemmillLatentBackend(MLACommonBackend):
    """The backend of caches of latents in 4 bits, on Hopper."""

    supported_dtypes: ClassVar[list[torch.dtype]] = [torch.float16, torch.bfloat16]
    supported_kv_cache_dtypes: ClassVar[list[str]] = list(FORMATS)

    @staticmethod
    def get_name() -> str:
        """The name in vLLM's list."""
        return BACKEND

    @staticmethod
    def get_impl_cls() -> type[MLACommonImpl]:
        """The class that computes."""
        return GemmillLatentImpl

    @staticmethod
    def get_builder_cls() -> type[MLACommonMetadataBuilder]:
        """The class that separates decodes from prefills."""
        return GemmillLatentBuilder

    @classmethod
    def get_supported_head_sizes(cls) -> list[int]:
        """Elements of a latent and a rotary part."""
        return [LATENT_DIM + ROTARY_DIM]

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec: Any = None) -> list[int]:
        """Tokens of a page."""
        return list(PAGE_SIZES)

    @classmethod
    def supports_compute_capability(cls, capability: Any) -> bool:
        """Whether kernels have run on such a device."""
        return bool(capability.major == 9)

    @classmethod
    def customize_spec(cls, spec: Any) -> Any:
        """vLLM's description of a layer's cache, with the bytes of a token."""
        return replace(super().customize_spec(spec), state_content_bytes=token_bytes(spec.cache_dtype_str))


class GemmillLatentImpl(MLACommonImpl):
    """Stores latents in 4 bits, and decodes over them."""

    can_return_lse_for_decode: bool = True

    def __init__(self, *given: Any, **named: Any) -> None:
        """As vLLM's. Raises ValueError where gemmill has no kernel for the layer: the cache has a format of its own."""
        super().__init__(*given, **named)
        self.supports_quant_query_input = False
        self._format = FORMATS[self.kv_cache_dtype]
        self._has_e4m3 = token_bytes(self.kv_cache_dtype) == E4M3_TOKEN_BYTES
        if (why := _refusal(self, torch.get_default_dtype())) is not None:
            raise ValueError(
                f"A cache of latents in {self.kv_cache_dtype} was asked for, but {why}: choose another --kv-cache-dtype."
            )

    def do_kv_cache_update(
        self,
        kv_c_normed: Tensor,
        k_pe: Tensor,
        kv_cache: Tensor,
        slot_mapping: Tensor,
        kv_cache_dtype: str,
        k_scale: Tensor,
        skip_scale: bool = False,
    ) -> None:
        """Latents [tokens, 512] and rotary parts [tokens, 1, 64] to kv_cache, u8 [blocks, tokens, 400 or 336].

        A token of slot -1 leaves a rotary part of 16 bits in block 0, which vLLM gives to no sequence, and nothing else.
        Rotary parts in e4m3 are divided by `k_scale`, as vLLM's own cache in fp8.
        """
        if kv_cache.numel() == 0:
            return
        slots = slot_mapping.flatten().long()
        tokens = slots.shape[0]
        latents, rotary = gemmill.latent_cache(kv_cache.view(torch.uint8), k_pe.dtype)
        gemmill.kv_compress_keys(latents, kv_c_normed[:tokens, None], slots, self._format, seed=SEED)
        if kv_cache.shape[-1] == E4M3_TOKEN_BYTES:
            gemmill.kv_compress_keys(
                rotary, k_pe[:tokens].reshape(tokens, 1, ROTARY_DIM), slots, "e4m3", scales=k_scale.reshape(1)
            )
        else:
            rotary[slots.clamp(min=0)] = k_pe[:tokens].reshape(tokens, ROTARY_DIM)

    def forward_mqa(
        self, q: Tensor | tuple[Tensor, Tensor], kv_c_and_k_pe_cache: Tensor, attn_metadata: Any, layer: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Decodes [tokens, heads, 576], as many of each sequence: out [tokens, heads, 512], and f32 [tokens, heads]."""
        queries = torch.cat(q, dim=-1) if isinstance(q, tuple) else q
        table, lengths = attn_metadata.decode.block_table, attn_metadata.decode.seq_lens
        out, lse = gemmill.kv_latent_attention(
            queries.unflatten(0, (lengths.shape[0], -1)),
            kv_c_and_k_pe_cache.view(torch.uint8),
            table,
            lengths,
            self._format,
            scale=self.scale,
            seed=SEED,
            key_scales=layer._k_scale.reshape(1) if self._has_e4m3 else None,
        )
        return out.flatten(0, 1), lse.transpose(1, 2).flatten(0, 1)


def _refusal(impl: Any, dtype: torch.dtype) -> str | None:
    """The reason why gemmill does not serve a layer, a clause; None if it does."""
    sizes = impl.kv_lora_rank, impl.qk_rope_head_dim
    if sizes != (LATENT_DIM, ROTARY_DIM):
        return f"its latents and rotary parts have {sizes[0]} and {sizes[1]} elements, kernels take {LATENT_DIM} and {ROTARY_DIM}"
    try:
        build_id = ops.active().build_id
        chosen = [(name, ops.explain(name, *given).entry) for name, *given in _calls(impl, dtype)]
    except Exception as error:  # whatever is wrong with a build
        return unusable(error).rstrip(".")
    if missing := [name for name, entry in chosen if entry is None]:
        return f"build {build_id} has no variant of {', '.join(missing)}, which `gemmill build` compiles"
    names = ", ".join(entry.name for _, entry in chosen if entry is not None)
    kind = {"layer": f"cache of latents in {impl.kv_cache_dtype}", "by": "GemmillLatentImpl"}
    served.took(served.ServedLayers(**kind, variants=f"build {build_id} has {names}"))
    return None


def _calls(impl: Any, dtype: torch.dtype) -> list[tuple[Any, ...]]:
    """The ops' names and their arguments, on torch's meta device: stores, restores and an attention of one token."""

    def empty(*shape: int, kind: torch.dtype = dtype) -> Tensor:
        return torch.empty(shape, dtype=kind, device="meta")

    page, format = PAGE_SIZES[-1], FORMATS[impl.kv_cache_dtype]
    bytes_of = token_bytes(impl.kv_cache_dtype)
    cache, slots = empty(1, page, bytes_of, kind=torch.uint8), empty(1, kind=torch.int64)
    latents, rotary = gemmill.latent_cache(cache, dtype)
    out, q = (empty(1, 1, impl.num_heads, n) for n in (LATENT_DIM, LATENT_DIM + ROTARY_DIM))
    table, lengths = empty(1, 1, kind=torch.int32), empty(1, kind=torch.int32)
    of_rotary: list[tuple[Any, ...]] = [
        ("kv_compress_keys", rotary, empty(1, 1, ROTARY_DIM), slots, "e4m3"),
        ("kv_decompress_keys", empty(1, 1, ROTARY_DIM), rotary, slots, "e4m3"),
    ]
    return [
        *(of_rotary if bytes_of == E4M3_TOKEN_BYTES else ()),
        ("kv_compress_keys", latents, empty(1, 1, LATENT_DIM), slots, format),
        ("kv_decompress_keys", empty(1, 1, LATENT_DIM), latents, slots, format),
        ("kv_latent_attention", out, q, cache, table, lengths, format, impl.scale),
    ]
