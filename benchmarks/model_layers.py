"""DeepSeek V4.1's layers from bf16 activations to bf16 results: quantisation in groups of 32, dense GEMMs, experts.

    python benchmarks/model_layers.py --sglang .../sglang-0.5.23 --vllm-so .../_C_stable_libtorch.abi3.so --vllm-fused-moe .../fused_moe.py
    python benchmarks/model_layers.py --rows 1,64 --no-experts
    python benchmarks/model_layers.py --dry-run --out-dir /tmp/dry

A dense layer codes its rows and multiplies; `gemm` is the product alone, `quantise` the coding alone. `folded 128 x 128` and
`folded 1 x 128` are products of weights that prepack_blocks folded, whose codes are as many and scales fewer. SGLang's Triton kernel
multiplies codes that gemmill makes. bf16 is torch.mm, with weights of twice the bytes. Experts code their rows by
themselves; vLLM's are whole layers. Each layer's sides take turns in one run. The last lines sum the layers of each number
of rows.
"""

import argparse
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import gemmill
from gemmill.families.scaled_mm.cases.measured import GemmMaker, GemmOperands
from gemmill.families.scaled_mm.sweep import MeasuredOp
from gemmill.manifest import ManifestError
from gemmill.numerics.measured import ROTATED_BYTES
from gemmill.tuner.device import now
from gemmill.tuner.protocol import first_line
from gemmill.tuner.workloads import Workload, workload_of
from harness import devices
from harness.contenders import FieldError, WrongResult
from harness.measuring import Measurement, measure
from harness.results import SUBJECT, sample_record
from harness.timers import DEVICE_TIME, DryTimer, GraphTimer, Prepared, Rounds, Timer
from harness.written import write_json
from peers import sglang, vllm
from timed import fused_experts
from timed.fused_experts.calls import FINE, LAYERS, tiny
from timed.fused_experts.calls import workload_of as experts_of
from timed.scaled_mm import GROUPS_32_TABLE

RESULTS = Path(__file__).resolve().parent / "results"
GROUP = 32
FOLDED = {"folded 128 x 128": 128, "folded 1 x 128": 1}
"""Products of folded weights, by the columns of B that share a scale."""
DENSE = tuple(dict.fromkeys((n, k) for _, n, k in GROUPS_32_TABLE))
EXPERTS = "deepseek-v4.1"
ROWS = (1, 16, 64, 512, 4096)
METHOD = Rounds(rounds=9, short=True)
MOST_ERROR = 1 / 16
"""The norm of an error over that of the result: rounding to e4m3 moves a value by a sixteenth of itself at most."""
DRY_BYTES, DRY_SIZES = 4096, {"n": 64, "k": 128}
Call = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Layer:
    """The operands of a dense layer. Weights rotate, as those of its product do."""

    product: GemmOperands
    x: Tensor
    """[M, K] of bf16."""
    codes: Tensor
    scales: Tensor
    """[M, K / 32], M-major."""
    plain: tuple[Tensor, ...]
    """The weights in bf16, [N, K]."""
    folded_scales: Tensor
    """Of x in groups of 128, [M, K / 128], M-major."""
    folded_weights: dict[str, Tensor]
    """Scales of folded weights."""

    @property
    def workload(self) -> Workload:
        """M, N and K of the product."""
        return self.product.workload  # type: ignore[return-value]

    def coded(self) -> Call:
        """The call that codes x."""
        op = torch.ops.gemmill.per_token_group_fp8_quant.default
        return partial(op, self.x, self.codes, self.scales, GROUP, 1e-10, -448.0, 448.0, False, True, False)

    def multiplied(self, i: int) -> Call:
        """The product by the i-th weights."""
        x = self.product
        op = torch.ops.gemmill.cutlass_scaled_mm.default
        return partial(op, x.out, self.codes, x.weights[i], self.scales, x.b_scales, None)

    def multiplied_folded(self, i: int, fold: str) -> Call:
        """The product by the i-th weights as if they were folded: times are the same."""
        x = self.product
        op = torch.ops.gemmill.cutlass_scaled_mm.default
        return partial(op, x.out, self.codes, x.weights[i], self.folded_scales, self.folded_weights[fold], None)


def layer_of(maker: GemmMaker, workload: Workload) -> Layer:
    """A layer with normal random activations."""
    product = maker.make(workload)
    (m, k), n = product.a.shape, product.out.shape[1]
    x = torch.randn(m, k, device=product.a.device).bfloat16()
    scales = product.b_scales.t().repeat_interleave(GROUP, 0)[:n].repeat_interleave(GROUP, 1)[:, :k]
    return Layer(
        product=product,
        x=x,
        codes=torch.empty_like(product.a),
        scales=x.new_empty((-(-k // GROUP), m), dtype=torch.float32).t(),
        plain=tuple((b.t().float() * scales).bfloat16() for b in product.weights),
        folded_scales=x.new_ones((-(-k // 128), m), dtype=torch.float32).t(),
        folded_weights={
            fold: x.new_ones((-(-n // columns), -(-k // 128)), dtype=torch.float32).t()
            for fold, columns in FOLDED.items()
        },
    )


@dataclass(frozen=True, kw_only=True)
class LayerContender:
    """One way to compute a dense layer, or a part of it."""

    name: str
    call: Callable[[Layer, int], Call]
    complete: bool = True
    """Whether it computes the whole layer."""

    def takes(self, workload: object) -> bool:
        """All of them."""
        return True

    def prepare(self, layer: Layer, timer: Timer, fewest: int) -> Prepared:
        """Check one result, then make ready to be timed. Raises WrongResult, or whatever the call raises."""
        layer.coded()()
        layer.product.out.fill_(torch.nan)
        returned = self.call(layer, 0)()
        if self.complete:
            found = returned if isinstance(returned, Tensor) else layer.product.out
            exact = layer.x.double() @ layer.plain[0].double().t()
            error = float((found.double() - exact).norm() / exact.norm())
            if not error <= MOST_ERROR:
                raise WrongResult(f"wrong result of {layer.workload}: its error is {error:.3g} of the result's norm")
        return timer.prepare([self.call(layer, i) for i in range(len(layer.plain))], fewest)


def _one_after_the_other(first: Call, second: Call) -> Call:
    def both() -> object:
        first()
        return second()

    return both


def dense_contenders(options: Namespace) -> list[LayerContender]:
    """gemmill's layer and its parts, bf16, and SGLang's where its folder is named. Raises FieldError."""
    found = [
        LayerContender(name=SUBJECT, call=lambda x, i: _one_after_the_other(x.coded(), x.multiplied(i))),
        LayerContender(name="gemm", call=lambda x, i: x.multiplied(i), complete=False),
        LayerContender(name="quantise", call=lambda x, i: x.coded(), complete=False),
        *(
            LayerContender(name=fold, call=lambda x, i, fold=fold: x.multiplied_folded(i, fold), complete=False)
            for fold in FOLDED
        ),
        LayerContender(name="bf16", call=lambda x, i: partial(torch.mm, x.x, x.plain[i].t())),
    ]
    for peer in sglang.contenders("scaled_mm", options, []):

        def call(x: Layer, i: int, bind: Any = peer.bind) -> Call:  # type: ignore[attr-defined]
            given = _Coded(product=x.product, a=x.codes, a_scales=x.scales)
            return _one_after_the_other(x.coded(), bind(given, i))

        found.append(LayerContender(name=peer.name, call=call))
    return found


@dataclass(frozen=True, kw_only=True)
class _Coded:
    """Operands of a product whose rows were coded before."""

    product: GemmOperands
    a: Tensor
    a_scales: Tensor

    @property
    def workload(self) -> Any:
        return self.product.workload

    @property
    def out(self) -> Tensor:
        return self.product.out

    def arguments(self, i: int) -> list[Any]:
        out, _, b, _, *more = self.product.arguments(i)
        return [out, self.a, b, self.a_scales, *more]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit code: 0, 1 where nothing was timed, 2 where this machine or a library is not fit."""
    options = parse(arguments)
    dry = options.dry_run
    if not (dry or torch.cuda.is_available()):
        print("no GPU: nothing can be timed here; --dry-run runs the program without one", file=sys.stderr)
        return 2
    notes: list[str] = []
    try:
        contenders = dense_contenders(options)
        experts = [] if options.no_experts else vllm.contenders("fused_experts", options, notes)
        build = None if dry else gemmill.load(options.build).build_id
    except (FieldError, OSError, RuntimeError, ManifestError) as error:
        print(first_line(error), file=sys.stderr)
        return 2
    device, timer = torch.device("cpu" if dry else "cuda"), DryTimer() if dry else GraphTimer()
    started, deadline = now(), time.perf_counter() + options.limit_seconds
    makers = (
        GemmMaker(device, DRY_BYTES if dry else ROTATED_BYTES),
        fused_experts.BENCHMARK.maker(device, ROTATED_BYTES),
    )
    rows: list[dict[str, object]] = []
    for n, k in DENSE[:1] if dry else DENSE:
        sizes = DRY_SIZES if dry else {"n": n, "k": k}
        for m in options.rows:
            if time.perf_counter() < deadline:
                layer = layer_of(makers[0], workload_of(MeasuredOp.FP8_GROUPS_32, {"m": m} | sizes))
                rows.append(record_of(f"{n} x {k}", m, measure(layer, contenders, timer, METHOD)))  # type: ignore[arg-type]
    for kind in () if options.no_experts else (FINE, "bf16"):
        for m in options.rows:
            if time.perf_counter() < deadline:
                workload = experts_of(kind, LAYERS[EXPERTS], m)
                sides = [fused_experts.BENCHMARK.subject("gemmill", SUBJECT), *(experts if kind == FINE else ())]
                found = measure(makers[1].make(tiny(workload) if dry else workload), sides, timer, METHOD)
                rows.append(record_of(f"experts {kind}", m, found))
    record = {
        "schema_version": 1,
        "program": "benchmarks/model_layers.py",
        "dry_run": dry,
        "date": started,
        "commit": options.commit or devices.commit_of(RESULTS.parent),
        "build": build,
        "environment": devices.environment(),
        "method": {"rounds": METHOD.rounds, "rotated_bytes": ROTATED_BYTES, "device_time": DEVICE_TIME},
        "notes": notes,
        "rows": rows,
        "sums": sums_of(rows),
    }
    write_json(record, options.out_dir / f"{options.name}.json")
    print(text_of(rows))
    return 0 if rows else 1


def record_of(layer: str, m: int, found: Measurement) -> dict[str, object]:
    """A layer's times, and the sides that have none."""
    for name, failure in found.failures.items():
        print(f"{layer}, {m} rows: {name} failed: {failure}", file=sys.stderr)
    sides = {name: sample_record(of) for name, of in found.samples.items()}
    return {"layer": layer, "rows": m, "sides": sides, "failures": found.failures}


def sums_of(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """The microseconds of all dense layers, by rows and side, of sides that have every layer's."""
    found: dict[str, dict[str, float]] = {}
    for m in dict.fromkeys(row["rows"] for row in rows):
        dense = [row["sides"] for row in rows if row["rows"] == m and not row["layer"].startswith("experts")]
        common = [name for name in (dense[0] if dense else ()) if all(name in sides for sides in dense)]
        found[str(m)] = {name: round(sum(sides[name]["median_us"] for sides in dense), 2) for name in common}
    return found


def text_of(rows: Sequence[dict[str, Any]]) -> str:
    """A line for each layer and number of rows, then the sums of dense layers."""
    told = {f"{row['layer']}, {row['rows']} rows": {k: v["median_us"] for k, v in row["sides"].items()} for row in rows}
    told |= {f"dense layers, {m} rows": sides for m, sides in sums_of(rows).items()}
    lines = [f"{name}: " + ", ".join(f"{side} {us:.1f}" for side, us in sides.items()) for name, sides in told.items()]
    return "\n".join([*lines, "microseconds"])


def parse(arguments: Sequence[str] | None) -> Namespace:
    """Options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for peer in (sglang, vllm):
        peer.add_options(parser)
    rows = lambda text: tuple(map(int, text.split(",")))  # noqa: E731
    parser.add_argument("--rows", type=rows, default=ROWS, metavar="M,M", help="of activations; by default %(default)s")
    parser.add_argument("--no-experts", action="store_true", help="dense layers alone")
    parser.add_argument("--build", help="build id or path; the current one by default")
    parser.add_argument("--limit-seconds", type=float, default=float("inf"), help="begin no layer after this long")
    parser.add_argument("--commit", help="commit to record, where this is no checkout")
    parser.add_argument("--out-dir", type=Path, default=RESULTS)
    parser.add_argument("--name", default="model-layers", help="file name of the results, without suffix")
    parser.add_argument("--dry-run", action="store_true", help="tiny layers on the CPU, invented times")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
