"""Words that the glossary gives one meaning have one in the code."""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "generator/gemmill"
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TYPES = {"workload": {"Workload", "MeasuredWorkload"}, "spec": {"Spec"}}
"""Endings of the types of parameters and fields so called, besides values that cross to another process as JSON."""
AS_JSON = ("Any", "list[Any]")
ENDINGS = {"Plan": {"Plan", "BuildPlan", "PagePlan"}, "Workload": {"Workload", "MeasuredWorkload"}}
"""Classes whose names end so."""
HOMES = {
    "Kind": {"gemm/traced.py"},
    "Op": {"family/op.py"},
    "Facts": {"gemm/facts.py", "families/gated_mm/facts.py", "families/grouped_mm/facts.py"},
    "Field": {"family/grammar.py"},
    "Layout": {"family/tensor.py"},
    "Outcome": set(),
}
"""Modules that define a class of a short word: other types say in more words of which things they are."""
ONCE = ("GROUP_SIZES", "QUANT_GROUP_SIZES", "QUANT_OPS")
"""Constants that several modules once had, each with a meaning of its own."""


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """Of all modules, by their paths."""
    return {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}


def _declared(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Names and types of the parameters and fields that a module declares."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation is not None:
            yield node.arg, ast.unparse(node.annotation)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, ast.unparse(node.annotation)


def strangers(trees: dict[str, ast.Module]) -> list[str]:
    """Parameters and fields whose name means something else than their type."""
    found = []
    for path, tree in trees.items():
        for name, annotation in _declared(tree):
            kind = annotation.strip("'\"").split(".")[-1]
            if name in TYPES and not kind.endswith((*TYPES[name], *AS_JSON)):
                found.append(f"{path}: {name}: {kind}")
    return found


def test_a_name_has_the_type_that_its_word_means(trees: dict[str, ast.Module]) -> None:
    assert strangers(trees) == []
    assert strangers({"a.py": ast.parse("def f(spec: Workload): ...")}) == ["a.py: spec: Workload"]
    assert strangers({"a.py": ast.parse("class A:\n    workload: int")}) == ["a.py: workload: int"]


@pytest.mark.parametrize("word", HOMES)
def test_a_short_word_names_one_type(word: str, trees: dict[str, ast.Module]) -> None:
    """The facts of a kernel of the CuTe DSL are one type, of which families derive their own."""
    homes = {
        path
        for path, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and node.name == word
    }
    assert homes == HOMES[word]


def classes_of(trees: Iterable[ast.Module]) -> set[str]:
    """The names of all classes that modules define."""
    return {node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


@pytest.mark.parametrize("ending", ENDINGS)
def test_classes_share_an_ending_that_share_a_meaning(ending: str, trees: dict[str, ast.Module]) -> None:
    assert {name for name in classes_of(trees.values()) if name.endswith(ending)} == ENDINGS[ending]


def test_families_share_the_class_of_a_timed_workload() -> None:
    """A family adds the types and formats of its kinds of calls, and no class of their sizes."""
    found = classes_of(ast.parse(path.read_text()) for path in BENCHMARKS.rglob("*.py"))
    assert {name for name in found if name.endswith("Workload")} == {"Workload"}
    assert classes_of([ast.parse("class MoeWorkload: ...")]) == {"MoeWorkload"}


def test_a_constant_is_defined_once(trees: dict[str, ast.Module]) -> None:
    made = Counter(
        target.id
        for tree in trees.values()
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    )
    assert {name: made[name] for name in ONCE} == dict.fromkeys(ONCE, 1)


def test_a_module_that_is_called_a_table_is_of_one_of_two(trees: dict[str, ast.Module]) -> None:
    """Tuned tables as files and as sweeps and the command make them, and the variant table of a build."""
    called = {path for path in trees if "table" in path.rpartition("/")[2]}
    assert called == {"runtime/table_file.py", "tuner/tables.py", "cli/tables.py", "runtime/variant_table.py"}
