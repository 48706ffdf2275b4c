"""The extension's own checks and launches against Python's, on CPU tensors."""

import mmap
import random
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from gemmill.doctor.elf import read_library
from gemmill.doctor.extension import torch_libraries, undefined_in
from gemmill.families import scaled_mm
from gemmill.families.scaled_mm.accepts import accepted
from gemmill.families.scaled_mm.ops import GEMM_OPS, SCALED_MM, VLLM_OPS
from gemmill.families.scaled_mm.scales import group_strides, groups_of_call
from gemmill.families.scaled_mm.shaped_call import shaped_call_of
from gemmill.runtime.around import Around
from gemmill.runtime.checks import check
from gemmill.runtime.operands import of_arguments
from gemmill.runtime.ranges import Ranges
from gemmill.runtime.schemas import BY_NAME, OPS, OpSchema
from gemmill.runtime.select import Choice, select
from gemmill.vocab import SCALE_GROUPS, ScaleGranularity, ScaleLayout

SMS = 132
PLAIN = (torch.bfloat16, torch.float16)
ROUNDS = 4000
_MAP_NORESERVE = 0x4000
"""Of Linux, which Python 3.11 does not name: memory that nobody touches is none."""


ALIGNED = (16, 16, 16)


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
    """C++ refuses the calls that Python refuses, with Python's sentence, and no others."""
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
    """A kernel's arguments are the call's, and the variant is Python's choice."""
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
        asked = shaped_call_of(op, facts)
        choice = select(probe.build.table, asked, 1)
        facts = probe.build.table.rows[choice.row].facts
        assert symbol == choice.entry.symbol
        assert (args.raster_order, args.swizzle, args.splits) == (facts.raster_order, facts.swizzle, facts.splits)
        assert (probe.how.programmatic_launch, probe.how.constant_weights) == (1, 0)
        launched.add(symbol)
    assert len(launched) >= 2
    assert (grouped > 5) == ("azp_adj" not in op.arguments)


@pytest.mark.parametrize(("stride", "alignment"), [(2**40 - 16, 16), (2**40, 1)])
def test_rows_too_far_apart_for_a_descriptor(stride: int, alignment: int, probe) -> None:
    try:
        memory = mmap.mmap(-1, 2**40 + 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
    except OSError as error:
        pytest.skip(f"this machine gives a process no TiB of addresses: {error}")
    out, _, *rest = good_call()
    call = [out[:2], torch.frombuffer(memory, dtype=torch.int8).as_strided((2, 64), (stride, 1)), *rest]
    asked = shaped_call_of(SCALED_MM, of_arguments(SCALED_MM, call))
    assert asked.alignments[0] == alignment
    launch = probe.run("cutlass_scaled_mm", *call)
    assert launch is not None
    entry = select(probe.build.table, asked, 1).entry
    assert launch[0] == entry.symbol and entry.config.design.alignment_a == alignment


def test_scales_whose_columns_overlap_are_not_for_tma(probe) -> None:
    entry = next(
        e for e in probe.variants_of(scaled_mm.NAME) if accepted(e.config).scale_layout is ScaleLayout.MN_MAJOR
    )
    call = call_of(entry, 32, 128, 512)
    before = probe.build.pin(probe.build.table.rows_of(entry.name)[0])
    try:
        for stride, is_taken in ((32, True), (16, False)):
            call["a_scales"] = torch.ones(128).as_strided((32, 4), (1, stride))
            found = outcome(probe, entry.ops[0], call)
            assert isinstance(found, dict) if is_taken else f"{entry.name} cannot take the call" in found
    finally:
        probe.build.pin(before)


def call_of(entry, m: int, n: int, k: int) -> dict[str, torch.Tensor | None]:
    """A call in a variant's types, in rows of whole 16 bytes, A's scales as TMA wants them."""
    p = accepted(entry.config)
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
def test_strides_that_are_never_used_reach_no_kernel(k: int, probe, draws: int) -> None:
    """A variant of each predicate over every dimension of one element and a K of one group and less: the launch does not
    depend on their strides, and TMA takes it."""
    mill, taken, before = Mill(8), set(), probe.build.pin(-1)
    entries = list(
        {
            accepted(entry.config): entry
            for entry in probe.variants_of(scaled_mm.NAME)
            if accepted(entry.config).epilogue is None
        }.values()
    )
    try:
        for entry in entries:
            probe.build.pin(probe.build.table.rows_of(entry.name)[0])
            for m, n in ((1, 1), (1, 264), (5, 1), (5, 264), (1, 8), (64, 16384)):
                call = call_of(entry, m, n, k)
                dense = outcome(probe, entry.ops[0], call)
                for _ in range(draws):
                    odd = {name: mill.restrided(tensor) for name, tensor in call.items()}
                    assert outcome(probe, entry.ops[0], odd) == dense, (
                        entry.name,
                        m,
                        n,
                        {x: t.stride() for x, t in odd.items() if t is not None},
                    )
                if isinstance(dense, str):
                    continue
                taken.add(entry.name)
                if entry.config.design.alignment_a > 1:
                    bytes_ = accepted(entry.config).a_dtype.bits // 8
                    strides = [dense["lda"] * bytes_, dense["ldb"] * bytes_, dense["ldd"] * 2]
                    if accepted(entry.config).scale_layout is ScaleLayout.MN_MAJOR:
                        strides.append(dense["a_scale_stride_k"] * 4)
                    assert all(stride > 0 and stride % 16 == 0 for stride in strides), (entry.name, m, n, strides)
    finally:
        probe.build.pin(before)
    of_vectors = [e for e in entries if accepted(e.config).b_scale is ScaleGranularity.GROUP]
    all_but = {e.name for e in of_vectors if k <= accepted(e.config).group_size}  # dense, these are scales per channel
    assert taken == {e.name for e in entries} - all_but


def outcome(probe, op: str, call: dict[str, torch.Tensor | None]) -> dict[str, int] | str:
    """A kernel's arguments, or the first line of the refusal."""
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
    entry = next(e for e in probe.variants_of(scaled_mm.NAME) if e.config.operands.a_dtype == "e4m3")
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
    kept = [i for i in table.families[scaled_mm.NAME] if table.entries[i].config.design.alignment_a > 1]
    with_table(rows=tuple(table.rows[i] for i in kept), entries=tuple(table.entries[i] for i in kept))
    out, _, *rest = good_call()
    a = torch.zeros(16, 65, dtype=torch.int8)[:, :64]
    with pytest.raises(RuntimeError) as caught:
        probe.run("cutlass_scaled_mm", out, a, *rest)
    head, *trace = str(caught.value).splitlines()
    shape = "M, N, K = 16, 32, 64 with a, b, out aligned to 1, 16, 16 bytes"
    assert head.startswith(f"cutlass_scaled_mm: no variant of build aaaaaaaaaaaa takes {shape}; `gemmill build ")
    needs = " variants: it needs a aligned to 16 bytes, its address or row stride is aligned to 1"
    assert any(line.endswith(needs) for line in trace)


def test_symbols_that_the_extension_asks_for_exist(home_of_probes) -> None:
    for path in home_of_probes.glob("builds/*/*.so"):
        library = read_library(path)
        assert undefined_in(library, torch_libraries(), library.required) == set()
        of_torch = {name for name in library.required if "torch" in name}
        assert of_torch and all(name.startswith(("aoti_torch_", "torch_")) for name in of_torch)


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

    ranges = Around("probe_ranges", probe.build.build_id, [Ranges(explain, nvtx)], "CPU")
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
