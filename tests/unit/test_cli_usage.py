"""Help, exit codes and errors of the command as a whole."""

import builtins
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

import gemmill as package
from gemmill import registry
from gemmill.build.errors import BuildError
from gemmill.cli import app as application
from gemmill.cli import main
from gemmill.cli.exits import ExitCode, code_of, sentence_of
from gemmill.cli.verbs import TEXTS
from gemmill.emit.render import TemplateError
from gemmill.manifest import ManifestError

VERBS = [
    "list",
    "plan",
    "generate",
    "build",
    "show",
    "export",
    "explain",
    "verify",
    "fuzz",
    "time",
    "tune",
    "audit",
    "prune",
    "convert",
    "wheel",
    "doctor",
    "table show",
    "table diff",
    "table merge",
    "table make",
    "builds list",
    "builds use",
    "builds rm",
    "cache list",
    "cache gc",
    "cache verify",
]
SOURCES = Path(package.__file__).parent.parent


def run_process(*arguments: str, **options) -> subprocess.CompletedProcess:
    environment = os.environ | {"PYTHONPATH": str(SOURCES)}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False, **options
    )


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_examples(gemmill, verb: str) -> None:
    outcome = gemmill(*verb.split(), "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert f"Usage: gemmill {verb} " in outcome.out
    assert re.search(rf"Examples:\n\n +gemmill {verb}\b", outcome.out)


def test_the_list_of_verbs_above_is_whole(gemmill) -> None:
    top = re.findall(r"^  (\w+)  ", gemmill("--help").out.split("Commands:")[1], re.MULTILINE)
    groups = ("table", "builds", "cache")
    below = [
        f"{group} {verb}"
        for group in groups
        for verb in re.findall(r"^  (\w+)  ", gemmill(group, "--help").out.split("Commands:")[1], re.MULTILINE)
    ]
    assert [v for v in top if v not in groups] + below == VERBS


@pytest.mark.parametrize(
    ("arguments", "also"),
    [
        (["--help"], ("gemmill.registry", "gemmill.vocab", "gemmill.cli.list")),
        (["--version"], ("gemmill.registry", "gemmill.vocab", "gemmill.cli.list")),
        *(([*verb.split(), "--help"], ()) for verb in VERBS),
    ],
)
def test_help_is_fast_because_it_imports_little(arguments: list[str], also: tuple[str, ...]) -> None:
    modules = ("torch", "jinja2", "rich", "pydantic", "gemmill.build", "gemmill.family", "gemmill.runtime", *also)
    code = (
        f"import sys; sys.argv = ['gemmill', *{arguments}]\n"
        "from gemmill.cli import main\n"
        "try: main()\n"
        f"except SystemExit: print([m for m in {modules} if m in sys.modules])\n"
    )
    assert run_process("-c", code).stdout.splitlines()[-1] == "[]"


def test_help_is_told_of_all_families_what_their_declarations_say() -> None:
    declared = registry.REGISTRY
    assert registry.questions() == declared.questions
    assert registry.measured() == {name: told[1].sizes for name, told in declared.measured.items()}
    assert list(registry.measured()) == list(declared.measured)
    assert [f"gemmill.families.{family.name}" for family in declared.families] == list(registry.FAMILIES)


def test_the_help_of_the_command_says_what_each_verb_says_of_itself() -> None:
    for verb, command in typer.main.get_command(application.app).commands.items():
        assert " ".join(command.help.split("\n\n")[0].split()) == TEXTS[verb], verb


def test_the_help_of_the_command_has_a_line_a_verb_in_80_columns(gemmill) -> None:
    lines = gemmill("--help").out.splitlines()
    assert max(map(len, lines)) < 80
    assert [line.split()[0] for line in lines[lines.index("Commands:") + 1 :]] == list(TEXTS)


def test_help_of_explain_has_a_section_a_family_in_the_familys_words(gemmill) -> None:
    out = gemmill("explain", "--help").out
    families = registry.questions_by_family()
    sections = dict(re.findall(r"^(\S[^\n]*):\n\n?((?:  [^\n]*\n)+)", out, re.MULTILINE))
    assert list(sections) == ["Arguments", *families, "Options"]
    for title, options in families.items():
        told = " ".join(sections[title].split())
        assert len(re.findall(r"^  -", sections[title], re.MULTILINE)) == len(options)
        for option in options:
            assert f"{option.help}." in told, (title, option.name)
    assert "--hidden" in sections["Quantisation"] and "--hidden" not in sections["Scaled GEMMs"]
    assert "--build" in sections["Options"] and "-m" not in sections["Options"].split()


def test_it_runs_as_a_module() -> None:
    done = run_process("-m", "gemmill", "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"gemmill {package.__version__}\n", "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "gemmill: Missing command; see `gemmill --help`\n"),
        (["cache"], "gemmill: Missing command; see `gemmill cache --help`\n"),
        (["frobnicate"], "gemmill: No such command 'frobnicate'; see `gemmill --help`\n"),
        (["lst"], "gemmill: No such command 'lst'. Did you mean 'list'?; see `gemmill --help`\n"),
        (["list", "--colour"], "gemmill: No such option: --colour; see `gemmill list --help`\n"),
        (["show"], "gemmill: Missing argument 'NAME'; see `gemmill show --help`\n"),
        (
            ["plan", "--select", "all"],
            "gemmill: no selection 'all': there are smoke, default, nvcc, serving, sweep, and files that `gemmill prune` writes (*.json)\n",
        ),
        (
            ["build", "--arch", "sm_70"],
            "gemmill: Invalid value for '--arch': 'sm_70' is not one of sm90a, sm100a, sm120f; see `gemmill build --help`\n",
        ),
        (
            ["build", "--arch", "sm_121a"],
            "gemmill: Invalid value for '--arch': 'sm_121a' is not one of sm90a, sm100a, sm120f: sm120f has the kernels of that GPU; "
            "see `gemmill build --help`\n",
        ),
        (
            ["build", "--max-size", "60 apples"],
            "gemmill: Invalid value for '--max-size': '60 apples' is not a size such as 60MB, 1.5GiB or 60000000; see `gemmill build --help`\n",
        ),
        (
            ["build", "--max-size", "0"],
            "gemmill: Invalid value for '--max-size': '0' is not a size of at least one byte; see `gemmill build --help`\n",
        ),
        (
            ["build", "--jobs", "0"],
            "gemmill: Invalid value for '--jobs' / '-j': Input should be greater than or equal to 1; see `gemmill build --help`\n",
        ),
    ],
)
def test_usage_errors_are_one_line_and_code_2(gemmill, arguments: list[str], sentence: str) -> None:
    outcome = gemmill(*arguments)
    assert (outcome.code, outcome.out, outcome.err) == (2, "", sentence)


def test_a_filter_that_fits_nothing(gemmill) -> None:
    outcome = gemmill("list", "--select", "smoke", "--filter", "colour=red")
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(
        "gemmill: filter colour=red: there is no field 'colour'; the fields are family, compiler, a_dtype, "
    )
    assert outcome.err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (BuildError("no compiler: install one"), 4, "no compiler: install one"),
        (TemplateError("template t: 'x' is undefined"), 4, "template t: 'x' is undefined"),
        (ManifestError("no manifest at x: run `gemmill build`"), 3, "no manifest at x: run `gemmill build`"),
        (BuildError("two\n  lines"), 4, "two; lines"),
        (
            OSError(28, "No space left on device", "/full/x"),
            3,
            "/full/x: No space left on device; check that it exists, may be written and has room",
        ),
        (
            ModuleNotFoundError("No module named 'torch'", name="torch"),
            3,
            "this needs the Python package torch, which is not installed: `pip install torch`",
        ),
        (
            ModuleNotFoundError("No module named 'elftools'", name="elftools.elf.elffile"),
            3,
            "this needs the Python package elftools.elf.elffile, which is not installed: `pip install pyelftools`",
        ),
    ],
)
def test_our_errors_have_a_code_and_a_sentence(error: Exception, code: int, sentence: str) -> None:
    assert (code_of(error), sentence_of(error)) == (code, sentence)


@pytest.mark.parametrize(
    "error", [KeyError("x"), TypeError("x"), ModuleNotFoundError("x", name="gemmill.gone"), ZeroDivisionError()]
)
def test_faults_of_gemmill_keep_their_traceback(gemmill, monkeypatch, error: Exception) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.setattr(application, "app", fail)
    with pytest.raises(type(error)):
        application.main(["list"])


def test_debug_shows_the_traceback(home) -> None:
    for arguments in (["--debug", "list"], ["list", "--debug"]):
        with pytest.raises(ManifestError, match="no build of gemmill"):
            application.main(arguments)


def test_no_build_is_code_3_with_the_way_out(gemmill, home) -> None:
    outcome = gemmill("list")
    assert (outcome.code, outcome.out) == (3, "")
    assert (
        outcome.err == f"gemmill: no build of gemmill in {home}: run `gemmill build`, or name one with GEMMILL_BUILD\n"
    )


def test_ctrl_c_is_code_130(gemmill, monkeypatch) -> None:
    def interrupt(**_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(application, "app", interrupt)
    assert gemmill("list").code == ExitCode.INTERRUPTED == 130


def test_a_reader_that_leaves_is_no_error() -> None:
    environment = os.environ | {"PYTHONPATH": str(SOURCES)}
    command = f"{sys.executable} -m gemmill list --select sweep --json | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment, check=False)
    assert (done.stdout, done.stderr) == ("[\n", "")


def test_the_guide_lists_every_exit_code_and_verb() -> None:
    guide = (SOURCES.parent / "docs" / "cli.md").read_text()
    for code in ExitCode:
        assert re.search(rf"^\| {code.value} \|", guide, re.MULTILINE), code
    for verb in VERBS:
        assert f"gemmill {verb}" in guide, verb


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_a_missing_package_of_the_command_is_told(missing: str, monkeypatch, capsys) -> None:
    absent = ModuleNotFoundError(f"No module named {missing!r}", name=missing)
    monkeypatch.setattr(builtins, "__import__", _refusing("gemmill.cli.app", absent))
    with pytest.raises(SystemExit) as ended:
        main(["doctor"])
    assert ended.value.code == 2
    needs = f"gemmill: the command needs typer and rich, and {missing} is not installed: `pip install 'gemmill[cli]'`\n"
    assert capsys.readouterr().err == needs


def test_another_missing_module_is_an_error(monkeypatch) -> None:
    absent = ModuleNotFoundError("No module named 'gemmill.gone'", name="gemmill.gone")
    monkeypatch.setattr(builtins, "__import__", _refusing("gemmill.cli.app", absent))
    with pytest.raises(ModuleNotFoundError, match="gone"):
        main(["doctor"])


def _refusing(module: str, error: ModuleNotFoundError) -> Any:
    imports = builtins.__import__

    def refuse(name: str, *given: Any, **named: Any) -> Any:
        if name == module:
            raise error
        return imports(name, *given, **named)

    return refuse
