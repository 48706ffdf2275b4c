"""The share of weights in blocks of 32 x 32 that folds exactly into one scale for each 128 along K, on drawn weights and a checkpoint's.

    python benchmarks/fold_share.py                                         # no GPU needed
    python benchmarks/fold_share.py --rows 128 --columns 256 --weights Gaussian
    python benchmarks/fold_share.py --checkpoint FOLDER                     # of its layers of block32

Weights are coded by the quantiser (scales amax / 448 rounded up to a power of two, DeepSeek's rule), and by OCP's, whose scales are
2^(floor(log2 amax) - 8) and whose largest values saturate. "Coded twice" were in blocks of 128 x 128 before. A group is 128 columns of
one row (1 x 128), of 32 rows or of 128. Shifts down lose bits of codes near the subnormals: errors are those of `rounded=True`.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gemmill.checkpoints import open_checkpoint
from gemmill.checkpoints.layers import quantised_layers, read_layer
from gemmill.quantize import QuantizedWeight, folding_share, prepack_blocks, quantize_weight
from gemmill.quantize.block_folding import FOLDS
from gemmill.tuner.device import now
from harness import devices
from harness.written import write_json

SIDE = 32
OUTLIER_SHARE, OUTLIER_SIZE = 0.01, 20.0
Numbers = Callable[[int, int, torch.Generator], Tensor]


def gaussian(n: int, k: int, g: torch.Generator) -> Tensor:
    """Normal weights, rounded to bf16 as a trained checkpoint's."""
    return (0.02 * torch.randn(n, k, generator=g)).bfloat16()


def heavy_tailed(n: int, k: int, g: torch.Generator) -> Tensor:
    """Weights of Student's t distribution with four degrees of freedom."""
    chi = torch.randn(4, n, k, generator=g).square().sum(0)
    return 0.02 * torch.randn(n, k, generator=g) * torch.sqrt(4 / chi)


def outlier_columns(n: int, k: int, g: torch.Generator) -> Tensor:
    """Normal weights, of which some columns are larger."""
    return gaussian(n, k, g) * torch.where(torch.rand(k, generator=g) < OUTLIER_SHARE, OUTLIER_SIZE, 1.0)


def outlier_rows(n: int, k: int, g: torch.Generator) -> Tensor:
    """Normal weights, of which some rows are larger."""
    return gaussian(n, k, g) * torch.where(torch.rand(n, 1, generator=g) < OUTLIER_SHARE, OUTLIER_SIZE, 1.0)


def uneven_columns(n: int, k: int, g: torch.Generator) -> Tensor:
    """Normal weights whose columns differ in size, as those behind a folded norm do."""
    return gaussian(n, k, g) * torch.exp(torch.randn(k, generator=g))


def coded_twice(n: int, k: int, g: torch.Generator) -> Tensor:
    """Values of normal weights in blocks of 128 x 128: a checkpoint that is coded anew."""
    return quantize_weight(gaussian(n, k, g), "block128").values()


WEIGHTS: dict[str, Numbers] = {
    "Gaussian": gaussian,
    "heavy-tailed": heavy_tailed,
    "outlier columns": outlier_columns,
    "outlier rows": outlier_rows,
    "uneven columns": uneven_columns,
    "coded twice": coded_twice,
}


def by_ocp(weight: Tensor) -> QuantizedWeight:
    """A weight [N, K], both multiples of 32, by the OCP rule of scales."""
    blocks = weight.float().unflatten(1, (-1, SIDE)).unflatten(0, (-1, SIDE))
    exponents = torch.frexp(blocks.abs().amax(dim=(1, 3)))[1] - 1 - 8
    scales = torch.exp2(exponents.float())
    codes = (blocks / scales[:, None, :, None]).clamp(-448, 448).to(torch.float8_e4m3fn)
    return QuantizedWeight(format="block32", codes=codes.flatten(2).flatten(0, 1), scales=scales)


def measured(weight: QuantizedWeight) -> dict[str, Any]:
    """Shares of groups that fold, and what a rounded folding changes."""
    found: dict[str, Any] = {"n": weight.n, "k": weight.k}
    for fold in FOLDS:
        report = prepack_blocks(weight, fold=fold, rounded=True).report
        found[fold] = {
            "share": folding_share(weight, fold),
            "whole": report.exact,
            "changed": report.changed / max(weight.n * weight.k, 1),
            "squared_error": report.added_error,
        }
    return found


def rows_of(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each weight's name and figures."""
    if options.checkpoint:
        checkpoint = open_checkpoint(options.checkpoint)
        for name in quantised_layers(checkpoint):
            weight = read_layer(checkpoint, name).weight
            if weight.format == "block32":
                yield name, measured(weight)
        return
    for name in options.weights:
        generator = torch.Generator().manual_seed(options.seed)
        weight = WEIGHTS[name](options.rows, options.columns, generator)
        yield name, measured(quantize_weight(weight, "block32"))
        yield f"{name}, OCP scales", measured(by_ocp(weight))


def main(given: Sequence[str] | None = None) -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2048, help="N, a multiple of 32")
    parser.add_argument("--columns", type=int, default=5120, help="K, a multiple of 32")
    parser.add_argument("--weights", nargs="*", choices=list(WEIGHTS), default=list(WEIGHTS), metavar="KIND")
    parser.add_argument("--seed", type=int, default=41)
    parser.add_argument("--checkpoint", type=Path, help="safetensors, a file or a folder, in place of drawn weights")
    parser.add_argument("--out", type=Path, help="a JSON file of the figures")
    options = parser.parse_args(given)
    if options.rows % SIDE or options.columns % SIDE:
        parser.error(f"--rows {options.rows} and --columns {options.columns}: expected multiples of {SIDE}")
    print("| weight | " + " | ".join(f"{fold}: folds, changed, squared error" for fold in FOLDS) + " |")
    print("| --- " * (1 + len(FOLDS)) + "|")
    record: dict[str, Any] = {}
    for name, found in rows_of(options):
        record[name] = found
        cells = (f"{x['share']:.5f}, {x['changed']:.1e}, {x['squared_error']:.1e}" for x in map(found.get, FOLDS) if x)
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    if options.out:
        commit = devices.commit_of(Path(__file__).parent)
        settings = {"rows": options.rows, "columns": options.columns, "seed": options.seed}
        write_json(
            {"schema_version": 1, "date": now(), "commit": commit, "settings": settings, "rows": record}, options.out
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
