"""The list of deliberate mistakes and the script that tries them."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
_SPEC = importlib.util.spec_from_file_location("breakages", ROOT / "tools" / "breakages.py")
assert _SPEC is not None and _SPEC.loader is not None
breakages = importlib.util.module_from_spec(_SPEC)
sys.modules[_SPEC.name] = breakages
_SPEC.loader.exec_module(breakages)

LIST = breakages.read_list(breakages.LIST)
PACKAGES = ("vocab", "families", "emit", "build", "manifest", "numerics", "runtime", "tuner")


@pytest.mark.parametrize("breakage", LIST, ids=lambda breakage: breakage.name)
def test_each_changes_one_line_that_is_there(breakage) -> None:
    assert (ROOT / breakage.file).read_text(encoding="utf-8").count(breakage.old) == 1
    assert breakage.new != breakage.old and "\n" not in breakage.old + breakage.new
    assert breakage.tests
    for path, _, test in (named.partition("::") for named in breakage.tests):
        assert (ROOT / path).exists() and (not test or f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"))


def test_every_part_is_broken() -> None:
    names = [breakage.name for breakage in LIST]
    assert len(set(names)) == len(names) and breakages.CONTROL not in names
    for package in PACKAGES:
        assert any(breakage.file.startswith(f"generator/gemmill/{package}/") for breakage in LIST), package
    assert sum(breakage.file.startswith("kernels/") for breakage in LIST) >= 16
    assert sum(breakage.file.endswith(".py") for breakage in LIST) >= 50


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository of one module and its tests, one of which notices little."""
    root = tmp_path / "checkout"
    root.mkdir()
    (root / "arithmetic.py").write_text("def add(a, b):\n    return a + b\n\n\ndef half(a):\n    return a // 2\n")
    (root / "conftest.py").write_text("")
    (root / "test_sums.py").write_text("from arithmetic import add\n\ndef test_add():\n    assert add(1, 2) == 3\n")
    (root / "test_halves.py").write_text("from arithmetic import half\n\ndef test_half():\n    assert half(0) == 0\n")
    (root / ".gitignore").write_text("ignored\n")
    (root / "ignored").write_text("not copied")
    for command in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", "-C", str(root), *command], check=True)
    return root


def broken(name: str, old: str, new: str, tests: str):
    return breakages.Breakage(name=name, file="arithmetic.py", old=old, new=new, tests=(tests,))


SUM = broken("sum", "a + b", "a - b", "test_sums.py")
HALF = broken("half", "a // 2", "a // 3", "test_halves.py")


def test_breakages_are_found_or_survive_in_a_copy(checkout: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in checkout.iterdir() if path.is_file()}
    first, second = breakages.try_all(checkout, [SUM, HALF], tmp_path / "work")
    assert (first.name, first.outcome, first.by) == ("sum", "found", "test_sums.py::test_add")
    assert (second.name, second.outcome, second.by) == ("half", "survived", "")
    assert breakages.summary([first, second]) == "1 of 2 were found\n  survived: half"
    assert {path.name: path.read_bytes() for path in checkout.iterdir() if path.is_file()} == before
    tree = tmp_path / "work" / "tree"
    assert (tree / "arithmetic.py").read_bytes() == before["arithmetic.py"] and not (tree / "ignored").exists()


def test_a_crash_of_the_tests_is_a_find(checkout: Path, tmp_path: Path) -> None:
    crash = broken("crash", "return a + b", "import os; os.abort()", "test_sums.py")
    (found,) = breakages.try_all(checkout, [crash], tmp_path / "work")
    assert (found.outcome, found.by) == ("found", "a crash, SIGABRT")


def test_a_run_goes_on_where_one_was_cut_off(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    found = (breakages.Outcome.FOUND, "a test")
    whole = (breakages.Outcome.SURVIVED, "")

    def run(tests, tree: Path, work: Path):
        tried.append((tree / "arithmetic.py").read_text().count("a - b"))
        return found if tried[-1] else whole

    monkeypatch.setattr(breakages, "_run_tests", run)
    work = tmp_path / "work"
    assert next(breakages.try_all(checkout, [SUM], work)).outcome == "found"
    assert tried == [0, 1]
    with (work / "results.jsonl").open("a") as lines:
        lines.write('\n{"key": "cut o')
    assert [result.outcome for result in breakages.try_all(checkout, [SUM], work)] == ["found"]
    assert tried == [0, 1], "nothing is tried again on the same tree"
    (checkout / "test_sums.py").write_text("def test_nothing(): pass\n")
    assert len(list(breakages.try_all(checkout, [SUM], work))) == 1
    assert tried == [0, 1, 0, 1], "another tree"
    assert len(list(breakages.try_all(checkout, [SUM], work))) == 1
    assert tried == [0, 1, 0, 1], "what followed the line that was cut off is known"


def test_tests_that_fail_unbroken_are_said_to(checkout: Path, tmp_path: Path) -> None:
    (checkout / "arithmetic.py").write_text("def add(a, b):\n    return a - b\n")
    with pytest.raises(breakages.Trouble) as caught:
        list(breakages.try_all(checkout, [SUM], tmp_path / "work"))
    assert str(caught.value) == (
        f"the tests fail on the unbroken tree (test_sums.py::test_add): repair that first, see {tmp_path / 'work' / 'tree'}"
    )


def test_a_line_that_has_gone_is_said_to(checkout: Path, tmp_path: Path) -> None:
    gone = broken("gone", "a * b", "a / b", "test_sums.py")
    with pytest.raises(breakages.Trouble) as caught:
        list(breakages.try_all(checkout, [gone], tmp_path / "work"))
    assert str(caught.value) == "gone: 'a * b' is 0 times in arithmetic.py, expected once: correct breakages.toml"


def test_usage(capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["breakages.py", "--only", "nosuch*"])
    with pytest.raises(SystemExit) as ended:
        breakages.main()
    assert ended.value.code == 2
    assert "--only nosuch* names no breakage of breakages.toml" in capsys.readouterr().err
