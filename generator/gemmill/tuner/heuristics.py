"""A second opinion on which tiles suit a shape: that of NVIDIA's nvidia-matmul-heuristics, where it is installed.

The query is for CUTLASS 3 kernels on an H200 with e4m3 operands, row-major A and column-major B (precision "OOT",
layout TN). Its answers add tiles and clusters to the candidates, and never rank them. Its library crashes in its
destructor (0.1.0.27), so it has a process of its own that never comes there. This module, run as a program, reads
shapes and writes tiles as JSON.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence

from gemmill.tuner.protocol import TuneError

PACKAGE, MODULE = "nvidia-matmul-heuristics", "nvMatmulHeuristics"
ANSWERS = 8
"""The number of tiles to request for each shape; fewer may come."""
LIMIT_SECONDS = 600
_KEPT: list[object] = []
"""Objects that must not be destroyed before the process ends."""

Shape = tuple[int, int, int]
"""M, N, K."""
Tile = tuple[int, int, int, int]
"""Rows of A and columns of B of a CTA's tile, then the cluster's CTAs along M and along N."""


def advice(shapes: Sequence[Shape]) -> Mapping[Shape, tuple[Tile, ...]]:
    """The recommended tiles of each shape. Raises TuneError without the package, or where it fails."""
    from gemmill.typed_json import JsonError, from_json

    if importlib.util.find_spec(MODULE) is None:
        raise TuneError(f"a second opinion needs {PACKAGE}, which is not installed: pip install {PACKAGE}")
    try:
        run = subprocess.run(
            [sys.executable, "-m", "gemmill.tuner.heuristics"],
            input=json.dumps(list(shapes)),
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=True,
        )
        answers = from_json(run.stdout.encode(), list[tuple[Tile, ...]], PACKAGE, "tune without --second-opinion")
    except (subprocess.SubprocessError, JsonError) as error:
        raise TuneError(f"{PACKAGE} gave no answer ({type(error).__name__}): tune without --second-opinion") from None
    return dict(zip(shapes, answers, strict=True))


def answer(shapes: Sequence[Shape]) -> list[list[Tile]]:
    """The library's answer, in this process."""
    library = importlib.import_module(MODULE)
    asked = library.NvMatmulHeuristicsInterface(library.NvMatmulHeuristicsTarget.CUTLASS3, precision="OOT")
    _KEPT.append(asked)
    hardware = asked.createHardwareDescriptor()
    asked.setHardwarePredefinedGpu(hardware, library.NvMatmulHeuristicsNvidiaGpu.H200_SXM)
    layout = library.NvMatmulHeuristicsMatmulLayout.TN_ROW_MAJOR
    found = []
    for m, n, k in shapes:
        kernels = [one["kernel"] for one in asked.get_with_mnk(m, n, k, layout, ANSWERS, hardware)]
        found.append([(x.cta_tile_m, x.cta_tile_n, x.cluster_m, x.cluster_n) for x in kernels])
    return found


if __name__ == "__main__":
    print(json.dumps(answer(json.load(sys.stdin))), flush=True)
    os._exit(0)
