"""From measurements to the record that is kept, and to the table that is printed."""

from collections.abc import Iterable, Sequence

from harness.contenders import Contender
from harness.measuring import Measurement
from harness.statistics import Sample, geometric_mean, paired_ratio

SCHEMA_VERSION = 2
SUBJECT = "gemmill"
DECODE_ROWS = 128
"""Up to here, reading the weights or the launch takes the time; figures are given for both sides apart."""


def sample_record(found: Sample) -> dict[str, object]:
    """A Sample as JSON values: nanosecond digits are kept, no more."""
    return {
        "median_us": round(found.median_us, 3),
        "spread": round(found.spread, 4),
        "rounds_us": [round(us, 3) for us in found.rounds_us],
    }


def row_record(
    measurement: Measurement, peers: Sequence[Contender], copy_gbps: float, also: Sequence[Contender] = ()
) -> dict[str, object]:
    """One workload's row: times, the factor by which gemmill is faster than each peer of the same arithmetic and the fastest, the time
    of gemmill's other sides `also` over its own, and its share of the bandwidth of copying."""
    workload, samples = measurement.workload, measurement.samples
    peers = [peer.name for peer in peers if peer.complete and peer.name in samples]
    subject = samples.get(SUBJECT)
    ratios = {name: paired_ratio(samples[name], subject) for name in peers} if subject is not None else {}
    best = min(ratios, key=ratios.__getitem__, default=None)
    sides = [] if subject is None else [side.name for side in also if side.name in samples]
    record: dict[str, object] = {
        "op": workload.kind,
        **workload.sizes,
        "sizes": list(workload.sizes),
        "workload": str(workload),
        "bytes": workload.bytes,
        "contenders": {name: sample_record(found) for name, found in samples.items()},
        "failures": measurement.failures,
        "best_peer": best,
        "ratio": None if best is None else round(ratios[best], 4),
        "ratios": {name: round(ratio, 4) for name, ratio in ratios.items()},
        "sides": {name: round(paired_ratio(samples[name], subject), 4) for name in sides},
        "tflops": None,
        "gbps": None,
        "fraction": None,
    }
    if subject is not None:
        gbps = workload.bytes / subject.median_us / 1e3
        record["tflops"] = round(workload.flops / subject.median_us / 1e6, 1) if workload.flops else None
        record |= {"gbps": round(gbps, 1), "fraction": round(gbps / copy_gbps, 4)}
    return record


def shape_of(row: dict) -> list[int]:
    """A row's sizes."""
    return [row[name] for name in row["sizes"]]


def summary_record(rows: Iterable[dict]) -> list[dict[str, object]]:
    """For each op, and few rows and many apart: geometric mean of the ratios and the worst shape, and the call that is
    furthest from the bandwidth of copying."""
    groups: dict[tuple[str, str], list[dict]] = {}
    for row in rows:
        if row["gbps"] is not None:
            side = f"M {'<=' if shape_of(row)[0] <= DECODE_ROWS else '>'} {DECODE_ROWS}"
            groups.setdefault((row["op"], side), []).append(row)
    summary = []
    for (op, side), members in sorted(groups.items()):
        compared = [row for row in members if row["ratio"] is not None]
        worst = min(compared, key=lambda row: row["ratio"], default=None)
        slowest = min(members, key=lambda row: row["fraction"])
        mean = geometric_mean([row["ratio"] for row in compared])
        summary.append(
            {
                "op": op,
                "side": side,
                "shapes": len(compared),
                "geometric_mean": mean and round(mean, 4),
                "worst_ratio": worst and worst["ratio"],
                "worst_shape": worst and shape_of(worst),
                "least_fraction": slowest["fraction"],
                "least_fraction_shape": shape_of(slowest),
            }
        )
    return summary


def peers_record(rows: Iterable[dict]) -> list[dict[str, object]]:
    """For each op and each of its peers alone: geometric mean of the ratios over the shapes that both computed."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        for peer, ratio in row["ratios"].items():
            ratios.setdefault((row["op"], peer), []).append(ratio)
    return [
        {"op": op, "peer": peer, "shapes": len(found), "geometric_mean": round(geometric_mean(found), 4)}
        for (op, peer), found in sorted(ratios.items())
    ]


def sides_record(rows: Iterable[dict]) -> list[dict[str, object]]:
    """For each op and each other side of gemmill: the geometric mean of its time over gemmill's, and where it is the longest."""
    found: dict[tuple[str, str], list[dict]] = {}
    for row in rows:
        for side in row["sides"]:
            found.setdefault((row["op"], side), []).append(row)
    summary = []
    for (op, side), members in sorted(found.items()):
        worst = max(members, key=lambda row, side=side: row["sides"][side])
        mean = geometric_mean([row["sides"][side] for row in members])
        at = {"worst": worst["sides"][side], "worst_shape": shape_of(worst)}
        summary.append({"op": op, "side": side, "shapes": len(members), "geometric_mean": round(mean, 4)} | at)
    return summary


def table(rows: Sequence[dict], names: Sequence[str]) -> str:
    """Times of all contenders by shape, as plain text: microseconds, "-" for none, "!" for a spread above 5 %."""
    names = [name for name in names if any(name in row["contenders"] or name in row["failures"] for row in rows)]
    width = max((len(row["op"]) for row in rows), default=0) + 2
    head = f"{'op':<{width}}{'size':<22}" + "".join(f"{name[-18:]:>19}" for name in names)
    lines = [f"{head}{'ratio':>8}{'TFLOP/s':>9}{'GB/s':>8}{'of copy':>9}"]
    for row in rows:
        shape = " x ".join(map(str, shape_of(row)))
        cells = "".join(f"{_time_cell(row, name):>19}" for name in names)
        figures = f"{_cell(row['ratio'], 3):>8}{_cell(row['tflops'], 0):>9}{_cell(row['gbps'], 0):>8}"
        lines.append(f"{row['op']:<{width}}{shape:<22}{cells}{figures}{_cell(row['fraction'], 3):>9}")
    return "\n".join(lines)


def _time_cell(row: dict, name: str) -> str:
    if name in row["failures"]:
        return "failed"
    found = row["contenders"].get(name)
    if found is None:
        return "-"
    return f"{found['median_us']:.2f}" + ("!" if found["spread"] > 0.05 else "")


def _cell(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def summary_text(
    summary: Sequence[dict], peers: Sequence[dict], host: dict[str, dict], sides: Sequence[dict] = ()
) -> str:
    """The figures in a few lines."""
    lines = [
        f"{part['op']} {part['side']}: geometric mean {part['geometric_mean']:.3f} over {part['shapes']} shapes, "
        f"worst {part['worst_ratio']:.3f} at {' x '.join(map(str, part['worst_shape']))}"
        for part in summary
        if part["shapes"]
    ]
    lines += [
        f"{part['op']} against {part['peer']} alone: geometric mean {part['geometric_mean']:.3f} over {part['shapes']} shapes"
        for part in peers
    ]
    lines += [
        f"{part['op']}: {part['side']} / gemmill {part['geometric_mean']:.3f} in the geometric mean over {part['shapes']} shapes, worst "
        f"{part['worst']:.3f} at {' x '.join(map(str, part['worst_shape']))}"
        for part in sides
    ]
    for op, contenders in host.items():
        times = ", ".join(f"{name} {found['median_us']:.2f}" for name, found in contenders.items())
        lines.append(f"host time of one call, {op}, us: {times}")
    return "\n".join(lines)
