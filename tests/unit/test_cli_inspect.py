"""list and show: the contents of a build or a selection."""

import json

import pytest

from gemmill.build import sass as sass_layer
from gemmill.build import toolchain as toolchain_layer
from gemmill.emit import emit
from gemmill.space.names import alias_of, to_name
from gemmill.space.selections import select
from gemmill.vocab import Arch, DType, KernelSchedule


@pytest.fixture
def configs(make_config):
    return [make_config(), make_config(a_dtype=DType.S8), make_config(kernel_schedule=KernelSchedule.PINGPONG)]


def test_list_prints_the_variants_of_the_build_that_serves(gemmill, put_build, configs) -> None:
    put_build(*configs)
    outcome = gemmill("list")
    assert outcome.code == 0
    assert "3 variants in build 0123abcd4567 for sm90a (1.0 MB)" in outcome.out
    for config in configs:
        (line,) = [line for line in outcome.out.splitlines() if to_name(config) in line]
        assert line.split() == [to_name(config), alias_of(to_name(config)), "168", "0", "B", "20.5", "kB", "16", "s"]
    assert outcome.err == "not built: sm90a_cutlass_bad: error: static assertion failed\n"


def test_list_as_json_is_the_manifests_entries(gemmill, put_build, configs) -> None:
    manifest = put_build(*configs)
    entries = json.loads(gemmill("list", "--json").out)
    assert [entry["name"] for entry in entries] == [entry.name for entry in manifest.entries]
    assert entries[0]["config"]["design"]["tile_shape_mnk"] == [128, 128, 128]
    assert entries[0]["sass"] == {"QGMMA": 32, "UTMALDG": 2}


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        (["a_dtype=s8"], 1),
        (["kernel_schedule=cooperative"], 2),
        (["a_dtype=e4m3", "*pingpong*"], 1),
        (["re:e4m3.*cooperative"], 1),
    ],
)
def test_list_filters_a_build(gemmill, put_build, configs, filters, count) -> None:
    put_build(*configs)
    arguments = [word for pattern in filters for word in ("--filter", pattern)]
    assert len(json.loads(gemmill("list", "--json", *arguments).out)) == count


def test_list_reads_the_build_that_is_named(gemmill, put_build, home, configs, monkeypatch) -> None:
    put_build(*configs)
    put_build(configs[0], build_id="feedfeedfeed")
    assert len(json.loads(gemmill("list", "--json", "--build", "0123abcd4567").out)) == 3
    assert len(json.loads(gemmill("list", "--json", "--build", home / "builds" / "feedfeedfeed").out)) == 1
    monkeypatch.setenv("GEMMILL_BUILD", "feedfeedfeed")
    assert len(json.loads(gemmill("list", "--json").out)) == 1
    outcome = gemmill("list", "--build", "cafe")
    assert outcome.code == 3 and outcome.err.startswith(
        "gemmill: no build 'cafe': it is not the id of one of the builds here"
    )


def test_list_of_a_selection_needs_no_build(gemmill, home) -> None:
    listed = json.loads(gemmill("list", "--select", "sweep", "--json").out)
    assert [row["name"] for row in listed] == [to_name(config) for config in select("sweep").configs]
    assert listed[0]["config"]["operands"]["a_dtype"] == "e4m3"
    text = gemmill("list", "--select", "smoke", "--arch", "sm_100a").out
    assert text.splitlines()[0].strip() == "1 variant of smoke for sm100a"
    assert all(to_name(config) in text for config in select("smoke", Arch.SM100A).configs)


def test_listed_names_are_never_folded_where_a_program_reads(gemmill, home) -> None:
    lines = gemmill("list", "--select", "sweep").out.splitlines()
    assert {to_name(config) for config in select("sweep").configs} <= {
        line.split()[0] for line in lines if line.strip()
    }


def test_show_tells_all(gemmill, put_build, configs) -> None:
    manifest = put_build(*configs)
    outcome = gemmill("show", to_name(configs[0]))
    assert outcome.code == 0
    for words in (
        ["a_dtype", "e4m3"],
        ["tile_shape_mnk", "128x128x128"],
        ["stages", "auto"],
        ["ops", "cutlass_scaled_mm,", "vllm_cutlass_scaled_mm"],
        ["swizzle", "1"],
        ["build", manifest.build_id],
        ["registers", "a", "thread", "168"],
        ["instructions", "32", "QGMMA,", "2", "UTMALDG"],
    ):
        assert any(line.split() == words for line in outcome.out.splitlines()), words


def test_show_takes_a_glob_that_fits_one(gemmill, put_build, configs) -> None:
    put_build(*configs)
    shown = json.loads(gemmill("show", "*pingpong*", "--json").out)
    assert shown["name"] == to_name(configs[2]) == shown["entry"]["name"]
    assert shown["rule"] == {"ok": True, "rule": "", "reason": ""}


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ("*cooperative*", "2 variants of build 0123abcd4567 match *cooperative*, for example {0} and {1}: name one"),
        ("*basic*", "no variant of build 0123abcd4567 is called *basic*; `gemmill list` prints names"),
        (
            "nonsense",
            "build 0123abcd4567 has no such variant, and 'nonsense' is not a kernel name: it has no architecture and tag; "
            "`gemmill list` and `gemmill list --select sweep` print names",
        ),
    ],
)
def test_show_of_no_or_several_variants(gemmill, put_build, configs, wanted, sentence) -> None:
    put_build(*configs)
    outcome = gemmill("show", wanted)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == "gemmill: " + sentence.format(*map(to_name, configs)) + "\n"


def test_show_of_what_is_not_built(gemmill, home, make_config) -> None:
    outcome = gemmill("show", to_name(make_config()))
    assert outcome.code == 0 and outcome.out.rstrip().endswith("not in a build")
    outcome = gemmill("show", to_name(make_config(swizzle=3)))
    assert "kept out by rule launch_settings: swizzle 3 is not 1, 2, 4 or 8" in outcome.out


def test_show_from_a_selection(gemmill, home) -> None:
    shown = json.loads(gemmill("show", "*cutlass*splitk*_k4", "--select", "smoke", "--json").out)
    assert shown["config"]["launch"]["splits"] == 4 and shown["entry"] is None


def test_show_source_is_what_is_emitted(gemmill, home, make_config) -> None:
    assert gemmill("show", to_name(make_config()), "--source").out == emit(make_config()).text


def test_show_sass_disassembles_the_kernel(gemmill, put_build, home, make_config, monkeypatch) -> None:
    manifest = put_build(make_config(swizzle=4))
    asked = []

    class Toolchain:
        cuobjdump = "the cuobjdump"

    monkeypatch.setattr(toolchain_layer, "find_toolchain", Toolchain)
    monkeypatch.setattr(sass_layer, "disassemble", lambda *arguments: asked.append(arguments) or "QGMMA R0\n")
    assert gemmill("show", to_name(make_config(swizzle=4)), "--sass").out == "QGMMA R0\n"
    folder = home / "builds" / manifest.build_id
    assert asked == [(folder / manifest.extension, "the cuobjdump", to_name(make_config()))]


def test_show_sass_checks_the_extension(gemmill, put_build, home, make_config) -> None:
    manifest = put_build(make_config())
    (home / "builds" / manifest.build_id / manifest.extension).write_bytes(b"other")
    outcome = gemmill("show", to_name(make_config()), "--sass")
    assert outcome.code == 3 and "is not the one in its manifest: SHA-256" in outcome.err


def test_show_sass_of_what_is_not_built(gemmill, home, make_config) -> None:
    outcome = gemmill("show", to_name(make_config()), "--sass")
    assert outcome.code == 2 and "is not in a build: `gemmill build --filter" in outcome.err


def test_a_variant_is_shown_by_its_alias(gemmill, put_build, configs) -> None:
    put_build(*configs)
    name = to_name(configs[2])
    outcome = gemmill("show", alias_of(name))
    assert outcome.code == 0 and outcome.out.splitlines()[0] == f"{name} ({alias_of(name)})"
    assert gemmill("list", "--filter", alias_of(name), "--json").out.count('"registers"') == 1
    assert gemmill("show", alias_of("nothing")).err == (
        f"gemmill: no variant of build 0123abcd4567 is called {alias_of('nothing')}; `gemmill list` prints names\n"
    )
