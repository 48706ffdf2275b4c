"""The verdict on shapes that nobody tuned: against the best peer, against the fastest loaded variant, and in the order of M."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gemmill.families.scaled_mm.sweep import MeasuredOp
from harness.results import DECODE_ROWS
from harness.statistics import geometric_mean

FEW, MANY, MIDDLE = f"M <= {DECODE_ROWS}", f"M > {DECODE_ROWS}", "160 <= M <= 700"
SIDES: dict[str, Callable[[int], bool]] = {
    FEW: lambda m: m <= DECODE_ROWS,
    MANY: lambda m: m > DECODE_ROWS,
    MIDDLE: lambda m: 160 <= m <= 700,
}
"""Which numbers of rows a figure is of; MIDDLE is a part of MANY."""
OTHER_SCALES = ("torch tensor-wise",)
"""Peers with fewer scales than the op's: they count among all peers, not among those with the same scales."""
SHOWN = 8
"""Of the worst cases."""


@dataclass(frozen=True, kw_only=True)
class Goal:
    """The goals of a side of a class, at shapes that nobody tuned."""

    ratio: float
    """Geometric mean over the best peer."""
    worst: float
    same_scales: float | None = None
    """Geometric mean over the best peer with the same scales."""


GOALS: dict[str, dict[str, Goal]] = {
    MeasuredOp.FP8: {
        FEW: Goal(ratio=1.10, worst=0.93, same_scales=1.30),
        MANY: Goal(ratio=1.02, worst=0.90, same_scales=1.20),
        MIDDLE: Goal(ratio=1.05, worst=0.92),
    },
    MeasuredOp.FP8_GROUPS: {FEW: Goal(ratio=1.22, worst=0.95), MANY: Goal(ratio=1.06, worst=0.93)},
    MeasuredOp.BF16: {FEW: Goal(ratio=1.06, worst=0.93), MANY: Goal(ratio=1.00, worst=0.92)},
    MeasuredOp.INT8: {FEW: Goal(ratio=1.37, worst=0.95), MANY: Goal(ratio=1.34, worst=0.95)},
}
"""Of scaled GEMMs, by class and side. MIDDLE is a side of the classes alone that have a goal for it."""
GOALS_OF = "scaled_mm"
"""The family of these classes: others have classes of the same names."""
LEAST_RATIO, LOW_RATIO = 0.93, 0.97
MEAN_REGRET, MOST_REGRET = 0.02, 0.12
MOST_STEP = 1.05
"""No M takes more than so many times the time of any larger M."""


def goals_of(family: str, op: str) -> Mapping[str, Goal]:
    """The goals of a family's class by side; none where there are none."""
    return GOALS.get(op, {}) if family == GOALS_OF else {}


def class_record(
    op: str, shapes: Sequence[Mapping[str, Any]], ladders: Sequence[Mapping[str, Any]], family: str = GOALS_OF
) -> dict[str, Any]:
    """The figures of a class: of shapes that count, and of ladders of M."""
    modelled = [row for row in shapes if _counted(row)]
    sides = {
        label: side_record([row for row in modelled if takes(row[row["sizes"][0]] if "sizes" in row else row["m"])])
        for label, takes in SIDES.items()
        if label in (FEW, MANY) or label in goals_of(family, op)
    }
    steps = [step for ladder in ladders if (step := worst_step(ladder["rungs"])) is not None]
    return {
        "op": op,
        "shapes": len(modelled),
        "not_the_models": len(shapes) - len(modelled),
        "sides": sides,
        "all": side_record(modelled),
        "ladders": len(ladders),
        "only": only_record([row["only"] for row in shapes if "only" in row]),
        "worst_step": max((step["ratio"] for step in steps), default=None),
        "steps": [
            {"n": ladder["n"], "k": ladder["k"], **step}
            for ladder in ladders
            if (step := worst_step(ladder["rungs"])) is not None
        ],
    }


def side_record(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Ratios and regret of some shapes."""
    compared = [row for row in rows if row["ratio"] is not None]
    judged = [row["regret"] for row in rows if row["regret"] is not None]
    ratios = [row["ratio"] for row in compared]
    return {
        "shapes": len(rows),
        "compared": len(compared),
        "ratio": _rounded(geometric_mean(ratios)),
        "worst": _rounded(min(ratios, default=None)),
        f"under_{LEAST_RATIO}": sum(ratio < LEAST_RATIO for ratio in ratios),
        f"under_{LOW_RATIO}": sum(ratio < LOW_RATIO for ratio in ratios),
        "same_scales": same_scales_record(compared),
        "fastest_variant_ratio": _rounded(
            geometric_mean([row["ratio"] * (1 + row["regret"]) for row in compared if row["regret"] is not None])
        ),
        "regret": _rounded(statistics.fmean(judged)) if judged else None,
        "worst_regret": _rounded(max(judged, default=None)),
    }


def same_scales_record(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Ratios to the best peer with the same scales; None where no peer has others."""
    ratios = [row.get("ratios", {}) for row in rows]
    if not any(name in found for found in ratios for name in OTHER_SCALES):
        return None
    same = [{name: ratio for name, ratio in found.items() if name not in OTHER_SCALES} for found in ratios]
    least = [min(found.values()) for found in same if found]
    return {
        "compared": len(least),
        "ratio": _rounded(geometric_mean(least)),
        "worst": _rounded(min(least, default=None)),
        "peers": sorted({name for found in same for name in found}),
    }


def only_record(rows: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """What some variants alone lose; None where that was not asked. A row is None where none of them was timed."""
    if not rows:
        return None
    losses = [row["loss"] for row in rows if row is not None]
    mean = geometric_mean([1 + loss for loss in losses])
    return {
        "shapes": len(losses),
        "without": len(rows) - len(losses),
        "loss": None if mean is None else _rounded(mean - 1),
        "worst": _rounded(max(losses, default=None)),
    }


def worst_step(rungs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The M that takes longest in proportion to a larger one, and the two choices; None of less than two."""
    pairs = [(low, high) for i, low in enumerate(rungs) for high in rungs[i + 1 :]]
    if not pairs:
        return None
    low, high = max(pairs, key=lambda pair: pair[0]["us"] / pair[1]["us"])
    return {"ratio": round(low["us"] / high["us"], 4), "low": dict(low), "high": dict(high)}


def verdict_text(
    classes: Iterable[Mapping[str, Any]], shapes: Sequence[Mapping[str, Any]], family: str = GOALS_OF
) -> str:
    """All of it for a reader: figures, goals, worst cases with their names."""
    lines: list[str] = []
    for found in classes:
        of_class = [row for row in shapes if row["op"] == found["op"] and _counted(row)]
        lines += [
            *_figures(found, goals_of(family, found["op"])),
            *_worst_ratios(of_class),
            *_worst_regrets(of_class),
            *_steps(found["steps"]),
        ]
        lines += _only(found["only"], [row for row in shapes if row["op"] == found["op"] and row.get("only")])
    return "\n".join(lines)


def _only(found: Mapping[str, Any] | None, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    if not found:
        return []
    lines = [f"no variant of --only takes {found['without']} shapes"] if found["without"] else []
    if found["shapes"]:
        lines.append(
            f"--only: {found['loss']:.1%} behind the best of all in the mean of {found['shapes']}, {found['worst']:.1%} at worst"
        )
    worst = sorted(rows, key=lambda row: -row["only"]["loss"])[:SHOWN]
    return lines + [
        f"  +{row['only']['loss']:.0%} at {_shape(row)}: {row['only']['variant']}; fastest {row['only']['fastest']}"
        for row in worst
        if row["only"]["loss"]
    ]


def _figures(found: Mapping[str, Any], goals: Mapping[str, Goal]) -> list[str]:
    lines = [f"== {found['op']}: {found['shapes']} shapes, {found['ladders']} ladders"]
    for label, side in found["sides"].items():
        goal = goals.get(label)
        if side["compared"]:
            lines.append(
                f"{label}: {side['ratio']:.3f} of the best peer{_of(goal and goal.ratio)}, worst {side['worst']:.2f}{_of(goal and goal.worst)}, "
                f"{side[f'under_{LEAST_RATIO}']} under {LEAST_RATIO}, {side[f'under_{LOW_RATIO}']} under {LOW_RATIO} "
                f"of {side['compared']}{_fastest(side)}"
            )
        if (same := side["same_scales"]) and same["compared"]:
            lines.append(
                f"{label}: {same['ratio']:.3f} of the best peer with the same scales{_of(goal and goal.same_scales)}, worst {same['worst']:.2f} "
                f"of {same['compared']}: {', '.join(same['peers'])}"
            )
        if side["regret"] is not None:
            lines.append(f"{label}: the choice is {side['regret']:.1%} slower than the fastest variant")
    if (whole := found["all"])["regret"] is not None:
        lines.append(
            f"regret: {whole['regret']:.1%} in the mean (goal {MEAN_REGRET:.0%}), {whole['worst_regret']:.1%} at worst "
            f"(goal {MOST_REGRET:.0%})"
        )
    if found["worst_step"] is not None:
        lines.append(f"no M takes more than {found['worst_step']:.2f} times a larger M (goal {MOST_STEP})")
    return lines


def _fastest(side: Mapping[str, Any]) -> str:
    ratio = side["fastest_variant_ratio"]
    return "" if ratio is None else f"; the fastest variant {ratio:.3f}"


def _of(goal: float | None) -> str:
    return "" if goal is None else f" (goal {goal})"


def _worst_ratios(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    compared = sorted((row for row in rows if row["ratio"] is not None), key=lambda row: row["ratio"])[:SHOWN]
    return [
        f"  {row['ratio']:.2f} at {_shape(row)}: {row['us']:.2f} us by {row['choice']}; {row['best_peer']} "
        f"{row['us'] * row['ratio']:.2f}"
        for row in compared
        if row["ratio"] < 1
    ]


def _worst_regrets(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    judged = sorted((row for row in rows if row["regret"]), key=lambda row: -row["regret"])[:SHOWN]
    return [
        f"  +{row['regret']:.0%} at {_shape(row)}: {row['us']:.2f} us by {row['choice']}; fastest {row['fastest']}"
        for row in judged
    ]


def _steps(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        f"  {step['ratio']:.2f} at {step['n']} x {step['k']}: M of {step['low']['m']} takes {step['low']['us']:.2f} us by "
        f"{step['low']['choice']}; {step['high']['m']} {step['high']['us']:.2f} by {step['high']['choice']}"
        for step in steps
    ]


def _counted(row: Mapping[str, Any]) -> bool:
    """Whether a shape is judged: of classes with tables where the choice is the model's, of others always."""
    counted: bool = row.get("counted", row["trust"] == "model")
    return counted


def _shape(row: Mapping[str, Any]) -> str:
    return str(row["call"]).removeprefix(f"{row['op']} ") if "call" in row else f"{row['m']} x {row['n']} x {row['k']}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
