"""The committed workflows, templates and hooks for a public forge: they parse, and agree with the project."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def read(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / name).read_text())


def test_packages_are_made_for_each_python_and_torch() -> None:
    job = read(".github/workflows/packages.yml")["jobs"]["packages"]
    matrix = job["strategy"]["matrix"]
    told = [re.fullmatch(r".* :: (3\.\d+)", line) for line in PROJECT["classifiers"]]
    assert matrix["python"] == [match[1] for match in told if match]
    (oldest,) = (line.partition(">=")[2] for line in PROJECT["dependencies"])
    assert matrix["torch"] == [f"torch=={oldest}.*", "torch"]
    assert job["container"].endswith("manylinux_2_28_x86_64")


def test_a_release_is_attested_and_published_on_request_alone() -> None:
    """Its kernels are those that may be given away."""
    jobs = read(".github/workflows/release.yml")["jobs"]
    made, published = jobs["packages"], jobs["publish"]
    used = [step.get("uses", "").partition("@")[0] for step in made["steps"]]
    assert "actions/attest-build-provenance" in used and made["permissions"]["attestations"] == "write"
    builds = [line for step in made["steps"] for line in step.get("run", "").splitlines() if "gemmill build" in line]
    assert [line.split()[-2:] for line in builds] == [["--select", "nvcc"]]
    assert published["if"] == "vars.PUBLISH == 'yes'" and published["needs"] == "packages"
    assert published["permissions"] == {"id-token": "write"}


@pytest.mark.parametrize("path", sorted((ROOT / ".github" / "workflows").iterdir()), ids=lambda path: path.name)
def test_commands_of_workflows_exist(path: Path) -> None:
    runs = [
        step["run"]
        for job in yaml.safe_load(path.read_text())["jobs"].values()
        for step in job["steps"]
        if "run" in step
    ]
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for run in runs:
        assert set(re.findall(r"make (\w+)", run)) <= set(targets)
        assert all((ROOT / name).is_file() for name in re.findall(r"tools/\w+\.py", run))
        for extras in re.findall(r"'\.\[([\w,]+)\]'", run):
            assert set(extras.split(",")) <= PROJECT["optional-dependencies"].keys()


def test_forms_name_what_they_ask_for() -> None:
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"):
        form = yaml.safe_load(path.read_text())
        assert form["name"] and form["description"], path.name
        assert all(field["attributes"]["label"] for field in form["body"] if field["type"] != "markdown"), path.name


def test_hooks_format_as_the_environment_does() -> None:
    (repository,) = read(".pre-commit-config.yaml")["repos"]
    wanted = {needed for hook in repository["hooks"] for needed in hook.get("additional_dependencies", ())}
    assert wanted and wanted <= set((ROOT / "constraints.txt").read_text().splitlines())
