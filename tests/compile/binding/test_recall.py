"""Verdicts that the extension remembers: the facts that it may take from the last equal call, and those that it must ask again."""

from contextlib import nullcontext

import pytest
import torch

from gemmill.families import scaled_mm
from gemmill.families.scaled_mm.accepts import accepted
from gemmill.runtime.schemas import BY_NAME
from gemmill.vocab import ScaleLayout
from whole_calls import whole_call

M, N, K = 16, 32, 256


def gemm() -> dict[str, torch.Tensor | None]:
    """A call whose memory is new."""
    return {
        "out": torch.zeros(M, N, dtype=torch.bfloat16),
        "a": torch.zeros(M, K, dtype=torch.float8_e4m3fn),
        "b": torch.zeros(N, K, dtype=torch.float8_e4m3fn).t(),
        "a_scales": torch.ones(M, 1),
        "b_scales": torch.ones(1, N),
        "bias": None,
    }


def addresses(probe, call: dict[str, torch.Tensor | None]) -> list[int]:
    _, args = probe.run("cutlass_scaled_mm", *call.values())
    return [args.d, args.a, args.b, args.a_scales, args.b_scales]


def test_a_kernel_is_given_the_addresses_of_its_own_call(probe) -> None:
    for call in (gemm(), gemm(), gemm()):
        expected = [tensor.data_ptr() for tensor in call.values() if tensor is not None]
        assert addresses(probe, call) == expected


def test_results_over_an_operand_are_refused_after_a_call_of_the_same_facts(probe) -> None:
    addresses(probe, gemm())
    memory = torch.zeros(M * K, dtype=torch.uint8)
    for start in (0, M * K - M * N * 2):
        call = gemm()
        call["a"] = memory.view(torch.float8_e4m3fn).view(M, K)
        call["out"] = memory[start : start + M * N * 2].view(torch.bfloat16).view(M, N)
        with pytest.raises(RuntimeError, match="out overlaps a in memory"):
            probe.run("cutlass_scaled_mm", *call.values())
        assert probe.number("probe_launches").value == 0
    addresses(probe, gemm())


def test_gradients_are_refused_after_a_call_of_the_same_facts(probe) -> None:
    addresses(probe, gemm())
    call = gemm()
    call["a_scales"].requires_grad_()
    with pytest.raises(RuntimeError, match="a_scales requires grad"):
        probe.run("cutlass_scaled_mm", *call.values())
    with torch.no_grad():
        addresses(probe, call)


def test_calls_that_take_turns_keep_their_sizes_and_numbers(probe) -> None:
    op = "rms_norm_dynamic_per_token_quant"
    for epsilon in (1e-5, 1e-6, 1e-5):
        call = whole_call(BY_NAME[op]) | {"epsilon": epsilon}
        assert probe.run(op, *call.values()) is not None
    with pytest.raises(RuntimeError, match=r"eps is -1\.0"):
        probe.run(op, *(whole_call(BY_NAME[op]) | {"epsilon": -1.0}).values())
    for activation, sentence in (("silu", ""), ("gelu", ""), ("gale", "activation is 'gale'"), ("silu", "")):
        call = whole_call(BY_NAME["act_and_mul_per_token_quant"]) | {"activation": activation}
        with pytest.raises(RuntimeError, match=sentence) if sentence else nullcontext():
            assert probe.run("act_and_mul_per_token_quant", *call.values()) is not None
    for rows in (4, 8, 4, 8):
        call = gemm() | {"out": torch.zeros(rows, N, dtype=torch.bfloat16), "a_scales": torch.ones(rows, 1)}
        call["a"] = torch.zeros(rows, K, dtype=torch.float8_e4m3fn)
        _, args = probe.run("cutlass_scaled_mm", *call.values())
        assert (args.m, args.n, args.k) == (rows, N, K)


def test_strides_are_facts(probe) -> None:
    addresses(probe, gemm())
    with pytest.raises(RuntimeError, match="column-major"):
        probe.run("cutlass_scaled_mm", *(gemm() | {"b": torch.zeros(K, N, dtype=torch.float8_e4m3fn)}).values())


def test_an_empty_list_is_another_fact_than_none(probe) -> None:
    call = whole_call(BY_NAME["static_scaled_fp8_quant"]) | {"group_shape": None, "scale": torch.ones(1)}
    for group_shape, sentence in ((None, ""), ([], "group_shape"), (None, "")):
        with pytest.raises(RuntimeError, match=sentence) if sentence else nullcontext():
            assert probe.run("static_scaled_fp8_quant", *(call | {"group_shape": group_shape}).values()) is not None


def test_scales_off_alignment_are_another_fact(probe, with_table) -> None:
    """Whether TMA takes scales in groups is asked of their address: here nothing else takes them."""
    table, values = probe.build.table, torch.ones(M * 2 + 1)
    gemms = table.families[scaled_mm.NAME]
    kept = [i for i in gemms if accepted(table.entries[i].config).scale_layout is ScaleLayout.MN_MAJOR]
    with_table(rows=tuple(table.rows[i] for i in kept), entries=tuple(table.entries[i] for i in kept), tuned=())
    for start in (0, 1, 0):
        call = gemm() | {"b_scales": torch.ones(1, 2).t()}
        call["a_scales"] = values[start : start + M * 2].view(2, M).t()
        if start:
            with pytest.raises(RuntimeError, match="no variant"):
                probe.run("cutlass_scaled_mm", *call.values())
        else:
            assert probe.run("cutlass_scaled_mm", *call.values()) is not None
