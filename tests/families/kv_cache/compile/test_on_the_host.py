"""Kernels of one cache, whole, on the CPU against their references (host_kernels.py says how)."""

import ctypes
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from families.kv_cache.compile.host_kernels import (
    assert_right,
    assert_same_however_dealt,
    assert_same_in_groups,
    launched,
    library,
)
from families.kv_cache.rotated import exact
from gemmill.build.toolchain import ToolchainPaths
from gemmill.families.kv_cache.cases.calls import CompressCase, DecodeCase, DecompressCase, HadamardCase
from gemmill.families.kv_cache.cases.judging import parts, ranges, report
from gemmill.families.kv_cache.cases.latent_calls import LatentCase
from gemmill.families.kv_cache.model import parts_of
from gemmill.families.kv_cache.ops import DECODE
from gemmill.numerics.cases import CodeRange
from gemmill.runtime.on_cpu import by_reference
from gemmill.space.names import parse_name
from gemmill.vocab import DType

HADAMARDS = {128: "hadamard_bf16_d128", 64: "hadamard_f16_d64", 192: "hadamard_f16_d192", 512: "hadamard_f16_d512"}
COMPRESSES = {
    ("k_eden4_v_eden4", 128): "compress_bf16_d128_k4v4",
    ("k_turboquant_mse3_v_turboquant_mse2", 128): "compress_f16_d128_k3v2",
    ("k_eden3_v_eden3", 64): "compress_bf16_d64_k3v3",
    ("k_eden3_v_eden3", 96): "compress_bf16_d96_k3v3",
    ("k_turboquant_mse4_v_turboquant_mse4", 192): "compress_f16_d192_k4v4",
    ("k_eden3_v_eden3", 192): "compress_bf16_d192_k3v3",
    ("k_eden4_v_eden4", 512): "compress_bf16_d512_k4v4",
}
DECOMPRESSES = {
    ("k_eden4_v_eden3", 128): "decompress_bf16_d128_k4v3",
    ("k_eden3_v_eden3", 96): "decompress_f16_d96_k3v3",
    ("k_turboquant_mse2_v_turboquant_mse2", 64): "decompress_f16_d64_k2v2",
    ("k_eden3_v_eden3", 192): "decompress_bf16_d192_k3v3",
    ("k_eden4_v_eden4", 512): "decompress_bf16_d512_k4v4",
}
DECODES = {
    (DType.F16, 16, 128, 4, 4): "decode_f16_d128_k4v4",
    (DType.BF16, 128, 128, 3, 3): "decode_bf16_d128_k3v3",
    (DType.BF16, 32, 128, 3, 2): "decode_bf16_d128_k3v2",
    (DType.BF16, 64, 96, 3, 3): "decode_bf16_d96_k3v3",
    (DType.F16, 16, 64, 2, 2): "decode_f16_d64_k2v2",
    (DType.F16, 32, 192, 3, 3): "decode_f16_d192_k3v3",
    (DType.BF16, 64, 512, 4, 4): "decode_bf16_d512_k4v4",
    (DType.F16, 128, 512, 3, 3): "decode_f16_d512_k3v3",
}
FEWER = tuple(
    f"{name}_d192_vd128_k{bits}v{bits}"
    for bits in (4, 3)
    for name in ("compress_bf16", "decompress_f16", "decode_bf16")
)
"""Kernels of keys of 192 elements and values of 128."""
LATENTS = ("latent_bf16_d512_k4v4", "latent_f16_d512_k4v4")
SMALL = "decode_f16_d128_k4v4"
NAMES = (
    *HADAMARDS.values(),
    *COMPRESSES.values(),
    *DECOMPRESSES.values(),
    *DECODES.values(),
    *FEWER,
    *LATENTS,
)


@pytest.fixture(scope="module")
def kernels(toolchain: ToolchainPaths, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return library(NAMES, toolchain, tmp_path_factory.mktemp("kernels"))


@pytest.mark.parametrize("columns", HADAMARDS)
def test_transforms(kernels: ctypes.CDLL, columns: int) -> None:
    dtype = DType.BF16 if columns == 128 else DType.F16
    for rows, padding in ((1, 0), (7, 8), (70, 3)):
        assert_right(
            kernels, HADAMARDS[columns], HadamardCase(rows=rows, columns=columns, dtype=dtype, padding=padding)
        )


@pytest.mark.parametrize(("format", "head_dim"), COMPRESSES)
def test_stores(kernels: ctypes.CDLL, format: str, head_dim: int) -> None:
    dtype = DType.BF16 if "eden" in format else DType.F16
    common: dict[str, Any] = {"format": format, "dtype": dtype, "head_dim": head_dim}
    for tokens, heads, page, padding in ((1, 1, 16, 0), (5, 3, 32, 3), (21, 3, 128, 8)):
        case = CompressCase(tokens=tokens, kv_heads=heads, page=page, padding=padding, **common)
        assert_right(kernels, COMPRESSES[format, head_dim], replace(case, is_odd=tokens > 10))
        for rotated_keys, rotated_values in ((True, False), (False, True), (True, True)):
            rotated = {"rotated_keys": rotated_keys, "rotated_values": rotated_values}
            assert_right(kernels, COMPRESSES[format, head_dim], replace(case, is_odd=tokens > 10, **rotated))


def test_vectors_that_come_rotated_are_stored_bit_for_bit_as_those_that_a_kernel_rotates(kernels: ctypes.CDLL) -> None:
    format = "k_eden3_v_eden3"
    case = CompressCase(tokens=21, kv_heads=3, page=16, format=format, head_dim=64)
    given = dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True))
    x, rotated = exact(21, 3, torch.bfloat16, case.spec.keys.rotation)
    caches = []
    for keys, values in ((x, x), (rotated, x), (x, rotated), (rotated, rotated)):
        own = {"keys": keys, "values": values.clone(), "cache": given["cache"].clone()}
        told = {"rotated_keys": keys is rotated, "rotated_values": values is rotated}
        caches.append(launched(kernels, COMPRESSES[format, 64], given | own | told)[1]["cache"])
    assert all(torch.equal(cache, caches[0]) for cache in caches[1:])


@pytest.mark.parametrize(("format", "head_dim"), COMPRESSES)
def test_what_is_stored_lies_in_the_ranges_of_an_exported_program(
    kernels: ctypes.CDLL, format: str, head_dim: int
) -> None:
    """Read bit by bit, as that program reads; each byte of the cache is in a range."""
    dtype = DType.BF16 if "eden" in format else DType.F16
    case = CompressCase(tokens=21, kv_heads=3, page=16, format=format, dtype=dtype, head_dim=head_dim, is_odd=True)
    before = dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True))
    _, after = launched(kernels, COMPRESSES[format, head_dim], before | {"cache": before["cache"].clone()})
    by_reference(case.schema, list(before.values()))
    (told,) = ranges(case.schema.name, before).values()
    assert sum(codes.bits * codes.low.numel() for codes in told) == 8 * before["cache"].numel()
    open_codes = 0
    for codes in told:
        found = _read(after["cache"], codes)
        assert bool(((found >= codes.low) & (found <= codes.high)).all()), codes.first
        is_open = codes.low < codes.high
        open_codes += int(is_open.sum()) if codes.bits < 16 else 0
    assert open_codes < 0.2 * 21 * 3 * 2 * head_dim, "vectors that mean something have few"


def _read(cache: Tensor, codes: CodeRange) -> Tensor:
    """The codes of a tensor's bytes."""
    bits = (cache.reshape(-1, 1) >> torch.arange(8) & 1).flatten().long()
    at = torch.full(codes.low.shape, codes.first)
    for dim, stride in enumerate(codes.strides):
        at += torch.arange(codes.low.shape[dim]).reshape([-1 if d == dim else 1 for d in range(4)]) * stride
    return sum(bits[at + b] << b for b in range(codes.bits))


@pytest.mark.parametrize(("format", "head_dim"), DECOMPRESSES)
def test_restores(kernels: ctypes.CDLL, format: str, head_dim: int) -> None:
    name = DECOMPRESSES[format, head_dim]
    common: dict[str, Any] = {"format": format, "dtype": DType(name.split("_")[1]), "head_dim": head_dim}
    for tokens, heads, page, padding in ((1, 1, 16, 0), (9, 3, 32, 3), (37, 3, 128, 8)):
        case = DecompressCase(tokens=tokens, kv_heads=heads, page=page, padding=padding, **common)
        assert_right(kernels, name, replace(case, is_odd=tokens > 10))


def test_pages_may_be_apart(kernels: ctypes.CDLL) -> None:
    case = CompressCase(tokens=40, format="k_eden4_v_eden4", page=16, kv_heads=2)
    cache, *others = case.arguments("cpu")
    wide = torch.full((cache.shape[0], cache[0].numel() + 48), 0x77, dtype=torch.uint8)
    apart = wide[:, : cache[0].numel()].unflatten(1, cache.shape[1:])
    given = dict(zip(case.schema.arguments, (apart, *others), strict=True))
    name = COMPRESSES["k_eden4_v_eden4", 128]
    assert not report(parts(case.schema.name, *launched(kernels, name, given)))
    assert bool((wide[:, cache[0].numel() :] == 0x77).all())


DECODED = (
    {"lengths": (37,), "heads": 4, "kv_heads": 1},
    {"lengths": (140, 0, 1, 269), "heads": 4, "kv_heads": 2, "has_sinks": True},
    {"lengths": (150, 2), "rows": 5, "heads": 6, "kv_heads": 1, "window": 40},
    {"lengths": (3, 140), "rows": 3, "heads": 20, "kv_heads": 1, "window": 40, "causal": False},
    {"lengths": (64,), "rows": 2, "heads": 2, "kv_heads": 2, "is_rotated": True, "softcap": 2.0},
)


@pytest.mark.parametrize(
    ("kernel", "sizes"),
    [
        (kernel, DECODED[i])
        for n, kernel in enumerate(DECODES)
        for i in range(len(DECODED))
        if n == 0 or i == (n + 1) % 5
    ],
    ids=str,
)
def test_attends(kernels: ctypes.CDLL, kernel: tuple[DType, int, int, int, int], sizes: dict[str, Any]) -> None:
    """On few multiprocessors a sequence is one slice."""
    dtype, page, head_dim, keys, values = kernel
    case = DecodeCase(page=page, head_dim=head_dim, dtype=dtype, format=f"k_eden{keys}_v_eden{values}", **sizes)
    assert_right(kernels, DECODES[kernel], case, sm_count=3)
    if sum(sizes["lengths"]) > 400:
        assert_right(kernels, DECODES[kernel], case, sm_count=40)


def test_adds_many_slices_of_long_vectors(kernels: ctypes.CDLL) -> None:
    """Eleven, by a block a row."""
    case = DecodeCase(head_dim=512, format="k_eden4_v_eden4", lengths=(700,), heads=2, kv_heads=1, has_sinks=True)
    assert_right(kernels, "decode_bf16_d512_k4v4", case, sm_count=40)


def _dealt(kernels: ctypes.CDLL, lengths: tuple[int, ...], sm_count: int) -> tuple[Tensor, Tensor]:
    """Of each sequence of a right call, the number of its first slice and how many it has; together they are all slices."""
    case = DecodeCase(lengths=lengths, heads=2, kv_heads=1, page=16, dtype=DType.F16)
    given, kept = dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True)), []
    assert not report(parts(case.schema.name, *launched(kernels, SMALL, given, sm_count=sm_count, kept=kept)))
    first, slices = kept[0][-8 * len(lengths) :].view(torch.int32).view(-1, 2).unbind(1)
    in_turn = first.argsort()
    assert torch.equal(first[in_turn][1:], slices[in_turn].cumsum(0, dtype=torch.int32)[:-1]) and int(first.min()) == 0
    return first, slices


def test_lengths_on_the_device_deal_tokens_out(kernels: ctypes.CDLL) -> None:
    """Of 40 sequences, more than a warp has lanes, two are long: these have the slices that the others leave, of about a length."""
    lengths = (1, 1300, *[17, 0, 64] * 12, 3, 700)
    _, slices = _dealt(kernels, lengths, sm_count=60)
    assert int(slices.sum()) <= parts_of(len(lengths), 1, 21, 60, 2) and int(slices.sum()) <= 60, "one round"
    long = slices[[1, -1]].tolist()
    assert long[0] > long[1] > 3 and slices.sum() - sum(long) == len(lengths) - 2


def test_long_slices_come_first(kernels: ctypes.CDLL) -> None:
    """Short ones fill the last round."""
    first, _ = _dealt(kernels, (17, 1300, 3, 700), sm_count=6)
    assert first.argsort().tolist() == [1, 3, 0, 2]


DEALT: dict[str, dict[str, Any]] = {
    "decode_f16_d128_k4v4": {"dtype": DType.F16, "heads": 5},
    "decode_bf16_d512_k4v4": {"head_dim": 512, "heads": 2, "has_sinks": True},
}
"""Attentions whose blocks share a tile's slices in runs."""


@pytest.mark.parametrize("name", DEALT)
def test_a_sequence_has_the_same_bits_however_its_slices_are_dealt(kernels: ctypes.CDLL, name: str) -> None:
    case = DecodeCase(lengths=(1100, 0, 600), format="k_eden4_v_eden4", kv_heads=1, rows=1, page=64, **DEALT[name])
    assert_same_however_dealt(kernels, name, case)


def test_groups_of_warps_take_slices_one_after_the_other(kernels: ctypes.CDLL) -> None:
    format = "k_eden2_v_eden2"
    case = DecodeCase(lengths=(3700,), heads=3, kv_heads=1, page=64, dtype=DType.F16, head_dim=64, format=format)
    assert_same_in_groups(kernels, "decode_f16_d64_k2v2", case)


@pytest.mark.parametrize("name", FEWER)
def test_values_may_have_fewer_elements_than_keys(kernels: ctypes.CDLL, name: str) -> None:
    x = parse_name(f"sm90a_kvcache_{name}").operands
    common: dict[str, Any] = {"head_dim": x.head_dim, "value_dim": x.value_dim, "dtype": x.dtype}
    common["format"] = f"k_eden{x.key_bits}_v_eden{x.value_bits}"
    if name.startswith("decode"):
        for page, sizes in zip((16, 32, 64, 128, 64), DECODED, strict=True):
            assert_right(kernels, name, DecodeCase(page=page, **common, **sizes), sm_count=3)
        return
    case_of = CompressCase if name.startswith("compress") else DecompressCase
    for tokens, page, padding in ((1, 16, 0), (21, 32, 3), (21, 128, 8)):
        case = case_of(tokens=tokens, kv_heads=3, page=page, padding=padding, is_odd=tokens > 10, **common)
        assert_right(kernels, name, case)
        if case_of is CompressCase:
            assert_right(kernels, name, replace(case, rotated_keys=True))


LATENT_SIZES = (
    {"lengths": (37,), "heads": 16},
    {"lengths": (130, 0, 1), "heads": 8},
    {"lengths": (70, 2), "rows": 3, "heads": 16},
    {"lengths": (100,), "rows": 2, "heads": 20, "causal": False},
    {"lengths": (130,), "heads": 72, "is_rotated": True},
    {"lengths": (64, 3), "heads": 5, "stays_rotated": True},
)


@pytest.mark.parametrize(("which", "sizes"), tuple(enumerate(LATENT_SIZES)), ids=str)
def test_attends_over_latents(kernels: ctypes.CDLL, which: int, sizes: dict[str, Any]) -> None:
    """Tiles of 16 and of 64 rows, in one slice and in several."""
    name, page, format = LATENTS[which % 2], (16, 32, 64, 128)[which % 4], ("eden4", "turboquant_mse4")[which // 2 % 2]
    case = LatentCase(page=page, format=format, dtype=(DType.BF16, DType.F16)[which % 2], **sizes)
    assert_right(kernels, name, case, sm_count=3 if which % 3 else 40)


def test_nan_of_a_latent_or_a_rotary_part_shows_in_rows_that_see_it(kernels: ctypes.CDLL) -> None:
    """In the last token, which the second of two rows alone sees; and behind the length."""
    for byte in (256, 272):
        case = LatentCase(lengths=(9,), rows=2, heads=2, page=16)
        given = dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True))
        given["cache"][0, 8:, byte : byte + 2] = 0xFF
        before, after = launched(kernels, LATENTS[0], given)
        assert bool(after["out"][0, 1].isnan().all()) and not bool(after["out"][0, 0].isnan().any())
        assert not report(parts(case.schema.name, before, after))


def test_pages_and_lengths_that_a_cache_of_latents_has_not(kernels: ctypes.CDLL) -> None:
    case = LatentCase(lengths=(40, 40, 5), heads=2, page=16)
    lengths = torch.tensor([1000, -7, 5], dtype=torch.int32)
    table = torch.tensor([[0, -5, 10**9], [0, 0, 0], [2**31 - 1, 0, 0]], dtype=torch.int32)
    assert_right(kernels, LATENTS[0], case, seq_lens=lengths, block_table=table)


def test_pages_and_lengths_that_the_cache_has_not(kernels: ctypes.CDLL) -> None:
    case = DecodeCase(lengths=(40, 40, 5), heads=2, kv_heads=1, page=16, dtype=DType.F16)
    lengths = torch.tensor([1000, -7, 5], dtype=torch.int32)
    table = torch.tensor([[0, -5, 10**9], [0, 0, 0], [2**31 - 1, 0, 0]], dtype=torch.int32)
    assert_right(kernels, SMALL, case, seq_lens=lengths, block_table=table)


def test_nan_shows_where_it_is_seen_and_nowhere_else(kernels: ctypes.CDLL) -> None:
    """A key of NaN at the first token, of two rows of which one's window ends behind it."""
    case = DecodeCase(lengths=(9,), rows=2, heads=2, kv_heads=2, page=16, dtype=DType.F16, window=8)
    given = dict(zip(DECODE.arguments, case.arguments("cpu"), strict=True))
    page = int(given["block_table"][0, 0])
    norms = given["cache"][page, 0].flatten()[16 * 64 : 16 * 66].view(torch.float16)
    norms[0] = torch.nan
    before, after = launched(kernels, SMALL, given)
    assert bool(after["out"][0, 0, 0].isnan().all()) and not bool(after["out"][0, 1].isnan().any())
    assert not bool(after["out"][0, 0, 1].isnan().any())
    assert not report(parts(DECODE.name, before, after))
