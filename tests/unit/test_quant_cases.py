"""The program that holds quantisation kernels against the reference, tried with the reference in the kernels' place."""

import pytest
import torch

from gemmill.families.quant.config import QuantConfig
from gemmill.families.quant.selections import default as quant_configs
from gemmill.runtime import quant_cpu
from gemmill.space.names import to_name
from gemmill.tune import quant_cases
from gemmill.tune.quant_cases import QuantCase, cases_of, check_case, ops_served
from gemmill.vocab import Arch

CONFIGS = list(quant_configs(Arch.SM90A))


@pytest.mark.parametrize("config", CONFIGS[::5], ids=to_name)
def test_every_case_is_a_right_call(config: QuantConfig) -> None:
    for op in ops_served(config):
        for case in cases_of(config):
            if case.rows * case.hidden < 100_000:
                assert check_case(config, op, case, "cpu") == ""


def test_a_wrong_code_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(op: object, arguments: list) -> None:
        quant_cpu.by_reference(op, arguments)
        next(a for a in arguments if isinstance(a, torch.Tensor) and a.dtype.itemsize == 1).view(torch.uint8)[0, 5] ^= 1

    monkeypatch.setattr(quant_cases, "by_reference", wrong)
    for config in CONFIGS:
        if "rms" not in config.family:  # its bounds allow one row to be a step off
            text = check_case(config, ops_served(config)[0], QuantCase(rows=4, hidden=128), "cpu")
            assert "1 elements of " in text or config.activation != "none"


@pytest.mark.parametrize("spoiled", ["one row", "all rows"])
def test_scales_of_rms_norm_may_differ_in_one_row_by_rounding(spoiled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def off(op: object, arguments: list) -> None:
        quant_cpu.by_reference(op, arguments)
        scales = next(a for a in arguments if isinstance(a, torch.Tensor) and a.dtype is torch.float32)
        rows = scales[:1] if spoiled == "one row" else scales
        rows.copy_(torch.nextafter(rows, torch.full_like(rows, torch.inf)))

    monkeypatch.setattr(quant_cases, "by_reference", off)
    for config in CONFIGS:
        if "rms" in config.family and config.in_dtype == "bf16":
            text = check_case(config, ops_served(config)[0], QuantCase(rows=4, hidden=128), "cpu")
            assert bool(text) == (spoiled == "all rows"), (to_name(config), text)
