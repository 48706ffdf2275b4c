"""Choose, from a sweep, the kernels worth compiling and the table that picks among them.

    python tools/choose_table.py benchmarks/results/sweep.json --kernels 14 --table generator/gemmill/runtime/tables/sm90a.json

Prints the chosen kernels, most useful first, with the geometric mean of (time with these) / (time with all). With
--table, writes the built-in table over the kernels of `--selection` (or over the chosen ones).
"""

import argparse
import json
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from gemmill.space.names import parse_gemm_name, to_name
from gemmill.space.selections import select
from gemmill.vocab import DType, EpilogueKind

PEERS = ("vllm", "torch row-wise", "torch tensor-wise")
KEPT = 4
"""Candidates kept in a row, so that a build without the first still has a measured choice."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sweeps", nargs="+", type=Path)
    parser.add_argument("--kernels", type=int, default=14, help="compiled kernels to choose for each op")
    parser.add_argument("--selection", help="write the table over this selection's kernels")
    parser.add_argument("--table", type=Path)
    args = parser.parse_args()
    times, device = read_sweeps(args.sweeps)
    for op in sorted({shape[0] for shape in times}):
        of_op = {shape: us for shape, us in times.items() if shape[0] == op}
        print(f"{op}: {len(of_op)} shapes")
        for kernel, loss in choose_kernels(of_op, args.kernels):
            print(f"  {loss:.4f}  {kernel}")
    if args.table:
        allowed = {to_name(c.compiled) for c in select(args.selection).configs} if args.selection else None
        write_table(args.table, table_rows(times, allowed), args.sweeps, device)


def read_sweeps(paths: Iterable[Path]) -> tuple[dict, str]:
    """Microseconds by (op, m, n, k) and variant name, from all files; and the device.

    Clocks differ from run to run, by several per cent where power limits them. So a file's times at a shape are scaled by
    what its peers took there against the peers of the first file that has the shape.
    """
    times: dict[tuple, dict[str, float]] = {}
    first_peers: dict[tuple, dict[str, float]] = {}
    device = ""
    for path in paths:
        data = json.loads(path.read_text(encoding="utf-8"))
        device = data["environment"]["gpu"]
        for shape, row in zip(data["shapes"], data["us"], strict=True):
            found = {name: us for name, us in zip(data["contenders"], row, strict=True) if us is not None}
            peers = {name: us for name, us in found.items() if name in PEERS}
            scale = peer_ratio(first_peers.setdefault(tuple(shape), peers), peers)
            known = times.setdefault(tuple(shape), {})
            known.update({name: us * scale for name, us in found.items() if name.startswith("sm")})
    return {shape: us for shape, us in times.items() if us}, device


def peer_ratio(before: dict[str, float], now: dict[str, float]) -> float:
    """How much longer the same peers took before: the geometric mean over those in both runs."""
    logs = [math.log(before[name] / now[name]) for name in before.keys() & now.keys()]
    return math.exp(sum(logs) / len(logs)) if logs else 1.0


def compiled(name: str) -> str:
    """The name of the compiled kernel behind a variant."""
    return to_name(parse_gemm_name(name).compiled)


def choose_kernels(times: dict, count: int) -> list[tuple[str, float]]:
    """Greedily, the kernels that lower the geometric mean most; with each, the mean loss of stopping there."""
    best = {shape: min(us.values()) for shape, us in times.items()}
    fastest: dict[str, dict[tuple, float]] = {}
    for shape, us in times.items():
        for name, t in us.items():
            of_kernel = fastest.setdefault(compiled(name), {})
            of_kernel[shape] = min(t, of_kernel.get(shape, math.inf))
    chosen: list[tuple[str, float]] = []
    reached = dict.fromkeys(times, 1e9)
    for _ in range(min(count, len(fastest))):
        taken = {kernel for kernel, _ in chosen}

        def total(kernel: str) -> float:
            return sum(math.log(min(reached[s], fastest[kernel].get(s, math.inf)) / best[s]) for s in times)

        kernel = min((k for k in fastest if k not in taken), key=total)
        chosen.append((kernel, math.exp(total(kernel) / len(times))))
        for shape in times:
            reached[shape] = min(reached[shape], fastest[kernel].get(shape, math.inf))
    return chosen


def table_rows(times: dict, allowed: set[str] | None) -> list[dict]:
    """Rows of the built-in table: at each measured shape the fastest variants, best first."""
    rows = []
    for (_op, m, n, k), us in sorted(times.items()):
        fitting = {name: t for name, t in us.items() if allowed is None or _measured_as(name) & allowed}
        ranked = sorted(fitting, key=lambda name: (fitting[name], name))[:KEPT]
        if ranked:
            rows.append({"n": n, "k": k, "m": m, "names": ranked, "us": [round(fitting[name], 2) for name in ranked]})
    return rows


def _measured_as(name: str) -> set[str]:
    """The kernel that was measured, and its siblings for other outputs and epilogues."""
    config = parse_gemm_name(name).compiled
    return {
        to_name(replace(config, problem=replace(config.problem, out_dtype=out, epilogue=kind)))
        for out in (DType.BF16, DType.F16)
        for kind in EpilogueKind
    }


def write_table(path: Path, rows: list[dict], sweeps: Iterable[Path], device: str) -> None:
    """Write the table with where it comes from."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join("  " + json.dumps(row) for row in rows)
    head = json.dumps({"device": device, "sweeps": [p.name for p in sweeps]})[1:-1]
    path.write_text(f'{{{head}, "rows": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main()
