"""Cases of all families: one maker for each op, and the outcomes of cases."""

from contextlib import nullcontext
from types import SimpleNamespace

import torch

from gemmill.numerics import verify as layer
from gemmill.numerics.cases import CaseOutcome, cases_of, cases_of_family, cases_of_op
from gemmill.registry import REGISTRY
from gemmill.space.selections import select


def test_every_family_has_a_maker_of_cases_of_all_its_ops() -> None:
    for family in REGISTRY.families:
        cases = cases_of_family(family)
        assert {cases_of_op(op.schema.name) for op in family.asks.ops} == {cases}
        for config in REGISTRY.configs_of(family.name, select("smoke").configs):
            assert cases_of(config) is cases and next(iter(cases.of_config(config)), None) is not None


class Scripted:
    """A case with a given end."""

    def __init__(self, end: CaseOutcome | Exception) -> None:
        self.end = end

    def __str__(self) -> str:
        return "a case"

    def run(self, device: str) -> CaseOutcome:
        if isinstance(self.end, Exception):
            raise self.end
        return self.end


def test_a_verdict_has_a_sentence_for_each_failure() -> None:
    ends = (
        CaseOutcome(report="", worst_fraction=0.5),
        CaseOutcome(report="off", worst_fraction=3.0),
        RuntimeError("no\nmore"),
    )
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
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (12, 1))
    assert list(layer.verify_variants(Build())) == []

    class Family:
        manifest = make_manifest(arch="sm120f")

    assert [verdict.name for verdict in layer.verify_variants(Family())] == [found.name]
