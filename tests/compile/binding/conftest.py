"""An extension whose kernels only record their arguments, made from the real binding in seconds."""

import ctypes
import os
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gemmill.build import ToolchainPaths
from gemmill.build.files import file_digest
from gemmill.build.sources import BINDING, TORCH_TARGET, expand, flags_for, roots_of
from gemmill.emit.render import render
from gemmill.locations import kernels_dir
from gemmill.manifest import SCHEMA_VERSION, KernelEntry, Manifest, Toolchain, write_manifest
from gemmill.runtime.library import Build
from gemmill.runtime.schemas import OPS
from gemmill.space.family import AnyConfig, Family, family_of, gemms
from gemmill.space.names import symbol_of, to_name
from gemmill.space.predicate import predicate_of
from gemmill.space.quant import QuantConfig
from gemmill.space.selections import select
from gemmill.vocab import Arch, DType

_HERE = Path(__file__).parent
BUILD_IDS = ("aaaaaaaaaaaa", "bbbbbbbbbbbb")


class Arguments(ctypes.Structure):
    """Mirrors `gemmill_group_scaled_mm_args` in kernels/include/gemmill/group_abi.h, which the binding always passes."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in "a b d a_scales b_scales bias azp_adj azp workspace".split()),
        *((name, ctypes.c_int64) for name in "lda ldb ldd".split()),
        *(
            (name, ctypes.c_int32)
            for name in (
                "m n k a_scale_per_row b_scale_per_column raster_order swizzle splits device sm_count "
                "programmatic_launch constant_weights"
            ).split()
        ),
        *(
            (name, ctypes.c_int64)
            for name in "a_scale_stride_m a_scale_stride_k b_scale_stride_n b_scale_stride_k".split()
        ),
    )


class Probe:
    """A loaded build whose ops take CPU tensors, in a namespace of their own, and compute nothing."""

    def __init__(self, folder: Path) -> None:
        self.build = Build(folder)
        self._library = ctypes.CDLL(str(folder / self.build.manifest.extension))
        namespace = f"probe_{self.build.build_id}"
        self._schemas = torch.library.Library(namespace, "FRAGMENT")
        for op in OPS:
            self._schemas.define(op.schema)
        self._library.probe_register(namespace.encode())
        self.ops = getattr(torch.ops, namespace)

    def run(self, op: str, *tensors: torch.Tensor | None, status: int = 0) -> tuple[str, Arguments] | None:
        """Symbol and arguments of the launch that a call comes to, None if it comes to none."""
        self._int("probe_launches").value = 0
        self._int("probe_status").value = status
        getattr(self.ops, op).default(*tensors)
        if self._int("probe_launches").value == 0:
            return None
        symbol = (ctypes.c_char * 512).in_dll(self._library, "probe_symbol").value.decode()
        recorded = Arguments.in_dll(self._library, "probe_args")
        return symbol, Arguments.from_buffer_copy(recorded)

    def _int(self, name: str) -> ctypes.c_int32:
        return ctypes.c_int32.in_dll(self._library, name)


def some_configs() -> tuple[AnyConfig, ...]:
    """The smoke selection, and of the default one all GEMMs with scales in groups and quantisation kernels of bf16: so
    every class of GEMMs has a variant, and every quantisation op one that takes all that it may be given."""
    default = select("default").configs
    grouped = [config for config in gemms(default) if config.problem.group_size]
    quant = [config for config in default if isinstance(config, QuantConfig) and config.in_dtype is DType.BF16]
    return tuple(dict.fromkeys([*select("smoke").configs, *grouped, *quant]))


@pytest.fixture(scope="session")
def home_of_probes(toolchain: ToolchainPaths, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with two builds that differ in their id."""
    home = tmp_path_factory.mktemp("probe")
    roots, flags = roots_of(toolchain, kernels_dir()), flags_for(Arch.SM90A)
    configs = some_configs()
    symbols = {
        family: sorted({symbol_of(config) for config in configs if family_of(config) is family}) for family in Family
    }
    sources = [*sorted((kernels_dir() / BINDING).glob("*.cpp")), _HERE / "probe.cpp", home / "kernels.cpp"]
    sources[-1].write_text(
        '#include "probe.h"\n'
        + "".join(f"PROBE_{family.upper()}({symbol})\n" for family in Family for symbol in symbols[family])
    )
    for build_id in BUILD_IDS:
        sources.append(home / f"variants_{build_id}.cpp")
        sources[-1].write_text(render("extension/variants.cpp.jinja", {"symbols": symbols, "build_id": build_id}))

    def compile_one(source: Path) -> Path:
        target = home / f"{source.stem}.o"
        command = [toolchain.gxx, "-c", source, *expand(flags.host, roots), "-O0", f"-I{_HERE}", "-o", target]
        subprocess.run(list(map(str, command)), check=True)
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        *shared, first, second = pool.map(compile_one, sources)
    for build_id, variants in zip(BUILD_IDS, (first, second), strict=True):
        folder = home / "builds" / build_id
        folder.mkdir(parents=True)
        extension = folder / f"gemmill_{build_id}.so"
        linked = [
            toolchain.gxx,
            *shared,
            variants,
            toolchain.cudart_static,
            *expand(flags.link, roots),
            "-o",
            extension,
        ]
        subprocess.run(list(map(str, linked)), check=True)
        write_manifest(_manifest(build_id, configs, extension), folder / "manifest.json")
    return home


def _manifest(build_id: str, configs: tuple[AnyConfig, ...], extension: Path) -> Manifest:
    entries = tuple(
        KernelEntry(
            name=to_name(config),
            family=family_of(config),
            config=config,
            symbol=symbol_of(config),
            predicate=predicate_of(config),
            source_digest="",
            compile_seconds=0.0,
            peak_memory_bytes=0,
            code_bytes=0,
            registers=0,
            spill_bytes=0,
        )
        for config in configs
    )
    return Manifest(
        schema_version=SCHEMA_VERSION,
        build_id=build_id,
        gemmill_version="0.1.0",
        created="2026-11-20T12:00:00Z",
        arch="sm90a",
        selection="smoke",
        extension=extension.name,
        extension_sha256=file_digest(extension),
        extension_bytes=extension.stat().st_size,
        torch_target=TORCH_TARGET,
        toolchain=Toolchain(nvcc="", cuda_major=13, cutlass="", cutedsl="", host_compiler="", flags=()),
        entries=entries,
    )


@pytest.fixture(scope="session")
def probe(home_of_probes: Path) -> Probe:
    return Probe(home_of_probes / "builds" / BUILD_IDS[0])


@pytest.fixture
def with_table(probe: Probe) -> Callable:
    """Replace the probe's table, and have the first one back at the end."""
    before = probe.build.table

    def send(**changes: object) -> None:
        probe.build.table = replace(before, **changes)
        probe.build._send_table()

    yield send
    send()
