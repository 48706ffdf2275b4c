"""vLLM's nvfp4 layers whose weights become bf16 for many rows: times are given, and a count tells which way a call went."""

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmill
from gemmill.compat import linear
from gemmill.compat.vllm import contest, unpacked
from gemmill.families import blockscaled
from gemmill.quantize import quantize_weight
from gemmill.registry import REGISTRY
from gemmill.runtime import holding, ops
from gemmill.space.selections import select

N, K = 72, 256
FASTER, SLOWER = (96.0, 100.0), (98.0, 100.0)
"""Unpacked and packed."""


@pytest.fixture
def timed(vllm, make_manifest, table_of, smoke_build, monkeypatch) -> SimpleNamespace:
    """vLLM's stand-in and a loaded build; `times` are those of both ways, by rows, `unpacked` counts calls that unpack."""
    configs = REGISTRY.configs_of(blockscaled.NAME, select("smoke").configs)
    monkeypatch.setattr(ops, "_active", type(smoke_build)(make_manifest(*configs), table_of(*configs)))
    linear.forget()
    unpacked.forget()
    given = SimpleNamespace(times={4096: FASTER, 8192: FASTER}, asked=[], unpacked=0, vllm=vllm)
    dequant = gemmill.nvfp4_weight_dequant

    def counted(*operands: Any) -> Tensor:
        given.unpacked += 1
        return dequant(*operands)

    def of_given(layer: object, rows: int, *operands: object) -> tuple[float, float]:
        given.asked.append(rows)
        return given.times[rows]

    monkeypatch.setattr(gemmill, "nvfp4_weight_dequant", counted)
    monkeypatch.setattr(contest, "can_time", lambda weight: True)
    monkeypatch.setattr(unpacked, "times_us", of_given)
    yield given
    unpacked.forget()


def layer_of(format: str = "nvfp4", bias: bool = True) -> SimpleNamespace:
    made = quantize_weight(torch.randn(N, K, generator=torch.Generator().manual_seed(N)), format)
    layer = SimpleNamespace(weight=made.codes, weight_scale=made.scales, params_dtype=torch.bfloat16, made=made)
    layer.bias = torch.linspace(-2, 2, N).bfloat16() if bias else None
    if made.global_scale is not None:
        layer.weight_global_scale = 1 / made.global_scale
    return layer


def loaded(layer: SimpleNamespace, name: str = "GemmillNvFp4Linear") -> Any:
    own = getattr(importlib.import_module("gemmill.compat.vllm.kernels"), name)
    kernel = own(SimpleNamespace(activation_quant_key=None))
    kernel.process_weights_after_loading(layer)
    assert kernel._taken
    return lambda x: kernel.apply_weights(layer, x, layer.bias)


def rows_of(count: int) -> Tensor:
    return torch.randn(count, K, generator=torch.Generator().manual_seed(count)).bfloat16()


@pytest.mark.parametrize("bias", [False, True])
def test_a_call_of_many_rows_unpacks_and_gives_the_same_numbers(timed, bias: bool) -> None:
    layer = layer_of(bias=bias)
    values = layer.made.values()
    call = loaded(layer)
    assert timed.unpacked == 0
    for rows, unpacks in ((1, 0), (3071, 0), (3072, 1), (4096, 1)):
        timed.unpacked, x = 0, rows_of(rows)
        wanted = x.float() @ values.t() + (layer.bias.float() if bias else 0)
        out = call(x)
        assert timed.unpacked == unpacks, rows
        assert out.dtype == torch.bfloat16 and out.shape == wanted.shape
        assert (out.float() - wanted).norm() <= 0.003 * wanted.norm()
    timed.unpacked = 0
    assert torch.equal(call(x.view(2, 2048, K)), out.view(2, 2048, N)) and timed.unpacked == 1
    (found,) = gemmill.serving_report()["served"]
    assert found["by"] == "GemmillNvFp4Linear" and found["rows"] == (
        "all rows, those of 3072 and more by weights unpacked to bf16 (us of unpacked and of packed weights at 4096: 96.0 and 100.0)"
    )


def test_the_ways_differ_by_rounding_alone(timed) -> None:
    layer = layer_of()
    loaded(layer)
    operands = layer.weight.data, layer.weight_scale.data, layer.weight_global_scale.reshape(1).float(), layer.bias
    one, other = (mm(rows_of(65), *operands) for mm in (unpacked.unpacked_mm, unpacked.packed_mm))
    assert torch.allclose(one.float(), other.float(), rtol=2**-7, atol=1e-3)
    alone = layer.weight.data, layer.weight_scale.data, None, None
    one, other = (mm(rows_of(65), *alone) for mm in (unpacked.unpacked_mm, unpacked.packed_mm))
    assert torch.allclose(one.float(), other.float(), rtol=2**-7, atol=1e-3 * other.float().abs().max())


def test_more_rows_are_asked_where_fewer_stay_packed(timed) -> None:
    timed.times = {4096: SLOWER, 8192: FASTER}
    call = loaded(layer_of())
    for rows, unpacks in ((6143, 0), (6144, 1)):
        timed.unpacked = 0
        call(rows_of(rows))
        assert timed.unpacked == unpacks, rows
    assert timed.asked == [4096, 8192]


def test_a_layer_that_is_never_faster_stays_packed_and_says_so(timed) -> None:
    timed.times = dict.fromkeys((4096, 8192), SLOWER)
    loaded(layer_of())(rows_of(8192))
    assert timed.unpacked == 0
    (found,) = gemmill.serving_report()["served"]
    assert found["rows"].startswith(
        "all rows, packed (us of unpacked and of packed weights at 4096: 98.0 and 100.0, 8192: "
    )


def test_it_is_timed_once_for_a_shape(timed) -> None:
    for _ in range(3):
        loaded(layer_of())
    assert timed.asked == [4096]
    loaded(layer_of(bias=False))
    assert timed.asked == [4096, 4096], "variants differ with the bias"
    assert timed.unpacked == 0


def test_a_failing_time_leaves_the_layer_packed(timed, monkeypatch, caplog) -> None:
    def failing(*given: object) -> None:
        timed.asked.append(0)
        raise RuntimeError("out of\nmemory")

    monkeypatch.setattr(unpacked, "times_us", failing)
    for _ in range(2):
        loaded(layer_of())(rows_of(3072))
    assert timed.unpacked == 0 and timed.asked == [0]
    (message,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert message == (
        f"gemmill serves a linear layer of N x K = {N} x {K}, nvfp4 weights, bfloat16 activations packed, untimed: gemmill cannot serve "
        "here (out of memory)"
    )
    (found,) = gemmill.serving_report()["served"]
    assert found["rows"] == ""


def test_mxfp4_and_what_is_not_timed_stay_packed(timed, monkeypatch) -> None:
    loaded(layer_of("mxfp4"), "GemmillMxFp4Linear")(rows_of(3072))
    monkeypatch.setattr(contest, "can_time", lambda weight: False)
    loaded(layer_of())(rows_of(3072))
    assert timed.unpacked == 0 and not timed.asked


def test_captured_calls_stay_packed(timed, monkeypatch) -> None:
    call, x = loaded(layer_of()), rows_of(3072)
    with monkeypatch.context() as patch:
        patch.setattr(unpacked, "_captures", lambda a: True)
        call(x)
        assert timed.unpacked == 0
    call(x)
    assert timed.unpacked == 1
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert unpacked._captures(SimpleNamespace(is_cuda=True)) and not unpacked._captures(x)


def test_batch_invariant_calls_stay_packed(timed) -> None:
    call, x = loaded(layer_of()), rows_of(3072)
    with holding.batch_invariant():
        call(x)
    assert timed.unpacked == 0
    call(x)
    assert timed.unpacked == 1
    unpacked.forget()
    timed.vllm.envs.VLLM_BATCH_INVARIANT = True
    loaded(layer_of())
    assert timed.asked == [4096], "and such engines time nothing"


def test_one_graph_serves_any_number_of_rows(timed) -> None:
    """Compiled once, with the number of rows unknown: an op in it asks at each call, of the process that runs the graph."""
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(loaded(layer_of()), backend=backend, dynamic=True, fullgraph=True)
    for rows, unpacks in ((16, 0), (3071, 0), (3072, 1)):
        timed.unpacked, x = 0, rows_of(rows)
        torch._dynamo.mark_dynamic(x, 0)
        assert compiled(x).shape == (rows, N)
        assert timed.unpacked == unpacks, rows
    assert len(graphs) == 1
    unpacked.forget()
    timed.unpacked = 0
    compiled(rows_of(3072))
    assert timed.unpacked == 0, "a process that has timed nothing"


def test_both_ways_are_timed_with_all_rows(monkeypatch) -> None:
    """Unpacked first, of operands alike, with activations of bf16."""
    seen: list[tuple[Any, ...]] = []

    def shortest(ours: Any, theirs: Any, *, cold: bool, device: torch.device) -> tuple[float, float]:
        assert not cold
        ours()
        theirs()
        return 1.0, 2.0

    monkeypatch.setattr(contest, "shortest_us", shortest)
    for name in ("unpacked_mm", "packed_mm"):
        monkeypatch.setattr(unpacked, name, lambda a, *more, name=name: seen.append((name, a.shape, a.dtype, *more)))
    layer = linear.Linear(n=N, k=K, codes=torch.bfloat16, out_dtype=torch.bfloat16, format="nvfp4")
    operands = torch.zeros(2, 4, 1), torch.zeros(N), None, torch.zeros(N)
    assert unpacked.times_us(layer, 4096, *operands) == (1.0, 2.0)
    for (named, shape, dtype, *more), name in zip(seen, ("unpacked_mm", "packed_mm"), strict=True):
        assert (named, shape, dtype) == (name, (4096, K), torch.bfloat16)
        assert more[2] is None and all(torch.equal(more[i], operands[i]) for i in (0, 1, 3))


@pytest.mark.parametrize(
    ("rows", "n", "k", "columns"),
    [
        (8192, 6144, 4096, 6144),
        (8192, 28672, 4096, 9216),
        (4096, 28672, 4096, 15360),
        (8192, 4096, 14336, 1024),
        (4096, 4096, 14336, 4096),
        (8192, 1000, 14336, 1000),
        (8192, 72, 256, 72),
        (8192, 4096, 65536, 1024),
    ],
)
def test_wide_layers_are_timed_by_a_part_of_their_columns(rows: int, n: int, k: int, columns: int) -> None:
    layer = linear.Linear(n=n, k=k, codes=torch.bfloat16, out_dtype=torch.bfloat16, format="nvfp4")
    assert unpacked.timed_columns(layer, rows) == columns
    taken = 2 * (rows * k + columns * (k + rows))
    assert taken <= 300_000_000 or columns == min(n, 1024)


def test_the_part_is_a_call_that_passes(monkeypatch) -> None:
    """Weights in blocks of 64 rows, their bases and the bias."""
    seen: list[Any] = []
    monkeypatch.setattr(contest, "shortest_us", lambda ours, theirs, **named: seen.extend((ours(), theirs())))
    monkeypatch.setattr(unpacked, "_FEWEST_COLUMNS", 64)
    monkeypatch.setattr(unpacked, "_TIMED_BYTES", 2 * 16 * K + 64 * 2 * (K + 16))
    small = layer_of()
    packed = linear.packed_fp4("nvfp4", small.weight, small.weight_scale)
    assert packed is not None
    layer = linear.Linear(n=N, k=K, codes=torch.bfloat16, out_dtype=torch.bfloat16, format="nvfp4")
    unpacked.times_us(layer, 16, *packed, None, small.bias)
    assert [out.shape for out in seen] == [(16, 64), (16, 64)]
