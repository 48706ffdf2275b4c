"""A newcomer's first contact: names, help, types, licences, metadata."""

import inspect
import os
import pydoc
import subprocess
import sys
import tomllib
from importlib import import_module, metadata
from pathlib import Path

import pytest

import gemmill
from gemmill import tuning
from gemmill.registry import REGISTRY
from gemmill.runtime import holding, ops, served

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
FUNCTIONS = sorted(set(gemmill.__all__) - {"__version__"})


def test_all_is_what_dir_shows() -> None:
    assert dir(gemmill) == gemmill.__all__, "modules would hide the functions"
    assert gemmill.__all__ == sorted(gemmill.__all__)
    shown = {name for name, value in vars(gemmill).items() if inspect.isfunction(value) and not name.startswith("_")}
    assert shown == set(FUNCTIONS)


def test_functions_of_every_family_are_public() -> None:
    for family in REGISTRY.families:
        module = import_module(family.functions)
        own = {name for name, f in vars(module).items() if getattr(f, "__module__", "").startswith(module.__name__)}
        assert {name for name in own if not name.startswith("_")} == set(module.__all__) <= set(FUNCTIONS)
        stub = Path(gemmill.__file__).with_suffix(".pyi").read_text()
        assert f"from {module.__name__} import *\n" in stub, "else they have no types"


def test_help_shows_every_function_with_its_text() -> None:
    text = pydoc.plain(pydoc.render_doc(gemmill))
    assert "Quantised GEMM and quantisation kernels" in text
    for name in FUNCTIONS:
        assert f"\n    {name}(" in text, name
        assert inspect.getdoc(getattr(gemmill, name)), name


def test_the_command_has_the_same_names_and_imports_no_torch_for_them() -> None:
    code = (
        "import sys; sys.argv = ['gemmill']\n"
        "import gemmill; assert 'torch' not in sys.modules\n"
        "print(*[getattr(gemmill, name).__module__ for name in gemmill.__all__ if name != '__version__'])\n"
        "try: gemmill.nothing\n"
        "except AttributeError as error: print(error)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "generator")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    modules, error = done.stdout.splitlines()
    of_families = tuple(family.functions for family in REGISTRY.families if family.functions is not None)
    assert all(
        name in (ops.__name__, holding.__name__, served.__name__, tuning.__name__) or name.startswith(of_families)
        for name in modules.split()
    )
    assert len(modules.split()) == len(FUNCTIONS)
    assert error == "module 'gemmill' has no attribute 'nothing'"


@pytest.mark.parametrize(
    ("words", "is_ours"),
    [
        (("-m", "package.module", "gemmill"), False),
        (("-Bm", "gemmill.build.asked", "-m", "package"), True),
        (("-Bmgemmill.build.asked",), True),
        (("-mgemmill_of_others",), False),
    ],
)
def test_a_program_that_is_run_as_a_module_has_ops(words: tuple[str, ...], is_ours: bool, tmp_path: Path) -> None:
    """Packages are imported while the interpreter looks for the module: then no argument names it yet."""
    told = "import gemmill, sys; print('torch' in sys.modules, end=' ')\n"
    for name in ("package/__init__.py", "package/module.py", "gemmill_of_others/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(told)
    (tmp_path / "gemmill_of_others/__main__.py").touch()
    # Our own module has to lie in gemmill's folder: a finder puts it there.
    (tmp_path / "sitecustomize.py").write_text(
        "import os, importlib.machinery as m, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'gemmill.build.asked':\n"
        f"            return m.ModuleSpec(name, m.SourceFileLoader(name, {str(tmp_path / 'package/module.py')!r}))\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT / 'generator'}"}
    done = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, env=environment, cwd=tmp_path, check=True
    )
    assert set(done.stdout.split()) == {str(not is_ours)}


def test_the_package_says_that_it_is_typed() -> None:
    assert (Path(gemmill.__file__).parent / "py.typed").is_file()
    assert "Typing :: Typed" in PROJECT["classifiers"]


def test_metadata_is_whole() -> None:
    assert PROJECT["license"] == "Apache-2.0"
    assert PROJECT["authors"] == [{"name": "gemmill developers"}]
    assert {"readme", "urls"} <= set(PROJECT["dynamic"]), "by tools/hatch_metadata.py"
    assert PROJECT["keywords"] and PROJECT["description"]
    for name in (*PROJECT["license-files"], "SECURITY.md", "CITATION.cff"):
        assert (ROOT / name).is_file(), name
    assert f"\nversion: {gemmill.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_the_licence_is_whole() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert text.lstrip().startswith("Apache License\n                           Version 2.0, January 2004")
    assert "END OF TERMS AND CONDITIONS" in text
    assert "9. Accepting Warranty or Additional Liability." in text


@pytest.mark.parametrize(
    ("distribution", "file", "begins", "ends"),
    [
        ("nvidia-cutlass", "LICENSE.txt", "Copyright (c) 2017", "SUCH DAMAGE."),
        ("torch", "LICENSE", "From PyTorch:", "POSSIBILITY OF SUCH DAMAGE."),
    ],
)
def test_third_party_terms_are_those_of_the_packages(distribution: str, file: str, begins: str, ends: str) -> None:
    try:
        files = metadata.files(distribution) or []
    except metadata.PackageNotFoundError:
        pytest.skip(f"{distribution} is not installed")
    path = next(f for f in files if f.name == file and f.parent.name == "licenses")
    text = path.read_text()
    terms = text[text.index(begins) : text.index(ends) + len(ends)]
    here = " ".join((ROOT / "THIRD_PARTY.md").read_text().split())
    assert " ".join(terms.split()) in here
