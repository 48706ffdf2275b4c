"""The products of measurements: the report, the smallest selection, the audit, waves, and the verbs that show tables."""

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from lzma import compress
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gemmill.build.errors import BuildError
from gemmill.families.scaled_mm.sweep import SWEEP
from gemmill.family import Config
from gemmill.registry import REGISTRY
from gemmill.runtime.table_file import Source, TableRow, make_table, read_table, table_text
from gemmill.runtime.tuned import Machine
from gemmill.space.names import parse_name, to_name
from gemmill.space.selections import Selection, select
from gemmill.tuner.candidates import build_facts
from gemmill.tuner.charts import Cell, Line, log_chart, winner_map
from gemmill.tuner.checking import Fault, Finding
from gemmill.tuner.choice import agreement
from gemmill.tuner.journal import Entry, Record
from gemmill.tuner.measure import TaskOutcome
from gemmill.tuner.program import TuneRequest, stand_in_build
from gemmill.tuner.prune import audit, prune, selection_of, times_of, times_of_drawn, worst_first
from gemmill.tuner.report import WINNER_COLOURS, environment, report_text, shapes_of
from gemmill.tuner.sweep import SweepOptions, decisions
from gemmill.tuner.waves import KERNELS_OF_A_WAVE, tune_selection, waves_of
from gemmill.tuner.workloads import workload_of
from gemmill.typed_json import JsonError
from gemmill.vocab import Arch
from gemms import MeasuredOp, Workload, gemm

BASE = "sm90a_cutlass_e4m3_e4m3_f32_bf16_scaledbias_channel_"
PREFILL = f"{BASE}t128x128x128_c2x1x1_pingpong_fast_persistent_ab_sauto_a16b16d8"
DECODE = f"{BASE}t64x16x256_c1x1x1_basic_fast_splitk_swapab_s4_a16b16d8"
DECODE4 = f"{DECODE}_k4"


def workload(m: int, op: MeasuredOp = MeasuredOp.FP8, n: int = 4096, k: int = 4096) -> Workload:
    return gemm(op=op, m=m, n=n, k=k)


def record_of(times: dict[Workload, dict[str, float]], faults=None, gpu: str | None = "NVIDIA H200") -> Record:
    entries = {}
    for key, us in times.items():
        outcome = TaskOutcome(
            workload=key,
            rounds_us={name: (value,) * 3 for name, value in us.items()},
            findings={},
            builds={name: "b" if name.startswith("sm") else "peer" for name in us},
            device={"gpu": gpu, "sm_count": 132, "driver": "580.1"},
            state={"clocks.sm": {"median": 1800.0}, "throttled": {"power cap": 0.5}},
            checking_seconds=1.0,
            seconds=4.0,
        )
        entries[key, 0, 0] = Entry(outcome=outcome, repeat=0, wave=0, present=None, date="2026-11-20T12:00:00+00:00")
    setup = {"device": gpu or "dry run", "driver": "580.1", "builds": ["0123"], "gemmill": "0.1.0", "dry_run": False}
    begun_by = ("gemmill tune --tp 2", "0123abcd45")
    return Record(setup=setup, entries=entries, faults=faults or {}, begun_by=begun_by)


@pytest.fixture
def measured() -> Record:
    return record_of(
        {
            workload(1): {DECODE: 6.0, DECODE4: 5.9, PREFILL: 9.0, "torch row-wise": 12.0},
            workload(2048): {PREFILL: 47.0, DECODE: 400.0, "torch row-wise": 45.0},
            workload(1, MeasuredOp.INT8): {
                "sm90a_cutlass_s8_s8_s32_bf16_scaledbias_channel_t64x16x256_c1x1x1_basic_exact_splitk_swapab_s4_a16b16d8": 6.0
            },
        },
        {workload(1): {PREFILL + "_w2": Finding(fault=Fault.WRONG, detail="1 < 2 & wrong")}},
    )


def test_report_holds_all_and_needs_nothing(measured) -> None:
    text = report_text(measured, agreements=[agreement(decisions(measured, 0), decisions(measured, 0))])
    assert "<script src" not in text and not re.search(r"(src|href)=|url\((?!#)|@import", text), (
        "it opens without network"
    )
    assert "1 &lt; 2 &amp; wrong" in text and "_w2" in text
    assert "0 of 3 winners flip" in text
    assert "measured 2026-11-20 by <code>gemmill tune --tp 2</code>, commit 0123abcd45" in text
    chosen = [d.chosen for d in decisions(measured, 0).values()]
    assert text.count("<td>nvcc<td") == len(set(chosen)), "winners have their compilers"
    assert all(len(re.findall(f"{name}\\b", text)) == 1 for name in chosen), "a name is there once"
    found = re.findall(r'<g class="dots (\w+)" data-column="([^"]+)">(.*?)</g>', text)
    assert [(kind, column, dots.count("<path")) for kind, column, dots in found] == [
        ("peer1", "peer / own", 2),
        ("own", "of roofline", 2),
        ("own", "of roofline", 1),
    ], "a dot for each shape, by the names of columns"
    assert "<th>peer / own<th>of roofline<th" in text
    assert "0.957" in text, "45 us over 47 us: the peer is ahead"
    assert "1800 MHz, held by power cap" in text or "1800 to 1800 MHz, held by power cap" in text
    assert f"{4096 * 4096 / 4.21e12 * 1e6 / 5.9:.0%}" in text, "the fraction of the roofline"
    for svg in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(svg)
    assert len(text) < 40_000


@pytest.mark.parametrize(
    ("op", "operations"), [(MeasuredOp.FP8, 1.979e15), (MeasuredOp.INT8, 1.979e15), (MeasuredOp.BF16, 0.9895e15)]
)
def test_the_roofline_is_that_of_the_operands(op, operations) -> None:
    (shape,) = shapes_of(record_of({workload(8192, op): {DECODE: 500.0}}), 1, 0.01)
    assert shape.floor_us == pytest.approx(shape.workload.flops / operations * 1e6)


def test_every_kind_of_winner_has_a_colour(measured) -> None:
    text = report_text(measured)
    used = set(re.findall(r"<td class=(\w+) title", text))
    assert used and used <= set(WINNER_COLOURS), "of any family's kinds"
    for colour in WINNER_COLOURS:
        assert text.count(f"--{colour}:") == 2 and f".{colour} {{" in text, "light, dark, and where they are used"


def test_report_of_a_device_without_known_ceilings(measured) -> None:
    other = record_of({workload(1): {DECODE: 6.0}}, gpu="NVIDIA Other")
    text = report_text(other)
    assert "roofline</span>" not in text and "None: every candidate was right" in text


def test_a_shape_that_was_not_measured_is_in_the_report(measured) -> None:
    entry = measured.entries[workload(1), 0, 0]
    failed = replace(
        entry, outcome=replace(entry.outcome, rounds_us={}, error="its operands cannot be made: out of memory")
    )
    text = report_text(replace(measured, entries={(workload(1), 0, 0): failed}))
    assert "its operands cannot be made: out of memory" in text


def test_charts_are_wellformed_and_in_range() -> None:
    draw = environment().get_template("report/_charts.html.jinja").module
    lines = [Line(name="a<b", kind="own", points=[(1, 5.0), (16384, 500.0)])]
    svg = ElementTree.fromstring(draw.log_chart(log_chart("two", lines, "M", "us")))
    circles = [e for e in svg.iter() if e.tag.endswith("circle")]
    assert len(circles) == 2 and all(0 <= float(c.get("cx")) <= 340 and 0 <= float(c.get("cy")) <= 210 for c in circles)
    small = draw.small_chart(log_chart("two", lines, "M", "us") | {"told": ["a<b: 1: 5"]})
    (path,) = (e for e in ElementTree.fromstring(small).iter() if e.get("class") == "line own")
    places = [(int(x), int(y)) for x, y in re.findall(r"[ML](\d+) (\d+)", path.get("d"))]
    assert places == [(int(float(c.get("cx"))), int(float(c.get("cy")))) for c in circles] and "a&lt;b: 1: 5" in small
    one = log_chart("one", [Line(name="one", kind="own", points=[(1, 5.0)])], "M", "us")
    ElementTree.fromstring(draw.log_chart(one))
    cells = {("4096 x 4096", 16): Cell(kind="splitk", text="64x16", title="a & b")}
    drawn = draw.winner_map(winner_map(["4096 x 4096"], [1, 16], cells)).split("<tr>")
    assert re.findall(r"<t[dh][^<]*", drawn[1]) == ["<td>", "<th>1", "<th>16\n"]
    assert [cell.strip() for cell in re.findall(r"<t[dh][^<]*", drawn[2])] == [
        "<th>4096 x 4096",
        "<td>",
        '<td class=splitk title="a &amp; b">64x16',
    ]


def test_prune_takes_the_fewest_kernels() -> None:
    a, b, c = PREFILL, DECODE, f"{BASE}t64x32x256_c1x1x1_basic_fast_splitk_swapab_s4_a16b16d8"
    times = {
        workload(1): {a: 9.0, b: 6.0, c: 6.1},
        workload(32): {a: 9.0, b: 8.0, c: 7.0},
        workload(2048): {a: 47.0, b: 400.0, c: 300.0},
    }
    pruned = prune(times, 0.03)
    assert set(pruned.kernels) == {a, c}, "one decode kernel is within 3 % everywhere"
    assert pruned.losses[workload(1)] == pytest.approx(6.1 / 6.0 - 1)
    assert set(prune(times, 0.0).kernels) == {a, b, c}
    some = Selection(name="some", arch=Arch.SM90A, configs=tuple(map(parse_name, (b, c))), rejections=())
    among = prune(times, 0.03, some)
    assert set(among.kernels) <= {b, c} and among.losses[workload(1)] >= pruned.losses[workload(1)]
    assert among.losses.keys() == {each for each, us in times.items() if us.keys() & {b, c}}


def test_pruned_selection_keeps_what_was_not_measured(measured) -> None:
    everything = select("nvcc")
    pruned = selection_of(prune(times_of(measured), 0.03), everything, "small")
    names = {to_name(config) for config in pruned.configs}
    assert DECODE4 in names and PREFILL in names
    assert DECODE4.replace("bf16", "f16") in names, "the same schedule for the other output"
    assert f"{BASE}t128x256x128_c1x2x1_cooperative_fast_persistent_ab_sauto_a16b16d8" not in names
    assert {to_name(c) for c in everything.configs if "_mmasync_" in to_name(c)} <= names, "for unaligned operands"
    assert any("_quant_" in name for name in names)
    assert len(pruned.configs) < len(everything.configs)


def test_classes_of_calls_that_nothing_measured_keep_their_variants() -> None:
    """A journal has nvfp4 weights of bf16 activations alone: mxfp8's kernels stay, though their family was measured."""
    everything = select("default")
    name = next(to_name(c) for c in everything.configs if "fp4weight_floatsxnvfp4" in to_name(c))
    shape = workload_of("nvfp4_bf16", {"m": 16, "n": 4096, "k": 4096})
    kept = selection_of(prune({shape: {name: 1.0}}, 0.02, everything), everything, "small").configs
    assert _classes(kept) == _classes(everything.configs) and len(kept) < len(everything.configs)


def _classes(configs: Iterable[Config]) -> set[tuple[str, int]]:
    families = ((REGISTRY.family_of(config), config) for config in configs)
    return {(family.name, row.call_class) for family, config in families for row in family.tuning.rows(config, 0)}


def test_prune_reads_drawn_shapes_and_takes_variants_of_a_filter(gemmill, tmp_path: Path) -> None:
    row = {"op": "fp8", "m": 16, "n": 1024, "k": 1024, "sieved_us": {PREFILL: 1.0, DECODE: 2.0}}
    path, out = tmp_path / "drawn.json.xz", tmp_path / "small.json"
    path.write_bytes(compress(json.dumps({"rows": [row, row | {"m": 17, "sieved_us": {}}]}).encode()))
    assert times_of_drawn(path) == {workload_of("fp8", {"m": 16, "n": 1024, "k": 1024}): row["sieved_us"]}
    told = gemmill("prune", path, "--select", "sweep", "--filter", "compiler=cutedsl", "--out", out)
    assert told.err.startswith("gemmill: no variant of sweep was measured at any of 1 shape")
    path.write_bytes(compress(b'{"rows": [{"op": "fp8"}]}'))
    with pytest.raises(JsonError, match=r"drawn.json.xz, rows\[0\]: object missing required field `m`"):
        times_of_drawn(path)


def test_prune_writes_a_selection_that_build_takes(gemmill, measured, tmp_path: Path, monkeypatch) -> None:
    from gemmill.tuner import journal

    monkeypatch.setattr(journal, "read_journal", lambda path: measured)
    out = tmp_path / "small.json"
    outcome = gemmill("prune", tmp_path / "j.jsonl", "--within", "3%", "--select", "default", "--out", out)
    assert outcome.code == 0 and re.search(
        r"2 kernels suffice for 2 shapes, 0\.0% behind the best in the mean and 0\.0% at worst", outcome.out
    )
    assert outcome.err == "gemmill: left out: 1 shape of which no variant of default was measured\n"
    assert gemmill("list", "--select", out).code == 0
    selection = select(str(out))
    assert selection.name == "small" and PREFILL in {to_name(config) for config in selection.configs}
    missing = gemmill("prune", tmp_path / "j.jsonl", "--out", out, "--model", "llama-3-8b", "--m", "7", "--op", "fp8")
    assert (
        missing.code == 2
        and "4 shapes were not measured, the first is fp8 7 x 4096 x 4096: `gemmill tune` them first" in missing.err
    )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not JSON (input data was truncated): name a file that `gemmill prune` wrote"),
        (
            '{"name": "x", "arch": "sm90a"}',
            "object missing required field `variants`; name a file that `gemmill prune` wrote",
        ),
        (
            '{"name": "x", "arch": "sm90a", "variants": ["y"]}',
            ", variants: 'y' is not a kernel name",
        ),
        ('{"name": "x", "arch": "sm100a", "variants": []}', "is for sm100a, sm90a was asked for: name it with --arch"),
    ],
)
def test_selection_files_that_cannot_be_used(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(sentence)):
        select(str(path))
    with pytest.raises(ValueError, match=r"none\.json cannot be read"):
        select(str(tmp_path / "none.json"))


@pytest.fixture
def one_row(home: Path) -> Callable[..., None]:
    """A table of one measured shape in the home."""

    def put(name: str = PREFILL, **changes: object) -> None:
        source = Source(gpu="NVIDIA H200", date="2026-11-20", program="gemmill tune", driver="580.1")
        settings = {
            "op": "fp8",
            "sizes": {"n": 4096, "k": 4096, "m": 64},
            "variants": (name,),
            "us": (7.0,),
            "source": "s",
        } | changes
        folder = home / "tables"
        folder.mkdir(parents=True, exist_ok=True)
        row = TableRow(**settings)
        (folder / "t.json").write_text(table_text(make_table("NVIDIA H200", "sm90a", {"s": source}, [row])))

    return put


@pytest.fixture
def unshipped(monkeypatch, tmp_path: Path) -> None:
    from gemmill.runtime import tuned

    monkeypatch.setattr(tuned, "_SHIPPED", tmp_path / "none")


@pytest.mark.usefixtures("without_margin")
def test_audit(one_row, unshipped) -> None:
    one_row()
    folder, manifest = stand_in_build(select("smoke"))
    facts = build_facts(folder, manifest, Machine(arch="sm90a", device=None, driver=None))
    found = {
        a.workload: (a.trust, a.expected_loss, a.unaligned)
        for a in audit(
            [
                workload(64),
                workload(64, n=4200),
                workload(64, n=8192),
                workload(64, MeasuredOp.INT8),
                workload(64, k=4095),
            ],
            facts,
            132,
        )
    }
    assert found[workload(64)] == ("exact", 0.0, False)
    assert found[workload(64, n=4200)] == ("nearest", SWEEP.losses["nearest"], False)
    assert (
        found[workload(64, n=8192)] == found[workload(64, MeasuredOp.INT8)] == ("model", SWEEP.losses["model"], False)
    )
    assert found[workload(64, k=4095)][2], "the variant for any alignment"
    gone = audit([workload(64)], replace(facts, table=replace(facts.table, rows=(), entries=(), tuned=())), 132)
    assert [(a.variant, a.trust) for a in worst_first(gone)] == [(None, "none")]


def test_audit_verb(gemmill, put_build, one_row, unshipped) -> None:
    one_row()
    put_build(*select("smoke").configs)
    outcome = gemmill("audit", "--model", "llama-3-8b", "--m", "64", "--json")
    found = json.loads(outcome.out)
    assert (outcome.code, found["shapes"]) == (0, 4)
    assert {row["trust"] for row in found["audited"]} == {"model"}, "the exact one is served well"
    assert "4 shapes with build" in gemmill("audit", "--model", "llama-3-8b", "--m", "64", "--all").out


def test_table_verbs(gemmill, put_build, one_row, unshipped, home: Path, tmp_path: Path) -> None:
    put_build(parse_name(PREFILL))
    one_row()
    shown = json.loads(gemmill("table", "show", "--json").out)
    (row,) = shown["tables"]
    assert (row["rows"], row["refused"], row["trust"]) == (1, 0, {"exact": 1}) and len(shown["digest"]) == 12
    one_row(digests=("other",))
    assert json.loads(gemmill("table", "show", "--json").out)["tables"][0]["refused"] == 1
    first = tmp_path / "first.json"
    first.write_text((home / "tables" / "t.json").read_text())
    one_row(DECODE, sizes={"n": 4096, "k": 4096, "m": 16})
    second = home / "tables" / "t.json"
    assert (
        "2 rows of NVIDIA H200"
        in gemmill("table", "merge", first, second, "--out", tmp_path / "m.json", "--forget-digests").out
    )
    assert all(row.digests == () for row in read_table(tmp_path / "m.json").rows)
    (build,) = (home / "builds").iterdir()
    assert (
        "1 row of NVIDIA H200"
        in gemmill("table", "merge", first, second, "--current", build.name, "--out", tmp_path / "c.json").out
    ), "the build's own kernel is no longer what was measured, that of another build may be"
    assert [row.variants for row in read_table(tmp_path / "c.json").rows] == [(DECODE,)]
    differing = gemmill("table", "diff", first, tmp_path / "m.json")
    assert differing.code == 1 and "1 row of 2 differ" in differing.out and DECODE in differing.out
    assert gemmill("table", "diff", first, first).code == 0
    assert "runner-up" in gemmill("table", "show", first).out
    missing = gemmill("table", "show", tmp_path / "none.json")
    assert (missing.code, missing.err) == (
        3,
        f"gemmill: table {tmp_path / 'none.json'} cannot be read: No such file or directory\n",
    )


def test_waves_have_every_promising_kernel_once_the_best_first() -> None:
    selection = select("sweep")
    waves = waves_of(selection, [workload(16), workload(4096)], 132)
    kernels = [{to_name(config.compiled) for config in part.configs} for part in waves]
    assert all(len(part) <= KERNELS_OF_A_WAVE for part in kernels) and len(waves) > 1
    assert sum(map(len, kernels)) == len(set().union(*kernels))
    assert all(config.operands.a_dtype == "e4m3" for part in waves for config in part.configs)


def test_waves_are_compiled_while_others_are_measured(tmp_path: Path, home, monkeypatch) -> None:
    monkeypatch.setattr("gemmill.tuner.waves.KERNELS_OF_A_WAVE", 1)
    from gemmill.tuner.executors import LocalExecutor

    made, clock = [], [0.0]
    monkeypatch.setattr("gemmill.tuner.waves.perf_counter", lambda: clock[0])

    def compile_wave(part, options):
        made.append(part.name)
        clock[0] += 10.0
        if len(made) == 2:
            raise BuildError("nothing of it compiles")
        manifest = stand_in_build(part)[1]
        return Path(f"wave{len(made)}"), replace(manifest, build_id=f"wave{len(made)}")

    request = TuneRequest(
        workloads=[workload(16, n=64, k=128)],
        builds=[],
        label="smoke",
        options=SweepOptions(rounds=2, peers=False),
        journal=tmp_path / "j.jsonl",
        table=tmp_path / "t.json",
        dry_run=True,
    )
    result = tune_selection(request, select("smoke"), LocalExecutor, compile_wave=compile_wave)
    assert made == [f"smoke-{i}" for i in range(len(made))] and len(made) >= 3
    waves = sorted(key[2] for key in result.record.entries)
    assert waves == list(range(1, len(made))), "one that does not compile is left out"
    last = result.record.entries[request.workloads[0], 0, waves[-1]].outcome
    assert len(set(last.builds.values())) > 1, "the fastest of earlier waves are timed beside"
    assert len(read_table(tmp_path / "t.json").rows) == 1
    assert result.overlap.waves == len(made)
    assert result.overlap.compiling_seconds == 10.0 * len(made), "failures take their time too"
    assert 0.0 <= result.overlap.waiting_seconds <= 10.0 * (len(made) - 1), "the first wave hides behind nothing"
