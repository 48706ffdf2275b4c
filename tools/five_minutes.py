#!/usr/bin/env python3
"""What somebody meets who has torch and a wheel: install it, ask doctor, run a quantised layer, give it to vLLM and SGLang.

    tools/five_minutes.py dist/gemmill-0.1.0+cu13-py3-none-manylinux_2_34_x86_64.whl
    tools/five_minutes.py            of the build that serves, whose wheel it writes first

Each step is a process of an empty environment that has torch and the wheel, not this checkout. Without a GPU the layer runs the
reference. Where vLLM and SGLang are not installed, the plugins register with stand-ins of what was recorded of a release of each.
Tells the wheel's size, and the time from pip to the end of the first kernel's call. Exits with the code of the first step that fails.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

LAYER = """
import torch, gemmill
device = "cuda" if torch.cuda.is_available() else "cpu"
x, weight = (torch.randn(rows, 512, device=device).to(torch.bfloat16) for rows in (16, 256))
x_codes, x_scales = gemmill.dynamic_per_token_scaled_fp8_quant(x)
codes, scales = gemmill.dynamic_per_token_scaled_fp8_quant(weight)
out = gemmill.cutlass_scaled_mm(x_codes, codes.t(), x_scales, scales.t(), torch.bfloat16).float()
wanted = x.float() @ weight.float().t()
error = ((out - wanted).norm() / wanted.norm()).item()
assert error < 0.06, f"the layer is {error:.1%} off"
print(f"out [16, 256] = x [16, 512] @ weight.t() in FP8 on {device}: {error:.1%} off the layer without quantisation")
"""

PLUGINS = """
import importlib.metadata, importlib.util, sys
import torch
from gemmill import compat
def stand_in(engine):
    if importlib.util.find_spec(engine) is None:
        sys.path.append(sys.argv[1])
        import engines
        sys.modules.update(getattr(engines, engine + "_modules")())
for group in ("vllm.general_plugins", "sglang.srt.plugins"):
    (point,) = [p for p in importlib.metadata.entry_points(group=group) if p.name == "gemmill"]
    stand_in(group.partition(".")[0])
    point.load()()
    print(f"{group}: {point.value} is registered")
linear = sys.modules["vllm.model_executor.kernels.linear"]
first = [kernels[sys.modules["vllm.platforms"].PlatformEnum.CUDA][0].__name__ for kernels in (
    linear._POSSIBLE_FP8_KERNELS, linear._POSSIBLE_FP8_BLOCK_KERNELS, linear._POSSIBLE_INT8_KERNELS)]
print("vLLM asks first:", ", ".join(first))
assert all(name.startswith("Gemmill") for name in first)
assert hasattr(sys.modules["vllm._custom_ops"].cutlass_moe_mm, "__wrapped__"), "vLLM's experts do not come to gemmill"
from gemmill.compat.vllm_blocks import BEFORE, MODULE
assert all(hasattr(getattr(sys.modules[MODULE], name), "__wrapped__") for name in BEFORE), "nor do those in blocks"
from gemmill.compat.linear import Linear, called, refusal
for codes in (torch.float8_e4m3fn, torch.int8):
    layer = Linear(n=4096, k=4096, codes=codes, out_dtype=torch.bfloat16)
    why = refusal(layer)
    assert why is None, why
    assert called(layer, lambda: layer, "gemmill", lambda: True, lambda: False)
import gemmill; gemmill.serving_report()
"""


def main() -> None:
    """Take the path."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", nargs="?", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gemmill-five-minutes-") as folder:
        begun = time.perf_counter()
        wheel = given.wheel.resolve() if given.wheel else _written(Path(folder))  # steps run elsewhere
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")
        python = _made(Path(folder) / "environment")
        there = _environment(Path(folder) / "home")
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check"]
        took = _step("install", [*pip, "--no-deps", "--no-index", wheel])
        took += _step("layer", [python, "-c", LAYER], there)
        print(f"from pip to the first kernel's call: {took:.1f} s")
        _step("doctor", [python, "-m", "gemmill", "doctor"], there, codes=(0, 1))
        _step("plugins", [python, "-c", PLUGINS, ROOT / "tests"], there)
        print(f"done in {time.perf_counter() - begun:.0f} s")


def _written(folder: Path) -> Path:
    command = [sys.executable, "-m", "gemmill", "wheel", "--out", folder]
    _step("wheel", command, os.environ | {"PYTHONPATH": str(ROOT / "generator")})
    (wheel,) = folder.glob("*.whl")
    return wheel


def _made(folder: Path) -> Path:
    """An environment without packages but those of this interpreter, torch among them, which come after its own; its interpreter."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    lines = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages / "torch.pth").write_text("\n".join(lines), encoding="utf-8")
    return folder / "bin" / "python"


def _environment(home: Path) -> dict[str, str]:
    """Without this process's settings, and with an empty home: what serves is the wheel's build."""
    kept = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH" and not name.startswith("GEMMILL_")
    }
    return kept | {"GEMMILL_HOME": str(home), "GEMMILL_LOG": "choices"}


def _step(
    name: str, command: list[object], environment: dict[str, str] | None = None, codes: tuple[int, ...] = (0,)
) -> float:
    """Run one and tell its seconds; end with its code where that is not one of `codes`."""
    print(f"== {name}", flush=True)
    begun = time.perf_counter()
    code = subprocess.run(list(map(str, command)), env=environment, cwd="/", check=False).returncode
    took = time.perf_counter() - begun
    print(f"== {name}: {took:.1f} s", flush=True)
    if code not in codes:
        sys.exit(code or 1)
    return took


if __name__ == "__main__":
    main()
