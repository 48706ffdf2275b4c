"""A family of its own folder, tests/toy, goes from declaration to called op, explain, fuzz, verify and a row of a table."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[2]
MACHINE = (Path(__file__).parent / "machine.cpp").read_text()


@pytest.fixture(scope="module")
def life(home_of_probes: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict]]:
    """The steps done, by their names."""
    home = tmp_path_factory.mktemp("toy")
    environment = os.environ | {"PYTHONPATH": f"{TESTS.parent / 'generator'}:{TESTS}", "GEMMILL_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-m", "toy", home_of_probes, home, *sorted(set(re.findall(r"__wrap_(\w+)", MACHINE)))],
        capture_output=True,
        text=True,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[dict]] = {"said": []}
    for line in done.stdout.splitlines():
        told = json.loads(line) if line.startswith("{") else {"done": "said", "line": line}
        found.setdefault(told["done"], []).append(told)
    return found


def test_its_names_and_sources_follow_from_its_declaration(life) -> None:
    names = [f"sm90a_toy_p{count}" for count in (1, 4, 8)]
    assert life["built"][0]["names"] == names
    assert {"binding.cpp", "variants.cpp"} <= set(life["built"][0]["sources"])


def test_a_call_is_checked_and_served_by_the_extension_as_by_the_reference(life) -> None:
    wanted = {"codes": [[0x21, 0x1F], [0x42, 0x71], [0x11, 0x11]], "peaks": [99.0, 7.0, 0.0]}
    assert [{name: told[name] for name in wanted} for told in life["called"]] == [wanted, wanted]


def test_a_row_of_a_table_serves_it(life) -> None:
    """The model would take the variant that packs most pages at a time."""
    chosen = {told["length"]: (told["name"], told["trust"]) for told in life["chosen"]}
    assert chosen == {64: ("sm90a_toy_p1", "EXACT"), 65: ("sm90a_toy_p8", "MODEL")}


def test_every_variant_is_verified(life) -> None:
    assert [(told["cases"], told["failures"]) for told in life["verified"]] == [(3, [])] * 3


def test_legal_and_broken_calls_are_fuzzed_on_both_sides(life) -> None:
    assert [told["namespace"] for told in life["fuzzed"]] == ["gemmill", "toyed"]
    for told in life["fuzzed"]:
        assert told["found"] == []
        assert told["tally"]["legal"] > 200 and told["tally"]["broken"] > 40


def test_it_is_explained(life) -> None:
    assert [told["exit"] for told in life["explained"]] == [0, 0]
    said = [told["line"] for told in life["said"]]
    assert "sm90a_toy_p1 (exact)" in said and "sm90a_toy_p8 (model)" in said
    assert any(line.startswith("measured: toy_pages 64 x 32, 1.00 us") for line in said)


def test_its_kernel_is_exported_on_its_own(life) -> None:
    """Fields of its struct, files of its folder, operands and results: all by its declaration."""
    (exported,) = life["exported"]
    assert exported["exit"] == 0
    assert {"main.cu", "build.sh", "data.bin", "sm90a_toy_p4.cu", "toy/abi.h", "toy/pack.h", "core/abi.h"} <= set(
        exported["files"]
    )
    *right, code, peak, without = life["reproduced"]
    assert [(told["exit"], told["out"], told["err"]) for told in right] == [
        (0, ["right; 5.00 us a launch, with the operands in cache"], "")
    ] * 3, "codes are held to their ranges, not to bytes"
    assert code["exit"] == 1 and re.fullmatch(r"codes: the code at bit 0 is \d+, not 3\d{4} to \d+", code["out"][0])
    assert code["out"][1:] == ["codes: 1 of 160 codes are wrong", "WRONG; 5.00 us a launch, with the operands in cache"]
    assert peak["exit"] == 1 and peak["out"][0].startswith("peaks[0, 0, 0, 0] is value ")
    assert peak["out"][1:] == [
        "peaks: 1 of 5 elements are wrong, 0 beside the right value",
        "WRONG; 5.00 us a launch, with the operands in cache",
    ]
    assert (without["exit"], without["err"]) == (2, "data.bin cannot be read: run this where it lies\n")
