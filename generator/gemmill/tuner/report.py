"""A sweep as one HTML file: winners, time against M with peers and roofline, ties and faults."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from gemmill.family import Sweep, Tuning
from gemmill.locations import templates_dir
from gemmill.registry import REGISTRY
from gemmill.space.names import parse_name
from gemmill.tuner.charts import RATIOS, Cell, Line, log_chart, winner_map
from gemmill.tuner.choice import MARGIN, Agreement, Decision
from gemmill.tuner.peers import peers_of
from gemmill.tuner.record import Entry, Record
from gemmill.tuner.sweep import runs_of, variants_only
from gemmill.tuner.tables import decide_all
from gemmill.tuner.workloads import Workload
from gemmill.writing import write_whole

TEMPLATE = "report/report.html.jinja"
CEILINGS = {"NVIDIA H200": (4.21e12, {8: 1.979e15, 16: 0.9895e15})}
"""Bytes a second (measured: copying through torch), and operations a second by bits of the operands (data sheet,
dense), by device. Narrower operands run at the rate of the next wider ones at best.
"""
PEER_KINDS = ("peer1", "peer2", "peer3", "peer4")
WINNER_COLOURS = tuple(f"k{i}" for i in range(1, 9))
"""The template's CSS classes of the kinds of variants that won. With more kinds they begin again."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One workload as the report shows it."""

    workload: Workload
    decision: Decision
    peers: Mapping[str, float]
    """Medians in microseconds of the contenders that compute the same."""
    floor_us: float | None
    """The roofline's microseconds. None for a device with unknown ceilings."""

    @property
    def tuning(self) -> Tuning:
        """The tuning of the workload's family."""
        return REGISTRY.measured[self.workload.op][1]

    @property
    def sweep(self) -> Sweep:
        """The same."""
        return REGISTRY.measured[self.workload.op][2]

    @property
    def us(self) -> float:
        """Of the choice."""
        return self.decision.us[self.decision.chosen]

    @property
    def ratio(self) -> float | None:
        """How much longer the best peer takes."""
        return min(self.peers.values()) / self.us if self.peers else None


def write_report(
    record: Record, path: Path, *, repeats: int = 1, margin: float = MARGIN, agreements: Sequence[Agreement] = ()
) -> None:
    """Write the report of a journal's record, whole or not at all. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, report_text(record, repeats=repeats, margin=margin, agreements=agreements))


def report_text(
    record: Record, *, repeats: int = 1, margin: float = MARGIN, agreements: Sequence[Agreement] = ()
) -> str:
    """The HTML of a record."""
    shapes = shapes_of(record, repeats, margin)
    entries = list(record.entries.values())
    tunings = [tuning for name, tuning in REGISTRY.tunings.items() if any(s.workload.family == name for s in shapes)]
    kinds = {
        name: PEER_KINDS[i % len(PEER_KINDS)] for i, name in enumerate(sorted({n for s in shapes for n in s.peers}))
    }
    colours, numbers = _colours(shapes), _numbers(shapes)
    faults = [
        {"workload": str(workload), "name": name, "fault": finding.fault.value, "detail": finding.detail}
        for workload, found in sorted(record.faults.items())
        for name, finding in sorted(found.items())
    ]
    return (
        environment()
        .get_template(TEMPLATE)
        .render(
            setup=record.setup,
            command=record.begun_by[0],
            commit=record.begun_by[1],
            dates=_dates(entries),
            sizes=" / ".join(" x ".join(name.upper() for name in tuning.sizes) for tuning in tunings),
            steps=" or ".join(dict.fromkeys(tuning.bucketed.upper() for tuning in tunings)),
            facts=_facts(record, shapes, entries),
            peers=kinds,
            winner_kinds={colour: words for words, colour in colours.items()},
            maps=[
                (op, *_axes(members[0].tuning), _map(members, colours, numbers))
                for op in REGISTRY.measured
                if (members := [s for s in shapes if s.workload.op == op])
            ],
            charts=_charts(shapes, kinds),
            shares=_shares(shapes),
            rows=[_row(shape, numbers) for shape in shapes],
            variants=[_variant(name, number, shapes) for name, number in numbers.items()],
            faults=faults,
            errors=[(str(e.outcome.workload), e.outcome.error) for e in entries if e.outcome.error],
            agreements=agreements,
            has_floor=any(s.floor_us for s in shapes),
        )
    )


def environment() -> jinja2.Environment:
    """The environment of templates that make HTML."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates_dir()),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def shapes_of(record: Record, repeats: int, margin: float) -> list[Shape]:
    """Every workload of which a variant was timed, in order."""
    shapes = []
    for workload, entries in sorted(runs_of(record, repeats).items()):
        if (decision := decide_all(entries, margin)) is not None:
            shapes.append(
                Shape(
                    workload=workload, decision=decision, peers=_peers(entries), floor_us=_floor(workload, entries[-1])
                )
            )
    return shapes


def _peers(entries: Sequence[Entry]) -> dict[str, float]:
    lacking = {peer.name for entry in entries for peer in peers_of(entry.outcome.workload.family) if not peer.complete}
    rounds: dict[str, list[float]] = {}
    for entry in entries:
        variants = variants_only(entry.outcome.rounds_us)
        for name, us in entry.outcome.rounds_us.items():
            if name not in variants and name not in lacking and us:
                rounds.setdefault(name, []).extend(us)
    return {name: statistics.median(us) for name, us in sorted(rounds.items())}


def _floor(workload: Workload, entry: Entry) -> float | None:
    ceilings = CEILINGS.get(entry.outcome.device.get("gpu") or "")
    if ceilings is None:
        return None
    bandwidth, operations = ceilings
    fastest = next((rate for bits, rate in operations.items() if bits >= workload.operand_bits), None)
    return None if fastest is None else max(workload.bytes / bandwidth, workload.flops / fastest) * 1e6


def _facts(record: Record, shapes: Sequence[Shape], entries: Sequence[Entry]) -> list[tuple[str, str]]:
    ratios = [s.ratio for s in shapes if s.ratio]
    seconds = sum(e.outcome.seconds for e in entries)
    checking = sum(e.outcome.checking_seconds for e in entries)
    clocks = [e.outcome.state["clocks.sm"]["median"] for e in entries if "clocks.sm" in e.outcome.state]
    held = sorted({reason for e in entries for reason, share in e.outcome.state.get("throttled", {}).items() if share})
    facts = [
        ("shapes", str(len(shapes))),
        ("variants tried", str(len({name for e in entries for name in variants_only(e.outcome.rounds_us)}))),
        ("faults", str(sum(map(len, record.faults.values())))),
        ("ties", str(sum(len(s.decision.tied) > 1 for s in shapes))),
        ("choices that change", str(sum(s.decision.replaces for s in shapes))),
        ("measured in", f"{seconds:.0f} s, {checking / seconds:z.0%} checking" if seconds else "-"),
    ]
    if ratios:
        facts.append(("over the best peer", f"{statistics.geometric_mean(ratios):.3f} (worst {min(ratios):.3f})"))
    if clocks:
        facts.append(
            (
                "SM clock",
                f"{min(clocks):.0f} to {max(clocks):.0f} MHz" + (f", held by {', '.join(held)}" if held else ""),
            )
        )
    return facts


def _dates(entries: Sequence[Entry]) -> str:
    """The days on which it was measured."""
    days = sorted({entry.date[:10] for entry in entries})
    return " to ".join(dict.fromkeys([days[0], days[-1]])) if days else "nothing was measured"


def _colours(shapes: Sequence[Shape]) -> dict[str, str]:
    """The colour of each kind of variant that won, by the words for the kind."""
    won = dict.fromkeys(_kind(shape)[0] for shape in shapes)
    return {words: WINNER_COLOURS[i % len(WINNER_COLOURS)] for i, words in enumerate(won)}


def _numbers(shapes: Sequence[Shape]) -> dict[str, int]:
    """The numbers of the variants that won, from 1. Texts of shapes have them in place of names, which are long."""
    return {name: i + 1 for i, name in enumerate(dict.fromkeys(shape.decision.chosen for shape in shapes))}


def _kind(shape: Shape) -> tuple[str, str]:
    """The kind of a shape's winner in words, and the text of its square."""
    kind, text = shape.sweep.shown(parse_name(shape.decision.chosen))
    return shape.sweep.kinds[kind], text


def _map(shapes: Sequence[Shape], colours: Mapping[str, str], numbers: Mapping[str, int]) -> dict[str, Any]:
    cells = {}
    for shape in shapes:
        words, text = _kind(shape)
        cells[_weight(shape.workload), shape.workload.step] = Cell(
            kind=colours[words], text=text, title=f"{shape.us:.2f} us, variant {numbers[shape.decision.chosen]}"
        )
    rows = list(dict.fromkeys(_weight(shape.workload) for shape in shapes))
    return winner_map(rows, sorted({shape.workload.step for shape in shapes}), cells)


def _axes(tuning: Tuning) -> tuple[str, str]:
    """The axes of a map."""
    return " x ".join(name.upper() for name in tuning.near), tuning.bucketed.upper()


def _weight(workload: Workload) -> str:
    return " x ".join(map(str, workload.weights.values()))


def _shares(shapes: Sequence[Shape]) -> list[dict[str, Any]]:
    """The charts of each class of calls. They show the best peer's time and the roofline as shares of our own time."""
    charts = []
    for op in REGISTRY.measured:
        members = [shape for shape in shapes if shape.workload.op == op]
        peers = [(s.workload.step, s.ratio) for s in members if s.ratio]
        floor = [(s.workload.step, s.floor_us / s.us) for s in members if s.floor_us]
        told = {"best peer / own": ("peer1", peers), "roofline / own": ("own", floor)}
        lines = [Line(name=name, kind=kind, points=points) for name, (kind, points) in told.items() if points]
        if lines:
            step = members[0].tuning.bucketed.upper()
            charts.append(log_chart(op, lines, step, "", marks=RATIOS) | {"told": ()})
    return charts


def _charts(shapes: Sequence[Shape], kinds: Mapping[str, str]) -> list[dict[str, Any]]:
    by_weight: dict[tuple[str, str], list[Shape]] = {}
    for shape in shapes:
        told = ", ".join(f"{name.upper()} {size}" for name, size in shape.workload.weights.items())
        by_weight.setdefault((shape.workload.op, told), []).append(shape)
    charts = []
    for (op, weights), members in by_weight.items():
        lines = [Line(name="gemmill", kind="own", points=[(s.workload.step, s.us) for s in members])]
        for peer, kind in kinds.items():
            points = [(s.workload.step, s.peers[peer]) for s in members if peer in s.peers]
            if points:
                lines.insert(0, Line(name=peer, kind=kind, points=points))
        floor = [(s.workload.step, s.floor_us) for s in members if s.floor_us]
        if floor:
            lines.insert(0, Line(name="roofline", kind="floor", points=floor))
        step = members[0].tuning.bucketed.upper()
        told = [
            f"{line.name}, us by {step}: {', '.join(f'{x:g}: {_short(y)}' for x, y in line.points)}" for line in lines
        ]
        charts.append(log_chart(f"{op} {weights}", lines, step, "us") | {"told": told})
    return charts


def _short(us: float) -> str:
    """Three digits, or all before the point."""
    return f"{us:.3g}" if us < 1000 else f"{us:.0f}"


def _row(shape: Shape, numbers: Mapping[str, int]) -> dict[str, Any]:
    decision = shape.decision
    runner_up = decision.ranked[1] if len(decision.ranked) > 1 else None
    return {
        "op": shape.workload.op,
        "shape": shape.workload.shape,
        "us": f"{shape.us:.2f}",
        "margin": "-" if runner_up is None else f"{decision.us[runner_up] / shape.us - 1:+z.1%}",
        "tied": len(decision.tied),
        "ratio": "-" if shape.ratio is None else f"{shape.ratio:.3f}",
        "behind": shape.ratio is not None and shape.ratio < 1,
        "floor": "-" if shape.floor_us is None else f"{shape.floor_us / shape.us:z.0%}",
        "change": "new" if decision.replaces else "",
        "variant": numbers[decision.chosen],
    }


def _variant(name: str, number: int, shapes: Sequence[Shape]) -> dict[str, Any]:
    return {
        "number": number,
        "name": name,
        "shapes": sum(shape.decision.chosen == name for shape in shapes),
        "compiler": REGISTRY.kernels_of(parse_name(name)).compiler.value,
    }
