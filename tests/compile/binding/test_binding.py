"""The extension's own checks, choice and launch against Python's, on CPU tensors."""

import mmap
import os
import random
import signal
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product
from types import SimpleNamespace

import pytest
import torch

import toy_tuning
from gemmill.doctor.elf import read_library
from gemmill.doctor.extension import torch_libraries, undefined_in
from gemmill.families import scaled_mm
from gemmill.families.scaled_mm.ops import GEMM_OPS, SCALED_MM, VLLM_OPS
from gemmill.families.scaled_mm.problem import problem_of_call
from gemmill.families.scaled_mm.scales import group_strides, groups_of_call
from gemmill.family import ProblemCall, Row
from gemmill.manifest import KernelEntry
from gemmill.registry import REGISTRY
from gemmill.runtime.checks import check
from gemmill.runtime.chosen import chosen_in
from gemmill.runtime.operands import of_arguments
from gemmill.runtime.ranges import Ranges
from gemmill.runtime.schemas import BY_NAME, OPS, OpSchema
from gemmill.runtime.select import Choice, Noted, Trust, model_ns, select
from gemmill.runtime.table import TunedRow, make_table
from gemmill.vocab import SCALE_GROUPS, ScaleGranularity, ScaleLayout

SMS = 132
PLAIN = (torch.bfloat16, torch.float16)
ROUNDS = 4000
_MAP_NORESERVE = 0x4000
"""Of Linux, which Python 3.11 does not name: memory that nobody touches is none."""


ALIGNED = (16, 16, 16)


def call_of_sizes(problem: int, m: int, n: int, k: int, alignments: tuple[int, int, int] = ALIGNED) -> ProblemCall:
    return ProblemCall(family=scaled_mm.NAME, problem=problem, sizes=(m, n, k), alignments=alignments)


def some_calls(seed: int, count: int) -> list[ProblemCall]:
    """Classes, shapes and alignments of all kinds, each of them often enough."""
    rng = random.Random(seed)

    def size() -> int:
        return rng.choice((1, 16, 17, rng.randrange(1, 300), rng.choice((1024, 4096, 8192)), rng.randrange(1, 30_000)))

    def bytes_() -> int:
        return rng.choice((16, 16, 16, 8, 4, 2, 1))

    return [
        call_of_sizes(
            rng.choice((rng.randrange(32), 32 + rng.randrange(256))),
            size(),
            size(),
            rng.choice((size(), size(), 0)),
            (bytes_(), bytes_(), bytes_()),
        )
        for _ in range(count)
    ]


def gemm_rows(probe) -> tuple[Row, ...]:
    """The table's rows of GEMMs, which come first."""
    return probe.build.table.rows[: probe.build.table.families[scaled_mm.NAME].stop]


def gemms(probe) -> list[KernelEntry]:
    """Variants of GEMMs, each once."""
    return [entry for entry in probe.build.manifest.entries if entry.family == scaled_mm.NAME]


def some_tuned(probe, seed: int) -> tuple[TunedRow, ...]:
    rng = random.Random(seed)
    rows = gemm_rows(probe)
    sizes = (1024, 4096, 8192)
    found = [
        TunedRow(
            problem=rows[i].problem,
            sizes=(rng.choice((1, 16, 64, 4096)), rng.choice(sizes), rng.choice(sizes)),
            row=i,
            exact=rng.choice((False, True, True)),
        )
        for i in rng.choices(range(len(rows)), k=600)
    ]
    return tuple(sorted(found, key=lambda t: (t.problem, *t.sizes[1:], t.sizes[0])))


@pytest.mark.parametrize("tuned", [False, True], ids=["by the model", "by a table"])
def test_choices_agree(tuned: bool, probe, with_table: Callable) -> None:
    rows = some_tuned(probe, 1) if tuned else ()
    with_table(tuned=rows)
    calls = some_calls(2, ROUNDS)
    for i, row in enumerate(rows):  # at a measured place, with operands that suit every variant
        sizes = (calls[i].sizes[0], *row.sizes[1:])
        calls[i] = replace(calls[i], problem=row.problem, sizes=sizes, alignments=ALIGNED)
    seen = set()
    for call in calls:
        here = select(probe.build.table, call, SMS)
        row, trust = probe.build.choose(call, SMS)
        assert row == here.row, (call, here)
        if row >= 0:
            assert trust is here.trust, call
        seen.add((row >= 0, here.trust))
    assert seen >= (
        {(True, Trust.EXACT), (True, Trust.NEAREST)} if tuned else {(True, Trust.MODEL), (False, Trust.MODEL)}
    )


def test_choices_agree_among_families_of_other_sizes(probe, with_table: Callable, monkeypatch) -> None:
    """Two families in one table, whose classes have the same numbers: neither gets a row of the other, nor its pin."""
    for known in (REGISTRY.choices, REGISTRY.tunings):
        monkeypatch.setitem(known, toy_tuning.TOY, toy_tuning.TOY_TUNING)
    rng = random.Random(9)
    known = gemms(probe)
    toys = [toy_tuning.toy_entry(n, entry.symbol) for n, entry in zip((1, 3, 4, 8), known, strict=False)]
    of_toys = [
        toy_tuning.measured(str(rng.choice((1, 3, 4, 8))), length, heads, page)
        for length in (1, 2, 60, 100, 400)
        for heads in (7, 9)
        for page in (16, 20)
    ]
    table = make_table([*known, *toys], [entry.symbol for entry in known], of_toys)
    with_table(rows=table.rows, entries=table.entries, tuned=table.tuned)
    seen = set()
    for other in some_calls(10, ROUNDS // 4):
        asked = toy_tuning.call(rng.randrange(1, 1100), rng.randrange(1, 10), rng.randrange(1, 22))
        for call in (replace(asked, problem=rng.choice((5, 5, 5, 6))), replace(other, problem=5)):
            here = select(table, call, SMS)
            row, trust = probe.build.choose(call, SMS)
            assert row == here.row and (row < 0 or trust is here.trust), (call, here)
            seen.add((call.family, row >= 0 and trust))
    assert seen >= {(toy_tuning.TOY, trust) for trust in (False, Trust.EXACT, Trust.NEAREST, Trust.MODEL)}
    pinned = table.rows_of("sm90a_toy_3")[0]
    before = probe.build.pin(pinned)
    try:
        assert probe.build.choose(toy_tuning.call(8, page=20), SMS) == (pinned, Trust.PINNED)
        gemm = call_of_sizes(table.rows[0].problem, 64, 4096, 4096)
        assert probe.build.choose(gemm, SMS)[1] is Trust.MODEL
    finally:
        probe.build.pin(before)


def test_a_quarantined_variant_is_never_chosen_but_pinned(probe, with_table: Callable) -> None:
    table = probe.build.table
    call = call_of_sizes(table.rows[0].problem, 64, 4096, 4096)
    row, _ = probe.build.choose(call, SMS)
    name = table.entries[row].name
    rows = tuple(replace(r, quarantined=e.name == name) for r, e in zip(table.rows, table.entries, strict=True))
    with_table(rows=rows, quarantined={name: "it was wrong"})
    now = probe.build.choose(call, SMS)[0]
    assert now == select(probe.build.table, call, SMS).row and table.entries[now].name != name
    before = probe.build.pin(row)
    try:
        assert probe.build.choose(call, SMS) == (row, Trust.PINNED)
    finally:
        probe.build.pin(before)


def test_choices_agree_where_a_variant_is_pinned(probe) -> None:
    names = [entry.name for entry in gemms(probe)]
    taken = 0
    for i, call in enumerate(some_calls(3, ROUNDS)):
        name = names[i % len(names)]
        row_of_name = probe.build.table.rows_of(name)[0]
        if i % 2:  # of a class that the variant computes
            call = replace(call, problem=probe.build.table.rows[row_of_name].problem)
        before = probe.build.pin(row_of_name)
        try:
            row, trust = probe.build.choose(call, SMS)
        finally:
            assert probe.build.pin(before) == row_of_name
        here = select(probe.build.table, call, SMS, pinned=name)
        assert (row, trust) == (here.row, Trust.PINNED), (call, name)
        taken += row >= 0
    assert taken > 50


def test_estimates_agree(probe) -> None:
    """Of every row, whichever would be chosen: a choice shows little of what its estimates rest on."""
    rng = random.Random(12)
    calls = [replace(call, sizes=(*call.sizes[:2], max(call.sizes[2], 1))) for call in some_calls(12, ROUNDS)]
    wasteful = 0
    for index, row in enumerate(gemm_rows(probe)):
        of_class = [replace(call, problem=row.problem) for call in rng.sample(calls, 30)]
        for measured, call in pairwise(of_class):
            for sms in (SMS, 16):
                assert probe.nanoseconds(index, call, sms) == pytest.approx(model_ns(row, call, sms), rel=1e-12), call
            found = probe.wastes(index, measured, call)
            assert found == REGISTRY.choices[scaled_mm.NAME].wastes(row, measured.sizes, call.sizes), (measured, call)
            wasteful += found
    assert wasteful > 500


def test_no_variant_takes_more_ctas_than_kernels_count(probe) -> None:
    taken = set()
    for entry in gemms(probe)[::4]:
        first = probe.build.table.rows_of(entry.name)[0]
        before = probe.build.pin(first)
        try:
            for m, n in product((2**22, 2**23), repeat=2):
                call = call_of_sizes(probe.build.table.rows[first].problem, m, n, 256)
                row, _ = probe.build.choose(call, SMS)
                assert row == select(probe.build.table, call, SMS, pinned=entry.name).row, call
                taken.add(row >= 0)
        finally:
            probe.build.pin(before)
    assert taken == {True, False}


def test_remembered_choice_is_that_of_the_very_call(probe) -> None:
    """A choice is remembered by all that it depends on: one number changed, it is Python's choice again."""
    table, changed = probe.build.table, set()
    rng = random.Random(7)
    for row in rng.choices(gemm_rows(probe), k=100):
        call = call_of_sizes(row.problem, 64, 4096, 4096)
        here = select(table, call, SMS).row
        others = [replace(call, alignments=tuple(1 if i == j else 16 for j in range(3))) for i in range(3)]
        others += [replace(call, sizes=sizes) for sizes in ((5, 4096, 4096), (64, 65_536, 4096), (64, 4096, 0))]
        others.append(replace(call, problem=rng.choice(gemm_rows(probe)).problem))
        for other in others:
            assert probe.build.choose(call, SMS)[0] == here
            there = select(table, other, SMS).row
            assert probe.build.choose(other, SMS)[0] == there, (call, other)
            if there != here:
                changed |= {i for i, (x, y) in enumerate(zip(numbers(call), numbers(other), strict=True)) if x != y}
        for sms in (1, SMS, 16):
            there = select(table, call, sms).row
            assert probe.build.choose(call, sms)[0] == there, sms
            changed |= {"sms"} if there != here else set()
    assert changed == {*range(7), "sms"}, "a number on which no choice depended was not tried"


def numbers(call: ProblemCall) -> tuple[int, ...]:
    return (call.problem, *call.sizes, *call.alignments)


def test_a_new_table_takes_effect(probe, with_table: Callable) -> None:
    """Choices are remembered in C++: not beyond the table that they came from."""
    call = next(c for c in some_calls(4, ROUNDS) if probe.build.choose(c, SMS)[0] >= 0)
    first, _ = probe.build.choose(call, SMS)
    rows = list(probe.build.table.rows)
    rows[first] = replace(rows[first], least=(0, 0, call.sizes[2] + 1))
    with_table(rows=tuple(rows))
    assert probe.build.choose(call, SMS)[0] != first


class Mill:
    """Calls at random: right ones with at most two things wrong."""

    def __init__(self, seed: int, op: OpSchema | None = None) -> None:
        self.rng = random.Random(seed)
        self.of_vllm = op in VLLM_OPS

    def matrix(self, rows: int, columns: int, dtype: torch.dtype) -> torch.Tensor:
        """Row-major, rows apart or not, beginning anywhere."""
        apart = not self.of_vllm or self.rng.random() < 0.1  # vLLM's ops take none whose rows are
        offset, pad = self.rng.choice((0, 0, 1, 8)), self.rng.choice((0, 0, 1, 4, 16)) if apart else 0
        stride = max(columns, 1) + pad
        storage = torch.zeros(rows * stride + offset + 1, dtype=torch.float32).to(dtype)
        return storage.as_strided((rows, columns), (stride, 1), offset)

    def vector(self, length: int, dtype: torch.dtype, shapes: tuple) -> torch.Tensor:
        return torch.ones(max(length, 1), dtype=dtype)[:length].reshape(self.rng.choice(shapes))

    def scales(self, length: int, matrix: tuple[int, int]) -> torch.Tensor:
        """Of each row or column, as vLLM's ops take them along the other dimension too."""
        turned = (matrix[::-1],) if self.of_vllm else ()
        return self.vector(length, torch.float32, (matrix, (length,), *turned))

    def group_scales(self, m: int, n: int, k: int) -> dict[str, torch.Tensor]:
        """Of some kind, each K-major or not, its rows apart or not, beginning anywhere."""
        groups = self.rng.choice(SCALE_GROUPS)
        scales = {}
        for name, shape in (("a_scales", groups.a_shape(m, k)), ("b_scales", groups.b_shape(n, k))):
            turned = self.rng.random() < 0.5
            matrix = self.matrix(*(reversed(shape) if turned else shape), torch.float32)
            scales[name] = matrix.t() if turned else matrix
        return scales

    def call(self, op: OpSchema) -> dict[str, torch.Tensor | None]:
        rng = self.rng
        m, n, k = (rng.choice((0, 1, 1, 2, 16, 33, 130)) for _ in range(3))
        has_azp = "azp_adj" in op.arguments
        dtype = torch.int8 if has_azp else rng.choice((torch.int8, torch.float8_e4m3fn, *PLAIN))
        out_dtype = dtype if dtype in PLAIN else rng.choice(PLAIN)
        everything = {
            "out": self.matrix(m, n, out_dtype),
            "a": self.matrix(m, k, dtype),
            "b": self.matrix(n, k, dtype).t(),
            "a_scales": rng.choice((torch.ones(()), torch.ones(1, 1), self.scales(m, (m, 1)))),
            "b_scales": rng.choice((torch.ones(1), self.scales(n, (1, n)))),
            "azp_adj": self.vector(n, torch.int32, ((n,), (1, n))),
            "azp": rng.choice((None, self.vector(m, torch.int32, ((m,), (m, 1))))),
            "bias": rng.choice((None, self.vector(n, out_dtype, ((n,), (1, n))))),
        }
        if not has_azp and rng.random() < (0.1 if dtype in PLAIN else 0.4):
            everything |= self.group_scales(m, n, k)
        call = {name: everything[name] for name in op.arguments}
        if rng.random() < 0.5:
            call = {name: self.restrided(tensor) for name, tensor in call.items()}
        for _ in range(rng.choice((0, 1, 1, 2))):
            self.spoil(call)
        return call

    def restrided(self, tensor: torch.Tensor | None) -> torch.Tensor | None:
        """The same, with any strides where nothing is stepped along."""
        if tensor is None:
            return None
        odd = [self.rng.choice((0, 1, 3, 8, 77, 2**40)) for _ in tensor.shape]
        strides = [o if size == 1 else s for o, size, s in zip(odd, tensor.shape, tensor.stride(), strict=True)]
        return tensor.as_strided(tensor.shape, strides, tensor.storage_offset())

    def spoil(self, call: dict[str, torch.Tensor | None]) -> None:
        rng = self.rng
        name = rng.choice([name for name, tensor in call.items() if tensor is not None])
        tensor = call[name]
        assert tensor is not None
        wrong: list[Callable[[], torch.Tensor]] = [
            lambda: tensor.to(rng.choice((torch.float32, torch.int8, torch.int32, torch.float16, torch.float8_e5m2))),
            lambda: tensor[None],
            lambda: tensor.flatten(),
            lambda: (
                torch.cat([tensor.float(), tensor.float()], rng.randrange(max(tensor.dim(), 1))).to(tensor.dtype)
                if tensor.dim()
                else tensor
            ),
            lambda: tensor[:-1] if tensor.dim() else tensor,
            lambda: tensor[..., :-1] if tensor.dim() else tensor,
            lambda: tensor.t() if tensor.dim() == 2 else tensor,
            lambda: tensor[:1].expand(tensor.shape) if tensor.dim() and tensor.shape[0] else tensor,
            lambda: tensor.float().repeat_interleave(2, -1)[..., ::2].to(tensor.dtype) if tensor.dim() else tensor,
            lambda: torch.ones(tensor.numel() * 2).to(tensor.dtype)[::2].reshape(tensor.shape),
            lambda: self.over_out(call, tensor),
            lambda: tensor.reshape(2, -1) if tensor.numel() % 2 == 0 else tensor.reshape(1, -1, 1),
            lambda: torch.stack([tensor.float()] * 2, -1).to(tensor.dtype)[..., 0],
        ]
        call[name] = rng.choice(wrong)()

    def over_out(self, call: dict[str, torch.Tensor | None], tensor: torch.Tensor) -> torch.Tensor:
        """The same, in out's memory or just behind it."""
        out = call["out"]
        assert out is not None
        if tensor is out or not tensor.numel() or tensor.element_size() > 2 or not tensor.is_contiguous():
            return tensor
        storage = torch.zeros(4 * (out.numel() + tensor.numel()) + 64, dtype=torch.uint8)
        start = self.rng.choice((0, 2 * out.numel() - 2, 2 * out.numel())) // 2 * 2
        if start < 0 or out.element_size() != 2:
            return tensor
        call["out"] = storage[: 2 * out.numel()].view(out.dtype).view(out.shape)
        bytes_ = tensor.numel() * tensor.element_size()
        return storage[start : start + bytes_].view(tensor.dtype).view(tensor.shape)


@pytest.mark.parametrize("op", (*GEMM_OPS, *VLLM_OPS), ids=lambda op: op.name)
def test_refusals_agree(op: OpSchema, probe) -> None:
    """C++ refuses what Python refuses, with Python's sentence, and nothing else."""
    mill, refused = Mill(5, op), 0
    sentences = set()
    for _ in range(ROUNDS):
        tensors = list(mill.call(op).values())
        call = of_arguments(op, tensors)
        try:
            check(op, call)
            expected = ""
        except RuntimeError as error:
            expected = str(error)
        try:
            probe.run(op.name, *tensors)
            found = ""
        except RuntimeError as error:
            found = str(error).splitlines()[0]
        assert found == expected, call
        refused += bool(expected)
        sentences.add(" ".join(expected.split()[1:4]))
    assert ROUNDS / 5 < refused < ROUNDS * 4 / 5
    assert len(sentences) > 20, "too few different faults were tried"


@pytest.mark.parametrize("op", (*GEMM_OPS, *VLLM_OPS), ids=lambda op: op.name)
def test_launches(op: OpSchema, probe) -> None:
    """What a kernel is given is what the call said, and the variant is the one that Python chooses."""
    mill, launched, grouped = Mill(6, op), set(), 0
    for _ in range(ROUNDS // 4):
        call = mill.call(op)
        facts = of_arguments(op, list(call.values()))
        try:
            check(op, facts)
        except RuntimeError:
            continue
        launch = probe.run(op.name, *call.values())
        out, a, b = call["out"], call["a"], call["b"]
        (m, n), k = out.shape, a.shape[1]
        if m == 0 or n == 0:
            assert launch is None
            continue
        symbol, args = launch
        assert (args.m, args.n, args.k) == (m, n, k)
        for name, field in {"out": "d"}.items() | {x: x for x in op.arguments[1:]}.items():
            pointer = call[name].data_ptr() if call[name] is not None else 0
            assert (getattr(args, field) or 0) == pointer, name
        if m > 1:
            assert (args.lda, args.ldd) == (a.stride(0), out.stride(0))
        if n > 1:
            assert args.ldb == b.stride(1)
        if groups_of_call(facts) is None:
            assert args.a_scale_per_row == (call["a_scales"].numel() > 1)
            assert args.b_scale_per_column == (call["b_scales"].numel() > 1)
            strides = (0, 0, 0, 0)
        else:
            (of_k, of_n) = group_strides(facts["b_scales"])
            of_m, of_a_k = group_strides(facts["a_scales"])
            # No stride of a dimension of one element is the tensor's: a descriptor has that of a single group.
            strides = (of_m, -(-m // 4) * 4 if facts["a_scales"].shape[1] <= 1 else of_a_k, of_n, of_k)
            grouped += 1
        found = (args.a_scale_stride_m, args.a_scale_stride_k, args.b_scale_stride_n, args.b_scale_stride_k)
        assert found == strides
        problem = problem_of_call(op, facts)
        choice = select(probe.build.table, problem, 1)
        assert (symbol, args.splits) == (choice.entry.symbol, choice.entry.config.launch.splits)
        assert (probe.how.programmatic_launch, probe.how.constant_weights) == (1, 0)
        launched.add(symbol)
    assert len(launched) >= 2
    assert (grouped > 5) == ("azp_adj" not in op.arguments)


@pytest.mark.parametrize(("stride", "alignment"), [(2**40 - 16, 16), (2**40, 1)])
def test_rows_too_far_apart_for_a_descriptor(stride: int, alignment: int, probe) -> None:
    memory = mmap.mmap(-1, 2**40 + 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    out, _, *rest = good_call()
    call = [out[:2], torch.frombuffer(memory, dtype=torch.int8).as_strided((2, 64), (stride, 1)), *rest]
    problem = problem_of_call(SCALED_MM, of_arguments(SCALED_MM, call))
    assert problem.alignments[0] == alignment
    launch = probe.run("cutlass_scaled_mm", *call)
    assert launch is not None
    entry = select(probe.build.table, problem, 1).entry
    assert launch[0] == entry.symbol and entry.config.schedule.alignment_a == alignment


def test_scales_whose_columns_overlap_are_not_for_tma(probe) -> None:
    entry = next(e for e in gemms(probe) if e.predicate.scale_layout is ScaleLayout.MN_MAJOR)
    call = call_of(entry, 32, 128, 512)
    before = probe.build.pin(probe.build.table.rows_of(entry.name)[0])
    try:
        for stride, is_taken in ((32, True), (16, False)):
            call["a_scales"] = torch.ones(128).as_strided((32, 4), (1, stride))
            found = outcome(probe, entry.predicate.ops[0], call)
            assert isinstance(found, dict) if is_taken else f"{entry.name} cannot take the call" in found
    finally:
        probe.build.pin(before)


def call_of(entry, m: int, n: int, k: int) -> dict[str, torch.Tensor | None]:
    """A call in a variant's types, in rows of whole 16 bytes, A's scales as TMA wants them."""
    p = entry.predicate
    kind, out_kind = getattr(torch, p.a_dtype.torch_name), getattr(torch, p.out_dtype.torch_name)
    rows_k, rows_n, rows_m = -(-k // 16) * 16, -(-n // 8) * 8, -(-m // 4) * 4
    call: dict[str, torch.Tensor | None] = {
        "out": torch.zeros(m, rows_n, dtype=out_kind)[:, :n],
        "a": torch.zeros(m, rows_k).to(kind)[:, :k],
        "b": torch.zeros(n, rows_k).to(kind)[:, :k].t(),
        "a_scales": torch.ones(m, 1),
        "b_scales": torch.ones(1, n),
        "azp_adj": torch.zeros(n, dtype=torch.int32),
        "azp": torch.zeros(m, dtype=torch.int32) if "token" in p.azp else None,
        "bias": None,
    }
    if (groups := p.scale_groups) is not None:
        a_shape, b_shape = groups.a_shape(m, k), groups.b_shape(n, k)
        call["a_scales"] = torch.ones(a_shape[1], rows_m)[:, :m].t()
        call["b_scales"] = torch.ones(b_shape)
    op = next(op for op in GEMM_OPS if op.name in p.ops)
    return {name: call[name] for name in op.arguments}


@pytest.mark.parametrize("k", [16, 64, 128, 256])
def test_strides_that_are_never_used_reach_no_kernel(k: int, probe) -> None:
    """Every variant over every dimension of one element and a K of one group and less: what is launched does not depend on
    their strides, and is what TMA takes."""
    mill, taken, before = Mill(8), set(), probe.build.pin(-1)
    try:
        for entry in gemms(probe):
            probe.build.pin(probe.build.table.rows_of(entry.name)[0])
            for m, n in ((1, 1), (1, 264), (5, 1), (5, 264), (1, 8), (64, 16384)):
                call = call_of(entry, m, n, k)
                dense = outcome(probe, entry.predicate.ops[0], call)
                for _ in range(3):
                    odd = {name: mill.restrided(tensor) for name, tensor in call.items()}
                    assert outcome(probe, entry.predicate.ops[0], odd) == dense, (
                        entry.name,
                        m,
                        n,
                        {x: t.stride() for x, t in odd.items() if t is not None},
                    )
                if isinstance(dense, str):
                    continue
                taken.add(entry.name)
                if entry.config.schedule.alignment_a > 1:
                    bytes_ = entry.predicate.a_dtype.bits // 8
                    strides = [dense["lda"] * bytes_, dense["ldb"] * bytes_, dense["ldd"] * 2]
                    if entry.predicate.scale_layout is ScaleLayout.MN_MAJOR:
                        strides.append(dense["a_scale_stride_k"] * 4)
                    assert all(stride > 0 and stride % 16 == 0 for stride in strides), (entry.name, m, n, strides)
    finally:
        probe.build.pin(before)
    of_vectors = [e for e in gemms(probe) if e.predicate.b_scale is ScaleGranularity.GROUP]
    all_but = {e.name for e in of_vectors if k <= e.predicate.group_size}  # dense, these are scales per channel
    assert taken == {e.name for e in gemms(probe)} - all_but


def outcome(probe, op: str, call: dict[str, torch.Tensor | None]) -> dict[str, int] | str:
    """What a kernel is given, or the first line of why it is given nothing."""
    try:
        _, args = probe.run(op, *call.values())
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return {name: getattr(args, name) for name, _ in args._fields_}


def good_call() -> list[torch.Tensor | None]:
    a, b = torch.zeros(16, 64, dtype=torch.int8), torch.zeros(32, 64, dtype=torch.int8).t()
    return [torch.zeros(16, 32, dtype=torch.bfloat16), a, b, torch.ones(1), torch.ones(1), None]


@pytest.mark.parametrize(("status", "why"), [(-1, "it refuses these arguments"), (1, "invalid argument")])
def test_launch_that_fails(status: int, why: str, probe) -> None:
    with pytest.raises(RuntimeError) as caught:
        probe.run("cutlass_scaled_mm", *good_call(), status=status)
    message = str(caught.value)
    assert message.startswith("gemmill: gemmill_sm90a_") and message.endswith(f" could not be launched: {why}")


def test_constant_weights_are_promised_to_kernels(probe) -> None:
    probe.build.assume_constant_weights(True)
    try:
        probe.run("cutlass_scaled_mm", *good_call())
        assert probe.how.constant_weights == 1
    finally:
        probe.build.assume_constant_weights(False)
    probe.run("cutlass_scaled_mm", *good_call())
    assert probe.how.constant_weights == 0


def test_pinned_variant_that_does_not_take_a_call(probe) -> None:
    entry = next(e for e in gemms(probe) if e.config.problem.a_dtype == "e4m3")
    before = probe.build.pin(probe.build.table.rows_of(entry.name)[0])
    try:
        with pytest.raises(RuntimeError) as caught:
            probe.run("cutlass_scaled_mm", *good_call())
    finally:
        probe.build.pin(before)
    assert str(caught.value) == (
        f"cutlass_scaled_mm: the pinned variant {entry.name} cannot take the call: "
        "it computes e4m3 x e4m3 to bf16 with no bias, the call needs s8 x s8 to bf16 with no bias"
    )


def test_call_that_no_variant_takes(probe, with_table: Callable) -> None:
    table = probe.build.table
    kept = [i for i in table.families[scaled_mm.NAME] if table.entries[i].config.schedule.alignment_a > 1]
    with_table(rows=tuple(table.rows[i] for i in kept), entries=tuple(table.entries[i] for i in kept))
    out, _, *rest = good_call()
    a = torch.zeros(16, 65, dtype=torch.int8)[:, :64]
    with pytest.raises(RuntimeError) as caught:
        probe.run("cutlass_scaled_mm", out, a, *rest)
    head, *trace = str(caught.value).splitlines()
    shape = "M, N, K = 16, 32, 64 with alignments of a, b, out = 1, 16, 16 bytes"
    assert head.startswith(f"cutlass_scaled_mm: no variant of build aaaaaaaaaaaa takes {shape}; `gemmill build ")
    needs = " variants: it needs rows of a at multiples of 16 bytes, address and row stride are multiples of 1"
    assert any(line.endswith(needs) for line in trace)


def test_symbols_that_the_extension_asks_for_exist(home_of_probes) -> None:
    for path in home_of_probes.glob("builds/*/*.so"):
        library = read_library(path)
        assert undefined_in(library, torch_libraries(), library.required) == set()
        of_torch = {name for name in library.required if "torch" in name}
        assert of_torch and all(name.startswith(("aoti_torch_", "torch_")) for name in of_torch)


def test_choices_are_noted_once_and_counted(probe, with_table: Callable) -> None:
    table = probe.build.table
    row = next(i for i, entry in enumerate(table.entries) if entry.config.schedule.alignment_a > 1)
    with_table(tuned=(TunedRow(problem=table.rows[row].problem, sizes=(16, 4096, 4096), row=row, exact=True),))
    here = call_of_sizes(table.rows[row].problem, 16, 4096, 4096)
    calls = [here, replace(here, sizes=(16, 4000, 4096)), replace(here, sizes=(17, 4096, 4096))]
    trusts, measured = [Trust.EXACT, Trust.NEAREST, Trust.MODEL], table.entries[row].name
    probe.build.note_choices(64)
    try:
        names = [table.entries[probe.build.choose(call, SMS)[0]].name for call in calls * 2]
        assert names[:2] == [measured] * 2
        noted = [
            Noted(call=call, variant=name, trust=trust) for call, name, trust in zip(calls, names, trusts, strict=False)
        ]
        assert probe.build.take_noted(64) == noted[1:]
        assert probe.build.take_noted(64) == []
        probe.build.note_choices(1)
        for n in (16, 32, 64):
            probe.build.choose(replace(here, sizes=(16, n, 4096)), SMS)
        assert len(probe.build.take_noted(64)) == 1, "no more than were asked for"
        probe.build.note_choices(64, Trust.EXACT)
        probe.build.choose(replace(here, sizes=(15, 4096, 4096)), SMS)
        assert [choice.trust for choice in probe.build.take_noted(64)] == [Trust.EXACT]
    finally:
        probe.build.note_choices(0)
    probe.build.choose(replace(here, sizes=(16, 48, 4096)), SMS)
    assert probe.build.take_noted(64) == []
    counted = [
        chosen for chosen in chosen_in([probe.build]) if chosen.variant == measured and chosen.trust is not Trust.MODEL
    ]
    assert [(chosen.trust, chosen.times) for chosen in counted] == [(Trust.EXACT, 2), (Trust.NEAREST, 1)]
    assert sum(chosen.times for chosen in chosen_in([probe.build])) == 8, "remembered choices are not counted"


def test_ranges_say_op_sizes_and_variant(probe) -> None:
    """Around each call, in the order in which a profiler reads them; as long as they are not ended."""
    pushed: list[str | None] = []
    nvtx = SimpleNamespace(range_push=pushed.append, range_pop=lambda: pushed.append(None))
    namespace = f"gemmill_{probe.build.build_id}"
    definitions = [torch.library.Library(name, "FRAGMENT") for name in ("probe_ranges", namespace)]
    for library in definitions:
        for op in OPS:
            library.define(op.schema)
    registrations = [probe.build.register(name, "CPU") for name in ("probe_ranges", namespace)]

    def explain(name: str, *args: object) -> Choice:
        return probe.build.explain(BY_NAME[name], of_arguments(BY_NAME[name], args), SMS)

    ranges = Ranges("probe_ranges", probe.build.build_id, explain, "CPU", nvtx)
    run = torch.ops.probe_ranges.cutlass_scaled_mm.default
    run(*good_call())
    chosen = explain("cutlass_scaled_mm", *good_call()).entry.name
    assert pushed == [f"gemmill::cutlass_scaled_mm 16x32 16x64 64x32 {chosen}", None]
    out, a, *rest = good_call()
    with pytest.raises(RuntimeError, match="cutlass_scaled_mm: "):
        run(out, a[:, :3], *rest)
    assert pushed[2:] == ["gemmill::cutlass_scaled_mm 16x32 16x3 64x32", None]
    ranges.end()
    run(*good_call())
    assert len(pushed) == 4
    for registration in registrations:
        probe.build.unregister(registration)


def test_a_fork_while_choices_are_taken_does_not_hang_the_child(probe, with_table: Callable) -> None:
    """The child notes and takes its own: whoever held the lock when it was forked is not in it."""
    with_table(tuned=())
    here = call_of_sizes(probe.build.table.rows[0].problem, 16, 4096, 4096)
    probe.build.note_choices(64)
    try:
        with probe.taking_noted():
            for i in range(30):
                assert _code_of_child(probe, replace(here, sizes=(17 + i, 4096, 4096))) == 0, (
                    "one that hangs is killed by its alarm"
                )
    finally:
        probe.build.note_choices(0)


def _code_of_child(probe, call: ProblemCall) -> int:
    pid = os.fork()
    if pid == 0:
        signal.alarm(10)
        probe.build.choose(call, SMS)
        os._exit(len(probe.build.take_noted(64)) != 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
