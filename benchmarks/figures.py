"""The tables of docs/figures.md and its pictures, of one comparison of scaled GEMMs.

    python benchmarks/figures.py benchmarks/results/scaled_mm-comparison-h200-2026-11-22.json.xz

Writes the page between its two marks, and two pictures in docs/images: ratios to the best peer, which the README has,
and shares of the roofline. A test holds all to the result that is named there.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from gemmill.writing import write_whole
from harness import plot
from harness.results import SUBJECT, shape_of
from harness.stored import read_result

ROOT = Path(__file__).resolve().parents[1]
PAGE, IMAGES = ROOT / "docs" / "figures.md", ROOT / "docs" / "images"
PICTURES = {"peers.svg": plot.drawn, "roofline.svg": plot.rooflines}
BEGIN, END = "<!-- made by benchmarks/figures.py -->", "<!-- end -->"
OPS = {
    "fp8": ("e4m3, per token x per channel, to bf16", ("vllm", "torch row-wise", "torch tensor-wise")),
    "fp8_groups": ("e4m3, scales in groups 1 x 128 and 128 x 128", ("vllm", "deepgemm")),
    "int8": ("int8, per token x per channel", ("vllm",)),
    "int8_azp": ("int8 with zero points", ("vllm",)),
    "bf16": ("bf16 without scales", ("torch mm",)),
}
"""The compared operands, and the peers with the same arithmetic, of which one is the best peer."""
_ROOFLINE = (
    "The roofline is the least time in which an H200 moves a call's bytes and multiplies its operands: it copies 4.21 TB/s (measured) "
    "and multiplies 1,979 TFLOP/s of 8 bits (data sheet). Reads can be faster than copies, so a share may exceed 1."
)
NAMES = {"vllm": "vLLM", "deepgemm": "DeepGEMM", "torch mm": "torch (cuBLAS)"}


def tables(record: dict, source: str) -> str:
    """Markdown of all tables. `source` is the result's path in the repository."""
    told = (
        f"One run made these tables: [JSON](../{source}), torch {record['environment']['torch']}, build "
        f"`{record['build']['id']}`. Times are microseconds, less is better. Bold is the best peer: the fastest next to gemmill, round by round."
    )
    pictures = (
        "![How much longer the best peer takes, for each measured shape](images/peers.svg)",
        "![The share of the roofline, for each measured shape](images/roofline.svg)",
    )
    parts = [told, "\n".join(_summary(record)), pictures[0], _ROOFLINE, pictures[1]]
    parts += ["\n".join(_times(record, op)) for op in OPS if any(row["op"] == op for row in record["rows"])]
    return "\n\n".join([*parts, "\n".join(_host(record))])


def _run(record: dict) -> str:
    """Device, date and commit, as heads of tables have them."""
    return f"{record['environment']['gpu']}, {record['date'][:10]}, {record['commit'][:7]}"


def _summary(record: dict) -> Iterator[str]:
    yield f"| {_run(record)}: best peer's time / gemmill's, more is better, geometric mean | M up to 128 | above | worst |"
    yield "| --- | --- | --- | --- |"
    for op, (what, _) in OPS.items():
        sides = {part["side"]: part for part in record["summary"] if part["op"] == op and part["shapes"]}
        if sides:
            worst = min(sides.values(), key=lambda part: part["worst_ratio"])
            means = [
                f"{sides[side]['geometric_mean']:.3f}" if side in sides else "-" for side in ("M <= 128", "M > 128")
            ]
            yield f"| {what} | {' | '.join(means)} | {worst['worst_ratio']:.3f} at {' x '.join(map(str, worst['worst_shape']))} |"


def _times(record: dict, op: str) -> Iterator[str]:
    what, peers = OPS[op]
    names = [NAMES.get(peer, peer) for peer in peers]
    yield f"| {_run(record)}: {what}: M x N x K | {SUBJECT} | {' | '.join(names)} |"
    yield "| --- " * (2 + len(peers)) + "|"
    for row in sorted((row for row in record["rows"] if row["op"] == op), key=shape_of):
        best = row["best_peer"]
        cells = [_us(row, SUBJECT), *(f"**{_us(row, p)}**" if p == best else _us(row, p) for p in peers)]
        yield f"| {' x '.join(map(str, shape_of(row)))} | {' | '.join(cells)} |"


def _us(row: dict, name: str) -> str:
    found = row["contenders"].get(name)
    return "-" if found is None else _number(found["median_us"])


def _number(us: float) -> str:
    return f"{us:.0f}" if us >= 100 else f"{us:.1f}"


def _host(record: dict) -> Iterator[str]:
    peers = list(dict.fromkeys(peer for _, peers in OPS.values() for peer in peers))
    yield f"| {_run(record)}: host time of a call through `.default`, us | {SUBJECT} | {' | '.join(NAMES.get(peer, peer) for peer in peers)} |"
    yield "| --- " * (2 + len(peers)) + "|"
    for op, (what, _) in OPS.items():
        if taken := record["host"].get(op):
            cells = [f"{taken[name]['median_us']:.1f}" if name in taken else "-" for name in (SUBJECT, *peers)]
            yield f"| {what} | {' | '.join(cells)} |"


def page(text: str, record: dict, source: str) -> str:
    """The page with new tables. Raises ValueError where a mark is missing."""
    before, _, rest = text.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"the page lacks {BEGIN} or {END}: put the tables between them")
    return f"{before}{BEGIN}\n\n{tables(record, source)}\n\n{END}{after}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Write page and picture. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    path = parser.parse_args(arguments).result.resolve()
    record = read_result(path)
    write_whole(PAGE, page(PAGE.read_text(encoding="utf-8"), record, path.relative_to(ROOT).as_posix()))
    for name, draw in PICTURES.items():
        write_whole(IMAGES / name, draw(record) or "")
    return 0


if __name__ == "__main__":
    sys.exit(main())
