"""Every example of every --help, as it stands there: parsed by its verb, and run where files and a CPU are enough."""

import lzma
import re
import shlex
import shutil
from functools import cache
from pathlib import Path

import pytest
import torch
import typer

from gemmill.build import driver, toolchain
from gemmill.build.options import BuildOptions, BuildResult
from gemmill.cli.app import app
from gemmill.families.scaled_mm import NAME
from gemmill.locations import runtime_tables_dir
from gemmill.manifest import write_manifest
from gemmill.registry import REGISTRY
from gemmill.space.selections import Selection, select
from gemmill.tuner import executors
from gemmill.tuner.protocol import TuneError
from gemmill.wheel import Abi, package
from stored import save

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
MODEL = (
    '{"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32,'
    ' "num_key_value_heads": 8}'
)
NAME_OF_A_VARIANT = "sm90a_quant_rmstoken_bf16_e4m3_none_f32_sym"
COMPILED = ("export", "explain", "fuzz", "show --sass", "verify --quick", "verify --batch-invariant")
"""They need an extension, or are dear: tests/compile/test_examples.py and test_export.py run them."""
WITHOUT_GPU = {
    "time": "no GPU that torch can use",
    "tune": "no GPU that torch can use",
    "verify": "verify runs kernels and torch finds no GPU: ",
}
"""The messages of these verbs on a CPU, with exit code 3."""


@cache
def _verbs() -> dict[str, object]:
    top = typer.main.get_command(app).commands
    below = {f"{name} {verb}": c for name, group in top.items() for verb, c in getattr(group, "commands", {}).items()}
    return {name: command for name, command in top.items() if not hasattr(command, "commands")} | below


def _examples() -> list[tuple[str, str]]:
    return [
        (verb, line.strip())
        for verb, command in _verbs().items()
        for line in re.findall(r"^ *gemmill .*$", (command.help or "").split("Examples:")[-1], re.MULTILINE)
    ]


EXAMPLES = _examples()
RUN = [
    (verb, line)
    for verb, line in EXAMPLES
    if "--hub" in line or not any(set(name.split()) <= set(line.split()) for name in COMPILED)
]


def _words(line: str) -> list[str]:
    return shlex.split(re.split(r" [|>] ", line)[0])[1:]


def test_every_verb_has_one() -> None:
    assert {verb for verb, _ in EXAMPLES} == set(_verbs())


@pytest.mark.parametrize(("verb", "line"), EXAMPLES, ids=[line for _, line in EXAMPLES])
def test_it_can_be_parsed(verb: str, line: str) -> None:
    words = _words(line)
    assert words[: len(verb.split())] == verb.split()
    context = _verbs()[verb].make_context(verb, words[len(verb.split()) :])
    assert "NAME" not in context.params.values(), "an example can be typed as it stands"


@cache
def _hints() -> set[str]:
    """The commands that sentences tell people to run; values are written as X."""
    sources = "\n".join(path.read_text() for path in (ROOT / "generator").rglob("*.py"))
    return {re.sub(r"\{[^}]*\}", "X", hint) for hint in re.findall(r"`(gemmill [^`\n\"]+)`", sources)}


@pytest.mark.parametrize("hint", sorted(_hints()))
def test_a_hint_names_a_verb_and_options_that_exist(hint: str) -> None:
    words = hint.split()[1:]
    verb = next((verb for verb in (" ".join(words[:2]), words[0]) if verb in _verbs()), None)
    if verb is None:  # a group, the program itself, or a name that is filled in
        groups = typer.main.get_command(app).commands
        assert (words[0] in groups and len(words) == 1) or words[0] in ("X", "...") or words[0].startswith("-"), hint
        return
    known = {option for parameter in _verbs()[verb].params for option in parameter.opts + parameter.secondary_opts}
    assert {word for word in words if re.match(r"--?[a-z]", word)} <= known | {"--help"}, hint


def _no_gpu(spec: object) -> None:
    raise TuneError("no GPU that torch can use")


@pytest.fixture
def built(monkeypatch, make_manifest, home) -> None:
    """A driver that compiles nothing."""

    def build(selection: Selection, options: BuildOptions, observer: object) -> BuildResult:
        manifest = make_manifest(*selection.configs[:2], rejected=())
        folder = options.home_dir / "builds" / manifest.build_id
        folder.mkdir(parents=True)
        write_manifest(manifest, folder / "manifest.json")
        return BuildResult(folder=folder, manifest=manifest, compile_seconds=1.0, reused=False)

    monkeypatch.setattr(driver, "build", build)
    monkeypatch.setattr(toolchain, "find_toolchain", lambda: None)


@pytest.fixture
def stage(request, gemmill, monkeypatch, tmp_path, put_build, home, built) -> None:
    """The files and builds that the examples name."""
    for name in ("GEMMILL_HOME", "GEMMILL_BUILD", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    cache = tmp_path / ".cache" / "gemmill"
    monkeypatch.setattr("gemmill.locations.checkout", lambda: None)
    configs = REGISTRY.configs_of(NAME, select("default").configs)
    line = request.node.callspec.params["line"]
    some = [c for c in configs if c.operands.a_dtype == "s8" and c.design.kernel_schedule == "pingpong"][:2]
    for build in ("97cda050d7a3", "f8045a55a83e"):
        put_build(*dict.fromkeys([*select("smoke").configs, *some]), build_id=build)
    cache.parent.mkdir()
    shutil.move(home, cache)
    monkeypatch.setattr(package, "audit", lambda path: Abi(machine="x86_64", glibc=(2, 34)))
    (table,) = runtime_tables_dir().glob("*.json")
    (cache / "tables").mkdir()
    for path in ("nvidia-h200.json", "shipped.json", "measured.json", cache / "tables" / "nvidia-h200.json"):
        shutil.copy(table, tmp_path / path)
    (cache / "tune").mkdir()
    journal = lzma.decompress((RESULTS / "tune-h200-2026-11-21.jsonl.xz").read_bytes())
    for path in (tmp_path / "sweep.jsonl", cache / "tune" / "nvidia-h200-0123abcd4567.jsonl"):
        path.write_bytes(journal)
    (tmp_path / "config.json").write_text(MODEL)
    (tmp_path / "my_epilogues.py").write_text(EPILOGUES)
    (tmp_path / "shapes.csv").write_text("m,n,k\n16,4096,4096\n")
    save(tmp_path / "model.safetensors", {"layers.0.up.weight": torch.ones(4, 32)})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(executors, "LocalExecutor", _no_gpu)
    monkeypatch.chdir(tmp_path)
    if line.endswith("--check"):
        assert gemmill("generate").code == 0


@pytest.mark.parametrize(("verb", "line"), RUN, ids=[line for _, line in RUN])
def test_it_runs(gemmill, stage, verb: str, line: str) -> None:
    outcome = gemmill(*[str(Path(word).expanduser()) if word.startswith("~") else word for word in _words(line)])
    if verb in WITHOUT_GPU:
        assert outcome.code == 3 and WITHOUT_GPU[verb] in outcome.err, outcome.err
        return
    # doctor and audit find the faults of builds without code.
    assert outcome.code in ((0, 1) if verb in ("doctor", "audit") else (0,)), outcome.err
    assert outcome.out


FILLED = {
    "--arch": "sm90a",
    "--filter": NAME_OF_A_VARIANT,
    "--select": "smoke",
    "--force": "f8045a55a83e",
    "--build": "f8045a55a83e",
    "rm": "f8045a55a83e",
    "--misses": "misses.jsonl",
    "--shapes": "shapes.csv",
    "use": "97cda050d7a3",
    "make": "sweep.jsonl",
    "--out": "made.json",
}
"""A value for each place that a hint leaves open, by the word before."""
EPILOGUES = """
from gemmill.epilogue import Column, Row, Value


def leaky(acc: Value, a_scale: Row, b_scale: Column) -> Value:
    return acc * b_scale * a_scale
"""
NOT_RUN = {
    "gemmill export --from": "names the option",
    "gemmill export --from %s": "test_cli_export.py and tests/compile/test_export.py run it",
    "gemmill fuzz --cpu": "it takes its minute",
    "gemmill verify --quick": "tests/compile/test_examples.py runs it",
    "gemmill verify --report": "names the option",
    "gemmill fuzz": "it takes its minute",
    "gemmill time": "names the verb",
    "gemmill tune": "names the verb",
    "gemmill show": "names the verb",
    "gemmill explain": "names the verb",
    "gemmill export": "names the verb",
    "gemmill prune": "names the verb",
    "gemmill audit": "names the verb",
    "gemmill convert": "names the verb",
    "gemmill builds use": "names the verb",
    "gemmill build --epilogue MODULE:FUNCTION": "tests/families/scaled_mm has a module and a function",
    "gemmill build --arch X --epilogue MODULE:FUNCTION": "the same",
    "gemmill tune --misses": "names the option",
    "gemmill tune --shapes": "names the option",
}


def _literal(hint: str) -> str:
    """A hint with its places filled."""
    words = hint.split()
    for i, word in enumerate(words):
        if word in ("X", "%s", "ID", "FILE", "JOURNAL"):
            words[i] = FILLED.get(words[i - 1], word)
    return " ".join(words)


RUN_HINTS = sorted(
    {_literal(h) for h in _hints() if h not in NOT_RUN and h.split()[1] in {v.split()[0] for v in _verbs()}}
)
RUN_HINTS = [
    line
    for line in RUN_HINTS
    if (len(line.split()) > 2 or line.split()[1] in _verbs()) and line not in [run for _, run in RUN]
]


@pytest.mark.parametrize("line", RUN_HINTS)
def test_a_hint_runs(gemmill, stage, tmp_path, line: str) -> None:
    """As a sentence says it, with builds, tables and a journal at hand and no GPU."""
    (tmp_path / "misses.jsonl").write_text('{"op": "fp8", "m": 16, "n": 4096, "k": 4096}\n')
    outcome = gemmill(*_words(line))
    needs_gpu = WITHOUT_GPU.get(line.split()[1])
    if outcome.code == 3 and needs_gpu is not None:
        assert needs_gpu in outcome.err
    else:
        assert outcome.code in ((0, 1) if line.endswith("doctor") else (0,)), outcome.err
