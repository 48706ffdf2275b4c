"""The model's choice at shapes of which every variant was timed."""

import sys
from collections import defaultdict
from pathlib import Path

import pytest

from gemmill.families.blockscaled import steps
from gemmill.families.blockscaled.pairs import Pair

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))

import fit_judged as program  # noqa: E402

FITTED = ROOT / "benchmarks/results/judge-pairs-2811424-h200-2026-11-28.json.xz"
OTHER = ROOT / "benchmarks/results/judge-pairs-2811810-h200-2026-11-28.json.xz"
LATER = ROOT / "benchmarks/results/judge-pairs-2811427-h200-2026-11-28.json.xz"
TUNED = ROOT / "benchmarks/results/tune-tma-h200-2026-11-23.jsonl.xz"


@pytest.mark.parametrize(
    ("results", "most", "shapes"),
    [
        (FITTED, {"nvfp4": 0.04, "mxfp8": 0.005, "mxfp8_mxfp6": 0.005, "mxfp6_bf16": 0.02, "mxfp8_bf16": 0.02}, 40),
        (OTHER, {"nvfp4": 0.02, "mxfp8": 0.005, "mxfp4_bf16": 0.05}, 18),
        (LATER, {"nvfp4": 0.005, "mxfp8": 0.005, "mxfp8_mxfp6": 0.005, "mxfp6_bf16": 0.01, "mxfp8_bf16": 0.005}, 40),
        (TUNED, {"mxfp6_bf16": 0.02, "mxfp8_bf16": 0.02}, 30),
    ],
)
def test_the_choice_loses_little_where_all_variants_were_timed(results, most, shapes):
    timed = program.read([results])
    lost = defaultdict(list)
    for t, loss in zip(timed, program.losses(timed), strict=True):
        lost[t.op].append(loss)
    assert len(timed) == shapes
    for op, bound in most.items():
        assert sum(lost[op]) / len(lost[op]) < bound, op
        assert max(lost[op]) < (0.3 if op == "mxfp4_bf16" else 0.2), op


@pytest.mark.parametrize(
    ("call", "variant"),
    [
        ("mxfp6_bf16 17 x 13056 x 6176", "sm90a_widenedfew_floatsxmxfp6_bf16_t16_w4_packed_k2"),  # tiles of 64 rows lost 154 %
        ("mxfp8_bf16 662 x 1344 x 14752", "sm90a_widenedfew_floatsxmxfp8_bf16_t16_w4_packed_k2"),  # 79 %
        ("mxfp8_mxfp6 420 x 17104 x 11392", "sm90a_widened_mxfp8xmxfp6_bf16_t128"),  # tiles of 64, 24 %
        ("nvfp4 79 x 2368 x 31232", "sm90a_widenedfew_nvfp4xnvfp4_bf16_t16_w4_s2_k4"),  # two slices of K, 24 %
        ("nvfp4 24 x 9120 x 10912", "sm90a_widenedfew_nvfp4xnvfp4_bf16_t16_w4_k2"),  # tiles of 64, 20 %
    ],
)  # fmt: skip
def test_calls_whose_choice_lost_much_take_the_fastest(call, variant):
    (timed,) = [t for t in program.read([FITTED]) if t.text == call]
    (guesses,) = program.modelled([timed])
    assert min(guesses, key=lambda name: guesses[name]) == variant
    assert timed.us[variant] <= 1.03 * min(timed.us.values())


def test_a_fit_finds_the_entries_of_a_table_that_made_the_times(monkeypatch):
    monkeypatch.setattr(steps, "_OF_PIECES", dict(steps._OF_PIECES))
    today = steps._OF_PIECES[Pair.MXFP8, 64]
    steps._OF_PIECES[Pair.MXFP8, 64] = (3000, 700)
    timed = [t for t in program.read([FITTED]) if t.op == "mxfp8"]
    made = [
        program.Timed(
            family=t.family, op=t.op, text=t.text, call=t.call, us={name: ns / 1e3 for name, ns in of_call.items()}
        )
        for t, of_call in zip(timed, program.modelled(timed), strict=True)
    ]
    steps._OF_PIECES[Pair.MXFP8, 64] = today
    constants, before = {"_OF_PIECES": steps}, program.objective(made)
    assert {place.key for place in program.places(made, constants)} == {(Pair.MXFP8, 64), (Pair.MXFP8, 128)}
    program.fit(made, constants, 200, 0)
    assert program.objective(made) < before / 4
    assert steps._OF_PIECES[Pair.NVFP4, 64] == (871, 507), "an entry that no time depends on stays"


def test_a_journal_of_another_family_is_refused():
    journal = ROOT / "benchmarks/results/tune-boxes-h200-2026-11-22.jsonl.xz"
    with pytest.raises(ValueError, match=r"is a journal with sm90a_.*, expected variants of blockscaled"):
        program.read([journal])
