"""The emitted kernels, whole, on the CPU against their references: threads are fibers, and the few instructions that a CPU has not
are spelled out (host/). Launches, shared memory, barriers and index maps are the kernels' own."""

import ctypes
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from families.kv_cache.compile.structs import Launch, arguments_of
from families.kv_cache.rotated import exact
from gemmill.build.toolchain import ToolchainPaths
from gemmill.emit import emit
from gemmill.families.kv_cache.cases.calls import CompressCase, DecodeCase, DecompressCase, HadamardCase
from gemmill.families.kv_cache.cases.held import Given
from gemmill.families.kv_cache.cases.judging import parts, ranges, report
from gemmill.families.kv_cache.cases.latent_calls import LatentCase
from gemmill.families.kv_cache.cases.packed_calls import (
    AttendCase,
    PackCase,
    ScoresCase,
    UnpackCase,
    cache_format_of,
    key_formats,
    takes_rotated,
)
from gemmill.families.kv_cache.config import Slots
from gemmill.families.kv_cache.ops import DECODE
from gemmill.families.kv_cache.packed import VALUE_FORMATS
from gemmill.locations import kernels_dir
from gemmill.numerics.cases import CodeRange
from gemmill.runtime.on_cpu import by_reference
from gemmill.space.names import parse_name, symbol_of
from gemmill.vocab import DType

HERE = Path(__file__).parent
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
PACKED = {
    kind: tuple(f"{kind}_{of}" for of in ("bf16_d128", "f16_d64", "f16_d96"))
    for kind in ("pack", "unpack", "scores", "attend")
}
SLOTS = (
    "attend_bf16_d128_4bitnc",
    "attend_f16_d128_3bitnc",
    "attend_f16_d128_k8v4",
    "attend_bf16_d128_k3v4nc",
    "attend_bf16_d128_ultraquant",
    "attend_bf16_d128_prod3mse2",
    "attend_bf16_d128_fp8",
)
SHARED_SLOTS = (
    "attend_f16_d64_k3v4nc",
    "attend_bf16_d64_ultraquant",
    "attend_bf16_d256_4bitnc",
    "attend_f16_d256_3bitnc",
    "attend_bf16_d512_4bitnc",
    "attend_f16_d512_k8v4",
    "attend_bf16_d512_ultraquant",
)
NAMES = (
    *HADAMARDS.values(),
    *COMPRESSES.values(),
    *DECOMPRESSES.values(),
    *DECODES.values(),
    *FEWER,
    *LATENTS,
    *(name for names in PACKED.values() for name in names),
    *SLOTS,
    *SHARED_SLOTS,
)


def library(names: Sequence[str], toolchain: ToolchainPaths, folder: Path) -> ctypes.CDLL:
    """The emitted kernels of sm90a of these names, compiled for the host."""
    configs = [parse_name(f"sm90a_kvcache_{name}") for name in names]
    (folder / "kernels.cpp").write_text("\n".join(emit(config).text for config in configs))
    includes = [f"-I{HERE / 'host'}", f"-I{kernels_dir()}", *(f"-isystem{path}" for path in toolchain.include_dirs)]
    options = ["-std=c++20", "-O1", "-ffp-contract=off", "-w", "-fPIC", "-shared"]
    command = [toolchain.gxx, *options, *includes, folder / "kernels.cpp", "-o", folder / "kernels.so"]
    subprocess.run(list(map(str, command)), check=True)
    loaded = ctypes.CDLL(str(folder / "kernels.so"))
    for config in configs:
        if hasattr(loaded, workspace := f"{symbol_of(config)}_workspace"):
            getattr(loaded, workspace).restype = ctypes.c_int64
    return loaded


@pytest.fixture(scope="module")
def kernels(toolchain: ToolchainPaths, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return library(NAMES, toolchain, tmp_path_factory.mktemp("kernels"))


def launched(
    kernels: ctypes.CDLL, name: str, given: dict[str, Any], sm_count: int = 132, slices: int = 0
) -> tuple[Given, Given]:
    """Arguments before and after a launch of a kernel on a device of so many multiprocessors. `slices` is an attention's setting."""
    before = {n: v.clone(memory_format=torch.preserve_format) if isinstance(v, Tensor) else v for n, v in given.items()}
    symbol, how = f"gemmill_sm90a_kvcache_{name}", Launch(sm_count=sm_count)
    args = arguments_of(given)
    if slices:
        args.slices = slices
    if hasattr(kernels, f"{symbol}_workspace"):
        size = getattr(kernels, f"{symbol}_workspace")(ctypes.byref(args), ctypes.byref(how))
        memory = torch.full((size,), 0xFF, dtype=torch.uint8)
        how.workspace = memory.data_ptr()
    assert getattr(kernels, symbol)(ctypes.byref(args), ctypes.byref(how)) == 0
    return before, given


def assert_right(kernels: ctypes.CDLL, name: str, case: Any, sm_count: int = 132, **changed: Any) -> None:
    given = dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True)) | changed
    found = parts(case.schema.name, *launched(kernels, name, given, sm_count))
    assert found and not report(found), case


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


@pytest.mark.parametrize("format", ["eden3", "turboquant_mse4", "unit_centroids4", "e2m1"])
def test_keys_that_come_rotated_are_packed_bit_for_bit_as_those_that_a_kernel_rotates(
    kernels: ctypes.CDLL, format: str
) -> None:
    case = PackCase(tokens=9, format=format, heads=2, dtype=DType.F16, head_dim=64)
    given = dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True))
    x, rotated = exact(9, 2, torch.float16, case.spec.rotation)
    found = []
    for keys in (x, rotated):
        told = {"keys": keys, "packed": torch.zeros_like(given["packed"]), "rotated": keys is rotated}
        found.append(launched(kernels, "pack_f16_d64", given | told)[1]["packed"])
    assert torch.equal(*found)


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


DEALT = {
    "decode_f16_d128_k4v4": (DecodeCase, {"dtype": DType.F16, "heads": 5, "rows": 1, "page": 64}),
    "decode_bf16_d512_k4v4": (DecodeCase, {"head_dim": 512, "heads": 2, "rows": 1, "page": 64, "has_sinks": True}),
    "attend_f16_d128_3bitnc": (
        AttendCase,
        {"format": cache_format_of(Slots.NC3), "dtype": DType.F16, "heads": 6, "rows": 1},
    ),
    "attend_bf16_d128_ultraquant": (
        AttendCase,
        {"format": cache_format_of(Slots.ULTRAQUANT), "heads": 2, "window": 900},
    ),
}
"""Attentions whose blocks share a tile's slices in runs."""
GROUPED = {
    "decode_f16_d64_k2v2": DecodeCase(
        lengths=(3700,), heads=3, kv_heads=1, page=64, dtype=DType.F16, head_dim=64, format="k_eden2_v_eden2"
    ),
    "attend_bf16_d128_4bitnc": AttendCase(lengths=(420,), heads=8, kv_heads=8, format=cache_format_of(Slots.NC4)),
}
"""Calls of which one block's groups of warps take several slices each."""


def assert_same_however_dealt(kernels: ctypes.CDLL, name: str, case: Any) -> None:
    """By the device, from one block for all slices to a block for each; and in a batch of others' lengths: three sequences, the second empty."""
    given = dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True))

    def found(sm_count: int, which: slice = slice(None)) -> list[Tensor]:
        own = {n: x[which] if n in ("q", "out", "lse", "block_table", "seq_lens") else x for n, x in given.items()}
        own |= {n: torch.full_like(x, torch.nan) for n, x in own.items() if n in ("out", "lse")}
        before, after = launched(kernels, name, own, sm_count, slices=4)
        assert not report(parts(case.schema.name, before, after))
        return [after[n].contiguous().view(torch.uint8) for n in ("out", "lse")]

    whole = found(3)
    for sm_count in (6, 12):
        assert all(map(torch.equal, found(sm_count), whole)), sm_count
    for i in (0, 2):
        alone = found(4, slice(i, i + 1))
        assert all(torch.equal(x, y[i : i + 1]) for x, y in zip(alone, whole, strict=True)), i


@pytest.mark.parametrize("name", DEALT)
def test_a_sequence_has_the_same_bits_however_its_slices_are_dealt(kernels: ctypes.CDLL, name: str) -> None:
    kind, sizes = DEALT[name]
    told: dict[str, Any] = {"format": "k_eden4_v_eden4", "kv_heads": 1} | sizes
    assert_same_however_dealt(kernels, name, kind(lengths=(1100, 0, 600), **told))


def bits_of_slices(kernels: ctypes.CDLL, name: str, case: Any, given: Given, sm_count: int, slices: int) -> Tensor:
    """The bits of a right result by so many fixed slices."""
    given["out"].fill_(torch.nan)
    before, after = launched(kernels, name, given, sm_count, slices=slices)
    assert not report(parts(case.schema.name, before, after))
    return after["out"].view(torch.uint8).clone()


@pytest.mark.parametrize("name", GROUPED)
def test_groups_of_warps_take_slices_one_after_the_other(kernels: ctypes.CDLL, name: str) -> None:
    """By one block, and by a block for each slice: the bits are the same."""
    case = GROUPED[name]
    given = dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True))
    found = [bits_of_slices(kernels, name, case, given, sm_count, 16) for sm_count in (1, 40)]
    assert torch.equal(*found)


def test_heads_far_apart_leave_no_room_for_runs_of_slices(kernels: ctypes.CDLL) -> None:
    """Then each slice has a block, whose groups wait for each other, and the bits are the same: nearly the most bytes from head to head that kernels of slots take."""
    name, far = "attend_bf16_d128_prod3mse2", 206
    case = AttendCase(lengths=(300,), heads=8, kv_heads=8, format=cache_format_of(Slots.PROD3), are_apart=True)
    near = dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True))
    apart = {n: torch.full((*near[n].shape[:3], far), 0x77, dtype=torch.uint8) for n in ("keys", "values")}
    wide = near | {n: x[..., : near[n].shape[3]].copy_(near[n]) for n, x in apart.items()}
    told = ((near, 1), (wide, 1), (wide, 40))
    found = [bits_of_slices(kernels, name, case, given, sm_count, 4) for given, sm_count in told]
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


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


def _of_name(name: str) -> dict[str, Any]:
    _, dtype, head_dim = name.split("_")
    return {"dtype": DType(dtype), "head_dim": int(head_dim[1:])}


@pytest.mark.parametrize("name", [name for kind in ("pack", "unpack") for name in PACKED[kind]])
def test_packs_and_unpacks_every_format(kernels: ctypes.CDLL, name: str) -> None:
    case_of, common = PackCase if name.startswith("pack") else UnpackCase, _of_name(name)
    for of_values, formats in ((False, key_formats(common["head_dim"])), (True, tuple(VALUE_FORMATS))):
        for i, format in enumerate(formats):
            odd = {"tokens": 23, "heads": 2, "gap": 5 + i % 2, "is_mapped": i % 3 == 0, "is_odd": True}
            assert_right(kernels, name, case_of(format=format, of_values=of_values, **odd, **common))
            if case_of is PackCase and takes_rotated(of_values, format):
                case = PackCase(format=format, of_values=of_values, is_rotated=True, **odd, **common)
                assert_right(kernels, name, case)
        scaled = case_of(format="e4m3", of_values=of_values, has_scales=True, tokens=23, heads=3, is_odd=True, **common)
        assert_right(kernels, name, scaled)


@pytest.mark.parametrize("name", PACKED["scores"])
def test_scores_keys_of_every_format(kernels: ctypes.CDLL, name: str) -> None:
    for i, format in enumerate(key_formats(_of_name(name)["head_dim"])):
        length, rows, heads, kv_heads = ((1, 1, 3, 1), (130, 2, 20, 2), (64, 3, 4, 4))[i % 3]
        case = ScoresCase(length=length, rows=rows, heads=heads, kv_heads=kv_heads, format=format, **_of_name(name))
        assert_right(kernels, name, case)
    assert_right(
        kernels, name, ScoresCase(length=130, heads=6, kv_heads=2, format="e4m3", has_scales=True, **_of_name(name))
    )


ATTENDED = (
    {"lengths": (37,), "heads": 4, "kv_heads": 1},
    {"lengths": (300, 0, 1, 129), "heads": 4, "kv_heads": 2, "is_plain": True},
    {"lengths": (150, 2), "rows": 4, "heads": 4, "kv_heads": 2, "has_sinks": True, "softcap": 1.5, "page": 48},
    {"lengths": (150, 2), "rows": 35, "heads": 2, "kv_heads": 1, "window": 40, "page": 16},
    {"lengths": (3, 140), "rows": 3, "heads": 20, "kv_heads": 1, "window": 40, "causal": False, "page": 7},
    {"lengths": (200,), "rows": 150, "heads": 2, "kv_heads": 2, "has_sinks": True, "page": 128},
)


@pytest.mark.parametrize("name", PACKED["attend"])
def test_attends_over_packed_vectors(kernels: ctypes.CDLL, name: str) -> None:
    """Every format of keys and of values; on few multiprocessors a sequence is one slice."""
    keys = key_formats(_of_name(name)["head_dim"])
    for i, value in enumerate((*VALUE_FORMATS, "eden4")):
        case = AttendCase(format=f"k_{keys[i % len(keys)]}_v_{value}", **ATTENDED[i % len(ATTENDED)], **_of_name(name))
        assert_right(kernels, name, case, sm_count=1 if i % 2 else 40)


@pytest.mark.parametrize("sizes", ATTENDED[1:5], ids=str)
def test_attends_over_e4m3_with_a_scale_for_each_head(kernels: ctypes.CDLL, sizes: dict[str, Any]) -> None:
    case = AttendCase(format="k_e4m3_v_e4m3", has_scales=True, **sizes, **_of_name(PACKED["attend"][0]))
    for sm_count in (1, 40):
        assert_right(kernels, PACKED["attend"][0], case, sm_count=sm_count)


def test_a_tiny_scale_loses_nothing(kernels: ctypes.CDLL) -> None:
    """Of many values of equal weights, whose scale is as small as no f16 is."""
    case = AttendCase(lengths=(3000,), heads=1, kv_heads=1, format="k_e4m3_v_e4m3", **_of_name(PACKED["attend"][0]))
    given = dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True))
    given |= {"q": 0 * given["q"], "value_scales": torch.tensor([2.0**-40])}
    given["values"].masked_fill_(given["values"] != 0xFF, 0x38)  # ones
    _, after = launched(kernels, PACKED["attend"][0], given)
    assert bool((after["out"].float() * 2.0**40 - 1).abs().max() < 2.0**-7)


@pytest.mark.parametrize("name", [PACKED["attend"][0], SLOTS[-1]])
def test_nan_of_e4m3_shows_where_it_is_seen_and_nowhere_else(kernels: ctypes.CDLL, name: str) -> None:
    """A value with a NaN element at the first token, of two rows of which one's window ends behind it; and behind the length."""
    common = {"lengths": (9,), "rows": 2, "heads": 2, "kv_heads": 2, "page": 16, "window": 8}
    case = AttendCase(format="k_e4m3_v_e4m3", **common, **_of_name(PACKED["attend"][0]))
    given = dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True))
    page = int(given["block_table"][0, 0])
    given["values"][page, (0, 9), 0, 77] = 0xFF
    before, after = launched(kernels, name, given)
    assert bool(after["out"][0, 0, 0].isnan().all()) and not bool(after["out"][0, 1].isnan().any())
    assert not bool(after["out"][0, 0, 1].isnan().any())
    assert not report(parts(case.schema.name, before, after))


IN_SLOTS = (
    {"lengths": (37,), "heads": 4, "kv_heads": 1},
    {"lengths": (130, 0, 1), "heads": 16, "kv_heads": 8, "page": 16},
    {"lengths": (150, 2), "rows": 5, "heads": 32, "kv_heads": 16, "has_sinks": True, "softcap": 1.5},
    {"lengths": (155, 2), "rows": 3, "heads": 12, "kv_heads": 4, "window": 40, "is_plain": True, "are_apart": True},
    {"lengths": (300, 0, 1, 129), "heads": 8, "kv_heads": 2, "page": 48, "causal": False, "gap": 4},
    {"lengths": (64,), "rows": 2, "heads": 8, "kv_heads": 8, "page": 32, "are_apart": True, "stays_rotated": True},
)


def _in_slots(kernels: ctypes.CDLL, name: str, which: int, **others: Any) -> None:
    x, told = parse_name(f"sm90a_kvcache_{name}").operands, IN_SLOTS[which] | others
    if "prod" in name:
        told.pop("stays_rotated", None)
    told["has_scales"] = x.slots is Slots.FP8 and which % 3 < 2
    case = AttendCase(format=cache_format_of(x.slots), dtype=x.dtype, head_dim=x.head_dim, **told)
    assert_right(kernels, name, case, sm_count=3 if which % 2 else 40)


@pytest.mark.parametrize("name", SLOTS)
def test_attends_over_slots(kernels: ctypes.CDLL, name: str) -> None:
    """Every reader of keys and of values; blocks of one to eight heads, runs of tokens and tokens apart."""
    for which in range(len(IN_SLOTS)):
        _in_slots(kernels, name, which)


@pytest.mark.parametrize(
    ("name", "which"),
    [(name, i) for n, name in enumerate(SHARED_SLOTS) for i in range(len(IN_SLOTS)) if i % 2 == n % 2],
)
def test_attends_over_slots_of_other_head_dims(kernels: ctypes.CDLL, name: str, which: int) -> None:
    """Vectors of one, two and four warps; heads of several blocks, which begin at no multiple of 16 bytes, among them."""
    _in_slots(kernels, name, which, **({"lengths": (37,), "kv_heads": 4, "heads": 12} if which == 2 else {}))


@pytest.mark.parametrize("name", [SLOTS[0], SLOTS[2]])
def test_slots_may_begin_at_any_address_that_their_kernels_take(kernels: ctypes.CDLL, name: str) -> None:
    """Copies begin at multiples of 16 bytes before them."""
    config = parse_name(f"sm90a_kvcache_{name}")
    case = AttendCase(
        lengths=(50,), heads=8, kv_heads=4, format=cache_format_of(config.operands.slots), dtype=config.operands.dtype
    )
    given = dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True))
    pages, page, heads, key = given["keys"].shape
    size = given["keys"].stride(2)
    memory = torch.full((pages * page * heads * size + 16,), 0x77, dtype=torch.uint8)
    memory = memory[-memory.data_ptr() % 16 :][4 : 4 + pages * page * heads * size].view(pages, page, heads, size)
    memory.copy_(given["keys"].as_strided((pages, page, heads, size), given["keys"].stride()))
    assert memory.data_ptr() % 16 == 4
    assert_right(kernels, name, case, keys=memory[..., :key], values=memory[..., key:])


def test_nan_in_slots_shows_where_it_is_seen_and_nowhere_else(kernels: ctypes.CDLL) -> None:
    """A scale of NaN at the first token, of two rows of which one's window ends behind it; and behind the length."""
    case = AttendCase(lengths=(9,), rows=2, heads=2, kv_heads=2, page=16, window=8, format=cache_format_of(Slots.NC4))
    given = dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True))
    page = int(given["block_table"][0, 0])
    for token in (0, 9):
        given["values"][page, token, 0, 64:66] = 0xFF
    _, after = launched(kernels, SLOTS[0], given)
    assert bool(after["out"][0, 0, 0].isnan().all()) and not bool(after["out"][0, 1].isnan().any())
    assert not bool(after["out"][0, 0, 1].isnan().any())


def test_rotated_queries_and_wide_factors(kernels: ctypes.CDLL) -> None:
    common = {"lengths": (70,), "heads": 2, "kv_heads": 1, **_of_name(PACKED["attend"][0])}
    for format in ("k_eden3_v_eden3", "k_unit_centroids4_v_uniform4", "k_e4m3_v_eden4"):
        assert_right(kernels, PACKED["attend"][0], AttendCase(format=format, is_rotated=True, **common))
    case = AttendCase(format="k_eden4_v_e2m1", **common)
    given = dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True))
    scales = given["values"][..., -4:]
    scales[(scales > 0) & (scales < 255)] += 40
    before, after = launched(kernels, PACKED["attend"][0], given)
    assert not report(parts(case.schema.name, before, after)) and float(after["out"].abs().max()) > 2.0**30


def test_wide_factors_in_slots(kernels: ctypes.CDLL) -> None:
    case = AttendCase(lengths=(70,), heads=2, kv_heads=1, format=cache_format_of(Slots.ULTRAQUANT))
    given = dict(zip(case.schema.arguments, case.arguments("cpu"), strict=True))
    scales = given["values"][..., -4:]
    scales[(scales > 0) & (scales < 255)] += 40
    before, after = launched(kernels, "attend_bf16_d128_ultraquant", given)
    assert not report(parts(case.schema.name, before, after)) and float(after["out"].abs().max()) > 2.0**30


def test_packed_tables_and_lengths_that_the_cache_has_not(kernels: ctypes.CDLL) -> None:
    case = AttendCase(lengths=(40, 40, 5), heads=2, kv_heads=1, page=16, **_of_name(PACKED["attend"][0]))
    lengths = torch.tensor([1000, -7, 5], dtype=torch.int32)
    table = torch.tensor([[0, -5, 10**9], [0, 0, 0], [2**31 - 1, 0, 0]], dtype=torch.int32)
    assert_right(kernels, PACKED["attend"][0], case, seq_lens=lengths, block_table=table)
