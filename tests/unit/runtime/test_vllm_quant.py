"""vLLM's quantisation ops by gemmill's kernels: of a library of vLLM's names on the CPU, whose kernels mark their outputs."""

import pytest
import torch

import gemmill
from gemmill.compat import linear
from gemmill.compat.vllm import quant as vllm_quant
from gemmill.family import VLLM_PREFIX
from gemmill.runtime import ops
from gemmill.runtime.schemas import BY_NAME
from gemmill.runtime.served import serving_report

VLLM = "stand_in_for_vllm"
MARK = 7.0


@pytest.fixture
def of_vllm(monkeypatch, smoke_build):
    """vLLM's library, which writes MARK as each scale, without one of the ops."""
    monkeypatch.setattr(ops, "_active", smoke_build)
    monkeypatch.setattr(vllm_quant, "VLLM", VLLM)
    monkeypatch.setattr(vllm_quant, "KEY", "CPU")
    monkeypatch.setattr(vllm_quant, "_libraries", {})
    monkeypatch.setenv("GEMMILL_VLLM_OPS", "1")
    linear.forget()
    library = torch.library.Library(VLLM, "FRAGMENT")
    for name in vllm_quant.NAMES[:-1]:
        schema = BY_NAME[VLLM_PREFIX + name]
        library.define(schema.schema.removeprefix(VLLM_PREFIX))
        library.impl(name, marks(name), "CPU")
    yield getattr(torch.ops, VLLM)
    for replaced in vllm_quant._libraries.values():
        replaced._destroy()
    library._destroy()


def marks(name: str):
    def marked(*given: object) -> None:
        next(x for x in given if isinstance(x, torch.Tensor) and x.dtype == torch.float32).fill_(MARK)

    return marked


def called(op, dtype: torch.dtype = torch.bfloat16) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.linspace(-3, 3, 4 * 128).view(4, 128).to(dtype)
    codes, scales = torch.zeros(4, 128, dtype=torch.float8_e4m3fn), torch.full((4, 1), torch.nan)
    op(codes, x, scales, None)
    return codes, scales


def test_ops_that_vllm_has_are_gemmills_where_that_is_asked_for(of_vllm, monkeypatch, capsys) -> None:
    op = of_vllm.dynamic_per_token_scaled_fp8_quant
    monkeypatch.setenv("GEMMILL_VLLM_OPS", "0")
    vllm_quant.put_before()
    assert (called(op)[1] == MARK).all()
    monkeypatch.setenv("GEMMILL_VLLM_OPS", "1")
    for _ in range(2):
        vllm_quant.put_before()
    found, wanted = called(op), called(torch.ops.gemmill.vllm_dynamic_per_token_scaled_fp8_quant)
    assert all(torch.equal(x.float(), y.float()) for x, y in zip(found, wanted, strict=True))
    assert [kind["layer"] for kind in serving_report()["served"]] == [
        f"call of vLLM's {name}" for name in vllm_quant.NAMES[:-1]
    ]


def test_calls_that_gemmill_refuses_stay_with_vllm(of_vllm, caplog) -> None:
    """Told once; others of the op are gemmill's."""
    vllm_quant.put_before()
    op = of_vllm.dynamic_per_token_scaled_fp8_quant
    for _ in range(2):
        assert (called(op, torch.float64)[1] == MARK).all()
    assert (called(op)[1] != MARK).all()
    (message,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert message.startswith("a call of vLLM's dynamic_per_token_scaled_fp8_quant stays with the engine: ")


def test_the_names_are_ops_under_vllms_names() -> None:
    assert all(hasattr(torch.ops.gemmill, VLLM_PREFIX + name) for name in vllm_quant.NAMES), gemmill.__version__
