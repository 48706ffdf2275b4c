"""DeepGEMM's names: each function, each argument, and the sentences of refusals.

Operands are such that results are exact: one expected value, rounded once.
"""

import gc
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from deep_gemm_operands import BF16, E4M3, E, Fp4, K, N, Operands, drawn, packed_words, poisoned, powers, rounded
from gemmill.compat import deep_gemm, packed_once

NAN, M = torch.nan, 17
EXPERTS = torch.tensor([1] * 5 + [-1] * 3 + [0] * 6 + [99] * 2 + [2], dtype=torch.int32)
"""Of each row: the numbers of nobody are -1, and whatever was never written."""
OF_NOBODY = [5, 6, 7, 14, 15]


@pytest.fixture(autouse=True)
def nothing_packed() -> Iterator[None]:
    packed_once.forget_packed_weights()
    yield
    packed_once.forget_packed_weights()


GROUPED_FP8 = "recipe=None, recipe_a=None, recipe_b=None, compiled_dims='nk', disable_ue8m0_cast=False"
PSUM = "use_psum_layout=False, ensure_zero_padding=True"
DENSE_FP8 = "a, b, d, c=None, recipe=None, recipe_a=None, recipe_b=None, compiled_dims='{}', disable_ue8m0_cast=False"
SIGNATURES = {
    "m_grouped_fp8_gemm_nt_contiguous": f"a, b, d, grouped_layout, {GROUPED_FP8}, {PSUM}, expected_m_for_psum_layout=None",
    "m_grouped_fp8_gemm_nn_contiguous": f"a, b, d, grouped_layout, {GROUPED_FP8}, {PSUM}",
    "m_grouped_fp8_gemm_nt_masked": f"a, b, d, masked_m, expected_m, {GROUPED_FP8}",
    "m_grouped_bf16_gemm_nt_contiguous": f"a, b, d, grouped_layout, compiled_dims='nk', {PSUM}, expected_m_for_psum_layout=None",
    "m_grouped_bf16_gemm_nn_contiguous": f"a, b, d, grouped_layout, compiled_dims='nk', {PSUM}",
    "m_grouped_bf16_gemm_nt_masked": "a, b, d, masked_m, expected_m, compiled_dims='nk'",
} | {
    f"{kind}_gemm_{form}": text.format("nk" if form[0] == "n" else "mn") + ", alpha=None"
    for kind, text in (("fp8", DENSE_FP8), ("bf16", "a, b, d, c=None, compiled_dims='{}'"))
    for form in ("nt", "nn", "tn", "tt")
}
"""Of DeepGEMM 54e2261 (2026-06), csrc/apis/gemm.hpp; `alpha`, and `epilogue` in the end, are of vLLM 0.33.0's."""
OTHER_NAMES = {
    "fp8_m_grouped_gemm_nt_masked": "m_grouped_fp8_gemm_nt_masked",
    "bf16_m_grouped_gemm_nt_masked": "m_grouped_bf16_gemm_nt_masked",
}


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_arguments_are_deep_gemms(name: str) -> None:
    given = inspect.signature(getattr(deep_gemm, name)).parameters.values()
    its_own = [p for p in given if p.kind is not p.KEYWORD_ONLY]
    text = ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default!r}" for p in its_own)
    assert text == f"{SIGNATURES[name]}, epilogue=None"
    assert {p.name for p in given} - {p.name for p in its_own} <= {"alignment"}


def test_names_that_stand_for_one_function() -> None:
    for name in SIGNATURES:
        other = name.replace("fp8", "fp8_fp4")
        assert getattr(deep_gemm, other) is getattr(deep_gemm, name)
    assert all(getattr(deep_gemm, old) is getattr(deep_gemm, new) for old, new in OTHER_NAMES.items())
    others = {name.replace("fp8", "fp8_fp4") for name in SIGNATURES}
    alignments = {f"{which}mk_alignment_for_contiguous_layout" for which in ("get_", "set_", "get_theoretical_")}
    assert set(deep_gemm.__all__) == {*SIGNATURES, *others, *OTHER_NAMES, *alignments}


def wanted(x: Tensor, w: Tensor, owners: list[int]) -> Tensor:
    """Of each row its product with its expert's weights; NaN for nobody's."""
    rows = [rounded(x[i] @ w[e].t()) if e >= 0 else poisoned(N) for i, e in enumerate(owners)]
    return torch.stack(rows)


OWNERS = [e if 0 <= e < E else -1 for e in EXPERTS.tolist()]
BY_ENDS = [0] * 5 + [-1] * 3 + [2] * 4 + [-1] * 5
"""Where rows begin at multiples of 8: the second expert has none, and rows from 16 on are behind the last."""
PADDING_BY_ENDS = [5, 6, 7, 12, 13, 14, 15]


def layouts() -> list[Any]:
    by_ends = torch.tensor([5, 8, 12], dtype=torch.int32)
    return [
        pytest.param(EXPERTS, {}, OWNERS, OF_NOBODY, id="experts"),
        pytest.param(by_ends, {"use_psum_layout": True}, BY_ENDS, PADDING_BY_ENDS, id="ends"),
    ]


@pytest.fixture
def eights() -> Iterator[None]:
    deep_gemm.set_mk_alignment_for_contiguous_layout(8)
    yield
    deep_gemm.set_mk_alignment_for_contiguous_layout(128)


@pytest.mark.usefixtures("eights")
@pytest.mark.parametrize("zeros", [None, True, False])
@pytest.mark.parametrize(("layout", "named", "owners", "padding"), layouts())
@pytest.mark.parametrize("kind", ["fp8", "fp8 nn", "bf16", "bf16 nn", "fp4"])
def test_contiguous_rows(
    kind: str, layout: Tensor, named: dict[str, Any], owners: list[int], padding: list[int], zeros: bool | None
) -> None:
    """Rows of padding are zeros, as is the default, or unchanged."""
    of, out = Operands(M), poisoned(M, N)
    if zeros is not None:
        named = named | {"ensure_zero_padding": zeros}
    a, w = (of.a, of.a_scales), of.w
    if kind == "fp8":
        a = (of.a, of.a_scales.t().contiguous().t())
        deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a, (of.b, of.b_scales), out, layout, **named)
    elif kind == "fp8 nn":
        b = of.b.mT.contiguous(), of.b_scales.mT
        deep_gemm.m_grouped_fp8_gemm_nn_contiguous(a, b, out, layout, **named)
    elif kind.startswith("bf16"):
        x, b = of.x.to(BF16), of.w.to(BF16)
        if kind == "bf16":
            deep_gemm.m_grouped_bf16_gemm_nt_contiguous(x, b, out, layout, **named)
        else:
            deep_gemm.m_grouped_bf16_gemm_nn_contiguous(x, b.mT.contiguous(), out, layout, **named)
    else:
        fp4 = Fp4()
        w, recipes = fp4.w, {"recipe_a": (1, 128), "recipe_b": (1, 32)}
        deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous(a, (fp4.b, fp4.b_scales), out, layout, **recipes, **named)
    expected = wanted(of.x, w, owners)
    if zeros is not False:
        expected[padding] = 0
    assert torch.equal(out.isnan(), expected.isnan())
    assert torch.equal(out.nan_to_num(7), expected.nan_to_num(7))


def test_where_rows_begin_by_ends() -> None:
    """At multiples of 128 until another is set, or a call says so itself; zeros end there too."""
    assert deep_gemm.get_mk_alignment_for_contiguous_layout() == 128
    assert deep_gemm.get_theoretical_mk_alignment_for_contiguous_layout(33) == 128
    of = Operands(rows=270)
    ends = torch.tensor([3, 128, 130], dtype=torch.int32)
    given = (of.a, of.a_scales), (of.b, of.b_scales)
    out = poisoned(270, N)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(*given, out, ends, use_psum_layout=True, expected_m_for_psum_layout=40)
    owners = [0] * 3 + [-1] * 125 + [2] * 2 + [-1] * 140
    expected = wanted(of.x, of.w, owners)
    expected[3:128], expected[130:256] = 0, 0
    assert torch.equal(out.nan_to_num(7), expected.nan_to_num(7)) and bool(out[256:].isnan().all())
    ends = torch.tensor([3, 4, 130], dtype=torch.int32)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(*given, out, ends, use_psum_layout=True, alignment=1)
    assert torch.equal(out[:130], wanted(of.x, of.w, [0] * 3 + [1] + [2] * 126 + [-1] * 140)[:130])


def test_no_rows() -> None:
    of, layout = Operands(rows=0), torch.empty(0, dtype=torch.int32)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous((of.a, of.a_scales), (of.b, of.b_scales), poisoned(0, N), layout)
    deep_gemm.m_grouped_bf16_gemm_nt_contiguous(of.x.to(BF16), of.w.to(BF16), poisoned(0, N), layout)


@pytest.mark.parametrize("kind", ["fp8", "fp8 packed", "bf16", "fp4", "fp4 by 128"])
def test_masked_rows(kind: str) -> None:
    rows, used = 6, torch.tensor([6, 0, 2], dtype=torch.int32)
    of, out = Operands(rows=E * rows), poisoned(E, rows, N)
    a, a_scales, x = (part.unflatten(0, (E, rows)) for part in (of.a, of.a_scales, of.x))
    a_scales, w = a_scales.mT.contiguous().mT, of.w
    if kind == "bf16":
        deep_gemm.m_grouped_bf16_gemm_nt_masked(x.to(BF16), w.to(BF16), out, used, 3)
    elif "fp4" in kind:
        fp4 = Fp4(columns := 128 if "128" in kind else 32)
        w, recipes = fp4.w, {"recipe_a": (1, 128), "recipe_b": (1, columns)}
        deep_gemm.m_grouped_fp8_fp4_gemm_nt_masked((a, a_scales), (fp4.b, fp4.b_scales), out, used, 3, **recipes)
    else:
        given = packed_words(a_scales) if "packed" in kind else a_scales
        deep_gemm.m_grouped_fp8_gemm_nt_masked((a, given), (of.b, of.b_scales), out, used, 3, recipe=(1, 128, 128))
    for expert, count in enumerate(used.tolist()):
        assert torch.equal(out[expert, :count], rounded(x[expert, :count] @ w[expert].t()))
        assert bool(out[expert, count:].isnan().all())


@pytest.mark.parametrize("packed_b", [True, False])
def test_packed_scales(packed_b: bool) -> None:
    """Four ue8m0 bytes to an int32, of which those behind K's end are not read."""
    of, out = Operands(M), poisoned(M, N)
    a, b = (of.a, packed_words(of.a_scales)), (of.b, packed_words(of.b_scales) if packed_b else of.b_scales)
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a, b, out, EXPERTS, recipe=(1, 128, 128))
    expected = wanted(of.x, of.w, OWNERS)
    expected[OF_NOBODY] = 0
    assert torch.equal(out, expected)
    fp4, out = Fp4(), poisoned(M, N)
    b = fp4.b, packed_words(fp4.b_scales)
    deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous(a, b, out, EXPERTS, recipe_a=(1, 128), recipe_b=(1, 32))
    expected = wanted(of.x, fp4.w, OWNERS)
    expected[OF_NOBODY] = 0
    assert torch.equal(out, expected)


def test_every_byte_of_a_packed_scale() -> None:
    from gemmill.compat.deep_gemm.scales import values_of

    found = values_of(torch.arange(256, dtype=torch.uint8))
    assert torch.equal(found[:255].double(), 2.0 ** (torch.arange(255).double() - 127)) and bool(found[255].isnan())


def turned(form: str, a: Any, b: Any) -> tuple[Any, Any]:
    """Operands of nt as a form takes them: contiguous, with rows for columns."""

    def other(x: Any) -> Any:
        return tuple(part.mT.contiguous() for part in x) if isinstance(x, tuple) else x.mT.contiguous()

    return other(a) if form[0] == "t" else a, other(b) if form[1] == "n" else b


@pytest.mark.parametrize("form", ["nt", "nn", "tn", "tt"])
@pytest.mark.parametrize("kind", ["fp8", "fp8 by rows", "fp8 packed", "bf16"])
@pytest.mark.parametrize("adds", ["", "c", "c is d"])
def test_dense(form: str, kind: str, adds: str) -> None:
    of, out = Operands(M, b_rows=1 if kind != "fp8" else 128), poisoned(M, N)
    x, w, named = of.x, of.w[0], {}
    a, b = (of.a, of.a_scales), (of.b[0], of.b_scales[0])
    if kind == "bf16":
        a, b = x.to(BF16), w.to(BF16)
    elif kind == "fp8 by rows":
        named = {"recipe": (1, 1, 128)}
    elif kind == "fp8 packed" and form == "nt":
        a, b = (a[0], packed_words(a[1])), (b[0], packed_words(b[1]))
    elif kind == "fp8 packed":
        named = {"recipe_a": (1, 128), "recipe_b": (1, 128)}
    expected = rounded(x @ w.t())
    if adds:
        c = drawn(M, N, seed=5).to(BF16)
        expected = rounded(c.double() + expected.double())
        out = c if adds == "c is d" else out
        named["c"] = c
    getattr(deep_gemm, f"{kind[:4].strip()}_gemm_{form}")(*turned(form, a, b), out, **named)
    assert torch.equal(out, expected)


@pytest.mark.parametrize("form", ["nt", "tt"])
def test_dense_4_bit_weights(form: str) -> None:
    of, fp4, out = Operands(M), Fp4(), poisoned(M, N)
    a, _ = turned(form, (of.a, of.a_scales), of.b)
    c, recipes = drawn(M, N, seed=5).to(BF16), {"recipe_a": (1, 128), "recipe_b": (1, 32)}
    getattr(deep_gemm, f"fp8_fp4_gemm_{form}")(a, (fp4.b[1], fp4.b_scales[1]), out, c, **recipes)
    assert torch.equal(out, rounded(c.double() + rounded(of.x @ fp4.w[1].t()).double()))


@pytest.mark.parametrize("c", [None, torch.ones(4, 8, dtype=BF16)])
def test_dense_without_k_or_rows(c: Tensor | None) -> None:
    out = poisoned(4, 8)
    deep_gemm.bf16_gemm_nt(torch.empty(4, 0, dtype=BF16), torch.empty(8, 0, dtype=BF16), out, c)
    assert torch.equal(out, torch.zeros(4, 8, dtype=BF16) if c is None else c)
    none = None if c is None else c[:0]
    deep_gemm.bf16_gemm_nt(torch.empty(0, 64, dtype=BF16), torch.empty(8, 64, dtype=BF16), out[:0], none)


class Packings:
    """How often weights were packed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from gemmill.compat.deep_gemm import operands

        self.count, packs = 0, operands.prepack_experts

        def counted(*given: Any) -> Any:
            self.count += 1
            return packs(*given)

        monkeypatch.setattr(operands, "prepack_experts", counted)


def test_weights_are_packed_once(monkeypatch) -> None:
    """Whatever tensor of the same memory is given; anew where they changed, and where their memory is another's."""
    packings, of, fp4 = Packings(monkeypatch), Operands(M), Fp4()
    recipes = {"recipe_a": (1, 128), "recipe_b": (1, 32)}

    def call(b: Tensor, scales: Tensor) -> Tensor:
        out = poisoned(M, N)
        deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous((of.a, of.a_scales), (b, scales), out, EXPERTS, **recipes)
        return out

    first = call(fp4.b, fp4.b_scales)
    assert torch.equal(call(fp4.b.view(E, N, K // 2), fp4.b_scales), first) and packings.count == 1
    fp4.b_scales.mul_(2)
    assert torch.equal(call(fp4.b, fp4.b_scales), first * 2) and packings.count == 2
    fp4.b.zero_()
    assert not call(fp4.b, fp4.b_scales).any() and packings.count == 3
    fp4.b.data.fill_(0x22)
    assert not call(fp4.b, fp4.b_scales).any() and packings.count == 3, "nothing tells of such a write"
    packed_once.forget_packed_weights()
    assert call(fp4.b, fp4.b_scales).any() and packings.count == 4
    assert len(packed_once._kept) == 1
    del fp4
    gc.collect()
    other = Fp4()
    call(other.b, other.b_scales)
    assert packings.count == 5 and len(packed_once._kept) == 1, "the copy of freed weights is freed"
    with torch.inference_mode():
        untracked = other.b.clone()
    for times in (6, 7):
        assert call(untracked, other.b_scales).any() and packings.count == times
    assert len(packed_once._kept) == 1


def test_weights_are_not_packed_while_a_graph_is_captured(monkeypatch) -> None:
    """Packed ones are taken too."""

    class OnGpu(Tensor):
        is_cuda = True

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    weights = torch.zeros(2).as_subclass(OnGpu)
    told = "dense: weights are packed at {} call, which no captured CUDA graph can do: {}"
    with torch.inference_mode():
        untracked = torch.zeros(2).as_subclass(OnGpu)
    for given, when, remedy in (
        (weights, "their first", "make a call of them before the capture"),
        (untracked, "every", "clone them outside of torch.inference_mode"),
    ):
        with pytest.raises(RuntimeError) as error:
            packed_once.packed_once("dense", (given,), "", lambda: pytest.fail("packed"))
        assert str(error.value) == told.format(when, remedy)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    made: Any = object()
    assert packed_once.packed_once("dense", (weights,), "", lambda: made) is made
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert packed_once.packed_once("dense", (weights,), "", lambda: pytest.fail("packed")) is made


def grouped(**changed: Any) -> None:
    of = Operands(M)
    given = {"a": (of.a, of.a_scales), "b": (of.b, of.b_scales), "d": poisoned(M, N), "grouped_layout": EXPERTS}
    deep_gemm.m_grouped_fp8_gemm_nt_contiguous(**given | changed)


def of_fp4(**changed: Any) -> None:
    of, fp4 = Operands(M), Fp4()
    given = {"a": (of.a, of.a_scales), "b": (fp4.b, fp4.b_scales), "d": poisoned(M, N), "grouped_layout": EXPERTS}
    deep_gemm.m_grouped_fp8_fp4_gemm_nt_contiguous(**given | {"recipe_a": (1, 128), "recipe_b": (1, 32)} | changed)


def dense(**changed: Any) -> None:
    of = Operands(M)
    given = {"a": (of.a, of.a_scales), "b": (of.b[0], of.b_scales[0]), "d": poisoned(M, N)}
    deep_gemm.fp8_gemm_nt(**given | changed)


def plain(**changed: Any) -> None:
    given = {"a": drawn(M, K).to(BF16), "b": drawn(N, K).to(BF16), "d": poisoned(M, N)}
    deep_gemm.bf16_gemm_nt(**given | changed)


X, W, S = drawn(M, K).to(E4M3), drawn(E, N, K).to(E4M3), powers(M, 2)
GROUPED, DENSE = "m_grouped_fp8_fp4_gemm_nt_contiguous", "fp8_fp4_gemm_nt"
WRONG: list[tuple[Callable[..., None], dict[str, Any], str]] = [
    (grouped, {"a": X}, f"{GROUPED}: a is Tensor, expected a tuple of codes and their scales"),
    (
        grouped,
        {"a": (X.view(torch.int8), S)},
        f"{GROUPED}: a is torch.int8 [17, 160], expected 2 dimensions of torch.float8_e4m3fn: codes of 4 bits are offered of b alone",
    ),
    (
        grouped,
        {"b": (W.half(), S)},
        f"{GROUPED}: b is torch.float16 [3, 136, 160], expected 3 dimensions of torch.float8_e4m3fn, or torch.int8 of two 4-bit "
        "codes each",
    ),
    (
        grouped,
        {"a": (X, powers(M, 3))},
        f"{GROUPED}: scales of a are torch.float32 [17, 3], expected torch.float32 [17, 2], or torch.int32 [17, 1] of 4 ue8m0 bytes: "
        "one for each 1 x 128",
    ),
    (
        grouped,
        {"b": (W, powers(E, 2, 2).to(BF16))},
        f"{GROUPED}: scales of b are torch.bfloat16 [3, 2, 2], expected torch.float32 [3, 2, 2], or torch.int32 [3, 2, 1] of 4 ue8m0 "
        "bytes: one for each 128 x 128",
    ),
    (
        grouped,
        {"recipe": (1, 1, 128)},
        f"{GROUPED}: scales of b are for each 1 x 128, offered are those for each 128 x 128",
    ),
    (
        grouped,
        {"recipe": (1, 128, 32)},
        f"{GROUPED}: scales of a are for each 1 x 32, offered are those for each 1 x 128",
    ),
    (
        grouped,
        {"recipe_a": (1, 128)},
        f"{GROUPED}: recipe is None, recipe_a (1, 128) and recipe_b None: give recipe, or recipe_a with recipe_b, or none",
    ),
    (
        grouped,
        {"recipe": (1, 128, 128), "recipe_a": (1, 128), "recipe_b": (128, 128)},
        f"{GROUPED}: recipe is (1, 128, 128), recipe_a (1, 128) and recipe_b (128, 128): give recipe, or recipe_a with recipe_b, or none",
    ),
    (
        grouped,
        {"recipe": (1, 128)},
        f"{GROUPED}: recipe is (1, 128), expected 3 numbers of elements that share a scale",
    ),
    (
        grouped,
        {"grouped_layout": EXPERTS[:5]},
        f"{GROUPED}: grouped_layout is torch.int32 [5], expected torch.int32 [17], the expert of each row",
    ),
    (
        grouped,
        {"use_psum_layout": True},
        f"{GROUPED}: grouped_layout is torch.int32 [17], expected torch.int32 [3], where the rows of each expert end",
    ),
    (
        grouped,
        {"grouped_layout": EXPERTS.float()},
        f"{GROUPED}: grouped_layout is torch.float32 [17], expected torch.int32 [17], the expert of each row",
    ),
    (
        grouped,
        {"expected_m_for_psum_layout": 7},
        f"{GROUPED}: expected_m_for_psum_layout is 7 without use_psum_layout: leave it out, or give both",
    ),
    (
        grouped,
        {"epilogue": "silu"},
        f"{GROUPED}: epilogue is given, and gemmill has no such ending: leave it out, and change d afterwards",
    ),
    (
        of_fp4,
        {"recipe_a": (1, 64), "recipe_b": (1, 32)},
        f"{GROUPED}: scales of a are for each 1 x 64, offered are those for each 1 x 32 or 1 x 128",
    ),
    (
        of_fp4,
        {"recipe_a": None, "recipe_b": None},
        f"{GROUPED}: scales of b are for each 128 x 128, offered are those for each 1 x 32 or 1 x 128",
    ),
    (
        of_fp4,
        {"b": (Fp4().b, Fp4().b_scales.index_fill(2, torch.tensor(3), 3.0))},
        f"{GROUPED}: scale [0, 0, 3] of b is 3, expected a power of two with 4-bit codes",
    ),
    (
        of_fp4,
        {"b": (Fp4().b, Fp4().b_scales.index_fill(2, torch.tensor(3), torch.inf))},
        f"{GROUPED}: scale [0, 3] of mxfp4 is byte 255, which is no ue8m0 number: bytes 0 to 254 are",
    ),
    (
        of_fp4,
        {"b": (Fp4().b.mT.contiguous().mT, Fp4().b_scales)},
        f"{GROUPED}: b of 4-bit codes has strides [10880, 1, 136], and gemmill's kernels take pairs along K: give it K-major",
    ),
    (
        dense,
        {"d": torch.empty(M, N)},
        f"{DENSE}: d is torch.float32 [17, 136], expected torch.bfloat16 [17, 136]: gemmill's GEMMs write no float32",
    ),
    (
        dense,
        {"c": torch.empty(M, N)},
        f"{DENSE}: c is torch.float32 [17, 136], expected torch.bfloat16 [17, 136] as d, to which it is added",
    ),
    (
        dense,
        {"alpha": torch.ones(1)},
        f"{DENSE}: alpha is given, and gemmill has no such ending: leave it out, and change d afterwards",
    ),
    (
        dense,
        {"recipe_a": (1, 32), "recipe_b": (1, 32)},
        f"{DENSE}: scales of a are for each 1 x 32, offered are those for each 1 x 128",
    ),
    (
        plain,
        {"a": drawn(M, K)},
        "bf16_gemm_nt: a is torch.float64 [17, 160], expected two dimensions of torch.bfloat16",
    ),
    (
        plain,
        {"c": torch.empty(M, 1, dtype=BF16)},
        "bf16_gemm_nt: c is torch.bfloat16 [17, 1], expected torch.bfloat16 [17, 136] as d, to which it is added",
    ),
]


@pytest.mark.parametrize(
    ("call", "changed", "told"), WRONG, ids=[f"{call.__name__}-{i}" for i, (call, _, _) in enumerate(WRONG)]
)
def test_wrong_arguments(call: Callable[..., None], changed: dict[str, Any], told: str) -> None:
    out = changed.get("d", poisoned(M, N)).fill_(NAN)
    with pytest.raises(RuntimeError) as error:
        call(**{"d": out} | changed)
    assert str(error.value) == told
    assert bool(out.isnan().all()), "something is written"


def test_other_functions_refuse_in_their_own_names() -> None:
    of, fp4 = Operands(M), Fp4()
    a, fp8, out = (of.a, of.a_scales), (of.b, of.b_scales), poisoned(M, N)
    recipes = {"recipe_a": (1, 128), "recipe_b": (1, 32)}
    with pytest.raises(
        RuntimeError, match=r"^m_grouped_fp8_fp4_gemm_nn_contiguous: b of 4-bit codes has strides \[10880, 1, 80\]"
    ):
        deep_gemm.m_grouped_fp8_gemm_nn_contiguous(a, (fp4.b, fp4.b_scales.mT), out, EXPERTS, **recipes)
    with pytest.raises(RuntimeError, match=r"^m_grouped_fp8_fp4_gemm_nt_masked: epilogue is given"):
        deep_gemm.m_grouped_fp8_gemm_nt_masked(a, fp8, out, EXPERTS, 1, epilogue=1)
    with pytest.raises(RuntimeError, match=r"^m_grouped_bf16_gemm_nn_contiguous: grouped_layout is"):
        deep_gemm.m_grouped_bf16_gemm_nn_contiguous(of.x.to(BF16), of.w.to(BF16).mT, out, EXPERTS[:1])
    with pytest.raises(RuntimeError, match=r"^m_grouped_bf16_gemm_nt_masked: epilogue is given"):
        deep_gemm.m_grouped_bf16_gemm_nt_masked(of.x, of.w, out, EXPERTS, 1, epilogue=1)
    for form in ("nn", "tn"):
        operands = turned(form, a, (fp4.b[0], fp4.b_scales[0]))
        with pytest.raises(RuntimeError, match=f"^fp8_fp4_gemm_{form}: b of 4-bit codes has strides"):
            getattr(deep_gemm, f"fp8_gemm_{form}")(*operands, out, **recipes)
    with pytest.raises(RuntimeError, match=r"^bf16_gemm_tt: b is torch.float8_e4m3fn \[136, 160\], expected two"):
        deep_gemm.bf16_gemm_tt(of.x.to(BF16).t(), of.b[0], out)
    told = "^set_mk_alignment_for_contiguous_layout: new_value is 0, expected a number of rows from 1 on$"
    with pytest.raises(RuntimeError, match=told):
        deep_gemm.set_mk_alignment_for_contiguous_layout(0)
    assert bool(out.isnan().all())
