"""explain's evidence and counts, and options that would do nothing."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import gemmill as package
from gemmill.families.scaled_mm.shaped_call import shaped_call_of
from gemmill.runtime import checks, operands
from gemmill.runtime.schemas import BY_NAME
from gemmill.runtime.select import Choice, evidence_of, select
from gemmill.runtime.table_file import Source, TableRow, in_order
from gemmill.runtime.table_file import make_table as make_tuned_table
from gemmill.runtime.tuned import LoadedTable, Machine, Tuned, load_tuned
from gemmill.runtime.variant_table import make_variant_table
from gemmill.space.names import to_name
from gemmill.vocab import DType

SOURCE = Source(gpu="NVIDIA H200", date="2026-11-20T12:00:00+00:00", program="gemmill tune", driver="580.1")
SIZES = in_order({"m": 16, "n": 4096, "k": 4096})
TILES = [
    (128, 128, 128),
    (128, 64, 128),
    (64, 128, 128),
    (256, 128, 128),
    (128, 256, 128),
    (64, 64, 128),
    (64, 256, 128),
]


@pytest.fixture
def names(make_config) -> list[str]:
    return [to_name(make_config(tile_shape_mnk=tile)) for tile in TILES]


@pytest.fixture
def loaded(monkeypatch, make_manifest, make_config, names):
    """A build of seven variants that fit and two that do not, with one measured row, in place of an extension."""
    manifest = make_manifest(
        *(make_config(tile_shape_mnk=tile) for tile in TILES),
        make_config(a_dtype=DType.S8),
        make_config(out_dtype=DType.F16),
    )
    row = TableRow(op="fp8", sizes=SIZES, variants=(names[1], names[2]), us=(5.0, 5.25), source="s")
    other = TableRow(
        op="bf16", sizes=SIZES, variants=(to_name(make_config(a_dtype=DType.BF16)),), us=(4.0,), source="s"
    )
    found = make_tuned_table("NVIDIA H200", "sm90a", {"s": SOURCE}, [other, row])
    loaded_table = LoadedTable(path=Path("/tables/h200.json"), table=found, trusts={}, stale=0, refused=0)
    monkeypatch.setattr("gemmill.runtime.tuned.find_tables", lambda arch: iter([(loaded_table.path, found)]))
    tuned = load_tuned(manifest.entries, Machine(arch="sm90a", device=None, driver=None))
    table = make_variant_table(manifest.entries, [entry.symbol for entry in manifest.entries], tuned.choices)

    def explain(op: str, *tensors: torch.Tensor | None) -> Choice:
        call = operands.of_arguments(BY_NAME[op], tensors)
        checks.check(BY_NAME[op], call)
        return select(table, shaped_call_of(BY_NAME[op], call), 132)

    build = SimpleNamespace(table=table, tuned=tuned)
    monkeypatch.setattr(package, "load", lambda build_: build)
    monkeypatch.setattr(package, "explain", explain)
    return build


def test_explain_shows_the_measured_row(gemmill, loaded, names) -> None:
    lines = gemmill("explain", "cutlass_scaled_mm", "-m", 16, "-n", 4096, "-k", 4096).out.splitlines()
    assert lines[:3] == [
        f"{names[1]} (exact)",
        f"measured: fp8 16 x 4096 x 4096, 5.00 us; 5.0% slower: {names[2]}",
        "on NVIDIA H200, 2026-11-20, in /tables/h200.json",
    ]


def test_a_runner_up_that_is_as_fast_is_no_negative_zero_slower(gemmill, loaded, names) -> None:
    row = next(row for row in loaded.tuned.tables[0].table.rows if row.op == "fp8")
    object.__setattr__(row, "us", (5.0, 4.9999))
    out = gemmill("explain", "cutlass_scaled_mm", "-m", 16, "-n", 4096, "-k", 4096).out
    assert f"5.00 us; 0.0% slower: {names[2]}" in out


def test_the_row_of_a_sibling_class_is_shown(gemmill, loaded, make_config) -> None:
    out = gemmill("explain", "cutlass_scaled_mm", "-m", 16, "-n", 4096, "-k", 4096, "--bias").out
    assert "measured: fp8 16 x 4096 x 4096, 5.00 us" in out


def test_explain_lists_the_five_nearest_and_counts_the_rest(gemmill, loaded) -> None:
    outcome = gemmill("explain", "cutlass_scaled_mm", "-m", 16, "-n", 4096, "-k", 4096)
    nearest = [line for line in outcome.out.splitlines() if "it fits, the table's exact row names another" in line]
    assert "the nearest of 6 that fit too" in outcome.out and len(nearest) == 5
    estimates = [float(line.split("model: ")[1].split(" us")[0]) for line in nearest]
    assert estimates == sorted(estimates)
    (counted,) = [line for line in outcome.out.splitlines() if "it computes s8 x s8" in line]
    assert counted.split()[0] == "1"


def test_explain_lists_all_if_asked(gemmill, loaded) -> None:
    out = gemmill("explain", "cutlass_scaled_mm", "-m", 16, "-n", 4096, "-k", 4096, "--all").out
    assert out.count("it fits, ") == 6 and out.count("it computes ") == 2 and "rejected" not in out


def test_explain_as_json_has_the_row_and_everything(gemmill, loaded, names) -> None:
    explained = json.loads(gemmill("explain", "cutlass_scaled_mm", "-m", 16, "-n", 4096, "-k", 4096, "--json").out)
    assert explained["measured"]["row"]["variants"] == names[1:3], (
        "not the row of bf16" and len(explained["rejected"]) == 8
    )
    assert explained["measured"]["source"]["gpu"] == "NVIDIA H200"
    far = json.loads(gemmill("explain", "cutlass_scaled_mm", "-m", 16, "-n", 64, "-k", 64, "--json").out)
    assert (far["trust"], far["measured"]) == ("model", None)


def test_a_measured_winner_that_is_not_built_is_named(gemmill, loaded, make_config, monkeypatch) -> None:
    """The model chooses: no built variant was measured there, and the nearest row's winner is missing."""
    winner = to_name(make_config(tile_shape_mnk=(128, 32, 128)))
    rows = [
        TableRow(op="fp8", sizes=in_order({"m": m, "n": 64, "k": 64}), variants=(winner,), us=(us,), source="s")
        for m, us in ((16, 3.0), (64, 4.0))
    ]
    found = make_tuned_table("NVIDIA H200", "sm90a", {"s": SOURCE}, rows)
    table = LoadedTable(path=Path("t.json"), table=found, trusts={}, stale=0, refused=0)
    monkeypatch.setattr(loaded, "tuned", Tuned(choices=(), tables=(table,)))
    told = gemmill("explain", "cutlass_scaled_mm", "-m", 16, "-n", 64, "-k", 64).out.splitlines()
    assert told[1] == (
        f"by the model: measured, winner not built: {winner}, 3.00 us on NVIDIA H200; `gemmill build --select default` builds "
        "what tables name"
    )
    far = gemmill("explain", "cutlass_scaled_mm", "-m", 16, "-n", 128, "-k", 64).out.splitlines()
    assert far[1].startswith("by the model, since nothing near was measured: ")


def test_no_row_without_its_table(loaded) -> None:
    choice = package.explain("cutlass_scaled_mm", *_call())
    assert choice.measured == SIZES
    assert evidence_of(choice, Tuned(choices=(), tables=())) is None


def _call() -> list[torch.Tensor | None]:
    def empty(shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    a, b = empty((16, 4096), torch.float8_e4m3fn), empty((4096, 4096), torch.float8_e4m3fn).t()
    scales = empty((16, 1), torch.float32), empty((1, 4096), torch.float32)
    return [empty((16, 4096), torch.bfloat16), a, b, *scales, None]


GEMM = ("explain", "cutlass_scaled_mm", "-m", "16", "-n", "16", "-k", "16")
QUANT = ("explain", "silu_and_mul_quant", "-m", "16", "--hidden", "16")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            (*GEMM, "--group", "64", "--ue8m0"),
            "cutlass_scaled_mm with --ue8m0: that means nothing to it, leave it out",
        ),
        (
            (*GEMM, "--activation", "silu", "--ue8m0"),
            "cutlass_scaled_mm with --activation, --ue8m0: that means nothing to it, leave it out",
        ),
        (
            (*QUANT, "--per-tensor", "--one-b-scale", "--bias"),
            "silu_and_mul_quant with --per-tensor, --one-b-scale, --bias: that means nothing to it, leave it out",
        ),
        (
            (*QUANT, "--lda", "8", "--ldb", "8", "--ldd", "8"),
            "silu_and_mul_quant with --lda, --ldb, --ldd: that means nothing to it, leave it out",
        ),
        (
            ("list", "--select", "smoke", "--build", "x"),
            "--select with --build: a variant is looked for in one of them, leave the other out",
        ),
        (
            ("show", "x", "--select", "smoke", "--build", "x"),
            "--select with --build: a variant is looked for in one of them, leave the other out",
        ),
        (
            ("list", "--arch", "sm90a", "--build", "x"),
            "--build with --arch: a build is of one architecture, leave --arch out",
        ),
        (("show", "x", "--source", "--json"), "--json with --source or --sass: these print text, leave --json out"),
        (
            ("verify", "--quick", "--filter", "a_dtype=s8"),
            "--quick with --filter: it runs each op once, whatever the variants; leave one of them out",
        ),
        (
            ("prune", "x.jsonl", "--out", "y.json", "--tp", "2"),
            "--op, --tp and --m are about the shapes of --model or --shapes: name some, or leave them out",
        ),
    ],
)
def test_options_that_would_do_nothing_are_errors(gemmill, home, arguments, sentence) -> None:
    outcome = gemmill(*arguments)
    assert (outcome.code, outcome.out, outcome.err) == (2, "", f"gemmill: {sentence}\n")


def test_list_of_an_architecture_is_of_the_build_that_serves_it(gemmill, put_build, make_config) -> None:
    put_build(make_config(), build_id="hopper")
    put_build(make_config(), make_config(a_dtype=DType.S8), build_id="blackwell", arch="sm100a")
    assert "1 variant in build hopper" in gemmill("list", "--arch", "sm90a").out
    assert "2 variants in build blackwell" in gemmill("list", "--arch", "sm_100a").out
    assert gemmill("list", "--arch", "sm120f").err.startswith("gemmill: no build of gemmill for sm120f in ")
