"""The sources of a kernel: changes that give another digest, and changes that do not."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gemmill.build.dsl_body import Bodies, Body
from gemmill.build.dsl_syntax import Library, Place
from gemmill.build.options import BuildOptions
from gemmill.build.provenance import code_of, source_digest
from gemmill.build.sources import Flags, flags_for, variant_source
from gemmill.build.workshop import keys_for
from gemmill.emit import emit
from gemmill.families.scaled_mm.config import KernelConfig
from gemmill.locations import kernels_dir, templates_dir
from gemmill.vocab import Arch, Backend, DType, EpilogueKind

FLAGS = flags_for(Arch.SM90A)
GENERATOR = Path(__file__).parents[3] / "generator"
OWN, SHARED = Path("gemmill", "families", "scaled_mm", "dsl"), Path("gemmill", "gemm")

CODE = """\
#pragma once
#include "scaled_mm/abi.h"
// What it is for.
constexpr char const* kUrl = "http://x";  // a text is code
int f(int a) { return a /* of course */ + 1; }
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("// What it is for.", "/* Said\n   otherwise. */"),
        ('#include "scaled_mm/abi.h"', '#include "gemmill/core/abi.h"'),
        ("#pragma once\n", ""),
        ("return a", "return\n      a"),
    ],
)
def test_what_a_compiler_does_not_read_is_no_code(old: str, new: str) -> None:
    assert code_of(CODE.replace(old, new)) == code_of(CODE) != ""


@pytest.mark.parametrize(("old", "new"), [("+ 1", "+ 2"), ("http://x", "http://y"), ("int a", "long a")])
def test_what_a_compiler_reads_is_code(old: str, new: str) -> None:
    assert code_of(CODE.replace(old, new)) != code_of(CODE)


def test_a_directive_that_names_no_file_is_code() -> None:
    assert code_of("#if A\nint x;\n#endif") != code_of("#if B\nint x;\n#endif")
    assert code_of("#pragma unroll\nf();") != code_of("f();")


def test_host_code_is_left_out() -> None:
    assert code_of(CODE + "// Host code: a launch.\nint g();\n") == code_of(CODE)
    assert code_of(CODE + "int g();  // Host code: a launch.\n") != code_of(CODE)


def test_no_device_code_follows_host_code() -> None:
    sources = [*kernels_dir().rglob("*.cuh"), *kernels_dir().rglob("*.h"), *templates_dir().rglob("*.cu.jinja")]
    parted = [path.read_text().partition("\n// Host code: ") for path in sources]
    assert sum(bool(host) for _, _, host in parted) >= 8
    for path, (device, _, host) in zip(sources, parted, strict=True):
        if device.startswith("// Host code: "):
            device, host = "", device
        assert "__device__" not in host and "__global__" not in host, path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of gemmill's headers."""
    shutil.copytree(kernels_dir(), tmp_path / "kernels")
    return tmp_path / "kernels"


def of_cuda(config: KernelConfig, folder: Path, text: str | None = None, flags: Flags = FLAGS) -> str:
    source = variant_source(config, keys_for(Arch.SM90A, BuildOptions()))
    return source_digest(source if text is None else replace(source, config=None, written=text), folder, flags)


def test_a_cuda_kernel_is_made_from_the_headers_that_it_includes(make_config: Callable, folder: Path) -> None:
    config = make_config()
    text, before = emit(config).text, of_cuda(make_config(), folder)
    header = folder / "core" / "epilogue.cuh"
    assert '"core/epilogue.cuh"' in text
    header.write_text(header.read_text() + "// read by people\n")
    assert of_cuda(config, folder) == before
    (folder / "scaled_mm" / "nobody_includes_it.cuh").write_text("int x;\n")
    assert of_cuda(config, folder) == before
    moved = folder / "core" / "moved.cuh"
    header.rename(moved)
    assert of_cuda(config, folder, text.replace("epilogue.cuh", "moved.cuh")) == before
    moved.write_text(moved.read_text() + "inline int more() { return 1; }\n")
    assert of_cuda(config, folder, text.replace("epilogue.cuh", "moved.cuh")) != before


def test_a_cuda_kernel_is_made_with_flags(make_config: Callable, folder: Path) -> None:
    config = make_config()
    before = of_cuda(config, folder)
    elsewhere = replace(FLAGS, cuda=(*FLAGS.cuda, "-I<gemmill>/core", "-Xcompiler=-g", "--compress-mode=none"))
    assert of_cuda(config, folder, flags=elsewhere) == before
    assert of_cuda(config, folder, flags=replace(FLAGS, cuda=(*FLAGS.cuda, "-DNEW"))) != before


@pytest.fixture
def config(make_config: Callable) -> KernelConfig:
    """A kernel of the DSL, e4m3 to bf16."""
    return make_config(backend=Backend.CUTEDSL)


@pytest.fixture
def generator(tmp_path: Path) -> Path:
    """A copy of gemmill that a test may change."""
    shutil.copytree(GENERATOR / "gemmill", tmp_path / "gemmill", ignore=shutil.ignore_patterns("__pycache__", "*.json"))
    return tmp_path


def of_dsl(config: KernelConfig, root: Path) -> str:
    return Bodies(root).digest(config)


def change(root: Path, module: str, old: str, new: str) -> None:
    path = root / f"{module}.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_a_dsl_kernel_has_no_use_for_other_dtypes_files_and_comments(config: KernelConfig, generator: Path) -> None:
    before = of_dsl(config, generator)
    assert before == of_dsl(config, GENERATOR) == of_cuda(config, Path("/none"), "any text")
    change(generator, "gemmill/gemm/elements", "ELEMENT_OF = {", "ELEMENT_OF = {DType.E2M1: cutlass.Float4E2M1FN, ")
    change(generator, "gemmill/gemm/mainloop", "def ", "# A thought.\ndef ")
    change(
        generator,
        "gemmill/gemm/facts",
        "self.tile_k * self.x_dtype.bits // 256",
        "self.tile_k // (256 // self.x_dtype.bits)",
    )
    (generator / SHARED / "of_another_family.py").write_text("import cutlass\n")
    assert of_dsl(config, generator) == before


def test_a_dsl_kernel_does_not_depend_on_names_of_files(config: KernelConfig, generator: Path) -> None:
    before = of_dsl(config, generator)
    (generator / SHARED / "walk.py").rename(generator / OWN / "tiles.py")
    for path in generator.rglob("*.py"):
        path.write_text(path.read_text().replace("gemmill.gemm.walk", "gemmill.families.scaled_mm.dsl.tiles"))
    assert of_dsl(config, generator) == before


def test_a_dsl_kernel_does_not_depend_on_where_definitions_stand(config: KernelConfig, generator: Path) -> None:
    """A function moves to a new file, a module gets another name where it is imported, and comments say more."""
    before = of_dsl(config, generator)
    walk = generator / SHARED / "walk.py"
    head, found, rest = walk.read_text().partition("@cute.jit\ndef walk_over(")
    function, end, others = rest.partition("\n\n\n")
    imports = (
        "import cutlass\nimport cutlass.cute as cute\nfrom cutlass import Int32\nfrom gemmill.gemm.walk import Walk\n"
    )
    (generator / SHARED / "tiles.py").write_text(imports + found + function)
    walk.write_text(head + others + "\nfrom gemmill.gemm.tiles import walk_over\n")
    main = generator / OWN / "scaled_mm.py"
    text = main.read_text().replace(
        "import consumer, epilogue, mainloop, parallel, producer",
        "import consumer, epilogue, mainloop, parallel, producer as loading",
    )
    main.write_text(text.replace("producer.", "loading.").replace('"""One kernel,', '"""One single kernel,'))
    assert found and end and "loading." in main.read_text()
    assert of_dsl(config, generator) == before


@pytest.mark.parametrize("module", ["gemmill/gemm/walk", "gemmill/families/scaled_mm/dsl/export"])
def test_what_no_body_reaches_does_not_count(config: KernelConfig, generator: Path, module: str) -> None:
    before = of_dsl(config, generator)
    with (generator / f"{module}.py").open("a") as file:
        file.write("\n\ndef of_another_kernel(x):\n    return x + 1\n")
    assert of_dsl(config, generator) == before


@pytest.mark.parametrize("called", ["a()", "b()"])
def test_which_definition_a_name_means_counts(tmp_path: Path, called: str) -> None:
    """All three are reached either way, in the same order."""
    (tmp_path / "other").mkdir()
    entry = tmp_path / "other" / "entry.py"
    text = "import cutlass\ndef export():\n    a(), b(), c()\ndef a(): 1\ndef b(): 2\ndef c(): a()\n"

    def digest() -> str:
        return Body(library=Library(tmp_path, "other"), entry=Place("other.entry", "export")).digest_for(())

    entry.write_text(text)
    before = digest()
    entry.write_text(text.replace("def c(): a()", f"def c(): {called}"))
    assert (digest() == before) is (called == "a()")


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("gemmill/gemm/producer", "EVICT_FIRST = ", "EVICT_FIRST = 1 + "),
        ("gemmill/gemm/elements", "DType.E4M3: cutlass.Float8E4M3FN", "DType.E4M3: cutlass.Float8E5M2"),
        ("gemmill/gemm/kernel", "preferred_smem_carveout=100", "preferred_smem_carveout=50"),
        ("gemmill/gemm/export", "x86-64-v3", "x86-64-v2"),
    ],
)
def test_a_dsl_kernel_changes_with_its_body(
    config: KernelConfig, generator: Path, module: str, old: str, new: str
) -> None:
    before = of_dsl(config, generator)
    change(generator, module, old, new)
    assert of_dsl(config, generator) != before


def test_a_dsl_kernel_changes_with_the_facts_that_it_reads(config: KernelConfig, make_config: Callable) -> None:
    others = [
        make_config(backend=Backend.CUTEDSL, stages=3),
        make_config(backend=Backend.CUTEDSL, out_dtype=DType.F16),
        make_config(backend=Backend.CUTEDSL, epilogue=EpilogueKind.SCALED),
    ]
    assert len({of_dsl(c, GENERATOR) for c in (config, *others)}) == 4


def test_a_value_that_a_body_imports_is_part_of_it(
    config: KernelConfig, generator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = of_dsl(config, generator)
    monkeypatch.setattr("gemmill.gemm.limits.PREFETCH_SHARE", 5)
    assert of_dsl(config, generator) != before
