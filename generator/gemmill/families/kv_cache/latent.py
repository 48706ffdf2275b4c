"""The cache of latents (MLA): one KV head, whose compressed latent is key and value of every query head.

A token has `TOKEN_BYTES` bytes: a packed vector of `LATENT_DIM` elements (codes, then its norm), padding, and the
rotary part of its key, `ROTARY_DIM` elements of the queries' type. With rotary parts in e4m3 it has `E4M3_TOKEN_BYTES`. Tokens of a
page follow one another. The scale of e4m3 is one float of a layer, as vLLM's MLA cache in fp8 has it.
"""

from gemmill.families.kv_cache.formats import Method, RotationKind, VectorFormat, VectorSpec

LATENT_DIM = 512
ROTARY_DIM = 64
LATENT_BITS = 4
_METHODS = (Method.EDEN, Method.TURBOQUANT_MSE)
LATENT_FORMATS = {f"{method.value}{LATENT_BITS}": VectorFormat(method=method, bits=LATENT_BITS) for method in _METHODS}
"""Formats of latents by name."""
LATENT_BYTES = LATENT_DIM * LATENT_BITS // 8 + 2
"""Bytes of a packed latent, at the beginning of a token."""
ROTARY_AT = -(-LATENT_BYTES // 16) * 16
"""The byte of a token at which its rotary part begins."""
TOKEN_BYTES = ROTARY_AT + 2 * ROTARY_DIM
E4M3_TOKEN_BYTES = ROTARY_AT + ROTARY_DIM


def latent_spec(format: str, seed: int) -> VectorSpec:
    """The spec of latents in a format of LATENT_FORMATS. A seed below 0 counts as 0."""
    return VectorSpec(
        format=LATENT_FORMATS[format],
        head_dim=LATENT_DIM,
        rotation=RotationKind.RANDOM_HADAMARD,
        seed=max(seed, 0),
    )
