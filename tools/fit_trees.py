"""Fit the boosted trees that correct the analytic model, and print the loss of the choice with and without them.

    git show 2150082e:benchmarks/results/samples-h200-2026-11-21.jsonl.xz > samples.jsonl.xz
    python tools/fit_trees.py benchmarks/results/{tune-boxes,nvcc}*.xz --unboxed samples.jsonl.xz --judge benchmarks/results/judge-2711303-*.xz
    python tools/fit_trees.py benchmarks/results/{tune-boxes,tune-order,judge,nvcc}*.xz --unboxed samples.jsonl.xz --write

The shipped trees were fitted to results of 795c8631, judge-9201 to 9203 and 2611272 among them; later ones took their place.

Takes journals of `gemmill tune` and benchmarks/samples.py, and results of benchmarks/judge.py. Without --judge the fitted times
themselves are judged. Weights that --judge has are left out of the fit. --write puts the trees into
generator/gemmill/families/scaled_mm/boosted.json and kernels/scaled_mm/boosted_trees.h.

Least squares of log(measured / modelled) by gradient boosting (Friedman 2001, Annals of Statistics 29), each tree with one
question a level. Most of a shape's mean error is left out of the residuals, since a choice compares the variants of one shape. Needs numpy.
"""

import argparse
import json
import lzma
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from fit_model import OF_ARRAYS, ROOT, Samples, samples_of
from table_loss import Times, read, row_of

from gemmill.families.scaled_mm import NAME
from gemmill.families.scaled_mm.boosted import FILE, LEAF, LEAST_LOG, Tree
from gemmill.families.scaled_mm.model import FITTED, is_corrected, properties_of, times_of
from gemmill.tuner.workloads import Workload, workload_of

HEADER = ROOT / "kernels/scaled_mm/boosted_trees.h"
DEPTH, TREES = 6, 140
RATE = 0.2
SHRINKAGE = 10.0
"""Weight of an answer of zero in a leaf."""
BINS = 32
NEAR = 1.6
"""Slower variants of a shape are left out."""
POWER = 4
"""A variant's weight is this power of (fastest / its time)."""
CENTRED = 0.7
"""The share of a shape's mean error that residuals leave out: 1 fits the order alone, 0 the times alone."""


@dataclass(frozen=True, kw_only=True)
class Modelled:
    """Samples with the inputs of the trees."""

    samples: Samples
    properties: np.ndarray
    """By property and sample."""
    total: np.ndarray
    """The model's nanoseconds."""


def times_in(paths: Sequence[Path], unboxed: Sequence[Path] = ()) -> Times:
    """Of journals and of the judge's results, later files over earlier ones; of `unboxed`, before all others, without the variants
    that load A in boxes today."""
    times = {
        workload: {name: t for name, t in us.items() if not is_boxed(name, workload.m)}
        for workload, us in (times_in(unboxed) if unboxed else {}).items()
    }
    for path in paths:
        of_file = read([path]) if ".jsonl" in path.name else dict(of_judge(path))
        for workload, us in of_file.items():
            if workload.family == NAME:
                times.setdefault(workload, {}).update(us)
    return times


def is_boxed(name: str, m: int) -> bool:
    facts = row_of(name).facts
    return 0 < facts.box_rows <= facts.tile_m - m


def of_judge(path: Path) -> Iterator[tuple[Workload, dict[str, float]]]:
    """Of each shape the careful times, and the sieve's in their proportion."""
    with lzma.open(path) if path.suffix == ".xz" else path.open("rb") as file:
        rows = json.load(file)["rows"]
    for row in rows:
        if "sieved_us" not in row:
            continue
        quick = {name: us for name, us in row["sieved_us"].items() if name.startswith("sm")}
        careful = {name: found["median_us"] for name, found in row["contenders"].items()}
        careful |= {row["choice"]: careful["gemmill"]} if "gemmill" in careful else {}
        shared = [careful[name] / quick[name] for name in careful if name in quick]
        factor = statistics.median(shared) if shared else 1.0
        us = {name: careful.get(name, factor * t) for name, t in quick.items()}
        yield workload_of(row["op"], {name: row[name] for name in ("m", "n", "k")}), us


def modelled(times: Times) -> Modelled:
    samples = samples_of(times)
    found = times_of(samples.terms, FITTED, OF_ARRAYS)
    properties = [np.asarray(values, dtype=float) for values in properties_of(samples.terms, found)]
    return Modelled(samples=samples, properties=np.stack(properties), total=found.total)


def thresholds_of(properties: np.ndarray) -> list[np.ndarray]:
    """Of each property: between neighbouring values where these are few, else quantiles; four digits."""
    found = []
    for values in properties:
        few = np.unique(values)
        wide = np.quantile(values, np.linspace(0, 1, BINS + 1)[1:-1])
        edges = (few[1:] + few[:-1]) / 2 if len(few) <= BINS else wide
        found.append(np.unique([float(f"{edge:.4g}") for edge in edges]))
    return found


def fitted(of: Modelled, count: int = TREES, depth: int = DEPTH) -> list[Tree]:
    ratios = of.samples.ratios
    kept = (ratios < NEAR) & is_corrected(of.samples.terms.variant)
    shape = of.samples.shape_of[kept]
    weights = ratios[kept] ** -POWER
    logs = np.log(of.samples.us[kept] * 1e3 / of.total[kept])
    edges = thresholds_of(of.properties[:, kept])
    bins = [np.searchsorted(edge, values[kept]) for edge, values in zip(edges, of.properties, strict=True)]
    of_shape = np.maximum(np.bincount(shape, weights=weights), 1e-9)
    guesses = np.zeros(len(logs))
    found = []
    for _ in range(count):
        residuals = logs - guesses
        means = np.bincount(shape, weights=weights * residuals, minlength=len(of_shape)) / of_shape
        pulls = (residuals - CENTRED * means[shape]) * weights
        questions, leaf = [], np.zeros(len(logs), dtype=int)
        for level in range(depth):
            place, edge = best_question(bins, edges, leaf, 1 << level, pulls, weights)
            questions.append((place, float(edges[place][edge])))
            leaf = 2 * leaf + (bins[place] > edge)
        pulled = np.bincount(leaf, weights=pulls, minlength=1 << depth)
        weight = np.bincount(leaf, weights=weights, minlength=1 << depth)
        leaves = np.round(RATE * pulled / (weight + SHRINKAGE) / LEAF).astype(int)
        found.append(Tree(tuple(questions), tuple(leaves.tolist())))
        guesses += leaves[leaf] * LEAF
    return found


def best_question(
    bins: Sequence[np.ndarray],
    edges: Sequence[np.ndarray],
    leaf: np.ndarray,
    leaves: int,
    pulls: np.ndarray,
    weights: np.ndarray,
) -> tuple[int, int]:
    """The property, and the place of the threshold, that explain most of the residuals in all leaves together."""
    best, gained = (0, 0), -1.0
    for place, of_place in enumerate(bins):
        width = len(edges[place]) + 1
        at = leaf * width + of_place
        pulled = np.bincount(at, weights=pulls, minlength=leaves * width).reshape(leaves, width).cumsum(1)
        weight = np.bincount(at, weights=weights, minlength=leaves * width).reshape(leaves, width).cumsum(1)
        below = pulled**2 / (weight + SHRINKAGE)
        above = (pulled[:, -1:] - pulled) ** 2 / (weight[:, -1:] - weight + SHRINKAGE)
        gains = (below + above).sum(0)[:-1]
        if len(gains) and gains.max() > gained:
            best, gained = (place, int(gains.argmax())), float(gains.max())
    return best


def corrections(of: Modelled, trees: Sequence[Tree]) -> np.ndarray:
    """The factor of each sample, as `boosted.log_of` has it."""
    total = np.zeros(len(of.total), dtype=int)
    for questions, leaves in trees:
        leaf = np.zeros(len(total), dtype=int)
        for place, threshold in questions:
            leaf = 2 * leaf + (of.properties[place] > threshold)
        total += np.array(leaves)[leaf]
    logs = np.clip(total * LEAF, LEAST_LOG, -LEAST_LOG)
    return np.exp(np.where(is_corrected(of.samples.terms.variant), logs, 0.0))


def losses(of: Modelled, trees: Sequence[Tree]) -> np.ndarray:
    """Of each workload: how much longer the first choice takes than the fastest, as a fraction."""
    guesses, starts, ratios = of.total * corrections(of, trees), of.samples.starts, of.samples.ratios
    ends = [*starts[1:], len(guesses)]
    return np.array([ratios[i + np.argmin(guesses[i:end])] - 1 for i, end in zip(starts, ends, strict=True)])


def lines(of: Modelled, trees: Sequence[Tree]) -> Iterator[str]:
    """The loss without trees and with them, by class of calls and range of M."""
    before, after = losses(of, ()), losses(of, trees)
    places = [("all", [True] * len(before))]
    for op in sorted({p.op for p in of.samples.workloads}):
        places += [
            (f"{op}, M {low} to {high}", [p.op == op and low <= p.m <= high for p in of.samples.workloads])
            for low, high in ((1, 128), (129, 1 << 31))
        ]
    for label, place in places:
        if any(place):
            found = ", ".join(
                f"{part[place].mean():.2%} in the mean, {np.quantile(part[place], 0.99):.0%} of 99 in 100, {part[place].max():.0%} at worst"
                for part in (before, after)
            )
            yield f"  {label}: {found} ({sum(place)} shapes)"


def json_of(trees: Sequence[Tree]) -> str:
    return "[\n" + ",\n".join(json.dumps(tree, separators=(",", ":")) for tree in trees) + "\n]\n"


def header_of(trees: Sequence[Tree]) -> str:
    """The mirror of the JSON in C++."""
    rows = []
    for questions, leaves in trees:
        places = ", ".join(str(place) for place, _ in questions)
        thresholds = ", ".join(repr(threshold) for _, threshold in questions)
        rows.append(f"    {{{{{places}}}, {{{thresholds}}}, {{{', '.join(map(str, leaves))}}}}},\n")
    depth = len(trees[0].questions)
    return (
        "// Written by tools/fit_trees.py, which says how. Mirrors generator/gemmill/families/scaled_mm/boosted.json.\n"
        "#pragma once\n\n#include <cstdint>\n\nnamespace gemmill {\n\n"
        "// As gemmill.families.scaled_mm.boosted.Tree: questions are a property and a threshold each.\n"
        f"constexpr int kTreeDepth = {depth};\n"
        "struct Tree {\n  int8_t properties[kTreeDepth];\n  double thresholds[kTreeDepth];\n"
        "  int16_t leaves[1 << kTreeDepth];\n};\n\n"
        "// clang-format off\nconstexpr Tree kTrees[] = {\n"
        + "".join(rows)
        + "};\n// clang-format on\n\n}  // namespace gemmill\n"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--judge", nargs="+", type=Path, default=[], help="results that nothing is fitted to")
    parser.add_argument(
        "--unboxed", nargs="+", type=Path, default=[], help="results of kernels that filled A up with zeros"
    )
    parser.add_argument("--trees", type=int, default=TREES)
    parser.add_argument("--write", action="store_true", help="put the trees into gemmill's files")
    options = parser.parse_args(arguments)
    judged = times_in(options.judge)
    weights = {(p.n, p.k) for p in judged}
    times = {p: us for p, us in times_in(options.results, options.unboxed).items() if (p.n, p.k) not in weights}
    of = modelled(times)
    found = fitted(of, options.trees)
    print(f"fitted to {len(of.total)} times of {len(of.samples.workloads)} shapes; loss without trees, with them:")
    print(*lines(modelled(judged) if judged else of, found), sep="\n")
    if options.write:
        FILE.write_text(json_of(found), encoding="utf-8")
        HEADER.write_text(header_of(found), encoding="utf-8")


if __name__ == "__main__":
    main()
