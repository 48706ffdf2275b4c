"""Fit the analytic model's constants to measured times, and print the loss of the choice with them.

    git show 2150082e:benchmarks/results/samples-h200-2026-11-21.jsonl.xz > samples.jsonl.xz
    python tools/fit_model.py samples.jsonl.xz benchmarks/results/tune-*.jsonl.xz                       # the loss today
    python tools/fit_model.py samples.jsonl.xz benchmarks/results/tune-*.jsonl.xz --evaluations 4000    # and fitted anew
    The same command with --write puts the fitted constants into both files of the model.
    python tools/fit_model.py groups32.jsonl --evaluations 400 --only promoted_latency,promoted_unit,promoted_column --write

Takes journals of `gemmill tune` and benchmarks/samples.py. A part of the weights is held out, never of the rows: the printed
loss is theirs. The loss of a shape is (time of the variant that the model puts first) / (time of the fastest timed),
less one. The fit minimises its smooth form, in which variants have chances by their modelled times, and a little of the
error of the times themselves, so that constants stay near the machine's. The method is CMA-ES (Hansen 2016,
arXiv:1604.00772) on the constants' logarithms. Needs numpy.
"""

import argparse
import math
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from table_loss import SM_COUNT, Times, read, row_of

from gemmill.families.scaled_mm import NAME
from gemmill.families.scaled_mm.model import FITTED, Arithmetic, Constants, RowFacts, Terms, terms_of, time_ns
from gemmill.space.names import parse_name
from gemmill.tuner.workloads import Workload

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "generator/gemmill/families/scaled_mm/model.py"
MIRROR = ROOT / "kernels/scaled_mm/model.cpp"
OF_ARRAYS = Arithmetic(larger=np.maximum, root=np.sqrt, pick=np.where)
FEWEST_VARIANTS = 4
"""Of a shape: of fewer nothing is learnt about a choice."""
SHARPNESS = 40.0
"""Of the chances: a variant that should take 3 % longer has a third of them."""
MOST_RATIO = 3.0
"""More than so many times the fastest is not worse, so that no single shape decides."""
NEAR = 1.5
ERROR_SHARE = 0.3
"""Of the squared logarithmic error, of variants that take up to NEAR times the fastest, in the fitted loss."""
M_RANGES = ((1, 16), (17, 32), (33, 64), (65, 128), (129, 256), (257, 512), (513, 1024), (1025, 1 << 31))


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Times and the model's inputs; those of a shape are neighbours."""

    workloads: tuple[Workload, ...]
    starts: np.ndarray
    """Where each workload's begin."""
    terms: Terms
    """Arrays."""
    us: np.ndarray
    names: tuple[str, ...]

    @property
    def shape_of(self) -> np.ndarray:
        """The index of each sample's workload."""
        return np.repeat(np.arange(len(self.workloads)), np.diff([*self.starts, len(self.us)]))

    @property
    def ratios(self) -> np.ndarray:
        """Of each time to the least of its workload."""
        return self.us / np.minimum.reduceat(self.us, self.starts)[self.shape_of]


def samples_of(times: Times) -> Samples:
    """Of this family's shapes with variants enough."""
    kept = {p: us for p, us in times.items() if p.family == NAME and len(us) >= FEWEST_VARIANTS}
    rows = [(workload, name, t) for workload, us in kept.items() for name, t in us.items()]
    *columns, variants = zip(
        *(terms_of(row_of(name), workload.call, SM_COUNT) for workload, name, _ in rows), strict=True
    )
    arrays = [[np.array(column, dtype=float) for column in found] for found in (columns, zip(*variants, strict=True))]
    counts = np.array([len(us) for us in kept.values()])
    return Samples(
        workloads=tuple(kept),
        starts=np.concatenate([[0], np.cumsum(counts)[:-1]]),
        terms=Terms(*arrays[0], RowFacts(*arrays[1])),
        us=np.array([t for _, _, t in rows]),
        names=tuple(name for _, name, _ in rows),
    )


def parts_of(times: Times, share: float, seed: int) -> tuple[Times, Times]:
    """Shapes to fit to, and those of the held-out weights, whatever their operands."""
    weights = sorted({(p.n, p.k) for p in times})
    held = set(random.Random(seed).sample(weights, round(share * len(weights))))
    fitted = {p: us for p, us in times.items() if (p.n, p.k) not in held}
    return fitted, {p: us for p, us in times.items() if (p.n, p.k) in held}


def losses(samples: Samples, constants: Constants) -> np.ndarray:
    """Of each workload: how much longer the model's first takes than the fastest, as a fraction."""
    guesses, ratios = time_ns(samples.terms, constants, OF_ARRAYS), samples.ratios
    ends = [*samples.starts[1:], len(guesses)]
    return np.array([ratios[i + np.argmin(guesses[i:end])] - 1 for i, end in zip(samples.starts, ends, strict=True)])


def objective(samples: Samples) -> Callable[[Constants], float]:
    """The loss to minimise: every class of calls counts the same at small and large M."""
    of, ratios = samples.shape_of, np.minimum(samples.ratios, MOST_RATIO)
    groups = [(p.op, p.m > 128) for p in samples.workloads]
    sizes = {group: groups.count(group) for group in set(groups)}
    weights = np.array([1 / sizes[group] / len(sizes) for group in groups])
    near = ratios <= NEAR
    logs = np.log(samples.us)

    def value(constants: Constants) -> float:
        guesses = np.log(time_ns(samples.terms, constants, OF_ARRAYS) / 1e3)
        chances = np.exp(-SHARPNESS * (guesses - np.minimum.reduceat(guesses, samples.starts)[of]))
        chances /= np.add.reduceat(chances, samples.starts)[of]
        lost = np.add.reduceat(chances * ratios, samples.starts) - 1
        error = float(np.mean((guesses - logs)[near] ** 2))
        return float(weights @ lost) + ERROR_SHARE * error

    return value


def fitted(
    value: Callable[[Constants], float],
    begin: Constants,
    evaluations: int,
    seed: int = 0,
    only: Sequence[str] = Constants._fields,
) -> Constants:
    """CMA-ES with its customary settings, on logarithms of the constants that `only` names, a tenth apart at first."""
    generator, size = np.random.default_rng(seed), len(only)
    offspring = 4 + int(3 * math.log(size))
    parents = offspring // 2
    weights = math.log(parents + 0.5) - np.log(np.arange(1, parents + 1))
    weights /= weights.sum()
    mass = 1 / float(weights @ weights)
    for_path, for_step = (4 + mass / size) / (size + 4 + 2 * mass / size), (mass + 2) / (size + mass + 5)
    for_one = 2 / ((size + 1.3) ** 2 + mass)
    for_many = min(1 - for_one, 2 * (mass - 2 + 1 / mass) / ((size + 2) ** 2 + mass))
    damping = 1 + 2 * max(0.0, math.sqrt((mass - 1) / (size + 1)) - 1) + for_step
    length = math.sqrt(size) * (1 - 1 / (4 * size) + 1 / (21 * size * size))
    mean, step, covariance = np.log(np.array([getattr(begin, name) for name in only])), 0.1, np.eye(size)
    path, step_path = np.zeros(size), np.zeros(size)
    best, least = begin, value(begin)
    for _ in range(evaluations // offspring):
        scales, axes = np.linalg.eigh(covariance)
        scales = np.sqrt(np.maximum(scales, 1e-20))
        moves = (axes * scales @ generator.standard_normal((size, offspring))).T
        tried = [np.exp(mean + step * move).tolist() for move in moves]
        found = [begin._replace(**dict(zip(only, values, strict=True))) for values in tried]
        values = [value(constants) for constants in found]
        order = np.argsort(values)
        if values[order[0]] < least:
            best, least = found[order[0]], values[order[0]]
        chosen = moves[order[:parents]]
        moved = weights @ chosen
        mean = mean + step * moved
        whitened = axes @ ((axes.T @ moved) / scales)
        step_path = (1 - for_step) * step_path + math.sqrt(for_step * (2 - for_step) * mass) * whitened
        path = (1 - for_path) * path + math.sqrt(for_path * (2 - for_path) * mass) * moved
        of_many = (chosen * weights[:, None]).T @ chosen
        covariance = (1 - for_one - for_many) * covariance + for_one * np.outer(path, path) + for_many * of_many
        step *= math.exp(for_step / damping * (float(np.linalg.norm(step_path)) / length - 1))
    return best


def loss_lines(samples: Samples, constants: Constants) -> Iterator[str]:
    """The loss of the choice, by class of calls and range of M."""
    lost = losses(samples, constants)
    for op in sorted({p.op for p in samples.workloads}):
        for low, high in M_RANGES:
            part = lost[[p.op == op and low <= p.m <= high for p in samples.workloads]]
            if len(part):
                yield (
                    f"  {op:<11}M {low:>4} to {high if high < 1 << 31 else 'any':>4}: {part.mean():6.1%} in the mean, "
                    f"{np.quantile(part, 0.9):6.1%} of nine in ten, {part.max():6.1%} at worst ({len(part)} shapes)"
                )
    yield f"  all: {lost.mean():.2%} in the mean, {lost.max():.0%} at worst ({len(lost)} shapes)"


def error_lines(samples: Samples, constants: Constants, shown: int = 24) -> Iterator[str]:
    """For which kinds of variants the model is furthest off near the front: the mean of log(model / measured)."""
    errors = np.log(time_ns(samples.terms, constants, OF_ARRAYS) / 1e3 / samples.us)
    kinds: defaultdict[str, list[float]] = defaultdict(list)
    for near, name, error in zip(samples.ratios <= NEAR, samples.names, errors, strict=True):
        if near:
            kinds[kind_of(name)].append(float(error))
    weight: Mapping[str, float] = {kind: abs(sum(found)) / math.sqrt(len(found)) for kind, found in kinds.items()}
    for kind in sorted(kinds, key=lambda kind: -weight[kind])[:shown]:
        found = np.array(kinds[kind])
        yield f"  {found.mean():+6.1%}, spread {found.std():5.1%}, of {len(found):>6}: {kind}"


def kind_of(name: str) -> str:
    """Operands, compiler, schedule and tile of a variant."""
    config = parse_name(name)
    s, launch = config.design, config.launch
    tile = "x".join(map(str, s.tile_shape_mnk))
    words = [config.operands.a_dtype, config.backend, s.kernel_schedule, s.accumulation, s.tile_scheduler, tile]
    return " ".join([*map(str, words), *(["swapped"] if s.swap_ab else []), f"splits {launch.splits}"])


def written(constants: Constants, model: Path = MODEL, mirror: Path = MIRROR) -> None:
    """Put constants into the model and its mirror. Raises ValueError where one is not found."""
    for path, pattern in (
        (model, r"(    {0}: float = )[\d.e+-]+"),
        (mirror, r"(constexpr double {1} = )[\d.e+-]+(?=;)"),
    ):
        text = path.read_text(encoding="utf-8")
        for name, value in constants._asdict().items():
            mirrored = "k" + "".join(word.capitalize() for word in name.split("_"))
            text, count = re.subn(pattern.format(name, mirrored), rf"\g<1>{float(f'{value:.4g}')!r}", text)
            if count != 1:
                raise ValueError(f"{path} has {count} lines for {name}, expected one")
        path.write_text(text, encoding="utf-8")


def rounded(constants: Constants) -> Constants:
    """As they are written: four digits."""
    return Constants(*(float(f"{value:.4g}") for value in constants))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("journals", nargs="+", type=Path)
    parser.add_argument("--evaluations", type=int, default=0, help="of the model on all samples; 0: nothing is fitted")
    parser.add_argument("--hold-out", type=float, default=0.25, help="share of the weights that nothing is fitted to")
    parser.add_argument("--seed", type=int, default=0, help="of what is held out, and of the search")
    parser.add_argument("--only", metavar="NAMES", help="constants to fit, the others held; by default all")
    parser.add_argument("--write", action="store_true", help="put the constants into the model and its mirror")
    options = parser.parse_args(arguments)
    only = tuple(options.only.split(",")) if options.only else Constants._fields
    if unknown := sorted(set(only) - set(Constants._fields)):
        parser.error(f"--only {','.join(unknown)}: the model's constants are {', '.join(Constants._fields)}")
    to_fit, to_judge = (samples_of(part) for part in parts_of(read(options.journals), options.hold_out, options.seed))
    constants = FITTED
    if options.evaluations:
        constants = rounded(fitted(objective(to_fit), FITTED, options.evaluations, options.seed, only))
    for title, of in (("today", FITTED), *([("fitted", constants)] if options.evaluations else [])):
        for part, samples in (("fitted to", to_fit), ("held out", to_judge)):
            print(f"{title}, {part}: {len(samples.us)} times", *loss_lines(samples, of), sep="\n")
    print("model over measured, near the front:", *error_lines(to_fit, constants), sep="\n")
    if options.evaluations:
        print(*(f"{name} = {value:g}" for name, value in constants._asdict().items()), sep="\n")
    if options.write:
        written(constants)


if __name__ == "__main__":
    main()
