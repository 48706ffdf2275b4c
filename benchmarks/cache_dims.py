"""Decode over caches of 256 and 512 elements, of fewer elements of values than of keys, and of latents (MLA), next to attention in bf16.

    python benchmarks/cache_dims.py --fa3-so _vllm_fa3_C.abi3.so
    python benchmarks/cache_dims.py --only 512 --vllm-sources site-packages
    python benchmarks/cache_dims.py --only latents --tiles
    python benchmarks/cache_dims.py --cpu

One query row a sequence. Each size is checked first: gemmill's output against exact attention over the restored vectors, by a relative
error of 2^-6 at most. Then all sides are timed in turns, by CUDA graphs over copies that do not fit L2; the medians of the rounds are
printed, and written as JSON. Outputs of vLLM's Triton are checked alike. torch's SDPA reads keys and values without pages, for latents as one KV head. FlashAttention 3 reads pages
of its own, in bf16, and in e4m3 where keys have as many elements as values.
With --tiles each kernel of latents has a side, pinned; without it gemmill chooses. "latents, e4m3" have rotary parts in e4m3 with a scale.
"""

import argparse
import datetime
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import gemmill
from gemmill.runtime.ops import use_variant
from gemmill.tuner.timing import Graph, settle
from harness import devices
from harness.written import write_json
from peers import vllm_triton

RESULTS = Path(__file__).resolve().parent / "results"
ROUNDS, PAGE, SEED, SCALE, L2_BYTES, MOST_ERROR = 15, 64, 7, 192**-0.5, 2e8, 2.0**-6
FEWER = ((8, 16384, 64, 4), (32, 4096, 64, 4), (8, 16384, 16, 8))
"""Sequences, length, query heads and KV heads, of keys of 192 and values of 128 elements."""
WIDE, LONG = ((8, 16384, 24, 4),), ((4, 32768, 8, 1),)
"""The same of keys and values of 256 and of 512 elements."""
LATENTS = ((16, 8192, 16), (16, 8192, 128), (1, 32768, 128), (64, 4096, 16))
"""Sequences, length and query heads."""
TINY_PAGES, TINY_LATENTS = ((2, 64, 4, 2),), ((2, 64, 16),)
OWN, VLLM = "gemmill 4 bits", "vllm triton bf16"
TILES = ("", "_r16", "_r32")
"""Ends of the names of latents' kernels: by mma.sync, by WGMMA of 16 and of 32 rows."""
E4M3, ROTARY_SCALE = "_rotarye4m3", 1 / 64
Call = Callable[[], object]


def random(*shape: int, device: str) -> Tensor:
    """Normally distributed values, bf16."""
    return torch.randn(shape, dtype=torch.float32, device=device).bfloat16()


def exact(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention of q [heads, d] over keys and values [length, KV heads, d] in float64."""
    queries = q.double().unflatten(0, (keys.shape[1], -1))
    weights = (torch.einsum("kgd,nkd->kgn", queries, keys.double()) * SCALE).softmax(-1)
    return torch.einsum("kgn,nkd->kgd", weights, values.double()).flatten(0, 1)


def check(out: Tensor, wanted: Tensor) -> None:
    """Raise ValueError where an output is farther off than roundings to f16 and bf16 explain."""
    error = float((out.double() - wanted).norm() / wanted.norm())
    if not error < MOST_ERROR:
        raise ValueError(f"the output's relative error is {error:.3g}, expected {MOST_ERROR:.3g} at most")


def flash_attention_3(
    q: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor, latent: Tensor | None = None
) -> Call:
    """vLLM's FlashAttention 3 over pages of q's dtype, bf16 or e4m3, q [sequences, heads, d]; of latents, q and keys are rotary parts."""
    batch, heads, _ = q.shape
    out = q.new_empty(batch, heads, values.shape[-1], dtype=torch.bfloat16)
    starts = torch.arange(batch + 1, dtype=torch.int32, device=q.device)
    sizes = (starts, None, None, None, lengths, 1, table.shape[1] * PAGE, table)
    chosen = (None, 0, None, 0, None, 1, 0, None)
    arguments = (None, None, latent, out, *sizes, *(None,) * 8, SCALE, True, -1, -1, 0.0, True, *chosen)
    return partial(torch.ops._vllm_fa3_C.fwd, q, keys, values, *arguments)


def add_vllm(sides: dict[str, Call], make: Callable[[], Callable[[], Tensor]], wanted: Tensor) -> None:
    """Add vLLM's Triton where it takes the size, checked; else print why it does not."""
    try:
        call = make()
        out = call()[0]
    except Exception as error:  # Triton's own errors have no common class
        print(f"{VLLM}: {str(error).splitlines()[0]}", flush=True)
        return
    check(out, wanted)
    sides[VLLM] = call


def paged(
    dims: tuple[int, int],
    batch: int,
    length: int,
    heads: int,
    kv_heads: int,
    device: str,
    *,
    has_fa3: bool,
    vllm: Path | None = None,
) -> dict[str, Call]:
    """The sides of one copy of keys and values of `dims` elements, gemmill's checked."""
    keys, values = (random(batch * length, kv_heads, d, device=device) for d in dims)
    pages = batch * length // PAGE
    cache = torch.zeros(pages, kv_heads, PAGE, sum(dims) // 2 + 4, dtype=torch.uint8, device=device)
    slots = torch.arange(batch * length, device=device)
    gemmill.kv_compress(cache, keys, values, slots, seed=SEED)
    table = torch.arange(pages, dtype=torch.int32, device=device).reshape(batch, -1)
    lengths = torch.full((batch,), length, dtype=torch.int32, device=device)
    q = random(batch, 1, heads, dims[0], device=device)
    options = {"scale": SCALE, "seed": SEED, "value_dim": dims[1]}
    call = partial(gemmill.kv_decode_attention, q, cache, table, lengths, **options)
    restored = gemmill.kv_decompress(cache, slots[:length], dims[0], seed=SEED, value_dim=dims[1])
    check(call()[0][0, 0], exact(q[0, 0], *restored))
    plain = [x.unflatten(0, (batch, length)).transpose(1, 2) for x in (keys, values)]
    sdpa = partial(scaled_dot_product_attention, q.transpose(1, 2), *plain, scale=SCALE, enable_gqa=True)
    sides: dict[str, Call] = {OWN: call, "sdpa bf16": sdpa}
    if has_fa3:
        of_fa3 = [x.unflatten(0, (pages, PAGE)) for x in (keys, values)]
        sides["fa3 bf16"] = flash_attention_3(q[:, 0], *of_fa3, table, lengths)
        if dims[0] == dims[1]:
            in_codes = [x.to(torch.float8_e4m3fn) for x in (q[:, 0], *of_fa3)]
            sides["fa3 fp8"] = flash_attention_3(in_codes[0], in_codes[1], in_codes[2], table, lengths)
    if vllm and dims[0] == dims[1]:
        of_vllm = [x.unflatten(0, (pages, PAGE)) for x in (keys, values)]
        add_vllm(
            sides,
            partial(vllm_triton.attention, vllm, q[:, 0], *of_vllm, table, lengths, SCALE),
            exact(q[0, 0], keys[:length], values[:length]),
        )
    return sides


def pinned(name: str, call: Call) -> object:
    """Make a call by a variant."""
    with use_variant(name):
        return call()


def latents(
    batch: int,
    length: int,
    heads: int,
    device: str,
    *,
    has_fa3: bool,
    vllm: Path | None = None,
    tiles: Sequence[str] = (),
    is_e4m3: bool = False,
) -> dict[str, Call]:
    """The same of latents, whose rotary parts are bf16, or e4m3 with a scale."""
    whole = random(batch * length, 1, 576, device=device)
    latent, rotary = whole[..., :512].contiguous(), whole[..., 512:].contiguous()
    pages = batch * length // PAGE
    cache = torch.zeros(pages, PAGE, 336 if is_e4m3 else 400, dtype=torch.uint8, device=device)
    packed, of_rotary = gemmill.latent_cache(cache)
    scales = torch.full((1,), ROTARY_SCALE, device=device) if is_e4m3 else None
    gemmill.kv_compress_keys(packed, latent, format="eden4", seed=SEED)
    if is_e4m3:
        gemmill.kv_compress_keys(of_rotary, rotary, format="e4m3", scales=scales)
    else:
        of_rotary.copy_(rotary[:, 0])
    table = torch.arange(pages, dtype=torch.int32, device=device).reshape(batch, -1)
    lengths = torch.full((batch,), length, dtype=torch.int32, device=device)
    q = random(batch, 1, heads, 576, device=device)
    call = partial(gemmill.kv_latent_attention, q, cache, table, lengths, scale=SCALE, seed=SEED, key_scales=scales)
    restored = gemmill.kv_decompress_keys(packed[:length], 512, format="eden4", seed=SEED)
    own: dict[str, Call] = {OWN: call}
    own |= {
        f"{OWN}{end or '_mma'}": partial(
            pinned, f"sm90a_kvcache_latent_bf16_d512{E4M3 if is_e4m3 else ''}_k4v4{end}", call
        )
        for end in tiles
        if end or not is_e4m3
    }
    kept = (
        gemmill.kv_decompress_keys(of_rotary[:length], 64, format="e4m3", scales=scales) if is_e4m3 else rotary[:length]
    )
    wanted = exact(q[0, 0], torch.cat((restored, kept), -1), restored)
    for side in own.values():
        check(side()[0][0, 0], wanted)
    k = whole.unflatten(0, (batch, length)).transpose(1, 2)
    sdpa = partial(scaled_dot_product_attention, q.transpose(1, 2), k, k[..., :512], scale=SCALE, enable_gqa=True)
    sides: dict[str, Call] = own | {"sdpa bf16": sdpa}
    if has_fa3:
        paged = [x.unflatten(0, (pages, PAGE)) for x in (rotary, latent)]
        queries = q[:, 0, :, 512:].contiguous(), q[:, 0, :, :512].contiguous()
        sides["fa3 bf16"] = flash_attention_3(queries[0], *paged, table, lengths, queries[1])
    if vllm:
        wanted = exact(q[0, 0], whole[:length], latent[:length])
        add_vllm(
            sides,
            partial(
                vllm_triton.latent_attention, vllm, q[:, 0], whole.reshape(pages, PAGE, 576), table, lengths, SCALE
            ),
            wanted,
        )
    return sides


def timed(copies: Sequence[dict[str, Call]]) -> dict[str, float | str]:
    """Microseconds of each side, or why it has none."""
    graphs: dict[str, Graph] = {}
    found: dict[str, float | str] = {}
    for name in copies[0]:
        try:
            graphs[name] = Graph([copy[name] for copy in copies])
        except (RuntimeError, NotImplementedError, torch.OutOfMemoryError) as error:
            if name.startswith(OWN):  # a peer may lack a size; gemmill has them all
                raise
            found[name] = str(error).splitlines()[0][:80]
    rounds = [{name: graph.round() for name, graph in graphs.items()} for _ in range(ROUNDS)]
    return found | {name: round(median(each[name] for each in rounds), 1) for name in graphs}


def main(given: Sequence[str] | None = None) -> int:
    """Print a row for each size. Return 1 where an output is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--fa3-so", metavar="PATH", help="vLLM's _vllm_fa3_C.abi3.so")
    parser.add_argument(
        "--vllm-sources", type=Path, metavar="FOLDER", help="a folder that has vllm/v1/attention/ops of vLLM 0.33.0"
    )
    parser.add_argument("--tiles", action="store_true", help="time each kernel of latents too")
    parser.add_argument("--cpu", action="store_true", help="only check small sizes, by the references")
    parser.add_argument("--only", default="", help="only caches with this in their name")
    parser.add_argument(
        "--without", metavar="SIDE", help="no sides with this in their name: SDPA takes 10 ms for latents"
    )
    parser.add_argument("--out-dir", type=Path, default=RESULTS)
    parser.add_argument("--name", default="cache-dims", help="file name of the results, without suffix")
    parser.add_argument("--commit", help="of sources in no checkout")
    told = parser.parse_args(given)
    device, wrong = "cpu" if told.cpu else "cuda", 0
    rows: list[dict[str, Any]] = []
    if told.fa3_so:
        torch.ops.load_library(told.fa3_so)
    tiles, of_latents = TILES if told.tiles else (), TINY_LATENTS if told.cpu else LATENTS
    lists = (
        (partial(paged, (256, 256)), "256", TINY_PAGES if told.cpu else WIDE, 260),
        (partial(paged, (512, 512)), "512", TINY_PAGES if told.cpu else LONG, 516),
        (partial(paged, (192, 128)), "192 and 128", TINY_PAGES if told.cpu else FEWER, 164),
        (partial(latents, tiles=tiles), "latents", of_latents, 400),
        (partial(latents, tiles=tiles, is_e4m3=True), "latents, e4m3", of_latents, 336),
    )
    for make, name, sizes, token_bytes in lists:
        for size in sizes if told.only in name else ():
            own_bytes = token_bytes * size[0] * size[1] * (size[3] if len(size) > 3 else 1)
            count = 1 if told.cpu else min(8, 1 + int(L2_BYTES // own_bytes))
            try:
                copies = [make(*size, device, has_fa3=bool(told.fa3_so), vllm=told.vllm_sources) for _ in range(count)]
            except (ValueError, RuntimeError, ImportError) as error:
                print(name, *size, f"wrong: {str(error).splitlines()[0]}", flush=True)
                wrong = 1
                continue
            if told.cpu:
                print(name, *size, "right", flush=True)
                continue
            if told.without:
                copies = [{side: call for side, call in copy.items() if told.without not in side} for copy in copies]
            settle(copies[0][OWN])
            rows.append({"cache": name, "size": size, "cache_bytes": own_bytes, "us": timed(copies)})
            print(name, *size, rows[-1]["us"], f"cache {own_bytes / 1e6:.1f} MB", flush=True)
    if not told.cpu:
        record = {
            "schema_version": 1,
            "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "environment": devices.environment(),
            "commit": told.commit or devices.commit_of(Path(__file__).parent),
            "rounds": ROUNDS,
            "rows": rows,
        }
        write_json(record, told.out_dir / f"{told.name}.json")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
