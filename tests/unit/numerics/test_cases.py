"""Cases of all families: one maker for each op, and what comes of cases."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from gemmill.family import Registry
from gemmill.numerics import verify as layer
from gemmill.numerics.cases import Outcome, all_cases, by_op, cases_of
from gemmill.registry import REGISTRY
from gemmill.runtime.schemas import OPS
from gemmill.space.selections import select


def test_every_op_has_a_maker_of_cases() -> None:
    assert set(by_op(REGISTRY)) == {op.name for op in OPS}
    assert len(all_cases()) == len(REGISTRY.families)
    for config in select("smoke").configs:
        assert cases_of(config) in all_cases()


def test_two_families_with_one_op_are_refused(monkeypatch) -> None:
    first = REGISTRY.families[0]
    second = replace(first, name="second", kernels=(), cases="a_module_of_cases")
    monkeypatch.setitem(__import__("sys").modules, "a_module_of_cases", SimpleNamespace(CASES=all_cases()[0]))
    op = all_cases()[0].ops[0]
    with pytest.raises(ValueError, match=f"^families '{first.name}' and 'second' both have cases of op '{op}'$"):
        by_op(Registry((first, second)))


class Scripted:
    """A case with a given end."""

    def __init__(self, end: Outcome | Exception) -> None:
        self.end = end

    def __str__(self) -> str:
        return "a case"

    def run(self, device: str) -> Outcome:
        if isinstance(self.end, Exception):
            raise self.end
        return self.end


def test_a_verdict_has_a_sentence_for_each_failure() -> None:
    ends = (Outcome(report="", worst_fraction=0.5), Outcome(report="off", worst_fraction=3.0), RuntimeError("no\nmore"))
    found = layer.verdict("x", [Scripted(end) for end in ends], "cpu")
    assert (found.cases, found.failures, found.worst_fraction) == (3, ("a case: off", "a case: no"), 3.0)


def test_variants_of_this_gpu_are_verified_pinned(monkeypatch, make_manifest) -> None:
    pinned = []
    cases = SimpleNamespace(of_config=lambda config: [Scripted(RuntimeError("CUDA error: an illegal access"))])
    monkeypatch.setattr(layer, "cases_of", lambda config: cases)
    monkeypatch.setattr(layer, "use_variant", lambda name: pinned.append(name) or nullcontext())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))

    class Build:
        manifest = make_manifest()

    (found,) = layer.verify_variants(Build())
    assert found.failures == ("a case: CUDA error: an illegal access",) and pinned == [found.name]
    assert list(layer.verify_variants(Build(), frozenset({"another"}))) == []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (12, 0))
    assert list(layer.verify_variants(Build())) == []
