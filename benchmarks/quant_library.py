"""The quantisation kernels as a plain shared library, called through ctypes on tensors' addresses: for checking and
timing them without the extension. The structures mirror kernels/include/gemmill/quant_abi.h."""

import ctypes
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import torch

from gemmill.space.names import symbol_of, to_name
from gemmill.space.quant import QuantConfig

REPOSITORY = Path(__file__).resolve().parent.parent
_P, _L, _I, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float
_PER_UNIT = 12


def _structure(name: str, fields: list[tuple[str, type]]) -> type[ctypes.Structure]:
    return type(name, (ctypes.Structure,), {"_fields_": fields})


Launch = _structure(
    "Launch",
    [
        ("stream", _P),
        ("sm_count", _I),
        ("programmatic_launch", _I),
        ("chunks_hint", _I),
        ("cluster_hint", _I),
        ("threads_hint", _I),
    ],
)
_SIZES = [("rows", _L), ("hidden", _L), ("in_stride", _L), ("out_stride", _L)]
StaticArgs = _structure(
    "StaticArgs",
    [
        ("in_", _P),
        ("out", _P),
        ("scales", _P),
        ("azp", _P),
        *_SIZES,
        ("group_m", _L),
        ("group_n", _L),
        ("scale_stride_m", _L),
        ("scale_stride_n", _L),
        ("launch", Launch),
    ],
)
TensorArgs = _structure(
    "TensorArgs", [("in_", _P), ("out", _P), ("scale", _P), ("workspace", _P), *_SIZES, ("launch", Launch)]
)
TokenArgs = _structure(
    "TokenArgs", [("in_", _P), ("out", _P), ("scales", _P), ("azps", _P), ("scale_ub", _P), *_SIZES, ("launch", Launch)]
)
GroupArgs = _structure(
    "GroupArgs",
    [
        ("in_", _P),
        ("out", _P),
        ("scales", _P),
        ("azps", _P),
        ("scale_ub", _P),
        *_SIZES,
        ("scale_stride_m", _L),
        ("scale_stride_g", _L),
        ("scale_rows", _L),
        ("smallest_amax", _F),
        ("smallest_scale", _F),
        ("launch", Launch),
    ],
)
RmsNormArgs = _structure(
    "RmsNormArgs",
    [
        ("in_", _P),
        ("weight", _P),
        ("residual", _P),
        ("out", _P),
        ("scales", _P),
        ("scale_ub", _P),
        *_SIZES,
        ("residual_stride", _L),
        ("scale_stride_m", _L),
        ("scale_stride_g", _L),
        ("epsilon", _F),
        ("launch", Launch),
    ],
)


def build(configs: Iterable[QuantConfig], nvcc: str, library: Path, jobs: int) -> None:
    """Emit, compile and link the configs; the objects stay beside the library. Raises CalledProcessError."""
    from gemmill.emit import emit  # needs jinja2, which running does not

    folder = library.parent
    units: list[Path] = []
    configs = list(configs)
    for start in range(0, len(configs), _PER_UNIT):
        unit = folder / f"unit{start // _PER_UNIT}.cu"
        unit.parent.mkdir(parents=True, exist_ok=True)
        text = "".join(emit(config).text for config in configs[start : start + _PER_UNIT])
        if not unit.exists() or unit.read_text() != text:
            unit.write_text(text)
        units.append(unit)
    flags = ["-std=c++17", "-O3", "-Xcompiler", "-fPIC", f"-gencode={configs[0].arch.gencode}"]
    includes = [f"-I{REPOSITORY / 'kernels'}", f"-I{REPOSITORY / 'kernels' / 'include'}"]
    objects = [unit.with_suffix(".o") for unit in units]

    def compile_unit(pair: tuple[Path, Path]) -> None:
        subprocess.run([nvcc, *flags, *includes, "-c", str(pair[0]), "-o", str(pair[1])], check=True)

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(compile_unit, zip(units, objects, strict=True)))
    subprocess.run(
        [nvcc, "-shared", "-cudart", "static", flags[-1], "-o", str(library), *map(str, objects)], check=True
    )
    (folder / "names.txt").write_text("".join(f"{to_name(config)}\n" for config in configs))


class Library:
    """The built library. `call` enqueues a variant on the current stream."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self.names = (path.parent / "names.txt").read_text().split()
        self.programmatic_launch = 0
        self.hints = (0, 0, 0)

    def launch(self) -> ctypes.Structure:
        """Launch options for the current stream and device."""
        return Launch(_stream(), _sm_count(torch.cuda.current_device()), self.programmatic_launch, *self.hints)

    def call(self, config: QuantConfig, args: ctypes.Structure) -> None:
        """Raises RuntimeError with the code that the launch function returned."""
        status = getattr(self._library, symbol_of(config))(ctypes.byref(args))
        if status != 0:
            raise RuntimeError(f"{to_name(config)} returned {status}")


def _stream() -> int:
    return torch.cuda.current_stream().cuda_stream


@cache
def _sm_count(device: int) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


def address(tensor: torch.Tensor | None) -> int | None:
    """The data pointer, or None for none."""
    return None if tensor is None else tensor.data_ptr()
