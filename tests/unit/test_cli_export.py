"""`gemmill export`: which files it writes, for which shape."""

import pytest

from gemmill.families import quant
from gemmill.registry import REGISTRY
from gemmill.runtime import tuned
from gemmill.runtime.table_file import Source, TableRow, make_table, table_text
from gemmill.space.names import alias_of, to_name
from gemmill.space.selections import select


@pytest.fixture
def timed(put_build, make_config, home, monkeypatch, tmp_path):
    """A variant, built, that a table timed at two shapes."""
    config = make_config()
    put_build(config)
    source = Source(gpu="NVIDIA H200", date="2026-11-20", program="gemmill tune")
    rows = [
        TableRow(
            op="fp8", sizes={"n": 4096, "k": 512, "m": m}, variants=("x", to_name(config)), us=(5.0, us), source="s"
        )
        for m, us in ((16, 6.25), (64, 7.5))
    ]
    monkeypatch.setattr(tuned, "_SHIPPED", tmp_path / "shipped")
    (home / "tables").mkdir()
    (home / "tables" / "t.json").write_text(table_text(make_table("NVIDIA H200", "sm90a", {"s": source}, rows)))
    return to_name(config)


@pytest.mark.parametrize(("asked", "m", "us"), [((), 16, "6.25"), (("-m", 64), 64, "7.5")])
def test_the_shape_is_one_that_was_measured(gemmill, timed, tmp_path, asked, m, us) -> None:
    outcome = gemmill("export", alias_of(timed), *asked, "--out", tmp_path / "it")
    assert (outcome.code, outcome.out) == (0, f"{tmp_path / 'it' / 'build.sh'} compiles and runs it\n")
    main = (tmp_path / "it" / "main.cu").read_text()
    assert f"at M x N x K = {m} x 4096 x 512: " in main and f"; it took {us} us with the weights in memory" in main
    assert (tmp_path / "it" / f"{timed}.cu").is_file() and (tmp_path / "it" / "core" / "abi.h").is_file()
    assert (tmp_path / "it" / "build.sh").stat().st_mode & 0o111
    assert str(tmp_path) not in (tmp_path / "it" / "build.sh").read_text(), "it runs elsewhere too"


def test_another_shape_must_be_named_whole(gemmill, timed, tmp_path) -> None:
    outcome = gemmill("export", timed, "-m", 17, "--out", tmp_path / "it")
    assert (outcome.code, outcome.err) == (
        2,
        f"gemmill: no tuned table has {timed} at such a shape: name one with -m, -n and -k\n",
    )
    assert gemmill("export", timed, "-m", 17, "-n", 64, "-k", 128, "--out", tmp_path / "it").code == 0
    assert "it took" not in (tmp_path / "it" / "main.cu").read_text()


def test_what_is_no_gemm_is_refused(gemmill, home) -> None:
    name = to_name(REGISTRY.configs_of(quant.NAME, select("smoke").configs)[0])
    outcome = gemmill("export", name)
    assert (outcome.code, outcome.err) == (
        2,
        f"gemmill: {name} is no GEMM: others cannot be exported, `gemmill show --source` prints them\n",
    )
