"""The mistakes in sm120f's kernels, and the script that compiles and tries them. Scripts stand in for the build and for `gemmill verify`."""

import importlib.util
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gemmill.build.errors import BuildError
from gemmill.build.toolchain import find_toolchain
from gemmill.space.names import to_name
from gemmill.space.selections import select
from gemmill.vocab import Arch

ROOT = Path(__file__).parents[2]


def load(name: str):
    """A module of tools/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


breakages = load("breakages")
program = load("blackwell_breakages")
LIST = program.read_list(program.LIST)
ONE = program.Breakage(name="one", file="kernels/a.cuh", old="a + b", new="a - b", variant="sm120f_a")


@pytest.mark.parametrize("breakage", LIST, ids=lambda breakage: breakage.name)
def test_each_changes_one_line_that_is_there(breakage) -> None:
    path = ROOT / breakage.file
    if breakage.file.startswith(program.OF_CUTLASS):
        try:
            path = find_toolchain().cutlass_include / breakage.file
        except BuildError as error:
            pytest.skip(str(error))
    assert path.read_text(encoding="utf-8").count(breakage.old) == 1
    assert breakage.new != breakage.old and "\n" not in breakage.old.strip() + breakage.new.strip()
    assert not breakage.file.startswith("kernels/emulation/")


def test_kernels_of_the_default_selection_are_broken() -> None:
    names = [breakage.name for breakage in LIST]
    variants = {breakage.variant for breakage in LIST}
    assert len(set(names)) == len(names) >= 10
    assert variants <= {to_name(config) for config in select("default", Arch.SM120F).configs}
    families = {name.split("_")[1] for name in variants}
    assert {"blockscaled", "fp4weight", "widenedfew", "groupedfp4", "fusedfp4experts", "quant", "cutlass"} <= families


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree" / "kernels").mkdir(parents=True)
    (tmp_path / "cutlass" / "include" / "cutlass").mkdir(parents=True)
    (tmp_path / "tree" / "kernels" / "a.cuh").write_text("return a + b;\n")
    (tmp_path / "cutlass" / "include" / "cutlass" / "b.hpp").write_text("wait(a + b);\n")
    return tmp_path / "tree"


@pytest.mark.parametrize("file", ["kernels/a.cuh", "cutlass/b.hpp"])
def test_a_line_is_changed_for_a_while(tree: Path, file: str) -> None:
    cutlass = tree.parent / "cutlass"
    path = (tree if file.startswith("kernels") else cutlass / "include") / file
    whole = path.read_text()
    with pytest.raises(KeyError), program.broken(replace(ONE, file=file), tree, cutlass):
        assert path.read_text() == whole.replace("a + b", "a - b")
        raise KeyError
    assert path.read_text() == whole
    with (
        pytest.raises(breakages.Trouble) as caught,
        program.broken(replace(ONE, file=file, old="a * b"), tree, cutlass),
    ):
        pass
    assert str(caught.value) == f"one: 'a * b' is 0 times in {file}, expected once: correct blackwell_breakages.toml"


VERDICTS = {
    "right": {"verdicts": [{"cases": 12, "failures": []}]},
    "wrong": {"verdicts": [{"cases": 12, "failures": ["M = 1: 3 of 4 differ", "M = 2: all differ"]}]},
}


@pytest.fixture
def tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Verify made-up builds; returns the exit code and the rows, without seconds."""

    def run(told: dict[str, str], *breakages_of):
        def verify(command, **options):
            build = command[command.index("--build") + 1]
            how = told[Path(build).name]
            if how == "hangs":
                raise subprocess.TimeoutExpired(command, options["timeout"])
            code, _, last = how.partition(":")
            if code in VERDICTS:
                return subprocess.CompletedProcess(command, int(code == "wrong"), json.dumps(VERDICTS[code]), "")
            return subprocess.CompletedProcess(command, int(code), "", f"Traceback\n{last}\n")

        monkeypatch.setattr(program.subprocess, "run", verify)
        made = {one.name: program.asdict(one) for one in breakages_of}
        (tmp_path / program.MADE).write_text(json.dumps(made))
        code = program.try_all(breakages_of, tmp_path, "whole", tmp_path / "found.json", 5.0)
        rows = json.loads((tmp_path / "found.json").read_text())
        return code, [(row["name"], row["outcome"], row["by"], row["wrong"]) for row in rows]

    return run


def test_what_verify_says_of_broken_kernels(tried, capsys: pytest.CaptureFixture) -> None:
    hangs, dies = (replace(ONE, name=name) for name in ("hang", "die"))
    code, rows = tried({"whole": "right", "one": "wrong", "hang": "hangs", "die": "-11:lost"}, ONE, hangs, dies)
    assert code == 0 and rows == [
        ("unbroken", "survived", "", 0),
        ("one", "found", "M = 1: 3 of 4 differ", 2),
        ("hang", "found", "no end after 5 s", 0),
        ("die", "found", "the process ended with -11: lost", 0),
    ]
    assert capsys.readouterr().out.splitlines()[-1] == "3 of 3 were found"


def test_one_that_survives_is_told(tried) -> None:
    code, rows = tried({"whole": "right", "one": "right"}, ONE)
    assert code == 1 and rows[1] == ("one", "survived", "", 0)


def test_nothing_is_found_by_a_variant_that_fails_unbroken(tried) -> None:
    code, rows = tried({"whole": "wrong", "one": "wrong"}, ONE)
    assert code == 1 and rows[1] == ("one", "untried", "the unbroken variant fails", 0)


def test_a_machine_that_cannot_verify_finds_nothing(tried) -> None:
    with pytest.raises(breakages.Trouble) as caught:
        tried({"whole": "3:no GPU"}, ONE)
    assert str(caught.value) == "unbroken: Traceback\nno GPU"


def test_what_was_compiled_is_what_the_list_says(tried, tmp_path: Path) -> None:
    tried({"whole": "right", "one": "wrong"}, ONE)
    with pytest.raises(breakages.Trouble) as caught:
        program.try_all([replace(ONE, new="a * b")], tmp_path, "whole", tmp_path / "found.json", 5.0)
    assert str(caught.value) == f"{tmp_path} lacks one as blackwell_breakages.toml has them: run `make` again"


def test_usage(capsys: pytest.CaptureFixture, tmp_path: Path) -> None:
    assert program.main(["make", str(tmp_path), "--only", "nosuch*"]) == 2
    assert "--only nosuch* names no breakage of blackwell_breakages.toml" in capsys.readouterr().err
