"""Who serves which rows of a layer of vLLM's, of kernels timed in turn: times are given, kernels tell who they are."""

import importlib
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import gemmill
from engines import fp8_config, int8_config, vllm_modules
from gemmill.compat import linear
from gemmill.compat.vllm import contest
from gemmill.compat.vllm.contest import TIMED_ROWS, Split, split_of, timed_rows
from gemmill.runtime import ops

E4M3 = torch.float8_e4m3fn
PARAMETERS = ["weight", "weight_scale", "input_scale", "input_scale_ub"]
OURS, THEIRS = 1.0, 2.0
SLOWER_FOR_MANY = {1: (5.0, 9.0), 16: (5.0, 9.0), 64: (6.0, 9.0), 256: (9.0, 9.0), 4096: (100.0, 97.0)}
"""gemmill's times and the engine's, by rows: the engine serves more than 1024."""


def test_a_split_is_by_the_rows_of_a_call() -> None:
    found = split_of(SLOWER_FOR_MANY)
    assert found == Split(ours_first=True, changes=(1024,), times=found.times)
    assert [found.is_ours(rows) for rows in (1, 64, 1024, 1025, 8192)] == [True, True, True, False, False]
    assert str(found).startswith("1 to 1024 rows (us of gemmill's kernel and the engine's at 1: 5.0 and 9.0, 16: ")
    both = Split(ours_first=False, changes=(4, 32))
    assert [both.is_ours(rows) for rows in (1, 4, 5, 32, 33)] == [False, False, True, True, False]
    assert str(both).startswith("5 to 32 rows") and str(Split(ours_first=True)).startswith("1 and more rows")
    assert split_of(dict.fromkeys(TIMED_ROWS, (1.0, 0.97))).is_engines
    assert split_of(dict.fromkeys(TIMED_ROWS, (1.0, 0.985))).ours_first, "within the margin it is gemmill's"
    with pytest.raises(ValueError, match=r"^changes are \(32, 4\): expected ascending numbers of rows$"):
        Split(ours_first=True, changes=(32, 4))


def test_timing_many_rows_of_a_wide_layer_takes_no_more_memory_than_a_layer() -> None:
    for n, of_4096 in ((6144, 4096), (10240, 4096), (28672, 1280), (2**20, 1024)):
        rows = [timed_rows(rows, n, 2) for rows in TIMED_ROWS]
        assert rows == [1, 16, 64, 256, of_4096]
        results = n * 2 * rows[-1]
        assert results <= contest._COLD_BYTES or rows[-1] == 1024
    assert contest._COLD_BYTES > 60e6, "of an H200's L2"


@pytest.fixture
def timed(monkeypatch, smoke_build) -> SimpleNamespace:
    """vLLM's stand-in and a loaded build; `times` are those that kernels take. gemmill's results are OURS, vLLM's THEIRS."""
    modules = vllm_modules()
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "gemmill.compat.vllm.kernels", raising=False)
    monkeypatch.setattr(ops, "_active", smoke_build)
    monkeypatch.setattr(linear, "refusal", lambda layer: None)
    linear.forget()
    contest.forget()
    given = SimpleNamespace(times=SLOWER_FOR_MANY, asked=0)

    def result(value: float) -> Any:
        def mm(a: Tensor, b: Tensor, a_scales: Tensor, b_scales: Tensor, out_dtype: torch.dtype, *more: Any) -> Tensor:
            return a.new_empty((a.shape[0], b.shape[1]), dtype=out_dtype).fill_(value)

        return mm

    def of_given(layer: object, rows: int, *operands: object) -> tuple[float, float]:
        given.asked += 1
        return given.times[rows]

    for name in ("cutlass_scaled_mm", "cutlass_scaled_mm_azp"):
        monkeypatch.setattr(gemmill, name, result(OURS))
        monkeypatch.setattr(modules["vllm._custom_ops"], name, result(THEIRS), raising=False)
    monkeypatch.setattr(contest, "can_time", lambda weight: True)
    monkeypatch.setattr(contest, "times_us", of_given)
    kernels = importlib.import_module("gemmill.compat.vllm.kernels")
    monkeypatch.setattr(kernels, "refusal", lambda layer: None)
    vllm = modules["vllm.model_executor.kernels.linear"]

    def theirs(self: object, **given: Any) -> Tensor:
        return torch.full(given["output_shape"], THEIRS, dtype=torch.bfloat16)

    vllm.CutlassFP8ScaledMMLinearKernel.apply_scaled_mm = theirs
    for name in ("CutlassFp8BlockScaledMMKernel", "TritonFp8BlockScaledMMKernel"):
        getattr(vllm, name).apply_block_scaled_mm = lambda self, A, B, As, Bs: torch.full(
            (A.shape[0], B.shape[0]), THEIRS, dtype=torch.bfloat16
        )
    monkeypatch.setattr(kernels, "_triton_of_vllm", result(THEIRS))
    given.kernels = kernels
    yield given
    sys.modules.pop("gemmill.compat.vllm.kernels", None)
    contest.forget()


def fp8(timed: SimpleNamespace) -> Any:
    kernel = timed.kernels.GemmillFP8Linear(fp8_config(), PARAMETERS)
    layer = SimpleNamespace(weight=torch.ones(64, 128).to(E4M3).t(), weight_scale=torch.ones(64, 1), bias=None)
    kernel.process_weights_after_loading(layer)

    def call(x: Tensor) -> Tensor:
        given = {"A": x.to(E4M3), "B": layer.weight, "As": x.new_ones(x.shape[0], 1), "Bs": layer.weight_scale}
        return kernel.apply_scaled_mm(
            **given, out_dtype=torch.bfloat16, bias=None, output_shape=[x.shape[0], layer.weight.shape[1]]
        )

    return call


def blocks(timed: SimpleNamespace, size: int = 128) -> Any:
    own = {128: timed.kernels.GemmillBlockFP8Linear, 32: timed.kernels.GemmillFineBlockFP8Linear}[size]
    kernel, count = own(fp8_config(weight=(size, size), activation=(1, size), shape=(128, 128))), 128 // size
    layer = SimpleNamespace(weight=torch.ones(128, 128).to(E4M3), weight_scale_inv=torch.ones(count, count))
    kernel.process_weights_after_loading(layer)
    return lambda x: kernel.apply_block_scaled_mm(
        x.to(E4M3), layer.weight, x.new_ones(x.shape[0], count), layer.weight_scale_inv
    )


def int8(timed: SimpleNamespace, symmetric: bool = True) -> Any:
    kernel = timed.kernels.GemmillInt8Linear(int8_config(input_symmetric=symmetric), [*PARAMETERS, "azp_adj"])
    layer = SimpleNamespace(weight=torch.ones(48, 128, dtype=torch.int8).t(), weight_scale=torch.ones(48, 1))
    if not symmetric:
        layer.azp_adj = layer.weight.sum(dim=0, keepdim=True, dtype=torch.int32)
    kernel.process_weights_after_loading(layer)
    return lambda x: kernel.apply_weights(layer, x.bfloat16())


KINDS = {
    "fp8": fp8,
    "blocks": blocks,
    "blocks of 32": lambda timed: blocks(timed, 32),
    "int8": int8,
    "int8 with zero points": lambda timed: int8(timed, False),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kernel_serves_the_rows_for_which_it_is_faster(timed, kind: str) -> None:
    call = KINDS[kind](timed)
    for rows in (1, 1024, 1025):
        assert (call(torch.ones(rows, 128)) == (OURS if rows <= 1024 else THEIRS)).all()
    (found,) = gemmill.serving_report()["served"]
    assert found["rows"].startswith("1 to 1024 rows (us of gemmill's kernel and the engine's at 1: 5.0 and 9.0, ")


@pytest.mark.parametrize("kind", ["fp8", "blocks"])
def test_one_graph_serves_any_number_of_rows(timed, kind: str) -> None:
    """Compiled once, with the number of rows unknown: an op in it asks at each call, of the process that runs the graph."""
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: object) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    compiled = torch.compile(KINDS[kind](timed), backend=backend, dynamic=True, fullgraph=True)
    for rows in (16, 1024, 1025, 4096):
        x = torch.ones(rows, 128)
        torch._dynamo.mark_dynamic(x, 0)
        assert (compiled(x) == (OURS if rows <= 1024 else THEIRS)).all()
    assert len(graphs) == 1
    contest.forget()
    assert (compiled(torch.ones(1025, 128)) == OURS).all(), "a process that has timed nothing"


def test_a_layer_that_is_never_faster_stays_with_vllm(timed, caplog) -> None:
    timed.times = dict.fromkeys(TIMED_ROWS, (2.0, 1.0))
    for _ in range(2):
        assert (fp8(timed)(torch.ones(1, 128)) == THEIRS).all()
    assert timed.asked == len(TIMED_ROWS), "once for a shape"
    (found,) = gemmill.serving_report()["left"]
    assert found["why"].startswith("its kernel takes less time (us of gemmill's kernel and the engine's at 1: 2.0 and ")


def test_what_is_not_timed_is_gemmills(timed, monkeypatch, caplog) -> None:
    """On a CPU, where it is switched off, and where a time fails, with a message."""

    def failing(*given: object) -> None:
        raise RuntimeError("no events\nhere")

    monkeypatch.setattr(contest, "times_us", failing)
    assert (fp8(timed)(torch.ones(4096, 128)) == OURS).all()
    (message,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert message.endswith(
        "scales per token and channel untimed: gemmill cannot serve here (no events here)"
    ) and message.startswith("gemmill serves a linear layer of N x K = 64 x 128, ")
    monkeypatch.undo()
    on_gpu = SimpleNamespace(is_cuda=True)
    assert contest.can_time(on_gpu) and not contest.can_time(torch.ones(1))
    monkeypatch.setenv("GEMMILL_TIME_LAYERS", "0")
    assert not contest.can_time(on_gpu)


def test_operands_of_more_rows_are_laid_as_an_engine_has_them() -> None:
    """Scales of tokens are contiguous, those in groups along K M-major, and one for all stays one."""
    assert contest._of_rows(torch.full((1, 1), 3.0), 5).is_contiguous()
    groups = contest._of_rows(torch.tensor([[1.0, 2.0]]), 5)
    assert groups.shape == (5, 2) and groups.stride() == (1, 5) and groups[4].tolist() == [1.0, 2.0]
    assert contest._of_rows(torch.ones(1), 5).shape == (1,)


def test_both_are_timed_in_turns(monkeypatch) -> None:
    """Each with the same operands, as many times, and not always in the same order."""
    calls: list[tuple[str, int]] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.at = 0

        def record(self) -> None:
            self.at = len(calls)

        def elapsed_time(self, end: "Event") -> float:
            return {"ours": 0.002, "theirs": 0.003}[calls[self.at][0]]

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    leads: list[int] = []
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: leads.append(len(calls)))
    monkeypatch.setattr(contest, "_COLD_BYTES", 16)
    monkeypatch.setattr(contest, "own_mm", lambda a, *more: calls.append(("ours", a.shape[0])))
    layer = linear.Linear(n=16, k=32, codes=E4M3, out_dtype=torch.bfloat16)
    operands = torch.ones(32, 16).to(E4M3), torch.ones(1, 1), torch.ones(16, 1), None, None, None
    found = contest.times_us(layer, 7, lambda a, *more: calls.append(("theirs", a.shape[0])), *operands)
    assert found == (2.0, 3.0)
    assert leads == list(range(20)), "the GPU waits for the host before each call"
    assert {rows for _, rows in calls} == {7} and calls.count(("ours", 7)) == calls.count(("theirs", 7)) == 10
    assert {calls[i][0] for i in range(0, 20, 2)} == {"ours", "theirs"}
