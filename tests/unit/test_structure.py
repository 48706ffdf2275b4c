"""No circle of imports, no include of another family, and no function that is longer than a page."""

import ast
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("generator", "benchmarks", "tools")
MOST_LINES = 80
OF_THE_DSL = {"cute.jit", "cute.kernel"}
"""Decorators of device code: the CuTe DSL traces a kernel as one body, in which names of a page serve to its end."""


@functools.cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def name_of(path: Path, root: Path) -> str:
    """A module's name below a root of imports."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.Module, package: str, known: Iterable[str]) -> Iterator[str]:
    """Those of the known modules that a module of a package imports: at its top, in functions, and for types alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: 1 - node.level or None] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                yield from [name for name in (f"{base}.{alias.name}", base) if name in known][:1]


def imports_below(root: Path) -> dict[str, set[str]]:
    """The modules below a root that each of them imports."""
    paths = {name_of(path, root): path for path in sorted(root.rglob("*.py"))}
    return {
        name: set(imported(_tree(path), name if path.stem == "__init__" else name.rpartition(".")[0], paths)) - {name}
        for name, path in paths.items()
    }


def circles(imports: Mapping[str, set[str]]) -> list[str]:
    """The modules on circles of imports and between two: those left when modules without imports, or importers, of the rest go."""
    left = {name: set(of) for name, of in imports.items()}
    while True:
        reached = {name for of in left.values() for name in of}
        kept = {name: of & left.keys() for name, of in left.items() if of & left.keys() and name in reached}
        if len(kept) == len(left):
            return sorted(kept)
        left = kept


@pytest.mark.parametrize("folder", ["generator", "benchmarks", "tools"])
def test_no_circle_of_imports(folder: str) -> None:
    found = imports_below(ROOT / folder)
    assert len(found) > 5
    assert circles(found) == []


def test_a_circle_is_found_wherever_its_imports_are(tmp_path: Path) -> None:
    """In a function, for types alone, by a relative name, and through a third module; before and behind it are none."""
    (tmp_path / "p").mkdir()
    for name, text in {
        "p/__init__": "",
        "p/a": "def f():\n    from p import b\n",
        "p/b": "from .c import x\n",
        "p/c": "if TYPE_CHECKING:\n    import p.a\n",
        "before": "import p.a\n",
        "p/behind": "import os\n",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    found = imports_below(tmp_path)
    assert circles(found) == ["p.a", "p.b", "p.c"]
    assert circles(found | {"p.c": {"p.behind"}}) == []


def read_by_one_room(imports: Mapping[str, set[str]]) -> list[str]:
    """Modules of compat that stand between the rooms of other projects, and that one room or none reads."""
    compat = "gemmill.compat."
    rooms = {name.split(".")[2] for name in imports if name.startswith(compat) and name.count(".") > 2}
    shared = [name for name in imports if name.startswith(compat) and name.split(".")[2] not in rooms]
    readers: dict[str, set[str]] = {name: set() for name in shared}
    for _ in shared:  # through one another
        for name, of in imports.items():
            room = name.split(".")[2] if name.startswith(compat) else ""
            for read in of & readers.keys():
                readers[read] |= readers.get(name, {room} & rooms)
    return [name for name, found in readers.items() if len(found) < 2]


def test_rooms_of_other_projects_share_what_stands_between_them() -> None:
    assert read_by_one_room(imports_below(ROOT / "generator")) == []
    known = {"gemmill.compat.a.x": {"gemmill.compat.one"}, "gemmill.compat.one": {"gemmill.compat.two"}}
    known |= {"gemmill.compat.b.x": {"gemmill.compat.two"}, "gemmill.compat.two": set()}
    assert read_by_one_room(known) == ["gemmill.compat.one"]


def long_functions(tree: ast.Module) -> list[str]:
    """Functions, device code aside, of more lines than a page has."""
    return [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= MOST_LINES
        and not OF_THE_DSL & {ast.unparse(decorator) for decorator in node.decorator_list}
    ]


def test_no_function_is_longer_than_a_page() -> None:
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    assert {path.name: found for path in paths if (found := long_functions(_tree(path)))} == {}
    body = "def f():\n" + "    pass\n" * MOST_LINES
    assert long_functions(ast.parse(body)) == ["f"]
    assert long_functions(ast.parse(body.removesuffix("    pass\n"))) == []
    assert long_functions(ast.parse("@cute.kernel\n" + body)) == []


SHARED = {"coding", "core", "emulation", "extension", "gemm"}
"""Folders of kernels/ that belong to no family."""
INCLUDE = re.compile(r'^\s*#\s*include "(\w+)/', re.MULTILINE)


def abroad(folder: Path, rooms: set[str]) -> list[str]:
    """Files below a family's folder of kernels or templates, or a shared one, that include a header of another family."""
    own = SHARED if folder.name in SHARED else SHARED | {folder.name}
    return [
        f"{path.relative_to(folder.parent)} includes {room}/"
        for path in sorted(folder.rglob("*.*"))
        for room in INCLUDE.findall(path.read_text(encoding="utf-8"))
        if room in rooms - own
    ]


def test_no_family_includes_another() -> None:
    rooms = {folder.name for folder in (ROOT / "kernels").iterdir() if folder.is_dir()}
    folders = [folder for part in ("kernels", "templates") for folder in (ROOT / part).iterdir() if folder.is_dir()]
    assert [line for folder in folders for line in abroad(folder, rooms)] == []


def test_an_include_of_another_family_is_found(tmp_path: Path) -> None:
    (tmp_path / "grouped_mm").mkdir()
    (tmp_path / "grouped_mm" / "a.cuh").write_text(
        '#include "grouped_mm/b.cuh"\n#include "core/c.h"\n#include "quant/d.cuh"\n'
    )
    assert abroad(tmp_path / "grouped_mm", {"grouped_mm", "core", "quant"}) == ["grouped_mm/a.cuh includes quant/"]


MOST_FILES = 24
"""Files in a folder of kernels, the largest of which has folders for what its bodies do."""


def across(family: Path) -> list[str]:
    """Files in a folder of a family that include a header of another such folder, except of `shared`; `shared` includes none."""
    include = re.compile(rf'^\s*#\s*include "{family.name}/(\w+)/', re.MULTILINE)
    return [
        f"{path.relative_to(family.parent)} includes {room}/"
        for path in sorted(family.glob("*/*.*"))
        for room in include.findall(path.read_text(encoding="utf-8"))
        if room not in {"shared", path.parent.name}
    ]


def crowded(kernels: Path) -> list[str]:
    """Folders below kernels/ that have more files than one reads at a glance."""
    folders = [folder for folder in sorted(kernels.rglob("*")) if folder.is_dir()]
    return [folder.name for folder in folders if sum(path.is_file() for path in folder.iterdir()) > MOST_FILES]


def test_bodies_of_a_large_family_have_folders() -> None:
    assert crowded(ROOT / "kernels") == []
    families = [folder for folder in (ROOT / "kernels").iterdir() if folder.is_dir() and folder.name not in SHARED]
    assert [line for family in families for line in across(family)] == []


def test_a_crowded_folder_and_an_include_across_folders_are_found(tmp_path: Path) -> None:
    for room in ("shared", "slots", "pages"):
        (tmp_path / "kv_cache" / room).mkdir(parents=True)
    (tmp_path / "kv_cache" / "slots" / "a.cuh").write_text(
        '#include "kv_cache/shared/b.cuh"\n#include "kv_cache/pages/c.cuh"\n'
    )
    (tmp_path / "kv_cache" / "shared" / "b.cuh").write_text(
        '#include "kv_cache/abi.h"\n#include "kv_cache/slots/a.cuh"\n'
    )
    assert across(tmp_path / "kv_cache") == [
        "kv_cache/shared/b.cuh includes slots/",
        "kv_cache/slots/a.cuh includes pages/",
    ]
    for number in range(MOST_FILES + 1):
        (tmp_path / "kv_cache" / "pages" / f"{number}.cuh").touch()
    assert crowded(tmp_path) == ["pages"]
