"""The program that compares host times of several revisions, on the CPU."""

import json

import pytest

import host_time as program
from gemmill.locations import checkout


def test_figures_are_of_the_same_round():
    found = program.figures({"before": [5.0, 9.0, 5.0], "now": [5.5, 9.5, 6.0]}, "before")
    assert found["now"]["median_us"] == 6.0 and found["now"]["more_us"] == 0.5
    assert found["now"]["more_quartiles_us"] == [0.5, 0.75]
    assert found["before"]["more_us"] == 0.0


def test_sides_take_turns_and_the_record_names_them(tmp_path, capsys):
    (tmp_path / "builds").mkdir()
    here = f"{checkout() / 'generator'},{tmp_path}"
    arguments = [f"a={here}", f"b={here}", "--cpu", "--rounds", "2", "--calls", "1", "--out-dir", str(tmp_path)]
    assert program.main([*arguments, "--commit", "a=abc"]) == 0
    record = json.loads((tmp_path / "host-time.json").read_text())
    assert record["on_cpu"] and record["commits"]["a"] == "abc"
    assert len(record["ops"]) == 5
    assert all(len(side["rounds_us"]) == 2 for op in record["ops"].values() for side in op.values())
    assert "static_scaled_fp8_quant: a " in capsys.readouterr().out


def test_plugins_are_timed_around_stubs(tmp_path):
    """Without a build; "nothing" is an empty call."""
    here = f"a={checkout() / 'generator'}"
    assert program.main([here, "--plugins", "--rounds", "1", "--calls", "1", "--out-dir", str(tmp_path)]) == 0
    record = json.loads((tmp_path / "host-time.json").read_text())
    assert (
        record["plugins"] and list(record["ops"])[:2] == ["nothing", "vLLM's linear, FP8"] and len(record["ops"]) == 9
    )


@pytest.mark.parametrize(
    ("sides", "sentence"),
    [
        (["nothing"], "'nothing' is not NAME=VALUE"),
        (["a=/nowhere,/nowhere"], "'a=/nowhere,/nowhere': '/nowhere' has no gemmill/__init__.py"),
        (
            [f"a={checkout() / 'generator'}"],
            "a: a side is NAME=SOURCES,HOME, and HOME may be left out with --plugins alone",
        ),
    ],
)
def test_bad_sides(sides, sentence, capsys):
    with pytest.raises(SystemExit, match="2"):
        program.main(sides)
    assert sentence in capsys.readouterr().err
