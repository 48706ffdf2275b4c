"""The second opinion: how the library is asked, the use of its answers, and the sentence without it."""

import sys
from types import SimpleNamespace

import pytest

from gemmill.runtime import tuned
from gemmill.runtime.tuned import Machine
from gemmill.space.selections import select
from gemmill.tuner import heuristics
from gemmill.tuner.candidates import build_facts, shortlist_of
from gemmill.tuner.program import stand_in_build
from gemmill.tuner.protocol import TuneError
from gemms import MeasuredOp, gemm

SHAPE = (4096, 4096, 4096)


def library(asked: list) -> SimpleNamespace:
    """As much of nvMatmulHeuristics as is used."""
    kernel = SimpleNamespace(cta_tile_m=128, cta_tile_n=256, cluster_m=2, cluster_n=1)

    class Interface:
        def __init__(self, target: str, precision: str) -> None:
            asked.append((target, precision))

        def createHardwareDescriptor(self) -> str:
            return "device"

        def setHardwarePredefinedGpu(self, device: str, gpu: str) -> None:
            asked.append((device, gpu))

        def get_with_mnk(self, *question: object) -> list[dict]:
            asked.append(question)
            return [{"kernel": kernel}]

    return SimpleNamespace(
        NvMatmulHeuristicsInterface=Interface,
        NvMatmulHeuristicsTarget=SimpleNamespace(CUTLASS3="cutlass3"),
        NvMatmulHeuristicsNvidiaGpu=SimpleNamespace(H200_SXM="h200"),
        NvMatmulHeuristicsMatmulLayout=SimpleNamespace(TN_ROW_MAJOR="tn"),
    )


def test_the_question_and_its_answer(monkeypatch) -> None:
    asked: list = []
    monkeypatch.setitem(sys.modules, heuristics.MODULE, library(asked))
    assert heuristics.answer([SHAPE]) == [[(128, 256, 2, 1)]]
    assert asked == [("cutlass3", "OOT"), ("device", "h200"), (*SHAPE, "tn", heuristics.ANSWERS, "device")]


def test_without_the_package(monkeypatch) -> None:
    monkeypatch.setattr(heuristics.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(TuneError, match="needs nvidia-matmul-heuristics, which is not installed: pip install nvidia-"):
        heuristics.advice([SHAPE])


def test_a_library_that_fails(monkeypatch) -> None:
    monkeypatch.setattr(heuristics.importlib.util, "find_spec", lambda _: object())
    monkeypatch.setattr(heuristics.sys, "executable", "false")
    with pytest.raises(TuneError, match=r"gave no answer \(CalledProcessError\): tune without --second-opinion"):
        heuristics.advice([SHAPE])


def test_advised_tiles_are_tried_where_the_model_would_not(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(tuned, "_SHIPPED", tmp_path / "none")
    folder, manifest = stand_in_build(select("default"))
    facts = [build_facts(folder, manifest, Machine(arch="sm90a", device=None, driver=None))]
    workload = gemm(op=MeasuredOp.FP8, m=4096, n=4096, k=4096)
    alone = [c.name for c in shortlist_of(workload, facts, 132, most=3, peers=False).candidates]
    advised = [c.name for c in shortlist_of(workload, facts, 132, 3, False, [(128, 80, 2, 1)]).candidates]
    assert not any("_t128x80x128_c2x1x1_" in name for name in alone)
    assert [c.name for c in shortlist_of(workload, facts, 132, most=0, vllm=True, peers=False).candidates] == ["vllm"]
    assert advised[0] == alone[0] and all("_t128x80x128_c2x1x1_" in name for name in advised[1:])
