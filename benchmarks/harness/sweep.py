"""Times of every variant at every shape, in the form from which tables are chosen."""

from collections.abc import Sequence

from gemmill.tuner.choice import steady_us
from harness.measuring import Measurement


def sweep_record(measurements: Sequence[Measurement]) -> dict[str, object]:
    """Column by column: `us[i][j]` is the time of shape i and contender j without drift, None where there is none.

    `rounds[i][j]` tells full measurements from those of contenders dropped after one round.
    """
    names = sorted({name for found in measurements for name in found.samples})
    shapes, times, rounds, failures = [], [], [], []
    for found in measurements:
        samples = found.samples
        shapes.append([found.workload.kind, *found.workload.sizes.values()])
        steady = steady_us({name: taken.rounds_us for name, taken in samples.items()})
        times.append([_digits(steady[name]) if name in steady else None for name in names])
        rounds.append([len(samples[name].rounds_us) if name in samples else 0 for name in names])
        failures.append(found.failures)
    return {"contenders": names, "shapes": shapes, "us": times, "rounds": rounds, "failures": failures}


def sweep_table(
    measurements: Sequence[Measurement], subject: str, variants: Sequence[str], peers: Sequence[str]
) -> str:
    """For each shape: gemmill's own choice, the fastest variant, and the fastest peer."""
    lines = [f"{'workload':<32}{'chosen us':>10}{'best us':>10}{'peer us':>10}{'failed':>7}  fastest variant"]
    for found in measurements:
        steady = steady_us({name: taken.rounds_us for name, taken in found.samples.items()})
        best = min((name for name in variants if name in steady), key=steady.get, default=None)
        peer = min((steady[name] for name in peers if name in steady), default=None)
        cells = (steady.get(subject), steady.get(best), peer)
        numbers = "".join(f"{'-' if us is None else format(us, '.2f'):>10}" for us in cells)
        schedule = "-" if best is None else best.partition("_channel_")[2] or best
        lines.append(f"{found.workload!s:<32}{numbers}{len(found.failures):>7}  {schedule}")
    return "\n".join(lines)


def _digits(us: float) -> float:
    return float(f"{us:.4g}")
