"""From measurements of quantisation ops to the record that is kept, the table that is printed and the plot."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from gemmill.tune.statistics import geometric_mean, paired_ratio
from harness.measuring import Measurement
from harness.quant_problems import QuantProblem
from harness.results import SUBJECT, sample_record

PEER = "vllm"
LARGE_BYTES = 64e6
"""From here on the speed of memory is what counts."""
LAUNCH_BOUND_BYTES = 1.25e6
"""Up to here the launch is."""
TARGET_FRACTION = 0.88


def row_record(measurement: Measurement, copy_gbps: float) -> dict[str, object]:
    """One problem's row: times, gemmill's ratio to vLLM (above 1 is faster), and its share of the copy bandwidth."""
    problem, samples = measurement.problem, measurement.samples
    assert isinstance(problem, QuantProblem)
    record: dict[str, object] = {
        "case": problem.case_name,
        "m": problem.m,
        "hidden": problem.hidden,
        "bytes": problem.bytes,
        "contenders": {name: sample_record(found) for name, found in samples.items()},
        "failures": measurement.failures,
        "ratio": None,
        "gbps": None,
        "fraction": None,
    }
    if SUBJECT in samples:
        gbps = problem.bytes / samples[SUBJECT].median_us / 1e3
        record |= {"gbps": round(gbps, 1), "fraction": round(gbps / copy_gbps, 4)}
        if PEER in samples:
            record["ratio"] = round(paired_ratio(samples[PEER], samples[SUBJECT]), 4)
    return record


def summary_record(rows: Iterable[dict]) -> list[dict[str, object]]:
    """For each case: mean and worst ratio to vLLM, the least fraction of bandwidth of large data, the longest small call."""
    cases: dict[str, list[dict]] = {}
    for row in rows:
        if row["gbps"] is not None:
            cases.setdefault(row["case"], []).append(row)
    summary = []
    for case, members in cases.items():
        ratios = [row for row in members if row["ratio"] is not None]
        large = [row for row in members if row["bytes"] >= LARGE_BYTES]
        small = [row for row in members if row["bytes"] <= LAUNCH_BOUND_BYTES]
        worst = min(ratios, key=lambda row: row["ratio"], default=None)
        slowest = min(large, key=lambda row: row["fraction"], default=None)
        longest = max(small, key=_us, default=None)
        mean = geometric_mean([row["ratio"] for row in ratios])
        summary.append(
            {
                "case": case,
                "shapes": len(members),
                "geometric_mean": mean and round(mean, 4),
                "worst_ratio": worst and worst["ratio"],
                "worst_shape": worst and _shape(worst),
                "least_fraction": slowest and slowest["fraction"],
                "least_fraction_shape": slowest and _shape(slowest),
                "longest_small_us": longest and _us(longest),
                "longest_small_shape": longest and _shape(longest),
            }
        )
    return summary


def _us(row: dict) -> float:
    return row["contenders"][SUBJECT]["median_us"]


def _shape(row: dict) -> list[int]:
    return [row["m"], row["hidden"]]


def table(rows: Sequence[dict], names: Sequence[str]) -> str:
    """Times of all contenders by case and shape, as plain text: microseconds, "-" for none."""
    lines, case = [], None
    for row in rows:
        if row["case"] != case:
            case = row["case"]
            lines.append(f"{case:<46}" + "".join(f"{name[-16:]:>17}" for name in names) + "   ratio    GB/s  of copy")
        cells = "".join(f"{_cell(row, name):>17}" for name in names)
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.3f}"
        shares = ("-", "-") if row["gbps"] is None else (f"{row['gbps']:.0f}", f"{row['fraction']:.1%}")
        lines.append(f"{row['m']:>8} x {row['hidden']:<35}{cells}{ratio:>8}{shares[0]:>8}{shares[1]:>9}")
    return "\n".join(lines)


def _cell(row: dict, name: str) -> str:
    if name in row["failures"]:
        return "failed"
    found = row["contenders"].get(name)
    return "-" if found is None else f"{found['median_us']:.2f}"


def summary_text(summary: Sequence[dict], host: dict[str, dict]) -> str:
    """The figures in a line for each case."""
    lines = []
    for part in summary:
        parts = []
        if part["geometric_mean"] is not None:
            parts.append(f"{part['geometric_mean']:.2f} of vllm, worst {part['worst_ratio']:.2f} {part['worst_shape']}")
        if part["least_fraction"] is not None:
            parts.append(f"large data at least {part['least_fraction']:.1%} {part['least_fraction_shape']}")
        if part["longest_small_us"] is not None:
            parts.append(f"small at most {part['longest_small_us']:.2f} us {part['longest_small_shape']}")
        times = ", ".join(f"{name} {found['median_us']:.2f}" for name, found in host.get(part["case"], {}).items())
        if times:
            parts.append(f"host us: {times}")
        lines.append(f"{part['case']}: {'; '.join(parts)}")
    return "\n".join(lines)


def draw(rows: Sequence[dict], copy_gbps: float, title: str, path: Path) -> bool:
    """Draw the fraction of the copy bandwidth over the size of the data. False where matplotlib is missing."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    from matplotlib import pyplot

    cases = list(dict.fromkeys(row["case"] for row in rows))
    if not cases:
        return False
    columns = min(4, len(cases))
    height = -(-len(cases) // columns)
    figure, axes = pyplot.subplots(height, columns, figsize=(4.0 * columns, 2.8 * height), squeeze=False, sharey=True)
    for case, axis in zip(cases, axes.flat, strict=False):
        members = sorted((row for row in rows if row["case"] == case), key=lambda row: row["bytes"])
        for name, marker in ((SUBJECT, "o"), (PEER, "x")):
            points = [
                (row["bytes"], row["bytes"] / row["contenders"][name]["median_us"] / 1e3 / copy_gbps)
                for row in members
                if name in row["contenders"]
            ]
            if points:
                axis.plot(*zip(*points, strict=True), marker=marker, markersize=3, linewidth=0.8, label=name)
        axis.axhline(TARGET_FRACTION, color="black", linewidth=0.6, linestyle=":")
        axis.set_xscale("log")
        axis.set_ylim(0.0, 1.1)
        axis.set_title(case, fontsize=7)
        axis.grid(alpha=0.3)
        axis.tick_params(labelsize=7)
    for axis in list(axes.flat)[len(cases) :]:
        axis.set_visible(False)
    axes[0, 0].legend(fontsize=7)
    figure.supxlabel("bytes, each counted once", fontsize=8)
    figure.supylabel("fraction of copy bandwidth", fontsize=8)
    figure.suptitle(f"{title}, copy {copy_gbps:.0f} GB/s", fontsize=9)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot.close(figure)
    return True
