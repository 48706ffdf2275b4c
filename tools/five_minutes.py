#!/usr/bin/env python3
"""The first minutes of a user with torch and gemmill's two packages: install them, run a quantised layer, use the verbs, serve engines.

    tools/five_minutes.py dist/gemmill-0.1.0-py3-none-any.whl dist/gemmill_sm90a_cu13-0.1.0-py3-none-manylinux_2_34_x86_64.whl
    tools/five_minutes.py            of the build that serves, for which it writes both wheels first
    tools/five_minutes.py --all      with the verbs, and a tiny model that is converted, generates, is saved and loaded
    tools/five_minutes.py --model    the layer and that model alone
    tools/five_minutes.py --all --find-links FOLDER dist/*.whl
                                     without an index: gemmill[tune], with wheels in FOLDER of packages that this interpreter lacks

One wheel with everything will do as well. Each step is a process of an empty environment with the wheels and the packages of
this interpreter, torch among them, but not this checkout. Without a GPU layers run the reference, and `tune` is dry. Where vLLM
and SGLang are not installed, the plugins register with stand-ins made from recorded interfaces of a release of each.
Tells the wheels' sizes, and the time from pip to the end of the first kernel's call. Exits with the code of the first step that fails.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import venv
from importlib.util import find_spec
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

MODEL = """
import sys
import torch
from transformers import LlamaConfig, LlamaForCausalLM
sizes = dict(vocab_size=256, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4)
LlamaForCausalLM(LlamaConfig(num_key_value_heads=4, **sizes)).to(torch.bfloat16).save_pretrained(sys.argv[1])
"""

GENERATES = """
import sys
import torch
from transformers import AutoModelForCausalLM
import gemmill
from gemmill.nn import QuantLinear
from gemmill.nn.stored import stored_config
device = "cuda" if torch.cuda.is_available() else "cpu"
converted, saved = sys.argv[1:]
def tokens(model):
    prompt = torch.tensor([[1, 2, 3]], device=device)
    return model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, do_sample=False)[0].tolist()
def loaded(folder, **more):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, **more).to(device)
    return model, sum(isinstance(layer, QuantLinear) for layer in model.modules())
model, count = loaded(converted, config=stored_config(converted))
first = tokens(model)
if device == "cuda":
    assert any(row.times for row in gemmill.stats()), "no kernel was chosen"
model.save_pretrained(saved)
again, as_many = loaded(saved)
second = tokens(again)
assert first == second and count == as_many == 14, (first, second, count, as_many)
print(f"{count} layers of a model in FP8 on {device} generate {first[3:]}, and the same after save_pretrained and from_pretrained")
"""

SHAPES = "m,n,k\n1,256,512\n16,256,512\n64,512,256\n256,512,512\n"

PLUGINS = """
import importlib.metadata, importlib.util, sys
from itertools import takewhile
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
lists = [kernels[sys.modules["vllm.platforms"].PlatformEnum.CUDA] for kernels in (
    linear._POSSIBLE_FP8_KERNELS, linear._POSSIBLE_FP8_BLOCK_KERNELS, linear._POSSIBLE_INT8_KERNELS)]
first = [list(takewhile(lambda name: name.startswith("Gemmill"), (kernel.__name__ for kernel in one))) for one in lists]
print("vLLM asks first:", ", ".join(name for names in first for name in names))
assert all(first)
assert hasattr(sys.modules["vllm._custom_ops"].cutlass_moe_mm, "__wrapped__"), "vLLM's experts do not come to gemmill"
from gemmill.compat.vllm.blocks import BEFORE, MODULE
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
    parser.add_argument("wheels", nargs="*", type=Path)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where wheels that it writes stay")
    parser.add_argument("--all", action="store_true", help="verbs and a tiny model too: minutes without a GPU")
    parser.add_argument("--model", action="store_true", help="the layer and a tiny model alone; needs transformers")
    parser.add_argument(
        "--find-links", type=Path, metavar="FOLDER", help="of wheels, from which pip takes what is missing"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gemmill-five-minutes-") as folder:
        begun = time.perf_counter()
        wheels = [path.resolve() for path in given.wheels] or _written(
            (given.keep or Path(folder) / "dist").resolve()
        )  # steps run elsewhere
        for wheel in wheels:
            print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")
        python = _made(Path(folder) / "environment")
        there = _environment(Path(folder) / "home")
        pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--disable-pip-version-check"]
        took = _step("install", [*pip, "--no-index", *_asked(wheels, given.find_links)])
        took += _step("layer", [python, "-c", LAYER], there)
        print(f"from pip to the first kernel's call: {took:.1f} s")
        if given.model:
            _generate(Path(folder), python, there)
        else:
            _step("doctor", [python, "-m", "gemmill", "doctor"], there, codes=(0, 1))
            if given.all:
                _use(Path(folder), python, there)
            _step("plugins", [python, "-c", PLUGINS, ROOT / "tests"], there)
        print(f"done in {time.perf_counter() - begun:.0f} s")


def _asked(wheels: list[Path], find_links: Path | None) -> list[object]:
    """Arguments of pip: the wheels alone, or with the requirements of gemmill[tune] from a folder."""
    if find_links is None:
        return ["--no-deps", *wheels]
    extra = [f"gemmill[tune] @ {path.as_uri()}" if path.name.startswith("gemmill-") else path for path in wheels]
    return ["--find-links", find_links.resolve(), *extra]


def _written(folder: Path) -> list[Path]:
    """The wheels of both packages."""
    make = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, ROOT]
    _step("build", make, quiet=True)
    command = [sys.executable, "-m", "gemmill", "wheel", "--kernels", "--out", folder]
    _step("wheel", command, os.environ | {"PYTHONPATH": str(ROOT / "generator")})
    return sorted(folder.glob("*.whl"))


def _use(folder: Path, python: Path, environment: dict[str, str]) -> None:
    """The verbs, a layer's calls saved and exported, and a tiny model from its conversion to its generated tokens."""
    for verb, command in _verbs(folder, python).items():
        codes = (0, 1) if verb == "audit" else (0,)  # which exits with 1 where it finds something
        _step(verb, [python, "-m", "gemmill", verb, *command], environment, codes)
    calls = folder / "calls"
    _step("dump", [python, "-c", LAYER], environment | {"GEMMILL_DUMP": str(calls)})
    for number, call in enumerate(sorted(calls.glob("*.safetensors"))):  # none on a CPU, where no kernel ran
        replay = folder / f"replay-{number}"
        _step("export --from", [python, "-m", "gemmill", "export", "--from", call, "--out", replay], environment)
    if find_spec("transformers") is not None:
        _generate(folder, python, environment)


def _generate(folder: Path, python: Path, environment: dict[str, str]) -> None:
    original, converted, saved = (folder / name for name in ("model", "converted", "saved"))
    _step("model", [python, "-c", MODEL, original], environment)
    convert = [python, "-m", "gemmill", "convert", original, converted, "--to", "channel"]
    _step("convert", convert, environment)
    _step("generates", [python, "-c", GENERATES, converted, saved], environment)


def _verbs(folder: Path, python: Path) -> dict[str, list[object]]:
    """Calls of the installed command's verbs: those that read templates and kernels, and those that measure."""
    shapes = folder / "shapes.csv"
    shapes.write_text(SHAPES, encoding="utf-8")
    has_gpu = subprocess.run([python, "-c", "import sys, torch; sys.exit(not torch.cuda.is_available())"], check=False)
    where = [] if has_gpu.returncode == 0 else ["--dry-run"]
    variant = "*quant_rmstoken_bf16_e4m3_none_f32_sym"
    return {
        "list": ["--filter", variant],
        "plan": ["--select", "smoke"],
        "tune": ["--shapes", shapes, "--no-peers", "--table", folder / "table.json", *where],
        "time": ["-m", "16,256", "-n", "256", "-k", "512", *where],
        "generate": ["--filter", variant, "--out", folder / "sources"],
        "audit": ["--shapes", shapes],
        "export": [variant, "-m", "4", "--hidden", "512", "--out", folder / "kernel"],
        "fuzz": ["--cpu", "--seconds", "2"],
    }


def _made(folder: Path) -> Path:
    """An environment without packages but those of this interpreter, torch among them, which come after its own; its interpreter."""
    venv.create(folder, symlinks=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    lines = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    (packages / "torch.pth").write_text("\n".join(lines), encoding="utf-8")
    return folder / "bin" / "python"


def _environment(home: Path) -> dict[str, str]:
    """Without this process's settings, and with an empty home, so that the wheel's build serves."""
    kept = {
        name: value for name, value in os.environ.items() if name != "PYTHONPATH" and not name.startswith("GEMMILL_")
    }
    return kept | {"GEMMILL_HOME": str(home), "GEMMILL_LOG": "choices"}


def _step(
    name: str,
    command: list[object],
    environment: dict[str, str] | None = None,
    codes: tuple[int, ...] = (0,),
    *,
    quiet: bool = False,
) -> float:
    """Run one and tell its seconds; end with its code where that is not one of `codes`."""
    print(f"== {name}", flush=True)
    begun = time.perf_counter()
    out = subprocess.DEVNULL if quiet else None
    code = subprocess.run(list(map(str, command)), env=environment, cwd="/", stdout=out, check=False).returncode
    took = time.perf_counter() - begun
    print(f"== {name}: {took:.1f} s", flush=True)
    if code not in codes:
        sys.exit(code or 1)
    return took


if __name__ == "__main__":
    main()
