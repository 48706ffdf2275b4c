"""Make the shipped table from sweeps that benchmarks/run.py scaled_mm --variants recorded.

    python tools/convert_sweeps.py SWEEP.json --selection default

Rows that `gemmill tune` measured since are kept: only shapes that the table lacks, or that an earlier conversion gave it,
are written.
"""

import argparse
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict

from gemmill.locations import runtime_tables_dir
from gemmill.runtime.table_file import (
    Source,
    TableRow,
    TunedTable,
    file_name,
    make_table,
    merge,
    read_table,
    table_text,
)
from gemmill.space.names import parse_name, to_name
from gemmill.space.selections import select
from gemmill.typed_json import read_json
from gemmill.vocab import DType, EpilogueKind

PEERS = ("vllm", "torch row-wise", "torch tensor-wise")
KEPT = 4
"""Variants kept in a row, so that a build without the first still has a measured choice."""
PROGRAM = "benchmarks/run.py scaled_mm --variants"
Shape = tuple[str, int, int, int]


class Sweep(TypedDict):
    """The fields that this program reads of a sweep."""

    date: str
    commit: str
    build: dict[str, str | int]
    environment: dict[str, Any]
    while_measuring: dict[str, Any]
    shapes: list[Shape]
    contenders: list[str]
    us: list[list[float | None]]
    """By shape and contender."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="+", type=Path, help="in the order in which the later correct the earlier")
    parser.add_argument("--selection", default="default", help="keep variants that this selection compiles")
    parser.add_argument("--table", type=Path, help="by default the shipped table of the device")
    args = parser.parse_args()
    allowed = {to_name(config.compiled) for config in select(args.selection).configs}
    sweeps = [read_json(path, Sweep, "name a sweep of benchmarks/run.py scaled_mm --variants") for path in args.sweeps]
    table = table_of(sweeps, allowed)
    path = args.table or runtime_tables_dir() / file_name(table.device)
    if path.exists():
        table = merge(table, measured_otherwise(read_table(path)))
    path.write_text(table_text(table), encoding="utf-8")
    print(f"{len(table.rows)} rows of {table.device}: {path}")
    for line in against_peers(table, sweeps):
        print(line)


def table_of(sweeps: Sequence[Sweep], allowed: set[str]) -> TunedTable:
    """At each shape the fastest variants, best first.

    Clocks differ from run to run, by several per cent where power limits them. So a file's times at a shape are scaled by
    its peers' times there over those of the first file with the shape.
    """
    times: dict[Shape, dict[str, float]] = {}
    latest: dict[Shape, str] = {}
    first_peers: dict[Shape, dict[str, float]] = {}
    sources = {}
    for sweep in sweeps:
        key = f"{sweep['date'][:16]} {sweep['build']['id']}"
        sources[key] = source_of(sweep)
        for shape, row in zip(map(tuple, sweep["shapes"]), sweep["us"], strict=True):
            found = {name: us for name, us in zip(sweep["contenders"], row, strict=True) if us is not None}
            peers = {name: us for name, us in found.items() if name in PEERS}
            scale = peer_ratio(first_peers.setdefault(shape, peers), peers)
            variants = {name: us * scale for name, us in found.items() if name.startswith("sm")}
            if variants:
                times.setdefault(shape, {}).update(variants)
                latest[shape] = key
    rows = []
    for (op, m, n, k), us in times.items():
        fitting = {name: t for name, t in us.items() if measured_as(name) & allowed}
        ranked = sorted(fitting, key=lambda name: (fitting[name], name))[:KEPT]
        if ranked:
            shown = tuple(round(fitting[name], 2) for name in ranked)
            rows.append(
                TableRow(
                    op=op, sizes={"n": n, "k": k, "m": m}, variants=tuple(ranked), us=shown, source=latest[op, m, n, k]
                )
            )
    first = sweeps[0]
    return make_table(first["environment"]["gpu"], first["build"]["arch"], sources, rows)


def against_peers(table: TunedTable, sweeps: Iterable[Sweep]) -> list[str]:
    """For each op, the first variant of its rows against the fastest peer of the sweep with both: by M up to 128 and above,
    geometric mean and worst shape."""
    groups: dict[tuple[str, str], list[tuple[float, Shape]]] = {}
    chosen = {(row.op, *(row.sizes[name] for name in "mnk")): row.variants[0] for row in table.rows}
    for sweep in sweeps:
        for shape, us in zip(map(tuple, sweep["shapes"]), sweep["us"], strict=True):
            found = dict(zip(sweep["contenders"], us, strict=True))
            peers = [found[name] for name in PEERS if found.get(name)]
            ours = found.get(chosen.get(shape, ""))
            if ours and peers:
                side = "M <= 128" if shape[1] <= 128 else "M > 128"
                groups.setdefault((shape[0], side), []).append((min(peers) / ours, shape))
    lines = []
    for (op, side), ratios in sorted(groups.items()):
        worst, (_, m, n, k) = min(ratios)
        mean = math.exp(sum(math.log(ratio) for ratio, _ in ratios) / len(ratios))
        lines.append(
            f"{op} {side}: {mean:.3f} of the best peer over {len(ratios)} shapes, worst {worst:.3f} at {m} x {n} x {k}"
        )
    return lines


def source_of(sweep: Sweep) -> Source:
    """Provenance, as far as a sweep has it."""
    machine, state = sweep["environment"], sweep["while_measuring"]
    return Source(
        gpu=machine["gpu"],
        date=sweep["date"],
        program=PROGRAM,
        sm_count=machine["sm_count"],
        driver=machine["nvidia_smi"].get("driver_version"),
        build=sweep["build"]["id"],
        commit=sweep["commit"],
        clocks_mhz={name: state[name]["median"] for name in ("clocks.sm", "clocks.mem", "power.draw") if name in state},
    )


def peer_ratio(before: Mapping[str, float], now: Mapping[str, float]) -> float:
    """How much longer the same peers took before: the geometric mean over those in both runs."""
    logs = [math.log(before[name] / now[name]) for name in before.keys() & now.keys()]
    return math.exp(sum(logs) / len(logs)) if logs else 1.0


def measured_as(name: str) -> set[str]:
    """The measured kernel, and its siblings for other outputs and epilogues."""
    config = parse_name(name).compiled
    return {
        to_name(replace(config, operands=replace(config.operands, out_dtype=out), epilogue=kind))
        for out in (DType.BF16, DType.F16)
        for kind in EpilogueKind
    }


def measured_otherwise(table: TunedTable) -> TunedTable:
    """The rows that no conversion made."""
    kept: Iterable[TableRow] = (row for row in table.rows if table.sources[row.source].program != PROGRAM)
    return make_table(table.device, table.arch, table.sources, kept, table.quarantined)


if __name__ == "__main__":
    main()
