#!/usr/bin/env python3
"""The picture of the README: how much longer the best peer takes, for each shape of a comparison, over M.

    tools/draw_peers.py benchmarks/results/scaled_mm-comparison-h200-2026-11-22.json > docs/images/peers.svg

Plain SVG without a library: the same results give the same bytes, which a test compares.
"""

import json
import math
import sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 330, 56, 16, 64, 46
CLASSES = {
    "fp8": ("FP8, per token and channel", "#0a8f80"),
    "fp8_groups": ("FP8, groups of 128", "#c2570c"),
    "int8": ("INT8", "#3566d6"),
    "int8_azp": ("INT8, zero points", "#7c5fd3"),
    "bf16": ("bf16", "#8a8f98"),
}
"""Of calls: what the legend says, and a colour that is told from the others on white and on black."""
RATIOS = (0.9, 1.0, 1.2, 1.5, 2.0, 3.0)


def drawn(record: dict) -> str:
    """The SVG of a comparison's record."""
    shapes = [(row["op"], row["m"], row["n"], row["k"], row["ratio"], row["best_peer"]) for row in record["rows"]]
    low, high = min(s[1] for s in shapes), max(s[1] for s in shapes)
    ratios = [s[4] for s in shapes]
    bottom, top = math.log(min(RATIOS[0], *ratios)), math.log(1.05 * max(ratios))

    def across(m: int) -> float:
        return round(LEFT + 26 + (WIDTH - LEFT - RIGHT - 52) * math.log(m / low) / math.log(high / low), 1)

    def down(ratio: float) -> float:
        share = (math.log(ratio) - bottom) / (top - bottom)
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share, 1)

    told = f"{record['environment']['gpu']}, {record['date'][:10]}, commit {record['commit'][:7]}"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f"<title>Time of the best peer over gemmill's, {len(shapes)} shapes: {told}</title>",
        f'<text x="8" y="18" fill="#7d838c" font-size="13">Time of the best peer / time of gemmill; each dot is a shape. {told}</text>',
    ]
    for i, (label, colour) in enumerate(CLASSES.values()):
        x = 14 + sum(len(text) * 6.6 + 34 for text, _ in list(CLASSES.values())[:i])
        lines.append(f'<circle cx="{x:.0f}" cy="40" r="5" fill="{colour}"/>')
        lines.append(f'<text x="{x + 10:.0f}" y="44" fill="#7d838c">{label}</text>')
    for ratio in (ratio for ratio in RATIOS if math.log(ratio) < top):
        y, even = down(ratio), ratio == 1.0
        lines.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="#8a8f98" stroke-opacity="{0.9 if even else 0.3}"/>'
        )
        lines.append(f'<text x="{LEFT - 8}" y="{y + 4}" fill="#7d838c" text-anchor="end">{ratio:g}</text>')
    for m in sorted({s[1] for s in shapes}):
        lines.append(f'<text x="{across(m)}" y="{HEIGHT - 24}" fill="#7d838c" text-anchor="middle">{m}</text>')
    lines.append(
        f'<text x="{WIDTH / 2:.0f}" y="{HEIGHT - 6}" fill="#7d838c" text-anchor="middle">rows of activations, M</text>'
    )
    for op, m, n, k, ratio, peer in sorted(shapes):
        beside = 8 * (list(CLASSES).index(op) - 2)  # so that classes do not hide one another
        lines.append(
            f'<circle cx="{across(m) + beside:.1f}" cy="{down(ratio)}" r="5" fill="{CLASSES[op][1]}" fill-opacity="0.8">'
            f"<title>{CLASSES[op][0]}: {m} x {n} x {k}, {ratio:.2f} of {peer}</title></circle>"
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(drawn(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))
