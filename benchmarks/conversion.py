"""A sharded checkpoint of random weights, converted: its time next to `dd` of the same bytes, and its memory.

    python benchmarks/conversion.py --gigabytes 16 --folder /scratch
    python benchmarks/conversion.py --gigabytes 0.02 --folder /tmp/dry --device cpu --out-dir /tmp/dry

`dd` reads every shard and writes as many bytes as the conversion does, synced. Caches of the files read are dropped before
each. Each conversion is a process of its own; its memory is given beyond that of torch and CUDA alone.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from gemmill.checkpoints.file import bytes_of, header_of
from gemmill.tuner.device import now
from harness import devices
from harness.written import write_json

RESULTS = Path(__file__).resolve().parent / "results"
SHAPES = ((13824, 5120), (5120, 13824), (5120, 5120), (5120, 5120))
"""Of the layers of a video model's block, which are written again and again."""
SHARD = 4_000_000_000
"""Bytes after which a shard ends."""
CONVERT = """
import json, resource, sys, time
from pathlib import Path
import torch
from gemmill.checkpoints.convert import convert
from gemmill.checkpoints.steps import Asked
device, source, out, to = sys.argv[1:]
from gemmill.quantize import layer_error, quantize_weight
for weight in (torch.randn(128, 256).to(device, torch.bfloat16),):
    layer_error("", weight, quantize_weight(weight, to))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
made = convert(Path(source), Path(out), Asked(to=to), device=device)
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"seconds": seconds, "peak_bytes": 1024 * peak, "more_bytes": 1024 * (peak - before), "read_bytes": made.read_bytes,
    "written_bytes": made.written_bytes, "worst_error": made.layers[0].weights}))
"""


def make(folder: Path, gigabytes: float, device: str) -> list[Path]:
    """Shards of random bf16 layers; their names say that they are layers."""
    folder.mkdir(parents=True)
    left, shards, layer = int(gigabytes * 1e9), [], 0
    generator = torch.Generator(device).manual_seed(0)
    while left > 0:
        names: dict[str, tuple[int, int]] = {}
        size = 0
        while size < min(SHARD, left):
            n, k = SHAPES[layer % len(SHAPES)]
            n = n if left > 1e9 else max(int(n * gigabytes) // 16 * 16, 16)
            names[f"blocks.{layer}.weight"] = n, k
            size, layer = size + 2 * n * k, layer + 1
        path = folder / f"model-{len(shards):05}.safetensors"
        header, _ = header_of({name: ("BF16", shape) for name, shape in names.items()})
        with path.open("wb") as file:
            file.write(header)
            for shape in names.values():
                weight = torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16).cpu()
                file.write(bytes_of(weight))
            file.flush()
            os.fsync(file.fileno())
        shards.append(path)
        left -= size
    return shards


def forget(paths: Sequence[Path]) -> None:
    """Drop files from the page cache."""
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def copied(shards: Sequence[Path], written: int, out: Path) -> float:
    """Seconds of dd, which writes so many of the bytes that it reads."""
    out.mkdir()
    total = sum(path.stat().st_size for path in shards)
    start = time.perf_counter()
    for path in shards:
        blocks = max(int(path.stat().st_size * written / total) >> 24, 1)
        target, more = f"of={out / path.name}", f"skip={blocks}"
        subprocess.run(
            ["dd", f"if={path}", target, "bs=16M", f"count={blocks}", "conv=fsync", "status=none"], check=True
        )
        subprocess.run(["dd", f"if={path}", "of=/dev/null", "bs=16M", more, "status=none"], check=True)
    seconds = time.perf_counter() - start
    shutil.rmtree(out)
    return seconds


def converted(folder: Path, out: Path, to: str, device: str) -> dict[str, float]:
    """The process's report."""
    import json

    command = [sys.executable, "-c", CONVERT, device, str(folder), str(out), to]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    shutil.rmtree(out)
    return dict(json.loads(done.stdout))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit code."""
    options = parse(arguments)
    work = options.folder / "conversion-benchmark"
    rows = []
    try:
        start = time.perf_counter()
        shards = make(work / "in", options.gigabytes, options.device)
        print(f"made {len(shards)} shards in {time.perf_counter() - start:.1f} s", flush=True)
        for to in options.to:
            forget(shards)
            row = {"to": to, **converted(work / "in", work / "out", to, options.device)}
            forget(shards)
            row["dd_seconds"] = copied(shards, int(row["written_bytes"]), work / "dd")
            row["ratio"] = row["seconds"] / row["dd_seconds"]
            rows.append(row)
            print(
                f"{to}: {row['seconds']:.2f} s, dd {row['dd_seconds']:.2f} s, {row['more_bytes'] / 1e6:.0f} MB of host memory more, "
                f"{row['read_bytes'] / 1e9:.2f} GB became {row['written_bytes'] / 1e9:.2f}",
                flush=True,
            )
    finally:
        shutil.rmtree(work, ignore_errors=True)
    record = {
        "schema_version": 1,
        "date": now(),
        "environment": devices.environment(),
        "commit": options.commit or devices.commit_of(Path(__file__).parent),
        "device": options.device,
        "gigabytes": options.gigabytes,
        "largest_tensor_bytes": max(2 * n * k for n, k in SHAPES),
        "rows": rows,
    }
    write_json(record, options.out_dir / f"{options.name}.json")
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=16)
    parser.add_argument(
        "--folder", type=Path, required=True, help="where the checkpoint is made, and removed afterwards"
    )
    parser.add_argument("--to", nargs="+", default=["nvfp4"], metavar="FORMAT")
    parser.add_argument("--device", default="cuda", help="where codes are made")
    parser.add_argument("--commit", help="of sources in no checkout")
    parser.add_argument("--out-dir", type=Path, default=RESULTS)
    parser.add_argument("--name", default="conversion", help="file name of the results, without suffix")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
