"""Generic code knows no family: a further one adds a folder, and a line to the registry."""

import re
from pathlib import Path

import pytest

from gemmill.registry import REGISTRY
from gemmill.vocab import Backend, Compiler

ROOT = Path(__file__).parents[2]
GENERIC = (
    "generator/gemmill",
    "kernels/core",
    "kernels/extension",
    "templates/dsl",
    "templates/extension",
    "templates/report",
)
OF_FAMILIES = ("families/", "compat/", "nn/", "quantize/", "registry.py", "runtime/tables/", "__init__.pyi")
"""Below generator/gemmill; weights are packed for an op, by its name, layers call ops, and the stub has the types of the functions that a family shows."""
EXAMPLES = ("cli/explain.py", "cli/fuzz.py")
"""Whose help shows how a real op is asked about: those lines alone may name one."""
SHOWN = re.compile(r"^ {8}gemmill (explain|fuzz) .*$", re.MULTILINE)

OF_CHECKPOINTS = ("tuner/models.py", "checkpoints/stated.py")
"""Which read configurations of models: their words, and the files that they are from, are others'."""
WORDS = {*Compiler, *Backend}
"""Of the vocabulary: tags of kernels named after their compiler."""
NAMES = sorted(
    {family.name for family in REGISTRY.families}
    | {op.schema.name for family in REGISTRY.families for op in family.asks.ops}
    | {kernels.tag for family in REGISTRY.families for kernels in family.kernels} - WORDS
)  # fmt: skip


def generic_files() -> list[Path]:
    base = ROOT / "generator/gemmill"
    files = [path for folder in GENERIC for path in sorted((ROOT / folder).rglob("*")) if path.is_file()]
    texts = [path for path in files if "__pycache__" not in path.parts and path.suffix != ".json"]
    return [p for p in texts if not (p.is_relative_to(base) and str(p.relative_to(base)).startswith(OF_FAMILIES))]


def named_in(text: str) -> list[str]:
    """The names of families, their ops and their tags in a text, as words of identifiers of either case."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", text).lower()
    return [name for name in NAMES if re.search(rf"(?<![a-z0-9]){name}(?![a-z0-9])", words)]


def test_names_are_found_as_words_of_identifiers() -> None:
    assert named_in("pin_quant(") == named_in("class QuantRow:") == named_in('"quant"') == ["quant"]
    assert named_in("quantised, requant, scaled-mm") == []
    assert "cutlass_scaled_mm" in named_in("torch.ops.gemmill.cutlass_scaled_mm") and "cutlass" not in NAMES


INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"(\w+)/([^"]+)"', re.MULTILINE)
FAMILIES = {family.name for family in REGISTRY.families}


def others_included(root: Path) -> list[str]:
    """Files below a folder of kernels, or of templates, that include a file of a family whose folder they are not in."""
    files = [path for path in sorted(root.rglob("*")) if path.suffix in (".cpp", ".cu", ".cuh", ".h", ".hpp", ".jinja")]
    return [
        f"{path.relative_to(root)} includes {of}/{name}"
        for path in files
        for of, name in INCLUDE.findall(path.read_text(encoding="utf-8"))
        if of in FAMILIES and of != path.relative_to(root).parts[0]
    ]


@pytest.mark.parametrize("folder", ["kernels", "templates"])
def test_no_family_is_included_by_another(folder: str) -> None:
    """Code that several families share lies in a folder of none: kernels/core, coding, gemm."""
    assert others_included(ROOT / folder) == []


def test_an_include_across_families_is_found(tmp_path: Path) -> None:
    for name, text in (
        ("grouped_mm/a.cuh", '#include "grouped_mm/b.cuh"\n  # include "quant/c.cuh"\n'),
        ("gemm/d.h", '#include "grouped_mm/b.cuh"\n'),
    ):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    assert others_included(tmp_path) == ["gemm/d.h includes grouped_mm/b.cuh", "grouped_mm/a.cuh includes quant/c.cuh"]


@pytest.mark.parametrize("path", generic_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_family_is_named(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if str(path).endswith(EXAMPLES):
        assert SHOWN.search(text) is not None
        text = SHOWN.sub("", text)
    if str(path).endswith(OF_CHECKPOINTS):
        text = re.sub(r'"[^"\n]*"|`[^`\n]*`', "", text)
    lines = {n: line for n, line in enumerate(text.splitlines(), start=1) if named_in(line)}
    assert not lines, "a family is named where all are meant"
