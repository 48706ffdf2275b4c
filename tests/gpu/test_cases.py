"""Every variant of every family against the reference, by the cases that `gemmill verify` runs."""

import pytest
import torch

import gemmill
from gemmill.manifest import KernelEntry
from gemmill.numerics.cases import cases_of
from gemmill.numerics.verify import verdict
from gemmill.registry import REGISTRY
from gemmill.space.selections import select

DRY_ELEMENTS = 1 << 16
"""Of the matrices of a dry run's cases."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "variant" in metafunc.fixturenames:
        match, dry = metafunc.config.getoption("--match"), metafunc.config.getoption("--dry-run")
        entries = gemmill.variants() if torch.cuda.is_available() and not dry else []
        chosen = [entry for entry in entries if match in entry.name]
        metafunc.parametrize("variant", chosen, ids=lambda entry: entry.name)


def test_every_case_of_a_variant(variant: KernelEntry) -> None:
    with gemmill.use_variant(variant.name):
        found = verdict(variant.name, cases_of(variant.config).of_config(variant.config), "cuda")
    assert not found.failures and found.cases


@pytest.mark.parametrize("family", REGISTRY.families, ids=lambda family: family.name)
def test_one_case_of_each_smoke_config_by_the_ops_own_choice(family, device: torch.device) -> None:
    """Which no build need have been made for: on a CPU the ops run the reference."""
    if device.type == "cuda":
        pytest.skip("variants are pinned above")
    for config in REGISTRY.configs_of(family.name, select("smoke").configs):
        case = next(iter(cases_of(config).of_config(config)))
        assert not verdict("one", [case], "cpu").failures, case
