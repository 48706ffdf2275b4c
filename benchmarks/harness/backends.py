"""The two code generators against each other: their best at each shape, and variants that differ in nothing else."""

from collections.abc import Sequence

from gemmill.space.names import parse_name
from gemmill.vocab import Backend
from harness.measuring import Measurement
from harness.statistics import geometric_mean


def backends_record(measurements: Sequence[Measurement], variants: Sequence[str]) -> dict[str, object]:
    """`best[i]`: shape, and of each backend the fastest variant with its time; `pairs[i]`: shape, name without backend,
    times of both, and how many times faster cutedsl is."""
    best, pairs = [], []
    for found in measurements:
        shape = [found.workload.kind, *found.workload.sizes.values()]
        us = {name: found.samples[name].median_us for name in variants if name in found.samples}
        fastest = {}
        for backend in Backend:
            of_backend = {name: t for name, t in us.items() if parse_name(name).backend is backend}
            if of_backend:
                name = min(of_backend, key=of_backend.__getitem__)
                fastest[backend.value] = [name, round(of_backend[name], 3)]
        best.append({"shape": shape, "fastest": fastest})
        for name, t in us.items():
            twin = twin_of(name)
            if twin in us:
                pairs.append({"shape": shape, "cutlass": name, "us": [round(t, 3), round(us[twin], 3)]})
    return {"best": best, "pairs": pairs}


def twin_of(name: str) -> str | None:
    """The name of a cutlass variant's cutedsl twin; None for a variant that is none of cutlass."""
    prefix = f"_{Backend.CUTLASS}_"
    return name.replace(prefix, f"_{Backend.CUTEDSL}_", 1) if prefix in name else None


def backends_text(record: dict) -> str:
    """The record in a table, and the geometric means."""
    lines = [f"{'workload':<32}{'cutlass us':>12}{'cutedsl us':>12}{'ratio':>8}  fastest of cutedsl"]
    ratios = []
    for row in record["best"]:
        op, *sizes = row["shape"]
        cells = [row["fastest"].get(backend.value) for backend in (Backend.CUTLASS, Backend.CUTEDSL)]
        numbers = "".join(f"{'-' if cell is None else format(cell[1], '.2f'):>12}" for cell in cells)
        ratio = "-"
        if all(cells):
            ratios.append(cells[0][1] / cells[1][1])
            ratio = f"{ratios[-1]:.3f}"
        schedule = "-" if cells[1] is None else cells[1][0]
        workload = f"{op} {' x '.join(map(str, sizes))}"
        lines.append(f"{workload:<32}{numbers}{ratio:>8}  {schedule}")
    if ratios:
        lines.append(
            f"fastest of each, cutlass / cutedsl: geometric mean {geometric_mean(ratios):.3f} over {len(ratios)}"
        )
    twins = [pair["us"][0] / pair["us"][1] for pair in record["pairs"]]
    if twins:
        lines.append(f"twins, cutlass / cutedsl: geometric mean {geometric_mean(twins):.3f} over {len(twins)}")
    return "\n".join(lines)
