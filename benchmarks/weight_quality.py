"""The cost of each weight format and of 2:4 pruning: squared errors of weights and of outputs, on three kinds of weights.

    python benchmarks/weight_quality.py                                     # no GPU needed
    python benchmarks/weight_quality.py --rows 64 --columns 256 --out-dir /tmp/dry

Errors are relative: the sum of squared changes over the sum of squares. `pruned` has the two largest of each four, in bf16;
`sparse nvfp4` is that with nvfp4 codes, `fitted` with scales by least squares. Outputs are those of two kinds of inputs: normal
ones, and such as layers see, of channels whose sizes differ and whose means are not zero. For these, `fitted` has a factor too.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from gemmill.quantize import WEIGHT_FORMATS, layer_error, prune_to_fp4, pruned, quantize_weight
from gemmill.tuner.device import now
from harness import devices
from harness.written import write_json

RESULTS = Path(__file__).resolve().parent / "results"
TOKENS = 512
OUTLIER_SHARE, OUTLIER_SIZE = 1 / 256, 16.0
"""Of the larger columns of outlier-heavy weights, and how many times."""
SPREAD, OFFSET = 1.0, 0.5
"""Of channels of inputs: deviation of the logarithm of their sizes, and of their means from zero in these."""
Numbers = Callable[[int, int, torch.Generator], Tensor]


def gaussian(n: int, k: int, g: torch.Generator) -> Tensor:
    """Normal weights."""
    return torch.randn(n, k, generator=g)


def laplace(n: int, k: int, g: torch.Generator) -> Tensor:
    """Weights of a double exponential distribution."""
    uniform = torch.rand(n, k, generator=g) - 0.5
    return -uniform.sign() * torch.log1p(-2 * uniform.abs().clamp(max=0.5 - 1e-7))


def outlier_heavy(n: int, k: int, g: torch.Generator) -> Tensor:
    """Normal weights, of which some columns are larger."""
    sizes = torch.where(torch.rand(k, generator=g) < OUTLIER_SHARE, OUTLIER_SIZE, 1.0)
    return torch.randn(n, k, generator=g) * sizes


WEIGHTS: dict[str, Numbers] = {"Gaussian": gaussian, "Laplace": laplace, "outlier-heavy": outlier_heavy}


def inputs_of(k: int, g: torch.Generator) -> dict[str, Tensor]:
    """[TOKENS, K] of both kinds."""
    sizes = torch.exp(SPREAD * torch.randn(k, generator=g))
    means = OFFSET * torch.randn(k, generator=g)
    return {
        "normal": torch.randn(TOKENS, k, generator=g),
        "uneven": (torch.randn(TOKENS, k, generator=g) + means) * sizes,
    }


def errors(weight: Tensor, inputs: dict[str, Tensor]) -> Iterator[tuple[str, dict[str, float]]]:
    """Of each way to store the weight: errors of `weights`, and of outputs by kind of inputs."""
    for format in WEIGHT_FORMATS:
        made = quantize_weight(weight, format)
        told = {kind: layer_error("", weight, made, x) for kind, x in inputs.items()}
        yield (
            format,
            {"weights": next(iter(told.values())).weights, **{kind: t.outputs or 0.0 for kind, t in told.items()}},
        )
    kept = pruned(weight)
    yield (
        "pruned",
        {"weights": _relative(kept, weight), **{kind: _of_outputs(kept, weight, x) for kind, x in inputs.items()}},
    )
    dense = quantize_weight(weight, "nvfp4")
    for name, source, rescale in (
        ("sparse nvfp4", weight, False),
        ("sparse nvfp4, fitted", weight, True),
        ("sparse nvfp4 of nvfp4", dense, False),
    ):
        told = {"weights": _relative(prune_to_fp4([[source]], rescale=rescale)[0].values(0), weight)}
        for kind, x in inputs.items():
            made = prune_to_fp4([[source]], rescale=rescale, inputs=[x])[0]
            told[kind] = _of_outputs(made.values(0), weight, x)
        yield name, told


def _relative(after: Tensor, before: Tensor) -> float:
    change = after.double() - before.double()
    return float(change.square().sum() / before.double().square().sum())


def _of_outputs(after: Tensor, before: Tensor, inputs: Tensor) -> float:
    return _relative(inputs @ after.float().t(), inputs @ before.float().t())


def measured(rows: int, columns: int) -> list[dict[str, object]]:
    """A row for each kind of weights and way to store them."""
    told: list[dict[str, object]] = []
    for seed, (name, make) in enumerate(WEIGHTS.items()):
        g = torch.Generator().manual_seed(seed)
        weight = make(rows, columns, g).bfloat16()
        inputs = inputs_of(columns, g)
        for format, found in errors(weight, inputs):
            told.append(
                {"distribution": name, "format": format, **{kind: float(f"{x:.3g}") for kind, x in found.items()}}
            )
    return told


def main(arguments: Sequence[str]) -> int:
    """Measure, print, and write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--out-dir", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    rows, date = measured(options.rows, options.columns), now()
    record = {
        "schema_version": 1,
        "program": "benchmarks/weight_quality.py",
        "date": date,
        "commit": devices.commit_of(RESULTS.parent),
        "environment": devices.environment(),
        "rows_of_weight": options.rows,
        "columns": options.columns,
        "tokens": TOKENS,
        "rows": rows,
    }
    path = options.out_dir / f"weight-quality-{date[:10]}.json"
    options.out_dir.mkdir(parents=True, exist_ok=True)
    write_json(record, path)
    for row in rows:
        print(
            f"{row['distribution']:<14}{row['format']:<24}"
            + "".join(f"{row[kind]:>12.2e}" for kind in ("weights", "normal", "uneven"))
        )
    print(f"written: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
