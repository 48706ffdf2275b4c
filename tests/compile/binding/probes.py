"""An extension whose kernels only record their arguments, made from the real binding in seconds."""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch

from compile.binding.structs import struct_of
from gemmill.build.compiling import compile_missing, look_again
from gemmill.build.files import file_digest
from gemmill.build.options import BuildObserver, BuildOptions
from gemmill.build.sources import TORCH_TARGET, expand, file_sources, flags_for, roots_of
from gemmill.build.toolchain import ToolchainPaths
from gemmill.build.workshop import open_workshop
from gemmill.emit.render import render
from gemmill.families import kv_cache, quant, scaled_mm, sparse_mm
from gemmill.families.fused_experts import selections as fused_experts_selections
from gemmill.families.gated_mm import selections as gated_mm_selections
from gemmill.families.grouped_mm import selections as grouped_mm_selections
from gemmill.family import Config, ShapedCall
from gemmill.locations import kernels_dir
from gemmill.manifest import SCHEMA_VERSION, KernelEntry, Manifest, Toolchain, write_manifest
from gemmill.registry import REGISTRY
from gemmill.runtime.library import Build
from gemmill.runtime.packed import packed_call
from gemmill.runtime.schemas import OPS
from gemmill.space.names import symbol_of, to_name
from gemmill.space.selections import select
from gemmill.vocab import Arch, DType, ScaleLayout, TileScheduler

pytest.register_assert_rewrite("compile.binding.drawn")
_HERE = Path(__file__).parent
_OF_A_MACHINE = (
    "cudaGetDevice cudaSetDevice cudaDeviceGetAttribute cudaGetDriverEntryPointByVersion aoti_torch_get_device_index "
    "aoti_torch_get_device_type aoti_torch_delete_tensor_object aoti_torch_empty_strided "
    "aoti_torch_get_current_cuda_stream aoti_torch_create_cuda_guard aoti_torch_delete_cuda_guard"
).split()
"""The functions that machine.cpp replaces."""
BUILD_IDS = ("aaaaaaaaaaaa", "bbbbbbbbbbbb")


Launch = struct_of("core/abi.h", "gemmill_launch")


class Machine(ctypes.Structure):
    """Mirrors `probe_machine_state` in machine.h."""

    _fields_ = (
        *(
            (name, ctypes.c_int32)
            for name in (
                "device current guards devices_set attributes_asked described launched out_of_memory allocated_on "
                "allocated_type"
            ).split()
        ),
        *((name, ctypes.c_int64) for name in "allocated_bytes tensors_let_go".split()),
        ("elsewhere", ctypes.c_void_p),
    )


class Probe:
    """A loaded build whose ops take CPU tensors, in a namespace of their own, and compute nothing."""

    def __init__(self, folder: Path) -> None:
        self.build = Build(folder)
        self._families = {entry.symbol: entry.family for entry in self.build.manifest.entries}
        self._library = ctypes.CDLL(str(folder / self.build.manifest.extension))
        namespace = f"probe_{self.build.build_id}"
        self._schemas = torch.library.Library(namespace, "FRAGMENT")
        for op in OPS:
            self._schemas.define(op.schema)
        self.build.register(namespace, "CPU")
        self.ops = getattr(torch.ops, namespace)

    def variants_of(self, family: str) -> list[KernelEntry]:
        """Of the build, each once."""
        return [entry for entry in self.build.manifest.entries if entry.family == family]

    def run(self, op: str, *given: Any, status: int = 0) -> tuple[str, ctypes.Structure] | None:
        """Symbol and arguments of the launch that a call comes to, None if it comes to none."""
        self._int("probe_launches").value = 0
        self._int("probe_status").value = status
        getattr(self.ops, op).default(*given)
        if self._int("probe_launches").value == 0:
            return None
        symbol = (ctypes.c_char * 512).in_dll(self._library, "probe_symbol").value.decode()
        struct = struct_of(f"{self._families[symbol]}/abi.h")
        return symbol, struct.from_buffer_copy(struct.in_dll(self._library, "probe_args"))

    def nanoseconds(self, row: int, call: ShapedCall, sm_count: int) -> float:
        """The estimate of the extension's model for a call by a row of the table."""
        model = self._library.probe_nanoseconds
        model.restype = ctypes.c_double
        packed = ctypes.byref(packed_call(call))
        return model(call.family.encode(), ctypes.c_int64(row), packed, ctypes.c_int64(sm_count))

    def wastes(self, row: int, measured: ShapedCall, call: ShapedCall) -> bool:
        """Whether the extension takes a row, measured for one call, to be wasteful for another."""
        model = self._library.probe_wastes
        model.restype = ctypes.c_bool
        packed = (ctypes.byref(packed_call(x)) for x in (measured, call))
        return model(call.family.encode(), ctypes.c_int64(row), *packed)

    @contextmanager
    def taking_noted(self) -> Iterator[None]:
        """Meanwhile a thread asks for the noted choices again and again."""
        end = ctypes.c_int32(0)
        thread = Thread(target=self._library.probe_take_noted_until, args=(ctypes.byref(end),))
        thread.start()
        try:
            yield
        finally:
            end.value = 1
            thread.join()

    @property
    def how(self) -> Launch:
        """How the last kernel was launched."""
        return Launch.from_buffer_copy(Launch.in_dll(self._library, "probe_how"))

    @property
    def machine(self) -> Machine:
        """The machine that the binding sees."""
        return Machine.in_dll(self._library, "probe_machine")

    def number(self, name: str, kind: type = ctypes.c_int64) -> Any:
        """A number of probe.cpp's."""
        return kind.in_dll(self._library, name)

    def describe(self, question: dict[str, Any]) -> tuple[int, list[int]]:
        """Result and contents of a TMA descriptor that a kernel asks for."""
        told = (ctypes.c_uint64 * 4)()
        result = self._library.probe_describe(
            ctypes.c_uint64(question["address"]),
            (ctypes.c_uint64 * 2)(*question["dims"]),
            ctypes.c_uint64(question["stride"]),
            *((ctypes.c_uint32 * len(question[name]))(*question[name]) for name in ("box", "element_strides", "kinds")),
            told,
        )
        return result, list(told)

    def _int(self, name: str) -> ctypes.c_int32:
        return self.number(name, ctypes.c_int32)


def some_configs() -> tuple[Config, ...]:
    """The smoke selection, and of the default one every launch of the same kernels, all GEMMs with scales in groups and some
    of bf16 whose slices of K meet in memory, quantisation kernels of bf16, all of compressed caches, sparse GEMMs and fused experts, of
    grouped and gated GEMMs those of the sweep: so every class of GEMMs has a variant, and every other op one that takes all that it may be
    given. Of nvcc's those that want scales of A by columns."""
    smoke, default = (select(name).configs for name in ("smoke", "default"))
    kernels = {config.compiled for config in smoke}
    same_kernels = [config for config in default if config.compiled in kernels]
    gemms = REGISTRY.configs_of(scaled_mm.NAME, default)
    grouped = [config for config in gemms if config.operands.group_size or _joins_in_memory(config)]
    of_bf16 = [config for config in REGISTRY.configs_of(quant.NAME, default) if config.in_dtype is DType.BF16]
    of_caches = REGISTRY.configs_of(kv_cache.NAME, default)
    of_experts = list(grouped_mm_selections.default(Arch.SM90A))
    of_sparse = REGISTRY.configs_of(sparse_mm.NAME, default)
    of_layers = list(fused_experts_selections.sweep(Arch.SM90A))
    of_gates = list(gated_mm_selections.sweep(Arch.SM90A))
    alone = REGISTRY.configs_of(scaled_mm.NAME, select("nvcc").configs)
    by_columns = [config for config in alone if config.operands.scale_layout is ScaleLayout.MN_MAJOR]
    others = [*of_bf16, *of_caches, *of_experts, *of_gates, *of_sparse, *of_layers]
    return tuple(dict.fromkeys([*smoke, *same_kernels, *grouped, *by_columns, *others]))


def _joins_in_memory(config: Config) -> bool:
    of_bf16 = config.operand_dtype is DType.BF16 and config.launch.splits == 4
    return of_bf16 and config.design.tile_scheduler is TileScheduler.SPLIT_K_PARALLEL


def objects_of_the_binding(folder: Path) -> list[Path]:
    """Copies of those that every build links, which a build of the smoke selection has made."""
    workshop = open_workshop(Arch.SM90A, BuildOptions())
    sources = file_sources(kernels_dir(), workshop.keys)
    found = workshop.cache.lookup(sources)
    if found.missing:
        compile_missing(found.missing, workshop, BuildObserver())
        found = look_again(sources, workshop)
    folder.mkdir()
    names = ["_".join(entry.members.values()).replace("/", "_") for entry in found.entries]
    objects = map(workshop.cache.object_path, found.entries)
    return [Path(shutil.copyfile(path, folder / f"{name}.o")) for name, path in zip(names, objects, strict=True)]


@pytest.fixture(scope="session")
def home_of_probes(toolchain: ToolchainPaths, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with two builds that differ in their id."""
    home = tmp_path_factory.mktemp("probe")
    roots, flags = roots_of(toolchain, kernels_dir()), flags_for(Arch.SM90A)
    configs = some_configs()
    symbols = sorted(set(map(symbol_of, configs)))
    sources = [
        _HERE / "machine.cpp",
        _HERE / "probe.cpp",
        home / "kernels.cpp",
    ]
    sources[-1].write_text(
        '#include "probe.h"\n'
        + "".join(f"PROBE({symbol})\n" for symbol in symbols)
        + "".join(f"PROBE_WORKSPACE({symbol})\n" for symbol in symbols if "_quant_tensor_" in symbol)
    )
    for build_id in BUILD_IDS:
        sources.append(home / f"variants_{build_id}.cpp")
        sources[-1].write_text(render("extension/variants.cpp.jinja", {"symbols": symbols, "build_id": build_id}))

    def compile_one(source: Path) -> Path:
        target = home / f"{source.parent.name}_{source.stem}.o"
        command = [toolchain.gxx, "-c", source, *expand(flags.host, roots), "-O0", f"-I{_HERE}", "-o", target]
        subprocess.run(list(map(str, command)), check=True)
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        *shared, first, second = pool.map(compile_one, sources)
    shared += objects_of_the_binding(home / "binding")
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
            *(f"-Wl,--wrap={name}" for name in _OF_A_MACHINE),
            "-o",
            extension,
        ]
        subprocess.run(list(map(str, linked)), check=True)
        write_manifest(_manifest(build_id, configs, extension), folder / "manifest.json")
    return home


def _manifest(build_id: str, configs: tuple[Config, ...], extension: Path) -> Manifest:
    entries = tuple(
        KernelEntry(
            name=to_name(config),
            family=REGISTRY.family_of(config).name,
            config=config,
            symbol=symbol_of(config),
            ops=REGISTRY.ops_of(config),
            epilogue=REGISTRY.epilogue_of(config),
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
