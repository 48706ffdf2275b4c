"""Every input of an object or an extension is in its key, or cannot reach it."""

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest

from gemmill import settings
from gemmill.build import driver, workshop
from gemmill.build.driver import build
from gemmill.build.options import BuildOptions
from gemmill.build.sources import Flags, Keys, SourceKind, flags_for, text_source, variant_source
from gemmill.build.workshop import keys_for
from gemmill.families.scaled_mm.config import KernelConfig
from gemmill.space.selections import Selection
from gemmill.vocab import Arch, Backend

from .conftest import FakeToolkit
from .test_dsl_build import FakeDsl, fake_dsl, make_both  # noqa: F401  (fixtures)

Make = Callable[..., Selection]
POISON = (
    *("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS", "NVCC_CCBIN", "PTXAS_FLAGS", "CUDAFE_FLAGS", "INCLUDES", "LIBRARIES"),
    *("SYSTEM_INCLUDES", "CICC_PATH", "NVVMIR_LIBRARY_DIR", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH"),
    *("LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX", "GCC_COMPARE_DEBUG", "SOURCE_DATE_EPOCH", "LD_RUN_PATH"),
    *("DEPENDENCIES_OUTPUT", "SUNPRO_DEPENDENCIES", "LDEMULATION", "GNUTARGET", "LANG", "LANGUAGE", "LC_MESSAGES"),
    *("CUTE_DSL_KEEP", "CUTE_DSL_COMPILER_OPT", "CUTE_EXPERIMENTAL_DSL_LIBS", "PYTHONOPTIMIZE"),
)


def test_what_a_compiler_inherits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept = ("HOME", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "CCACHE_DIR", "GEMMILL_HOME", "CUDA_HOME")
    for name in (*POISON, *kept):
        monkeypatch.setenv(name, f"/{name}")
    found = settings.compiler_environment(search=[tmp_path])
    assert not found.keys() & set(POISON)
    assert {name: found[name] for name in kept} == {name: f"/{name}" for name in kept}
    assert found["PATH"].startswith(f"{tmp_path}{os.pathsep}") and found["LC_ALL"] == "C"
    of_dsl = settings.dsl_environment("sm_90a", search=[tmp_path], python_path=tmp_path)
    assert {name: of_dsl[name] for name in of_dsl.keys() & set(POISON)} == {}


def test_no_compiler_or_linker_sees_what_would_change_its_output(
    fake_dsl: FakeDsl,  # noqa: F811
    options: BuildOptions,
    make_both: Make,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every step ends in g++: nvcc's and the worker's stand-ins, the binding, the adapters and the link."""
    for name in POISON:
        monkeypatch.setenv(name, "")  # harmless, and seen all the same
    monkeypatch.setenv("PATH", str(_logging_gxx(tmp_path)), prepend=os.pathsep)
    build(make_both(128), options)
    seen = (tmp_path / "seen").read_text().splitlines()
    assert sum(line.startswith("LC_ALL=") for line in seen) >= 6
    assert {line.partition("=")[0] for line in seen} & set(POISON) == set()


def _logging_gxx(folder: Path) -> Path:
    """A folder with a g++ that writes down its environment."""
    (folder / "tools").mkdir()
    script = folder / "tools" / "g++"
    script.write_text(f'#!/bin/sh\nenv >> {folder}/seen\nexec {shutil.which("g++")} "$@"\n')
    script.chmod(0o755)
    return script.parent


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (SourceKind.VARIANT, "cuda"),
        (SourceKind.DSL, "adapter"),
        (SourceKind.KERNELS, "cuda"),
        (SourceKind.BINDING, "host"),
    ],
)
def test_a_sources_key_covers_the_flags_that_compile_it(
    make_config: Callable[..., KernelConfig], kind: SourceKind, field: str
) -> None:
    keys = keys_for(Arch.SM90A, BuildOptions())

    def key(flags: Flags) -> str:
        if kind in (SourceKind.KERNELS, SourceKind.BINDING):
            return text_source(kind, "a.cu", "", replace(keys, flags=flags)).key
        backend = Backend.CUTEDSL if kind is SourceKind.DSL else Backend.CUTLASS
        return variant_source(make_config(backend=backend), replace(keys, flags=flags)).key

    flags = keys.flags
    changed = {f.name: key(replace(flags, **{f.name: (*getattr(flags, f.name), "-g")})) for f in fields(Flags)}
    assert {name for name, found in changed.items() if found != key(flags)} == {field}


@pytest.mark.parametrize(
    ("compiler", "kinds"),
    [
        ("cuda", {SourceKind.VARIANT, SourceKind.KERNELS}),
        ("host", {SourceKind.BINDING, SourceKind.DSL}),
        ("dsl", {SourceKind.DSL}),
    ],
)
def test_a_sources_key_covers_its_compilers(
    make_config: Callable[..., KernelConfig], compiler: str, kinds: set[SourceKind]
) -> None:
    def found(keys: Keys) -> dict[SourceKind, str]:
        texts = {kind: text_source(kind, "a", "", keys).key for kind in (SourceKind.KERNELS, SourceKind.BINDING)}
        variants = (variant_source(make_config(backend=backend), keys) for backend in Backend)
        return texts | {source.kind: source.key for source in variants}

    keys = keys_for(Arch.SM90A, BuildOptions())
    before, after = found(keys), found(replace(keys, **{compiler: "another"}))
    assert {kind for kind in before if before[kind] != after[kind]} == kinds


CHANGES = ("cuda", "host", "adapter", "link", "exports", "g++", "gemmill", "cudart", "dsl runtime")


def test_the_build_id_covers_what_makes_the_extension(
    fake_dsl: FakeDsl,  # noqa: F811
    options: BuildOptions,
    make_both: Make,  # noqa: F811
    toolkit: FakeToolkit,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = {"nothing": build(make_both(128), options).manifest.build_id}
    libraries = {
        "cudart": toolkit.home / "lib" / "libcudart_static.a",
        "dsl runtime": fake_dsl.folder / "libruntime.a",
    }
    (toolkit.home / "more.cpp").write_text("int more;\n")
    subprocess.run(["g++", "-c", "more.cpp"], cwd=toolkit.home, check=True)
    for change in CHANGES:
        with monkeypatch.context() as patch:
            if change in libraries:  # and stays
                subprocess.run(["ar", "rcs", libraries[change], toolkit.home / "more.o"], check=True)
            else:
                _change(change, patch)
            made[change] = build(make_both(128), options).manifest.build_id
    assert len(set(made.values())) == len(made), made


def _change(change: str, patch: pytest.MonkeyPatch) -> None:
    flags, found = flags_for(Arch.SM90A), workshop.find_toolchain
    if change == "exports":
        patch.setattr(driver, "EXPORTS", driver.EXPORTS + "# more\n")
    elif change == "gemmill":
        patch.setattr(driver, "__version__", "99")
    elif change == "g++":
        patch.setattr(
            workshop, "find_toolchain", lambda *given, **named: replace(found(*given, **named), host_build="other")
        )
    else:
        flags = replace(flags, **{change: (*getattr(flags, change), {"link": "-Wl,-O1"}.get(change, "-DMORE"))})
        patch.setattr(workshop, "flags_for", lambda _, **told: flags)
