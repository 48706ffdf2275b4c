"""Every switch of every verb with every other option: an option without effect is an error."""

from functools import cache
from typing import Any

import pytest
import typer

from gemmill.cli.app import app

KEEPS: dict[tuple[str, str], set[str]] = {
    ("list", "--json"): {"--select", "--arch", "--filter", "--build"},
    ("list", "--select"): {"--arch", "--filter", "--json"},
    ("plan", "--json"): {"--select", "--arch", "--filter", "--jobs", "--max-size", "--home"},
    ("generate", "--check"): {"--select", "--arch", "--filter", "--out"},
    ("build", "--dry-run"): {
        "--select",
        "--arch",
        "--filter",
        "--epilogue",
        "--jobs",
        "--max-size",
        "--retry-failed",
        "--emulate",
        "--own-host-code",
        "--home",
    },
    ("show", "--json"): {"--select", "--arch", "--build"},
    ("show", "--source"): {"--sass", "--select", "--arch", "--build"},
    ("show", "--sass"): {"--source", "--select", "--arch", "--build"},
    ("export", "--hub"): {"--out", "--build", "--experimental"},
    ("verify", "--quick"): {"--build", "--json"},
    ("verify", "--batch-invariant"): {"--pairs", "--seconds", "--seed", "--family", "--filter", "--build", "--json"},
    ("fuzz", "--only"): {"--op", "--seed", "--gpu", "--timeout", "--build", "--json"},
    ("fuzz", "--cpu"): {"--op", "--seconds", "--calls", "--seed", "--only", "--jobs", "--timeout", "--json"},
    ("table show", "FILE"): {"--json"},
}
"""Options with an effect next to a switch that leaves something out; all other options of its verb are refused there."""
ADDS = {
    "build": {"--retry-failed", "--emulate", "--own-host-code", "--use", "--trust-network"},
    "explain": {
        "--per-token",
        "--per-channel",
        "--bias",
        "--ue8m0",
        "--scales-m-major",
        "--prepacked",
        "--indexed",
        "--in-groups",
        "--all",
        "--batch-invariant",
        "--json",
    },
    "verify": {"--json"},
    "fuzz": {"--gpu", "--json"},
    "time": {"--peers", "--dry-run", "--json"},
    "tune": {"--batch-invariant", "--second-opinion", "--peers", "--fresh", "--trust-network", "--dry-run"},
    "audit": {"--all", "--json"},
    "convert": {"--requantize", "--rescale"},
    "export": {"--experimental"},
    "wheel": {"--kernels", "--experimental"},
    "doctor": {"--json"},
    "table show": {"--json"},
    "table diff": {"--json"},
    "table merge": {"--forget-digests"},
    "builds list": {"--json"},
    "builds rm": {"--force"},
    "cache list": {"--json"},
}
"""Switches that always have an effect; their needs and exclusions are below."""
VALUES = {
    "--arch": "sm90a",
    "--max-size": "60MB",
    "--scheduler": "tls://host:1",
    "--jobs": "2",
    "--only": "4",
    "--seconds": "1",
    "--calls": "2",
    "--pairs": "2",
    "--seed": "3",
    "--timeout": "5",
    "--hidden": "1",
}
"""Of options that take not any text."""
BASE = {"show": ["x"], "table show": ["FILE"], "build": [], "fuzz": []}
REFUSED: list[tuple[list[str], str]] = [
    (
        ["build", "--trust-network"],
        "--trust-network with no --scheduler: there is no cluster to trust, leave --trust-network out",
    ),
    (
        ["tune", "--model", "llama-3-8b", "--m", "1", "--dry-run", "--trust-network", "--table", "t.json"],
        "--trust-network with no --scheduler: there is no cluster to trust, leave --trust-network out",
    ),
    (
        ["explain", "cutlass_scaled_mm", "-m", "1", "-n", "1", "-k", "1", "--all", "--json"],
        "--all with --json: that lists every other variant anyway, leave --all out",
    ),
    (
        ["tune", "--model", "llama-3-8b", "--dry-run", "--vllm-so", "x.so"],
        "--vllm-so with --dry-run: no kernel is timed, leave --vllm-so out",
    ),
    (
        ["tune", "--model", "llama-3-8b", "--dry-run", "--build", "x", "--selection", "smoke"],
        "--selection with --dry-run and --build: nothing is compiled, leave --selection out",
    ),
    (
        ["audit", "--shapes", "x.csv", "--tp", "2"],
        "--tp without --model: it divides the weights of a model, leave it out",
    ),
    (
        ["fuzz", "--only", "4", "--jobs", "2", "--cpu"],
        "--jobs with --only: it makes one call, leave --jobs out",
    ),
    (
        ["export", "x", "--experimental"],
        "--experimental without --hub: it is about whole builds, leave it out",
    ),
    (
        ["verify", "--quick", "--pairs", "5"],
        "--pairs without --batch-invariant: it means nothing there, add --batch-invariant or leave --pairs out",
    ),
    (
        ["fuzz", "--cpu", "--build", "x"],
        "--build with --cpu: there the ops run the reference, without a build, leave --build out",
    ),
    (
        ["table", "show", "x.json", "--build", "x"],
        "--build with FILE: a table is printed as it is, whatever the build, leave --build out",
    ),
]


@cache
def _verbs() -> dict[str, Any]:
    top = typer.main.get_command(app).commands
    below = {f"{name} {verb}": c for name, group in top.items() for verb, c in getattr(group, "commands", {}).items()}
    return {name: command for name, command in top.items() if not hasattr(command, "commands")} | below


def _options(verb: str) -> dict[str, Any]:
    """By the longest spelling that switches something on."""
    options = [p for p in _verbs()[verb].params if p.param_type_name == "option" and p.name != "help"]
    return {max(option.opts, key=len): option for option in options}


def test_every_switch_is_judged() -> None:
    """A new one stands in one of the two tables, or this fails."""
    for verb in _verbs():
        switches = {name for name, option in _options(verb).items() if option.is_flag}
        beside = {"--gpu"} if verb == "fuzz" else set()
        judged = {switch for of, switch in KEEPS if of == verb} | ADDS.get(verb, set())
        assert switches - beside <= judged, verb
        assert {name for name in judged if name.startswith("--")} <= _options(verb).keys() | {"--cpu"}, verb


PAIRS = [
    (verb, switch, option)
    for (verb, switch), kept in KEEPS.items()
    for option in _options(verb)
    if option != switch and option not in kept and not (switch == "--cpu" and option == "--gpu")
]


def test_the_tables_name_options_that_exist() -> None:
    for (verb, _), kept in KEEPS.items():
        assert kept <= _options(verb).keys(), verb
    assert len(PAIRS) > 15


@pytest.mark.parametrize(("verb", "switch", "option"), PAIRS, ids=[" ".join(pair) for pair in PAIRS])
def test_what_does_nothing_beside_a_switch_is_refused(gemmill, home, verb: str, switch: str, option: str) -> None:
    def spelled(name: str) -> list[str]:
        if not name.startswith("-"):
            return []
        found = _options(verb).get(name)
        return (
            [name] if found is None or found.is_flag else [name, VALUES.get(name, "1" if found.name in "mnk" else "x")]
        )

    outcome = gemmill(*verb.split(), *BASE.get(verb, []), *spelled(switch), *spelled(option))
    assert (outcome.code, outcome.out) == (2, ""), outcome
    assert option in outcome.err and "leave" in outcome.err and outcome.err.count("\n") == 1, outcome.err


@pytest.mark.parametrize(("arguments", "sentence"), REFUSED, ids=[" ".join(arguments) for arguments, _ in REFUSED])
def test_the_sentences(gemmill, home, arguments: list[str], sentence: str) -> None:
    outcome = gemmill(*arguments)
    assert (outcome.code, outcome.out, outcome.err) == (2, "", f"gemmill: {sentence}\n")


def test_a_plan_says_what_would_be_refused_as_too_large(gemmill, home) -> None:
    told = "gemmill: that is more than the 1.0 MB of --max-size, so a build would be refused: leave variants out with --filter\n"
    assert told in gemmill("plan", "--select", "smoke", "--max-size", "1MB").err
    assert told not in gemmill("plan", "--select", "smoke", "--max-size", "1GB").err
