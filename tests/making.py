"""Configs and manifests that unit tests start from."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gemmill.cli import main
from gemmill.families.scaled_mm.config import ACCUMULATOR_OF, RESULTS_OF, Design, KernelConfig, Launch, Operands
from gemmill.family import Config
from gemmill.manifest import SCHEMA_VERSION, KernelEntry, Manifest, RejectedEntry, Toolchain, write_manifest
from gemmill.registry import REGISTRY
from gemmill.space.names import symbol_of, to_name
from gemmill.vocab import Accumulation, DType, EpilogueKind, KernelSchedule

MakeConfig = Callable[..., KernelConfig]


def _base(**changes: object) -> KernelConfig:
    operand = changes.get("a_dtype", DType.E4M3)
    unaligned = changes.get("kernel_schedule") is KernelSchedule.MMA_SYNC
    settings: dict = {
        "a_dtype": operand,
        "b_dtype": operand,
        "accumulator_dtype": ACCUMULATOR_OF.get(operand, DType.F32),
        "out_dtype": RESULTS_OF.get(operand, (DType.BF16,))[0],
        "epilogue": EpilogueKind.SCALED_BIAS,
        "tile_shape_mnk": (64, 64, 64) if unaligned else (128, 128, 128),
        "kernel_schedule": KernelSchedule.COOPERATIVE,
        "accumulation": Accumulation.EXACT
        if operand is DType.S8
        else Accumulation.PROMOTED
        if unaligned and operand is DType.E4M3
        else Accumulation.FAST,
        "alignment_a": 128 // operand.bits,
        "alignment_b": 128 // operand.bits,
    }
    if unaligned:
        settings |= {"alignment_a": 1, "alignment_b": 1, "alignment_d": 1}
    settings |= changes
    parts = {
        part: {f.name: settings.pop(f.name) for f in fields(part) if f.name in settings}
        for part in (Operands, Design, Launch)
    }
    config = KernelConfig(
        operands=Operands(**parts[Operands]),
        design=Design(**parts[Design]),
        epilogue=settings.pop("epilogue"),
        launch=Launch(**parts[Launch]),
    )
    return replace(config, **settings)


@pytest.fixture(scope="session")
def make_config() -> MakeConfig:
    """A config from field names of Operands, Design, Launch and KernelConfig; without any, one that every rule accepts."""
    return _base


def _entry(config: Config) -> KernelEntry:
    return KernelEntry(
        name=to_name(config),
        family=REGISTRY.family_of(config).name,
        config=config,
        symbol=symbol_of(config),
        ops=REGISTRY.ops_of(config),
        epilogue=REGISTRY.epilogue_of(config),
        source_digest="5" * 64,
        compile_seconds=16.25,
        peak_memory_bytes=3_500_000_000,
        code_bytes=20_480,
        registers=168,
        spill_bytes=0,
        sass={"QGMMA": 32, "UTMALDG": 2},
    )


@pytest.fixture(scope="session")
def make_manifest() -> Callable[..., Manifest]:
    """A manifest of the given configs (by default one), with any field replaced."""

    def make(*configs: Config, **changes: object) -> Manifest:
        manifest = Manifest(
            schema_version=SCHEMA_VERSION,
            build_id="0123abcd4567",
            gemmill_version="0.1.0",
            created="2026-11-20T12:00:00Z",
            arch="sm90a",
            selection="smoke",
            extension="gemmill_0123abcd4567.so",
            extension_sha256="a" * 64,
            extension_bytes=1_000_000,
            torch_target="2.11",
            toolchain=Toolchain(
                nvcc="13.5.0",
                cuda_major=13,
                cutlass="4.2.0",
                cutedsl="",
                host_compiler="g++ 12.2.0",
                flags=("-O3", "-std=c++17"),
            ),
            entries=tuple(_entry(config) for config in configs or (_base(),)),
            rejected=(RejectedEntry(name="sm90a_cutlass_bad", error="error: static assertion failed"),),
        )
        return replace(manifest, **changes)

    return make


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of a run of the command."""

    code: int
    out: str
    err: str


@pytest.fixture
def gemmill(capsys: pytest.CaptureFixture) -> Callable[..., Outcome]:
    """Run the `gemmill` command in this process."""

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit_:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(code=exit_.value.code, out=captured.out, err=captured.err)

    return run


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of builds and cache, which settings.home() names."""
    folder = tmp_path / "home"
    monkeypatch.setenv("GEMMILL_HOME", str(folder))
    monkeypatch.delenv("GEMMILL_BUILD", raising=False)
    return folder


@pytest.fixture
def put_build(home: Path, make_manifest: Callable[..., Manifest]) -> Callable[..., Manifest]:
    """Put a build of the given configs into `home`; its extension holds no code."""

    def put(*configs: Config, content: bytes = b"not loaded", **changes: object) -> Manifest:
        manifest = make_manifest(*configs, extension_sha256=hashlib.sha256(content).hexdigest(), **changes)
        folder = home / "builds" / manifest.build_id
        folder.mkdir(parents=True)
        (folder / manifest.extension).write_bytes(content)
        write_manifest(manifest, folder / "manifest.json")
        return manifest

    return put


def changed(config: Any, **changes: Any) -> Any:
    """A config with other values of its attributes, or of those of its parts, by their names."""
    own = {field.name for field in fields(config)}
    told = {name: value for name, value in changes.items() if name in own}
    for part in own - told.keys():
        value = getattr(config, part)
        if is_dataclass(value) and (inner := {f.name for f in fields(value)} & changes.keys() - own):
            told[part] = replace(value, **{name: changes[name] for name in inner})
    return replace(config, **told)
