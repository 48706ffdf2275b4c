"""SGLang's own linear layers on this GPU, with gemmill's hooks and without them: who serves each kind, and whether results agree.

    python benchmarks/sglang_layers.py
    python benchmarks/sglang_layers.py --sglang .../sglang-0.5.23 --kinds fp8,fp8_block --rows 1,64

SGLang's registry applies the hooks that its plugin registers, and its quantisation methods prepare the weights and multiply.
--sglang is the unpacked wheel where SGLang is not installed. Packages that such a wheel imports and this machine lacks become
empty modules, which the results name; a kind whose own kernel is in one of them has no result without gemmill. Then float64
products of the decoded operands stand in for it. SGLang compiles its kernel of nvfp4 at the first call: a process of its own
does that meanwhile, and such kinds come last unless --wait is 0. The results are written after each kind. Exits with 1 where a layer is wrong with
the hooks, or fails with them alone.
"""

import argparse
import contextlib
import datetime
import importlib
import importlib.abc
import importlib.machinery
import io
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import torch

import gemmill
from gemmill.formats.quantise import BlockScaled
from gemmill.vocab.format import format_named
from gemmill.writing import write_whole
from harness import devices
from harness.written import write_json

OPTIONAL = (
    "IPython",
    "numba",
    "sgl_kernel",
    "flashinfer",
    "torchvision",
    "sentencepiece",
    "tvm_ffi",
    "deep_gemm",
    "openai",
    "cuda",
)
"""Packages that SGLang's layers import and these calls do without."""
N, K = 1536, 1024
TOLERANCE = 0.06
"""Of the norm of the difference, over the result's: activations of 8 bits are off by up to a sixteenth."""
RESULTS = Path(__file__).parent / "results"


class Missing(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes empty modules of the optional packages that this machine lacks, or whose library another torch has to load."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.lacking = {name for name in OPTIONAL if not _loads(name)}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """A module of one of the packages."""
        if name.partition(".")[0] not in self.lacking:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        """A module in which each name is there."""
        self.made.append(spec.name)
        module = MagicMock(name=spec.name)
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is to run."""


def _loads(name: str) -> bool:
    try:
        importlib.import_module(name)
    except Exception:  # SGLang's kernels raise ImportError from a C library, others what they like
        for module in [known for known in sys.modules if known.partition(".")[0] == name]:
            del sys.modules[module]
        return False
    return True


def made_layer(kind: str, device: torch.device) -> torch.nn.Module:
    """A linear layer of SGLang's of N x K, whose random weights its quantisation method has prepared."""
    from sglang.srt.layers.linear import ReplicatedLinear

    with device:
        layer: torch.nn.Module = ReplicatedLinear(
            K, N, bias=False, quant_config=KINDS[kind](), params_dtype=torch.bfloat16
        )
        torch.manual_seed(len(kind))
        for name, values in layer.named_parameters():
            values.data.copy_(_random(name, values))
    return layer


def _random(name: str, like: torch.Tensor) -> torch.Tensor:
    """Codes of a normal distribution or random bits, and scales near the one that keeps results near 1."""
    if like.dtype == torch.uint8:
        return torch.randint(0, 256, like.shape, dtype=torch.uint8, device=like.device)
    if like.dtype == torch.int8:
        return torch.randint(-100, 101, like.shape, dtype=torch.int8, device=like.device)
    if like.dtype.itemsize == 1 and "scale" not in name:
        return (0.5 * torch.randn(like.shape, dtype=torch.float32, device=like.device)).to(like.dtype)
    values = 0.5 + torch.rand(like.shape, dtype=torch.float32, device=like.device)
    return (values if like.dtype.itemsize == 1 else values / K).to(like.dtype)


def decoded(layer: torch.nn.Module, kind: str) -> torch.Tensor:
    """The weights [N, K] as float64, before SGLang prepares them."""
    weight = layer.weight.data
    if kind == "nvfp4":
        given = BlockScaled(
            format=format_named("nvfp4"), codes=weight, scales=layer.weight_scale.data.view(torch.uint8)
        )
        return given.values().double() * layer.weight_scale_2.data.double().max()
    scales = getattr(layer, "weight_scale_inv", None)
    if scales is None:
        return weight.double() * layer.weight_scale.data.double().reshape(-1, 1)
    blocks = scales.data.double()
    size = [extent // count for extent, count in zip(weight.shape, blocks.shape, strict=True)]
    return weight.double() * blocks.repeat_interleave(size[0], 0).repeat_interleave(size[1], 1)


def _block(size: int) -> Callable[[], Any]:
    def config() -> Any:
        from sglang.srt.layers.quantization.fp8 import Fp8Config

        given = {"is_checkpoint_fp8_serialized": True, "activation_scheme": "dynamic"}
        return Fp8Config(**given, weight_block_size=[size, size])

    return config


def _fp8() -> Any:
    from sglang.srt.layers.quantization.w8a8_fp8 import W8A8Fp8Config

    return W8A8Fp8Config(is_checkpoint_fp8_serialized=True)


def _int8() -> Any:
    from sglang.srt.layers.quantization.w8a8_int8 import W8A8Int8Config

    return W8A8Int8Config({"is_dynamic": True})


def _nvfp4() -> Any:
    from sglang.srt.layers.quantization.modelopt_quant import ModelOptFp4Config

    return ModelOptFp4Config(
        is_checkpoint_nvfp4_serialized=True, group_size=16, exclude_modules=[], packed_modules_mapping={}
    )


KINDS: dict[str, Callable[[], Any]] = {
    "fp8": _fp8,
    "fp8_block": _block(128),
    "fp8_block_32": _block(32),
    "int8": _int8,
    "nvfp4": _nvfp4,
}
COMPILED = ("nvfp4",)
"""Kinds whose own kernel SGLang compiles, for minutes."""
Outputs = tuple[dict[int, torch.Tensor], torch.Tensor, str]
"""A layer's results [rows, N] by the number of rows, its decoded weights, and the error that ended it, if any."""


def outputs(kind: str, rows: Sequence[int], device: torch.device) -> Outputs:
    """Those of a kind, on a device."""
    found: dict[int, torch.Tensor] = {}
    weights = torch.empty(0)
    try:
        layer = made_layer(kind, device)
        weights = decoded(layer, kind)
        layer.quant_method.process_weights_after_loading(layer)
        for m in rows:
            x = inputs(m, device)
            y = layer(x)
            y = y[0] if isinstance(y, tuple) else y
            if not isinstance(y, torch.Tensor):
                raise TypeError("its kernel is in a package that this machine lacks")
            found[m] = y.float().clone()
            if not found[m].isfinite().all():
                raise ValueError(f"results of {m} rows are not finite")
    except Exception as error:  # whatever SGLang does without a package, the other kinds are tried
        return {}, weights, f"{type(error).__name__}: {error}"[:300]
    return found, weights, ""


def inputs(m: int, device: torch.device) -> torch.Tensor:
    """Activations [m, K] of bf16."""
    return torch.randn((m, K), generator=torch.Generator().manual_seed(m), dtype=torch.float32).to(
        device, torch.bfloat16
    )


def off(mine: torch.Tensor, exact: torch.Tensor) -> float:
    """The norm of the difference over the norm of what is compared with."""
    return round(float((mine.double() - exact.double()).norm() / exact.double().norm()), 6)


def applied() -> None:
    """Register gemmill's plugin and have SGLang's registry put the hooks in place."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    from gemmill.compat.sglang import plugin

    plugin.register()
    HookRegistry.apply_hooks()


def _served() -> list[dict[str, Any]]:
    with contextlib.redirect_stdout(io.StringIO()):
        return gemmill.serving_report()["served"]


def prepared() -> None:
    """Marlin for nvfp4, which a server on Hopper sets."""
    from sglang.srt.layers.quantization import fp4_utils

    fp4_utils.FP4_GEMM_RUNNER_BACKEND = fp4_utils.Fp4GemmRunnerBackend("marlin")


class Alone:
    """A process that runs a kind without gemmill, while this one goes on."""

    def __init__(self, kind: str, options: argparse.Namespace, folder: Path) -> None:
        self._file, self._log = folder / f"{kind}.pt", folder / f"{kind}.log"
        of = ["--sglang", str(options.sglang)] if options.sglang else []
        rows = ",".join(map(str, options.rows))
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, *of, "--kinds", kind, "--rows", rows, "--alone", str(self._file)],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def end(self) -> None:
        """End the process and the compilers that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def outputs(self, wait_s: float) -> Outputs:
        """Its results, or why there are none after so long."""
        try:
            self._process.wait(wait_s)
        except subprocess.TimeoutExpired:
            return {}, torch.empty(0), f"it was ended {wait_s:.0f} s after the other kinds"
        if not self._file.is_file():
            last = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
            return {}, torch.empty(0), f"its process ended without results: {' '.join(last)}"[:300]
        found: Outputs = torch.load(self._file)
        return found


def compared(kind: str, device: torch.device, mine: Outputs, theirs: Outputs | None) -> dict[str, Any]:
    """The record of a kind; `theirs` are None where they are not known yet."""
    found, weights, error = mine
    others, _, failed = theirs or ({}, None, "it was not waited for")
    row: dict[str, Any] = {"kind": kind, "error": error, "error_without": failed, "rows": {}}
    for m, y in found.items():
        exact = inputs(m, device).double() @ weights.t().to(device)
        row["rows"][m] = {"off": off(y, exact)}
        if m in others:
            its = others[m].to(device)
            if off(its, exact) <= TOLERANCE:
                row["rows"][m] |= {"off_without": off(its, exact), "apart": off(y, its)}
            else:  # as where SGLang's quantisation is in a package that this machine lacks
                row["error_without"] = f"its results of {m} rows are not the layer's"
    row["wrong"] = bool(error and not failed) or any(not x["off"] <= TOLERANCE for x in row["rows"].values())
    return row


def told(row: dict[str, Any]) -> None:
    """Print a kind's record."""
    verdict = "wrong" if row["wrong"] else "served" if row["served"] else "left"
    without = row["error_without"] or "it ran"
    print(f"{row['kind']}: {verdict}; {row['rows'] or row['error']}; without gemmill {without}", flush=True)


def parse(given: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--sglang", type=Path, metavar="FOLDER", help="SGLang's unpacked wheel, where it is not installed"
    )
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"with commas, of {', '.join(KINDS)}")
    parser.add_argument("--rows", default="1,16,256", metavar="M,M")
    parser.add_argument(
        "--wait",
        type=float,
        default=300,
        metavar="S",
        help=f"at most, at the end, for SGLang to compile its kernels of {', '.join(COMPILED)}; 0 runs these kinds with gemmill alone",
    )
    parser.add_argument("--alone", type=Path, metavar="FILE", help="write one kind's results without gemmill there")
    parser.add_argument("--commit", help="of sources in no checkout")
    parser.add_argument("--out-dir", type=Path, default=RESULTS)
    parser.add_argument("--name", default="sglang-layers", help="file name of the results, without suffix")
    options = parser.parse_args(given)
    options.kinds = options.kinds.split(",")
    if unknown := [kind for kind in options.kinds if kind not in KINDS]:
        parser.error(f"no kind {unknown[0]!r}: expected {', '.join(KINDS)}")
    if options.wait > 0:
        options.kinds.sort(key=lambda kind: kind in COMPILED)
    if options.alone and len(options.kinds) != 1:
        parser.error(f"--alone is for one kind, and --kinds names {len(options.kinds)}: name one")
    options.rows = [int(m) for m in options.rows.split(",")]
    return options


def main(given: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    options = parse(given)
    os.environ.setdefault("SGLANG_JIT_DEEPGEMM_PRECOMPILE", "0")  # of 16,384 numbers of rows, at a layer's first call
    if options.sglang is not None:
        sys.path.insert(0, str(options.sglang))
    import transformers.utils as installed
    from transformers import AutoImageProcessor, AutoProcessor  # noqa: F401  # asks for torchvision before it seems to be there

    installed.is_torchvision_available()
    missing = Missing()
    sys.meta_path.insert(0, missing)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    prepared()
    if options.alone:
        found, weights, error = outputs(options.kinds[0], options.rows, device)
        kept = io.BytesIO()
        torch.save(({m: y.cpu() for m, y in found.items()}, weights.cpu(), error), kept)
        write_whole(options.alone, kept.getvalue())
        return 0
    kinds = [kind for kind in options.kinds if kind in COMPILED and options.wait > 0]
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        slow = {kind: Alone(kind, options, Path(folder)) for kind in kinds}
        for one in slow.values():
            stack.callback(one.end)
        return measured(options, device, missing, slow)


def measured(options: argparse.Namespace, device: torch.device, missing: Missing, slow: dict[str, Alone]) -> int:
    """Run all kinds, and write what is found after each. Returns the exit code."""
    alone: dict[str, Outputs] = {}
    for kind in (kind for kind in options.kinds if kind not in COMPILED):
        begun = time.perf_counter()
        alone[kind] = outputs(kind, options.rows, device)
        print(f"{kind} without gemmill: {time.perf_counter() - begun:.1f} s, {alone[kind][2] or 'it ran'}", flush=True)
    applied()
    record: dict[str, Any] = {
        "schema_version": 1,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "environment": devices.environment(),
        "commit": options.commit or devices.commit_of(Path(__file__).parent),
        "layer": [N, K],
        "missing": missing.made,
        "tolerance": TOLERANCE,
        "rows": [],
    }
    path, rows, later = options.out_dir / f"{options.name}.json", record["rows"], {}
    for kind in options.kinds:
        before = len(_served())
        mine = outputs(kind, options.rows, device)
        rows.append(compared(kind, device, mine, alone.get(kind)) | {"served": _served()[before:]})
        told(rows[-1])
        write_json(record, path)
        if kind in slow:
            later[kind] = len(rows) - 1, mine
    for kind, (i, mine) in later.items():
        rows[i] |= compared(kind, device, mine, slow[kind].outputs(options.wait))
        told(rows[i])
        write_json(record, path)
    print(f"empty modules: {', '.join(missing.made) or 'none'}; written: {path}")
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
