"""Bytes, places and refusals of the formats."""

import itertools

import pytest

from gemmill.families.kv_cache.formats import (
    HEAD_DIMS,
    OFFERED_BITS,
    OWN_METHODS,
    PAGE_SIZES,
    PRESETS,
    CacheFormat,
    CacheSpec,
    Method,
    PageLayout,
    RotationKind,
    VectorFormat,
    cache_format,
    check_tag,
    preset,
)
from gemmill.families.kv_cache.pages import bytes_of_token_and_head, page_plan
from gemmill.families.kv_cache.reference.cache import allocate

OWN = [
    cache_format(VectorFormat(method=k, bits=bits), VectorFormat(method=v, bits=bits))
    for k, v, bits in itertools.product(OWN_METHODS, OWN_METHODS, (2, 3, 4))
]


def spec_of(format: CacheFormat, head_dim: int = 128, kv_heads: int = 8, page_size: int = 16) -> CacheSpec:
    return CacheSpec(format=format, head_dim=head_dim, kv_heads=kv_heads, page_size=page_size)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("turboquant_k8v4", 196),
        ("turboquant_4bit_nc", 134),
        ("turboquant_k3v4_nc", 118),
        ("turboquant_3bit_nc", 102),
        ("ultraquant_4bit", 136),
    ],
)
def test_bytes_of_vllm(name: str, size: int) -> None:
    """Slot sizes of vLLM's TurboQuantConfig and of UltraQuant's format.py at head dim 128; 272 for UltraQuant at 256."""
    assert bytes_of_token_and_head(spec_of(preset(name))) == size
    if name != "ultraquant_4bit":
        assert bytes_of_token_and_head(spec_of(preset(f"{name}_split"))) == size
    else:
        assert bytes_of_token_and_head(spec_of(preset(name), head_dim=256)) == 272


@pytest.mark.parametrize("method", OWN_METHODS)
def test_bytes_of_our_formats(method: Method) -> None:
    """b bits an element and one float16, two for turboquant_prod."""
    for head_dim, bits in itertools.product(HEAD_DIMS, OFFERED_BITS[method]):
        scalars = 4 if method is Method.TURBOQUANT_PROD else 2
        assert VectorFormat(method=method, bits=bits).size(head_dim) == head_dim * bits // 8 + scalars


@pytest.mark.parametrize("format", OWN, ids=lambda format: format.name)
def test_three_bits_of_4096_tokens_and_8_heads_take_102_bytes(format: CacheFormat) -> None:
    """Keys and values together, on the allocated tensor. Two float16 more where both sides are turboquant_prod."""
    spec = spec_of(format)
    measured = allocate(spec, 4096 // spec.page_size).numel() / (4096 * 8)
    assert measured == bytes_of_token_and_head(spec)
    if format.keys.bits == 3:
        prods = [format.keys.method, format.values.method].count(Method.TURBOQUANT_PROD)
        assert measured == 100 + 2 * prods


@pytest.mark.parametrize("page_size", PAGE_SIZES)
@pytest.mark.parametrize("format", [*OWN, *PRESETS.values()], ids=lambda format: format.name)
def test_no_byte_has_two_owners(format: CacheFormat, page_size: int) -> None:
    spec = spec_of(format, head_dim=64, kv_heads=3, page_size=page_size)
    plan = page_plan(spec)
    owners = [0] * plan.page_bytes
    for placement in plan.placements:
        for token, head in itertools.product(range(page_size), range(3)):
            start = placement.offset + token * placement.token_stride + head * placement.head_stride
            for byte in range(start, start + placement.field.size):
                owners[byte] += 1
    assert max(owners) == 1
    assert min(owners) == 1, "no format at head dim 64 has an odd slot, so nothing is padding"
    if format.layout is PageLayout.HEADS:
        assert all(placement.offset % 16 == 0 for placement in plan.placements)
        assert plan.placements[0].head_stride % 16 == 0


def test_values_of_fewer_elements_have_fewer_bytes() -> None:
    spec = CacheSpec(format=eden(), head_dim=192, value_dim=128, kv_heads=8, page_size=16)
    assert bytes_of_token_and_head(spec) == (192 + 128) // 2 + 4
    assert [vectors.head_dim for vectors in (spec.keys, spec.values)] == [192, 128]
    assert (
        CacheSpec(format=eden(), head_dim=192, value_dim=192, kv_heads=8, page_size=16).tag
        == spec_of(eden(), head_dim=192).tag
    )


def test_refused_bits_and_sizes() -> None:
    with pytest.raises(
        ValueError, match=r"^eden in 5 bits was asked for; it is offered in 2, 3 and 4: choose one of these\.$"
    ):
        VectorFormat(method=Method.EDEN, bits=5)
    with pytest.raises(ValueError, match=r"^e4m3 in 4 bits was asked for; it is offered in 8: choose one of these\.$"):
        VectorFormat(method=Method.E4M3, bits=4)
    with pytest.raises(
        ValueError, match=r"^A k_eden4_v_eden4 cache of head dim 80 was asked for; 64, 96, 128, 192, 256 and 512 a"
    ):
        spec_of(eden(), head_dim=80)
    with pytest.raises(
        ValueError, match=r"^A turboquant_3bit_nc cache of head dim 96 was asked for; 64, 128, 256 and 512 are off"
    ):
        spec_of(preset("turboquant_3bit_nc"), head_dim=96)
    with pytest.raises(
        ValueError,
        match=r"^A k_eden4_v_eden4 cache of keys of 192 elements and values of 96 was asked for; such values have 192 and 128: choose",
    ):
        CacheSpec(format=eden(), head_dim=192, value_dim=96, kv_heads=8, page_size=16)
    with pytest.raises(
        ValueError, match=r"keys of 256 elements and values of 128 was asked for; such values have 256: choose one"
    ):
        CacheSpec(format=eden(), head_dim=256, value_dim=128, kv_heads=8, page_size=16)
    with pytest.raises(
        ValueError, match=r"^Pages of 48 tokens were asked for; 16, 32, 64 and 128 are offered: choose one"
    ):
        spec_of(eden(), page_size=48)
    with pytest.raises(
        ValueError, match=r"^A cache of 0 KV heads was asked for; it has at least one: give their number\.$"
    ):
        spec_of(eden(), kv_heads=0)
    with pytest.raises(
        ValueError, match=r"^Preset turboquant_2bit was asked for; there are turboquant_k8v4, .*: choose one"
    ):
        preset("turboquant_2bit")
    with pytest.raises(
        ValueError, match=r"^uniform was asked for as a format of our own; turboquant_mse, .* or a preset by"
    ):
        cache_format(VectorFormat(method=Method.UNIFORM, bits=4), VectorFormat(method=Method.EDEN, bits=4))
    with pytest.raises(
        ValueError, match=r"^eden keys without a rotation were asked for; .* take random_hadamard or dense\.$"
    ):
        cache_format(*(VectorFormat(method=Method.EDEN, bits=4),) * 2, rotation=RotationKind.NONE)


def eden() -> CacheFormat:
    return cache_format(*(VectorFormat(method=Method.EDEN, bits=4),) * 2)


def test_a_tag_names_everything_that_the_bytes_depend_on() -> None:
    base = spec_of(eden())
    dense = cache_format(eden().keys, eden().values, rotation=RotationKind.DENSE)
    others = [
        spec_of(OWN[0]),
        spec_of(dense),
        spec_of(eden(), head_dim=64),
        spec_of(eden(), kv_heads=4),
        spec_of(eden(), page_size=32),
        CacheSpec(format=eden(), head_dim=128, kv_heads=8, page_size=16, seed=1),
        spec_of(eden(), head_dim=192),
        CacheSpec(format=eden(), head_dim=192, value_dim=128, kv_heads=8, page_size=16),
    ]
    assert len({base.tag, *(other.tag for other in others)}) == 9
    check_tag(base.tag, base)
    for other in others:
        with pytest.raises(
            ValueError, match=r"^A cache written as .*:s\d was to be read as k_eden4_v_eden4:d128:h8:p16:heads"
        ):
            check_tag(other.tag, base)
