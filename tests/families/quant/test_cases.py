"""Cases of the quantisation ops, tried with the reference in the kernels' place."""

from dataclasses import replace

import pytest
import torch

from gemmill.families.quant.cases import calls
from gemmill.families.quant.cases.calls import QuantCase, of_config
from gemmill.families.quant.config import QuantConfig, ScaleFormat
from gemmill.families.quant.ops import QUANT_OPS
from gemmill.families.quant.selections import default as quant_configs
from gemmill.runtime import on_cpu
from gemmill.runtime.schemas import BY_NAME
from gemmill.space.names import to_name
from gemmill.vocab import Arch

CONFIGS = list(quant_configs(Arch.SM90A))


def small(config: QuantConfig) -> QuantCase:
    return replace(next(of_config(config)), rows=4, hidden=128, residual=False)


@pytest.mark.parametrize("config", CONFIGS[::5], ids=to_name)
def test_every_case_is_a_right_call(config: QuantConfig) -> None:
    cases = list(of_config(config))
    assert {case.op for case in cases} == {op.name for op in QUANT_OPS if op.serves(config)}
    for case in cases:
        if case.rows * case.hidden < 100_000:
            assert case.run("cpu").report == ""


def test_bytes_of_a_case_are_those_of_its_tensors() -> None:
    for config in CONFIGS:
        for case in (small(config), replace(small(config), rows=17, hidden=256, residual="rms" in config.scaling)):
            moved = 0
            for parameter, value in zip(BY_NAME[case.op].parameters, case.arguments("cpu"), strict=True):
                if isinstance(value, torch.Tensor):
                    moved += value.numel() * value.element_size() * (2 if parameter.name == "residual" else 1)
            assert case.bytes == moved, case


def test_a_wrong_code_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(op: object, arguments: list) -> None:
        on_cpu.by_reference(op, arguments)
        codes = next(a for a in arguments if isinstance(a, torch.Tensor) and a.dtype.itemsize == 1).view(torch.uint8)
        codes[(0,) * (codes.dim() - 1)][5] ^= 1

    monkeypatch.setattr(calls, "by_reference", wrong)
    for config in CONFIGS:
        by_bounds = config.activation != "none" or (config.vllm and config.scale_format is ScaleFormat.UE4M3)
        assert "1 elements of " in small(config).run("cpu").report or by_bounds


def test_cases_have_names() -> None:
    assert str(QuantCase(op="x", rows=3, hidden=64, m_major=True)) == "x 3 x 64, padding 0, m_major"
