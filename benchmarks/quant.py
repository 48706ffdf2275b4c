"""Check and time the quantisation kernels through a plain shared library.

python benchmarks/quant.py build --nvcc .../bin/nvcc [--filter GLOB]   # here: needs nvcc, no GPU
python benchmarks/quant.py check                                       # on the GPU: codes and scales, bit for bit
python benchmarks/quant.py bench [--vllm-so PATH] [--tune]             # on the GPU: times, GB/s, JSON
"""

import argparse
import dataclasses
import fnmatch
import json
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(REPOSITORY / "generator"), str(Path(__file__).resolve().parent)]

import torch  # noqa: E402

from gemmill.reference import quant_bounds as bounds  # noqa: E402
from gemmill.space.names import parse_name, to_name  # noqa: E402
from gemmill.space.quant import Activation, QuantConfig, QuantFamily, ScaleFormat, all_configs  # noqa: E402
from quant_cases import Call, Case, prepare  # noqa: E402
from quant_library import Library, build  # noqa: E402

BENCHED = (
    "sm90a_quant_group_bf16_e4m3_silu_g128f32_sym",
    "sm90a_quant_group_bf16_e4m3_none_g128f32_sym",
    "sm90a_quant_token_bf16_e4m3_none_f32_sym",
    "sm90a_quant_token_bf16_s8_none_f32_sym",
    "sm90a_quant_token_bf16_s8_none_f32_asym",
    "sm90a_quant_token_bf16_e4m3_silu_f32_sym",
    "sm90a_quant_static_bf16_e4m3_none_f32_sym",
    "sm90a_quant_static_bf16_s8_none_f32_sym",
    "sm90a_quant_static_bf16_e4m3_silu_f32_sym",
    "sm90a_quant_tensor_bf16_e4m3_none_f32_sym",
    "sm90a_quant_rmstoken_bf16_e4m3_none_f32_sym",
    "sm90a_quant_rmsgroup_bf16_e4m3_none_g128f32_sym",
    "sm90a_quant_group_bf16_e4m3_none_g128ue8m0x4_sym",
)
GRID = [(m, h) for m in (1, 16, 64, 256, 1024, 4096, 16384) for h in (2048, 4096, 7168, 14336, 28672)]
ROTATED_BYTES = 256 << 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("build", "check", "bench"))
    parser.add_argument("--library", type=Path, default=REPOSITORY / "build" / "quant" / "kernels_quant.so")
    parser.add_argument("--filter", default="*", help="glob over variant names")
    parser.add_argument("--nvcc", default=os.environ.get("NVCC", "nvcc"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--all", action="store_true", help="build every variant, not one of each kind")
    parser.add_argument("--vllm-so", type=Path)
    parser.add_argument("--tune", action="store_true", help="time every launch hint")
    parser.add_argument("--quick", action="store_true", help="fewer shapes")
    parser.add_argument("--pdl", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    if options.command == "build":
        configs = [c for c in selected(options.all) if fnmatch.fnmatch(to_name(c), options.filter)]
        build(configs, options.nvcc, options.library, options.jobs)
        print(f"{len(configs)} variants in {options.library} ({options.library.stat().st_size / 1e6:.1f} MB)")
        return 0
    library = Library(options.library)
    library.programmatic_launch = options.pdl
    names = [n for n in library.names if fnmatch.fnmatch(n, options.filter)]
    return check(library, names, options.quick) if options.command == "check" else bench(library, names, options)


def selected(everything: bool) -> list[QuantConfig]:
    """All variants, or those that between them meet every code path."""
    configs = list(all_configs())
    if everything:
        return configs
    thin = []
    for c in configs:
        plain = c.in_dtype.value == "bf16" or (c.activation is Activation.NONE and c.scale_format is ScaleFormat.F32)
        if plain and not (c.activation in (Activation.GELU_TANH, Activation.GELU_ERF) and c.group_size not in (0, 128)):
            thin.append(c)
    return thin


def cases_of(config: QuantConfig, quick: bool) -> list[Case]:
    """Shapes and layouts to check a variant with."""
    group = config.group_size or 1
    grouped = config.family.is_grouped
    cases = [Case(rows=r, hidden=h) for r, h in ((1, 128), (7, 384), (133, 2048), (512, 7168), (3, 28672), (1, 131072))]
    cases += [
        Case(rows=1, hidden=28672),
        Case(rows=65, hidden=1152, in_padding=24),
        Case(rows=37, hidden=640, in_padding=3, transposed=True),
        Case(rows=37, hidden=640, offset=1),
        Case(rows=130, hidden=4096, transposed=True),
        Case(rows=33, hidden=2048, bounded=True),
        Case(rows=128, hidden=2048, values="wide"),
        Case(rows=128, hidden=2048, values="gates"),
        Case(rows=128, hidden=4096, values="special"),
    ]
    if config.family in (QuantFamily.RMS_TOKEN, QuantFamily.RMS_GROUP):
        cases += [dataclasses.replace(case, residual=True) for case in cases]
    if not grouped:
        cases += [Case(rows=5, hidden=h) for h in (1, 3, 17, 129, 1001, 5003)]
    if not quick:
        cases += [Case(rows=4096, hidden=14336), Case(rows=20000, hidden=128), Case(rows=3, hidden=600 * 128)]
    if config.symmetric is False or config.out_dtype.value == "s8":
        cases = [c for c in cases if not c.bounded]
    return [c for c in cases if c.hidden % group == 0]


def same_bits(got: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Elementwise; any two NaN of a float type wider than a byte are the same."""
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[got.element_size()]
    same = got.contiguous().view(kind) == wanted.contiguous().view(kind)
    if wanted.dtype in (torch.float32, torch.bfloat16, torch.float16):
        same |= torch.isnan(got) & torch.isnan(wanted)
    return same


def verdict(config: QuantConfig, call: Call) -> tuple[str, bool]:
    """What differs from the reference, if anything, and whether it is more than quant_bounds allows."""
    call.run()
    torch.cuda.synchronize()
    expected = call.expected()
    differing = {name: int((~same_bits(call.outputs[name], wanted)).sum()) for name, wanted in expected.items()}
    text = ", ".join(f"{name} {count} of {expected[name].numel()}" for name, count in differing.items() if count)
    if not text:
        return "", False
    if config.activation is not Activation.NONE:
        scales = call.outputs.get("scales", call.static_scale)
        outside = bounds.outside_of_gate_bounds(config, call.x, call.outputs["codes"], scales, scale_ub=call.scale_ub)
        return f"{text}; outside of the bounds {outside[0]} codes, {outside[1]} scales", any(outside)
    if config.family in (QuantFamily.RMS_TOKEN, QuantFamily.RMS_GROUP):
        rows, steps = bounds.rows_beyond_one_step(call.outputs["codes"], expected["codes"])
        return f"{text}; in {rows} rows, {steps} codes by more than a step", rows > 1 or steps > 0 or differing.get(
            "residual", 0
        ) > 0
    return text, True


def check(library: Library, names: list[str], quick: bool) -> int:
    """Compare every variant with the reference on the GPU; returns 1 if one differs by more than is allowed."""
    wrong = within = 0
    device = torch.device("cuda")
    for name in names:
        config = parse_name(name)
        bad: list[str] = []
        allowed: list[str] = []
        cases = cases_of(config, quick)
        for case in cases:
            try:
                text, fails = verdict(config, prepare(library, config, case, device))
            except RuntimeError as error:
                bad.append(f"    {case}: {error}")
                if "CUDA" in str(error):
                    print(name, bad[-1])
                    return 1
                continue
            if text:
                (bad if fails else allowed).append(f"    {case}: {text}")
        print(
            f"{'FAIL' if bad else 'ok  '} {name} {len(cases) - len(bad)}/{len(cases)}",
            f"({len(allowed)} within bounds)" if allowed else "",
        )
        print("\n".join(bad[:6] + allowed[:1]), end="\n" if bad or allowed else "")
        wrong += bool(bad)
        within += bool(allowed and not bad)
    print(
        f"{len(names) - wrong - within} of {len(names)} variants equal the reference bit for bit, {within} more within their bounds, {wrong} fail"
    )
    return int(wrong > 0)


def graph_time_us(calls: Sequence[Callable[[], None]], rounds: int = 7) -> float:
    """Median device time of one call in a CUDA graph of the calls, each run at least twenty times over."""
    repeats = max(1, 20 // len(calls))
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for call in calls[:2]:
            call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(repeats):
            for call in calls:
                call()
    times = []
    for _ in range(rounds):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        graph.replay()
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / (repeats * len(calls)))
    return statistics.median(times)


def copy_bandwidth() -> float:
    """GB/s of copying 1 GiB, reads and writes counted: the faster of torch's copy and an elementwise kernel."""
    a = torch.ones(1 << 29, dtype=torch.bfloat16, device="cuda")
    b = torch.empty_like(a)
    times = [graph_time_us([call]) for call in (lambda: b.copy_(a), lambda: torch.abs(a, out=b))]
    return 2 * a.numel() * a.element_size() / min(times) / 1e3


def vllm_call(config: QuantConfig, case: Case, call: Call, x: torch.Tensor) -> Callable[[], None] | None:
    """vLLM's op for the same work on the same tensors, or None."""
    ops = torch.ops._C
    out = torch.empty_like(call.outputs["codes"])
    f32 = {"dtype": torch.float32, "device": x.device}
    e4m3 = config.out_dtype.value == "e4m3"
    if config.family is QuantFamily.GROUP and config.scale_format is ScaleFormat.F32 and config.symmetric:
        scales = torch.empty((case.rows, case.hidden // config.group_size), **f32)
        if config.activation is Activation.SILU:
            return lambda: ops.silu_and_mul_per_block_quant(out, x, scales, config.group_size, None, False)
        if config.activation is Activation.NONE and e4m3:
            return lambda: ops.per_token_group_fp8_quant(
                x, out, scales, config.group_size, 1e-10, -448.0, 448.0, False, False, False
            )
    if config.family is QuantFamily.TOKEN and config.activation is Activation.NONE:
        scales = torch.empty((case.rows, 1), **f32)
        azps = None if config.symmetric else torch.empty((case.rows, 1), dtype=torch.int32, device=x.device)
        if e4m3:
            return lambda: ops.dynamic_per_token_scaled_fp8_quant(out, x, scales, None)
        return lambda: ops.dynamic_scaled_int8_quant(out, x, scales, azps)
    if config.family is QuantFamily.STATIC and config.symmetric:
        scale = torch.full((1,), 0.0123, **f32)
        if config.activation is Activation.NONE:
            return lambda: (
                ops.static_scaled_fp8_quant(out, x, scale)
                if e4m3
                else ops.static_scaled_int8_quant(out, x, scale, None)
            )
        if config.activation is Activation.SILU and e4m3:
            return lambda: ops.silu_and_mul_quant(out, x, scale)
    if config.family is QuantFamily.TENSOR:
        scale = torch.zeros((1,), **f32)
        return lambda: ops.dynamic_scaled_fp8_quant(out, x, scale)
    if config.family in (QuantFamily.RMS_TOKEN, QuantFamily.RMS_GROUP):
        scales = torch.empty((case.rows, case.hidden // (config.group_size or case.hidden)), **f32)
        weight = torch.ones(case.hidden, dtype=x.dtype, device=x.device)
        if config.group_size:
            return lambda: ops.rms_norm_per_block_quant(
                out, x, weight, scales, 1e-6, None, None, config.group_size, False
            )
        return lambda: ops.rms_norm_dynamic_per_token_quant(out, x, weight, scales, 1e-6, None, None)
    return None


def hints_of(config: QuantConfig, tune: bool) -> list[tuple[int, int, int]]:
    """Launch hints to time: automatic, or every one that the family knows."""
    if not tune:
        return [(0, 0, 0)]
    if config.family is QuantFamily.TOKEN:
        return [(0, 0, 0)] + [(chunks, cluster, 0) for chunks in (1, 2, 4) for cluster in (1, 2, 4, 8)]
    if config.family in (QuantFamily.STATIC, QuantFamily.GROUP):
        return [(0, 0, 0)] + [(chunks, 0, threads) for chunks in (1, 2, 4) for threads in (128, 256, 512)]
    if config.family in (QuantFamily.RMS_TOKEN, QuantFamily.RMS_GROUP):
        return [(0, 0, 0)] + [(chunks, cluster, 0) for chunks in (1, 2, 4, 8) for cluster in (1, 2, 4, 8)]
    return [(0, 0, 0)]


def bench(library: Library, names: list[str], options: argparse.Namespace) -> int:
    """Time variants over the grid, with vLLM's ops beside them; prints a table and writes JSON."""
    if options.vllm_so:
        torch.ops.load_library(str(options.vllm_so))
    bandwidth = copy_bandwidth()
    properties = torch.cuda.get_device_properties(0)
    print(f"{properties.name}, torch {torch.__version__}, copy {bandwidth:.0f} GB/s, programmatic launch {options.pdl}")
    records = []
    device = torch.device("cuda")
    grid = [(1, 4096), (1, 28672), (16, 14336), (1024, 4096), (4096, 14336)] if options.quick else GRID
    for name in [n for n in BENCHED if n in names]:
        config = parse_name(name)
        print(name)
        for rows, hidden in grid:
            case = Case(rows=rows, hidden=hidden)
            first = prepare(library, config, case, device)
            copies = min(20, max(1, ROTATED_BYTES // first.bytes_moved))
            calls = [first] + [prepare(library, config, case, device, seed) for seed in range(1, copies)]
            times = {}
            for hints in hints_of(config, options.tune):
                library.hints = hints
                try:
                    times["/".join(map(str, hints))] = graph_time_us([c.run for c in calls])
                except RuntimeError as error:
                    print("   ", hints, error)
            library.hints = (0, 0, 0)
            mine = times["0/0/0"]
            peers = [vllm_call(config, case, c, c.x) for c in calls] if options.vllm_so else [None]
            peer = graph_time_us(peers) if peers[0] is not None else None
            rate = first.bytes_moved / mine / 1e3
            best = min(times, key=times.__getitem__)
            note = f"  best {best} {times[best]:.2f}" if options.tune else ""
            print(
                f"  {rows:6} x {hidden:6} {mine:9.2f} us {rate:7.0f} GB/s {rate / bandwidth:6.1%}"
                + (f"  vllm {peer:9.2f} us x{peer / mine:.2f}" if peer else "")
                + note,
                flush=True,
            )
            records.append(
                {"name": name, "rows": rows, "hidden": hidden, "us": times, "vllm_us": peer, "bytes": first.bytes_moved}
            )
            del calls, first, peers
    if options.json:
        device_facts = {
            "gpu": properties.name,
            "torch": torch.__version__,
            "copy_gbps": bandwidth,
            "programmatic_launch": options.pdl,
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"device": device_facts, "rows": records}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
