"""Export a quantised model with torch.export, and compile it ahead of time with AOTInductor.

    python examples/export_and_aoti.py --out model.pt2

The package has gemmill's ops by name: a process that loads it imports gemmill first. The number of rows stays dynamic.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.export import Dim, export

from gemmill.nn import quantize_module


@torch.no_grad()
def main(arguments: list[str] | None = None) -> Path:
    """Returns the package."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the package; by default in a temporary folder")
    parser.add_argument("--weights", default="channel")
    options = parser.parse_args(arguments)
    out = options.out or Path(tempfile.mkdtemp(prefix="gemmill-aoti-")) / "model.pt2"
    device = "cuda" if torch.cuda.is_available() else "cpu"

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).to(device, torch.bfloat16)
    quantize_module(model, options.weights)
    x = torch.randn(4, 256, device=device, dtype=torch.bfloat16)
    program = export(model, (x,), dynamic_shapes=({0: Dim("rows", min=1, max=4096)},))
    package = torch._inductor.aoti_compile_and_package(program, package_path=str(out))
    compiled = torch._inductor.aoti_load_package(package)
    for rows in (1, 4, 33):
        x = torch.randn(rows, 256, device=device, dtype=torch.bfloat16)
        difference = float((compiled(x).float() - model(x).float()).abs().max())
        print(f"{rows} rows on {device}: largest difference from eager {difference}")
        assert difference == 0.0 or options.weights != "channel"
    return out


if __name__ == "__main__":
    main()
