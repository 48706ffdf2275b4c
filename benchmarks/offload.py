"""A video model's transformer block with quantised weights: resident, and with weights that lie on the host, in one run.

    python benchmarks/offload.py
    python benchmarks/offload.py --tokens 64 --hidden 256 --feed-forward 512 --heads 2 --cpu --out-dir /tmp/dry

Of each kind of weights: a block's time with all weights on the GPU and in turns from pinned memory, interleaved; the copy of a
block alone; which share of the copies the computation hides; the block's memory; the error of its output against bf16.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from gemmill.nn import Block, Calibration, InTurns, QuantLinear, calls, offload, quantize_module
from gemmill.tuner.device import now
from gemmill.tuner.timing import shuffled
from harness import devices
from harness.written import write_json

RESULTS = Path(__file__).resolve().parent / "results"
KINDS = ("bf16", "channel:e4m3", "int8:int8", "nvfp4:bf16", "mxfp8:mxfp8")

PACKED = "nvfp4:e4m3:packed"
"""The kind of layers that never unpack weights for many rows."""


class TransformerBlock(nn.Module):
    """Attention over all tokens and a feed-forward layer, as in a video model's, without modulation."""

    def __init__(self, hidden: int, feed_forward: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.q, self.k, self.v, self.o = (nn.Linear(hidden, hidden) for _ in range(4))
        self.up, self.down = nn.Linear(hidden, feed_forward), nn.Linear(feed_forward, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, hidden]."""
        normed = self.attention_norm(x)
        q, k, v = (layer(normed).unflatten(1, (self.heads, -1)).transpose(0, 1) for layer in (self.q, self.k, self.v))
        x = x + self.o(scaled_dot_product_attention(q[None], k[None], v[None])[0].transpose(0, 1).flatten(1))
        return x + self.down(gelu(self.up(self.norm(x)), approximate="tanh"))


def made(options: argparse.Namespace, seed: int, device: torch.device) -> TransformerBlock:
    """A block of random weights in bf16."""
    torch.manual_seed(seed)
    with torch.device(device):
        block = TransformerBlock(options.hidden, options.feed_forward, options.heads).bfloat16()
    return block.requires_grad_(False)


def quantised(options: argparse.Namespace, kind: str, seed: int, device: torch.device, x: Tensor) -> TransformerBlock:
    """The same with weights of a kind."""
    block = made(options, seed, device)
    if kind != "bf16":
        format, activations, *packed = kind.split(":")
        absmax = None
        if activations == "nvfp4":
            with Calibration(block) as seen:
                block(x)
            absmax = seen.absmax
        quantize_module(block, format, activations=activations, input_absmax=absmax)
        if packed:
            for layer in block.modules():
                if isinstance(layer, QuantLinear):
                    layer._run = calls.by_fp8("nvfp4_fp8_mm_rounded")
    return block


class Clock:
    """Milliseconds of the launched work."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"

    def ms(self, run: Callable[[], object]) -> float:
        """Of one call; a CPU has no figures."""
        if not self.cuda:
            run()
            return 1.0
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end)


def measured(
    options: argparse.Namespace, kind: str, device: torch.device, x: Tensor, exact: Tensor
) -> dict[str, object]:
    """The figures of one kind."""
    layers = [quantised(options, kind, seed, device, x) for seed in range(options.blocks)]
    size = sum(tensor.nbytes for tensor in offload.tensors_of(layers[0]).values())
    host = [Block(layer) for layer in layers]
    turns = InTurns(layers[0], host, device=device)
    slot = torch.empty_like(host[0].host, device=device)

    def resident() -> Tensor:
        out = x
        for layer in layers:
            out = layer(out)
        return out

    def copies() -> None:
        for block in host:
            slot.copy_(block.host, non_blocking=True)

    out = layers[0](x).float()
    runs = {"resident": resident, "offloaded": lambda: turns(x), "copies": copies}
    same = torch.equal(resident(), turns(x))
    clock, rounds = Clock(device), {name: [] for name in runs}
    for turn in range(options.rounds + 1):
        for name in shuffled(list(runs), turn):
            ms = clock.ms(runs[name]) / options.blocks
            if turn:
                rounds[name].append(ms)
    ms = {name: median(taken) for name, taken in rounds.items()}
    return {
        "kind": kind,
        "block_bytes": size,
        "error": float((out - exact).norm() / exact.norm()),
        "same_result": same,
        "block_ms": {name: round(taken, 4) for name, taken in ms.items()},
        "hidden": round(1 - (ms["offloaded"] - ms["resident"]) / ms["copies"], 4),
        "rounds_ms": {name: [round(value, 4) for value in taken] for name, taken in rounds.items()},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit code."""
    options = parse(arguments)
    device = torch.device("cpu" if options.cpu else "cuda")
    x = torch.randn(options.tokens, options.hidden, generator=torch.Generator().manual_seed(0)).bfloat16().to(device)
    exact = made(options, 0, device)(x).float()
    rows: list[dict[str, object]] = []
    record = {
        "schema_version": 1,
        "date": now(),
        "environment": devices.environment(),
        "commit": options.commit or devices.commit_of(Path(__file__).parent),
        "sizes": {
            name: getattr(options, name) for name in ("tokens", "hidden", "feed_forward", "heads", "blocks", "rounds")
        },
        "rows": rows,
    }
    for kind in options.kinds:
        rows.append(row := measured(options, kind, device, x, exact))
        write_json(record, options.out_dir / f"{options.name}.json")
        print(
            f"{kind}: resident {row['block_ms']['resident']:.3f} ms a block, offloaded {row['block_ms']['offloaded']:.3f}, copy "
            f"{row['block_ms']['copies']:.3f}, hidden {row['hidden']:.3f}, {row['block_bytes'] / 1e6:.1f} MB, error {row['error']:.4f}",
            flush=True,
        )
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Options from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=32760)
    parser.add_argument("--hidden", type=int, default=5120)
    parser.add_argument("--feed-forward", type=int, default=13824)
    parser.add_argument("--heads", type=int, default=40)
    parser.add_argument("--blocks", type=int, default=4, help="that run one after another")
    parser.add_argument("--rounds", type=int, default=5, help="kept; one more comes first")
    parser.add_argument(
        "--kinds",
        nargs="+",
        default=list(KINDS),
        metavar="FORMAT:ACTIVATIONS",
        help=f"{PACKED} never unpacks weights for many rows",
    )
    parser.add_argument("--cpu", action="store_true", help="call the references: for trying the program")
    parser.add_argument("--commit", help="of sources in no checkout")
    parser.add_argument("--out-dir", type=Path, default=RESULTS)
    parser.add_argument("--name", default="offload", help="file name of the results, without suffix")
    options = parser.parse_args(arguments)
    if unknown := [kind for kind in options.kinds if kind.count(":") > 1 and kind != PACKED]:
        parser.error(f"--kinds {unknown[0]} is asked for; {PACKED} alone has a third part")
    return options


if __name__ == "__main__":
    sys.exit(main())
