"""The compressed cache's ops on CPU tensors: the references, sentences for bad input, the configs that serve calls."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmill
from families.kv_cache.rotated import exact
from gemmill.families.kv_cache.call import config_of
from gemmill.families.kv_cache.cases.calls import CompressCase, DecodeCase, DecompressCase, HadamardCase
from gemmill.families.kv_cache.cases.judging import limits, parts
from gemmill.families.kv_cache.cases.latent_calls import LatentCase
from gemmill.families.kv_cache.cases.made import MadeCall
from gemmill.families.kv_cache.cases.packed_calls import (
    AttendCase,
    PackCase,
    ScoresCase,
    UnpackCase,
    cache_format_of,
    of_packed_config,
)
from gemmill.families.kv_cache.config import (
    FORMATS,
    LATENT_ROWS,
    MOST_OF_ANY,
    SLOT_FORMATS,
    KernelKind,
    KvCacheConfig,
    Operands,
    Slots,
)
from gemmill.families.kv_cache.formats import HEAD_DIMS, VALUE_DIMS
from gemmill.families.kv_cache.ops import DECODED, SCHEMAS_OF, STORED
from gemmill.families.kv_cache.reference.rotations import hadamard_transform, rotate
from gemmill.families.kv_cache.selections import default, is_served, sweep
from gemmill.runtime import checks, operands
from gemmill.runtime.schemas import BY_NAME
from gemmill.space.names import parse_name, to_name
from gemmill.vocab import Arch, DType
from making import changed

TRANSFORM = HadamardCase(rows=3, columns=128)
STORE = CompressCase(tokens=5, format="k_eden4_v_eden4", kv_heads=2, page=16)
DECODE = DecodeCase(lengths=(20, 3), rows=2, heads=4, kv_heads=2, page=16)
LONG = AttendCase(
    lengths=(9,), heads=4, kv_heads=1, head_dim=512, format=cache_format_of(Slots.ULTRAQUANT), page=16, are_apart=True
)
RESTORE = DecompressCase(tokens=5, format="k_eden4_v_eden4", kv_heads=2, page=16)


def given(case: MadeCall) -> dict[str, Any]:
    return dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True))


def call(case: MadeCall, arguments: dict[str, Any]) -> None:
    getattr(torch.ops.gemmill, case.schema.name).default(*arguments.values())


def sentence(case: MadeCall, **changes: Any) -> str:
    with pytest.raises(RuntimeError) as error:
        call(case, given(case) | changes)
    return str(error.value)


def test_a_transform_is_its_own_inverse_but_for_the_scale() -> None:
    x = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(0)).half()
    y = gemmill.hadamard_transform(x, 0.125)
    assert torch.equal(y, hadamard_transform(x.double()).half())
    assert torch.allclose(gemmill.hadamard_transform(y, 0.125).float(), x.float(), atol=2e-3)


def test_values_may_have_fewer_elements_than_keys() -> None:
    """The bytes of each side are those of a cache that has as many elements of both."""
    random = torch.Generator().manual_seed(4)
    keys, values = (torch.randn(5, 2, d, generator=random).bfloat16() for d in (192, 128))
    cache, wide, narrow = (torch.zeros(1, 2, 16, size, dtype=torch.uint8) for size in (164, 196, 132))
    slots = torch.arange(5)
    gemmill.kv_compress(cache, keys, values, slots, seed=9)
    gemmill.kv_compress(wide, keys, keys.clone(), slots, seed=9)
    gemmill.kv_compress(narrow, values.clone(), values, slots, seed=9)
    of_head = [x.flatten(2)[0] for x in (cache, wide, narrow)]
    assert torch.equal(of_head[0][:, : 16 * 98], of_head[1][:, : 16 * 98])
    assert torch.equal(of_head[0][:, 16 * 98 :], of_head[2][:, 16 * 66 :])
    table, lengths = torch.zeros(1, 1, dtype=torch.int32), torch.tensor([5], dtype=torch.int32)
    q = torch.randn(1, 1, 4, 192, generator=random).bfloat16()
    out, lse = gemmill.kv_decode_attention(q, cache, table, lengths, seed=9, value_dim=128)
    _, of_keys = gemmill.kv_decode_attention(q, wide, table, lengths, seed=9)
    restored = gemmill.kv_decompress(cache, slots, 192, seed=9, value_dim=128)
    weights = torch.softmax(
        torch.einsum("hd,nhd->hn", q[0, 0].double(), restored[0].repeat_interleave(2, 1).double()) / 192**0.5, -1
    )
    wanted = torch.einsum("hn,nhd->hd", weights, restored[1].repeat_interleave(2, 1).double())
    assert out.shape == (1, 1, 4, 128) and torch.equal(lse, of_keys)
    assert (out[0, 0].double() - wanted).abs().max() < 0.02
    with pytest.raises(RuntimeError, match="kv_decode_attention: vectors have 100 elements, expected 64, 96"):
        gemmill.kv_decode_attention(q, cache, table, lengths, seed=9, value_dim=100)


def test_what_is_stored_is_restored() -> None:
    """As far as 4 bits hold it, and zeros where there is no slot."""
    keys, values = torch.randn(2, 3, 2, 96, generator=torch.Generator().manual_seed(2)).bfloat16()
    cache = torch.full((2, 2, 16, 100), 0xFF, dtype=torch.uint8)
    gemmill.kv_compress(cache, keys, values, torch.tensor([31, 0, 7]), seed=9)
    found = gemmill.kv_decompress(cache, torch.tensor([31, 0, 32]), 96, seed=9)
    for restored, wanted in zip(found, (keys, values), strict=True):
        assert (restored[:2].float() - wanted[:2].float()).norm() < 0.12 * wanted[:2].float().norm()
        assert not bool(restored[2].any())


def test_what_is_stored_is_attended_over() -> None:
    """A sequence of one token gives its value, as far as 4 bits hold it; every head of a group reads its KV head."""
    random = torch.Generator().manual_seed(1)
    keys, values = (torch.randn(2, 2, 128, generator=random).bfloat16() for _ in range(2))
    cache = torch.full((3, 2, 16, 132), 0xFF, dtype=torch.uint8)
    gemmill.kv_compress(cache, keys, values, torch.tensor([40, -1]), seed=7)
    q = torch.randn(1, 1, 4, 128, generator=random).bfloat16()
    table, lengths = torch.tensor([[2]], dtype=torch.int32), torch.tensor([9], dtype=torch.int32)
    out, lse = gemmill.kv_decode_attention(q, cache, table, lengths, seed=7, window=1)
    wanted = values[0].repeat_interleave(2, dim=0).float()
    assert (out[0, 0].float() - wanted).norm() < 0.12 * wanted.norm()
    scores = (q[0, 0].float() * keys[0].repeat_interleave(2, dim=0).float()).sum(-1) * 128**-0.5
    assert torch.allclose(lse[0, :, 0], scores, atol=0.5)
    assert bool((cache[:2] == 0xFF).all())


def test_queries_that_come_rotated_leave_the_output_rotated() -> None:
    arguments = given(DECODE)
    call(DECODE, arguments)
    turned = given(replace(DECODE, is_rotated=True))
    kind, seed = DECODE.spec.keys.rotation, DECODE.spec.seed
    turned["q"] = rotate(arguments["q"].double(), kind, seed).bfloat16()
    call(DECODE, turned)
    wanted = rotate(arguments["out"].double(), kind, seed)
    assert torch.allclose(turned["out"].double(), wanted, atol=0.02)
    assert torch.allclose(turned["lse"], arguments["lse"], atol=0.02)


@pytest.mark.parametrize("format", ["k_eden4_v_eden4", "k_turboquant_mse3_v_turboquant_mse3"])
@pytest.mark.parametrize(("keys_are", "values_are"), [(True, False), (False, True), (True, True)])
def test_vectors_that_come_rotated_are_stored_alike(format: str, keys_are: bool, values_are: bool) -> None:
    x, rotated = exact(20, 2, torch.bfloat16, STORE.spec.keys.rotation, seed=7)
    plain, other = (torch.zeros(2, 2, 16, 68 if "4" in format else 52, dtype=torch.uint8) for _ in range(2))
    slots = torch.arange(20)
    gemmill.kv_compress(plain, x, x.flip(0), slots, format, 7)
    keys, values = rotated if keys_are else x, (rotated if values_are else x).flip(0)
    gemmill.kv_compress(other, keys, values, slots, format, 7, rotated_keys=keys_are, rotated_values=values_are)
    assert torch.equal(plain, other)
    gemmill.kv_compress(other, keys, values, slots, format, 7)
    assert not torch.equal(plain, other)


def moved(tensor: Tensor, offset: int) -> Tensor:
    """The same bytes, from an offset on."""
    memory = torch.empty(tensor.numel() + 64, dtype=tensor.dtype)
    start = -memory.data_ptr() % 16 + offset
    return memory[start : start + tensor.numel()].view(tensor.shape).copy_(tensor)


def narrower(tensor: Tensor) -> Tensor:
    return tensor[..., :80]


@pytest.mark.parametrize(
    ("case", "change", "text"),
    [
        (TRANSFORM, {"x": lambda x: x[:, :96]}, "out is [3, 128], expected x's [3, 96]"),
        (TRANSFORM, {"x": narrower, "out": narrower}, "x has 80 columns, expected 64, 96, 128, 192, 256 or 512"),
        (TRANSFORM, {"x": Tensor.float}, "x is float32, expected bfloat16 or float16"),
        (STORE, {"format": lambda _: "eden4"}, "format is 'eden4', expected 'k_eden2_v_eden2', "),
        (STORE, {"cache": lambda c: c[..., :100]}, "cache is [2, 2, 16, 100], expected [pages, KV heads, page, 132]: so many bytes"),
        (STORE, {"cache": lambda c: c[:, :, :8]}, "pages of cache have 8 tokens, expected 16, 32, 64 or 128"),
        (STORE, {"cache": lambda c: c.transpose(1, 2).contiguous().transpose(1, 2)}, "has strides [4224, 132, 264, 1]: a page must be contiguous"),
        (STORE, {"cache": lambda c: c[:, :1]}, "keys is [5, 2, 128] and cache is [2, 1, 16, 132]: 2 heads do not fit a cache of 1"),
        (STORE, {"cache": lambda c: moved(c, 8)}, "cache begins 8 bytes past a 16-byte boundary, and kernels need it aligned"),
        (STORE, {"keys": narrower, "values": narrower}, "vectors have 80 elements, expected 64, 96, 128, 192, 256 or 512"),
        (STORE, {"values": Tensor.half}, "values is float16, expected bfloat16"),
        (STORE, {"slot_mapping": Tensor.int}, "slot_mapping is int32, expected int64"),
        (STORE, {"slot_mapping": lambda s: s[:4]}, "slot_mapping has shape [4], expected [tokens] = [5]"),
        (STORE, {"seed": lambda _: -1}, "seed is -1, expected 0 or more"),
        (DECODE, {"format": lambda _: "k_eden2_v_eden4"}, "format is 'k_eden2_v_eden4', expected 'k_eden4_v_eden4', 'k_eden4_v_eden3', "),
        (DECODE, {"q": lambda q: q[:, :, :3], "out": lambda o: o[:, :, :3]}, "q has 3 heads and cache 2: query heads are a multiple of KV heads"),
        (DECODE, {"q": lambda q: q.transpose(2, 3).contiguous().transpose(2, 3)}, "elements of a vector must be contiguous"),
        (DECODE, {"out": lambda o: o.transpose(1, 2).contiguous().transpose(1, 2)}, "its vectors must follow one another at one stride, and not overlap"),
        (DECODE, {"block_table": Tensor.long}, "block_table is int64, expected int32"),
        (DECODE, {"seq_lens": lambda s: s[:1]}, "seq_lens has shape [1], expected [batch] = [2]"),
        (DECODE, {"sinks": lambda _: torch.zeros(3)}, "sinks has shape [3], expected [heads] = [4]"),
        (RESTORE, {"slot_mapping": Tensor.int}, "slot_mapping is int32, expected int64"),
        (RESTORE, {"keys": lambda k: k[:1].expand(5, 2, 128)}, "keys of [5, 2, 128] has strides [0, 128, 1]: its vectors must follow one another at one stride"),
        (DECODE, {"softcap": lambda _: -1.0}, "softcap is -1.0, expected a positive number, or 0 for none"),
        (DECODE, {"out": lambda o: o[..., :64]}, "keys have 128 elements and values 64, expected as many of both, or 192 and 128"),
        (STORE, {"values": lambda v: v[..., :96]}, "keys have 128 elements and values 96, expected as many of both, or 192 and 128"),
        (replace(RESTORE, head_dim=192), {"values": lambda v: v[..., :96]}, "keys have 192 elements and values 96, expected as many of both, or 192 and 128"),
        (replace(DECODE, head_dim=192), {"out": lambda o: o[..., :128]}, "cache is [4, 2, 16, 196], expected [pages, KV heads, page, 164]"),
        (DecodeCase(lengths=(3,), head_dim=64), {"format": lambda _: "k_eden4_v_eden3"}, "format is 'k_eden4_v_eden3' with vectors of 64 elements, expected as many bits"),
        (DECODE, {"lse": lambda x: x[..., :1]}, "lse has shape [2, 4, 1] and strides [8, 2, 1], expected three dimensions without gaps"),
        (ScoresCase(length=3, heads=2, kv_heads=1), {"q": lambda q: q.repeat(1, 1, 1, 4)}, "vectors have 512 elements, expected 64, 96, 128, 192 or 256"),
        (replace(LONG, format="k_eden4_v_e2m1"), {"window": lambda _: 0}, "vectors have 512 elements in k_eden4_v_e2m1 with 4 query rows times heads of a KV head; of so many elements there are kernels for k_e4m3_v_uniform4, "),
        (replace(LONG, rows=9), {"window": lambda _: 0}, "in k_e2m1_v_e2m1 with 36 query rows times heads of a KV head; of so many elements there are"),
        (LONG, {"keys": lambda k: k.new_zeros(k.numel() + 1)[1:].view(k.shape)}, "keys and values of vectors of 512 elements begin at other bytes than multiples of 4 and of 2: allocate the cache anew"),
        (DECODE, {"window": lambda _: -2}, "window is -2, expected a number of keys, or 0 for all"),
        (DECODE, {"seed": lambda _: -2}, "seed is -2, expected 0 or more, or -1 for queries that are rotated and an output that stays so"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_bad_input_is_one_sentence(case: MadeCall, change: dict[str, Any], text: str) -> None:
    arguments = given(case)
    found = sentence(case, **{name: how(arguments[name]) for name, how in change.items()})
    assert found.startswith(f"{case.schema.name}: ") and text in found, found


def test_each_config_is_named_once_and_serves_the_calls_of_its_class() -> None:
    configs = list(sweep(Arch.SM90A))
    assert len({to_name(config) for config in configs}) == len(configs)
    assert all(parse_name(to_name(config)) == config for config in configs)
    served = set()
    for case in _cases():
        schema = BY_NAME[case.schema.name]
        judged = checks.check(schema, operands.of_arguments(schema, case.arguments("meta")))
        served.add(config_of(judged, Arch.SM90A))
    least = {None: 0, DType.E4M3: LATENT_ROWS[0]}  # of the tiles of each type of rotary parts
    assert served == {replace(x.compiled, tile_rows=least[x.operands.rotary]) for x in configs} and len(served) == 248
    assert {config for config in configs if is_served(config)} == set(default(Arch.SM90A))


def _slots(case: AttendCase, device: str = "meta", **changed: Tensor) -> Slots:
    given = dict(zip(case.schema.arguments, case.arguments(device), strict=True)) | changed
    judged = checks.check(case.schema, operands.of_arguments(case.schema, list(given.values())))
    return config_of(judged, Arch.SM90A).operands.slots


@pytest.mark.parametrize("head_dim", SLOT_FORMATS)
def test_calls_in_slots_come_to_the_kernel_of_their_format(head_dim: int) -> None:
    config = KvCacheConfig(
        kind=KernelKind.ATTEND, operands=Operands(dtype=DType.BF16, head_dim=head_dim, slots=Slots.NC4)
    )
    cases = list(of_packed_config(config))
    assert len(cases) > 6 and {_slots(case) for case in cases if isinstance(case, AttendCase)} == {Slots.NC4}
    if head_dim > MOST_OF_ANY:
        return
    of_any = list(of_packed_config(changed(config, slots=Slots.ANY)))
    assert {_slots(case) for case in of_any if isinstance(case, AttendCase)} == {Slots.ANY}


@pytest.mark.parametrize(
    "sizes",
    [
        {"heads": 3, "kv_heads": 3},
        {"heads": 40, "kv_heads": 20},
        {"rows": 3, "heads": 88, "kv_heads": 8},
        {"page": 24},
        {"page": 7},
        {"gap": 1},
        {"gap": 76},
        {"head_dim": 64, "format": cache_format_of(Slots.NC3)},
        {"head_dim": 256, "format": cache_format_of(Slots.PROD3)},
        {"kv_heads": 1, "gap": 116},
        {"is_plain": True, "heads": 2, "kv_heads": 2, "lengths": (9, 5)},
    ],
    ids=str,
)
def test_calls_that_lie_otherwise_come_to_the_kernel_of_any_format(sizes: dict[str, Any]) -> None:
    """Pages of the last do not lie at multiples of 16 bytes."""
    case = AttendCase(**({"lengths": (20, 3), "format": cache_format_of(Slots.NC4)} | sizes))
    assert _slots(case, "cpu") is Slots.ANY


def test_odd_addresses_and_words_apart_come_to_the_kernel_of_any_format() -> None:
    case = AttendCase(lengths=(20,), heads=2, kv_heads=2, page=16, format=cache_format_of(Slots.K8V4))
    assert _slots(case, "cpu") is Slots.K8V4 and _slots(replace(case, gap=2), "cpu") is Slots.ANY
    memory = torch.zeros(2 * 16 * 2 * 196 + 16, dtype=torch.uint8)
    for off, wanted in ((0, Slots.K8V4), (4, Slots.K8V4), (2, Slots.ANY), (1, Slots.ANY)):
        cache = memory[off:].narrow(0, 0, 2 * 16 * 2 * 196).view(2, 16, 2, 196)
        assert _slots(case, "cpu", keys=cache[..., :128], values=cache[..., 128:]) is wanted


def _fitting(formats: tuple[str, ...]) -> list[tuple[str, int]]:
    return [(name, c) for name in formats for c in HEAD_DIMS if c == 128 or FORMATS[name][1] == FORMATS[name][2]]


def _cases() -> list[MadeCall]:
    dtypes = (DType.BF16, DType.F16)
    return [
        *(HadamardCase(rows=1, columns=c, dtype=d) for c in HEAD_DIMS for d in dtypes),
        *(CompressCase(tokens=1, format=name, dtype=d, head_dim=c) for name, c in _fitting(STORED) for d in dtypes),
        *(DecompressCase(tokens=1, format=name, dtype=d, head_dim=c) for name, c in _fitting(DECODED) for d in dtypes),
        *(DecodeCase(lengths=(1,), dtype=d, format=name, head_dim=c) for name, c in _fitting(DECODED) for d in dtypes),
        *(
            case(**sizes, dtype=d, format=name, head_dim=c, value_dim=fewer)
            for case, sizes, formats in (
                (CompressCase, {"tokens": 1}, STORED),
                (DecompressCase, {"tokens": 1}, DECODED),
                (DecodeCase, {"lengths": (1,)}, DECODED),
            )
            for name, c in _fitting(formats)
            for fewer in VALUE_DIMS.get(c, ())
            for d in dtypes
        ),
        *(
            case(tokens=1, format="eden4", dtype=d, head_dim=c)
            for case in (PackCase, UnpackCase)
            for c in HEAD_DIMS
            for d in dtypes
        ),
        *(LatentCase(lengths=(1,), dtype=d, rotary=rotary) for rotary in (None, DType.E4M3) for d in dtypes),
        *(ScoresCase(length=1, dtype=d, head_dim=c) for c in HEAD_DIMS if c <= MOST_OF_ANY for d in dtypes),
        *(AttendCase(lengths=(1,), dtype=d, head_dim=c) for c in HEAD_DIMS if c <= MOST_OF_ANY for d in dtypes),
        *(
            AttendCase(lengths=(1,), dtype=d, head_dim=c, format=cache_format_of(slots))
            for c, formats in SLOT_FORMATS.items()
            for slots in formats
            for d in dtypes
        ),
    ]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        (
            {"kind": KernelKind.HADAMARD, "head_dim": 80},
            "head_dim=80: vectors have 64, 96, 128, 192, 256, 512 elements",
        ),
        (
            {"kind": KernelKind.SCORES, "head_dim": 512},
            "head_dim=512 contradicts kind=scores, which has 64, 96, 128, 192, 256 ",
        ),
        (
            {"kind": KernelKind.DECODE, "head_dim": 64, "key_bits": 4, "value_bits": 3},
            "of 64 elements, which has 4 and 4, 3 and 3, 2 and 2",
        ),
        (
            {"kind": KernelKind.HADAMARD, "dtype": DType.F32},
            "dtype=f32: elements are bf16 or f16, as tensor cores take them",
        ),
        (
            {"kind": KernelKind.COMPRESS, "key_bits": 5, "value_bits": 4},
            "key_bits=5 value_bits=4 contradict kind=compress",
        ),
    ],
)
def test_contradictions_cannot_be_made(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        changed(KvCacheConfig(kind=KernelKind.HADAMARD, operands=Operands(dtype=DType.BF16, head_dim=128)), **fields)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "sm90a_kvcache_hadamard_bf16_d128_k4v4",
            "key_bits=4 value_bits=4 contradict kind=hadamard of 128 elements, which has 0 and 0 (bits)",
        ),
        (
            "sm90a_kvcache_compress_bf16_d128_eden_k4v4",
            "field 'eden', expected vd and a number; or rotarye4m3; or any, k8v4, 4bitnc, k3v4nc, 3bitnc, ultraquant, prod3mse2 or fp8; or k and a number, v and a number; or r and a number; or w and a number; or s and a number; or nothing more",
        ),
        (
            "sm90a_kvcache_decode_bf16_d128_k4",
            "field 'k4', expected vd and a number; or rotarye4m3; or any, k8v4, 4bitnc, k3v4nc, 3bitnc, ultraquant, prod3mse2 or fp8; or k and a number, v and a number; or r and a number; or w and a number; or s and a number; or nothing more",
        ),
        ("sm90a_kvcache_decode_bf16_128_k4v4", "head_dim '128', expected d and a number"),
        (
            "sm90a_kvcache_decode_bf16_d256_vd128_k4v4",
            "value_dim=128 contradicts kind=decode of 256 elements, which has 0: 0 is as many as keys have (value_dim)",
        ),
        (
            "sm90a_kvcache_attend_bf16_d128_k4v4",
            "key_bits=4 value_bits=4 contradict kind=attend of 128 elements, which has 0 and 0 (bits)",
        ),
        (
            "sm90a_kvcache_attend_bf16_d64_3bitnc",
            "slots=3bitnc contradict kind=attend of 64 elements, which has any, k8v4, 4bitnc, k3v4nc, ultraquant (slots)",
        ),
        (
            "sm90a_kvcache_attend_bf16_d512",
            "slots=any contradict kind=attend of 512 elements, which has k8v4, 4bitnc, k3v4nc, 3bitnc, ultraquant (slots)",
        ),
        (
            "sm90a_kvcache_pack_bf16_d128_4bitnc",
            "slots=4bitnc contradict kind=pack of 128 elements, which has any (slots)",
        ),
    ],
)
def test_names_that_cannot_be_read(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=re.escape(reason)):
        parse_name(name)


def test_schemas_are_torchs() -> None:
    for schema in (schema for schemas in SCHEMAS_OF.values() for schema in schemas):
        told = torch._C.parse_schema(f"gemmill::{schema.schema}")
        assert getattr(torch.ops.gemmill, schema.name).default._schema == told


@pytest.mark.parametrize(("case", "results"), [(TRANSFORM, ["out"]), (DECODE, ["out", "lse"])])
def test_limits_are_those_that_results_are_judged_by(case: MadeCall, results: list[str]) -> None:
    """The bounds that `gemmill export` writes with a result: the result itself is right, a triple error is wrong."""
    after = given(case)
    call(case, after)
    found = limits(case.schema.name, after)
    assert list(found) == results
    for name, limit in found.items():
        assert limit.shape == after[name].shape and bool((limit > 0).all())
        for times, is_right in ((0.0, True), (3.0, False)):
            moved = after | {name: after[name].double() + times * limit}
            wrong = parts(case.schema.name, after, moved)[name] > 1
            assert not wrong.any() if is_right else wrong.all()


def test_limits_of_a_rotated_output_are_in_its_basis() -> None:
    """One token that all rows see: an output is its value, and an element's limit is a share of that element."""
    of_one = given(DECODE) | {"seq_lens": torch.ones_like(given(DECODE)["seq_lens"]), "sinks": None}
    for rotated_out in (False, True):
        after = of_one | {"rotated_out": rotated_out}
        call(DECODE, after)
        limit, size = limits(DECODE.schema.name, after)["out"].flatten(), after["out"].double().abs().flatten()
        assert float(torch.corrcoef(torch.stack((limit, size)))[0, 1]) > 0.9
