"""The sets of workloads."""

from argparse import Namespace

import pytest

from gemmill.tuner.workloads import tiny, workload_of
from gemms import MeasuredOp, gemm
from timed.kv_cache import calls as kv_cache
from timed.scaled_mm import (
    BF16_TABLE,
    FP8_TABLE,
    GROUPS_32_TABLE,
    GROUPS_TABLE,
    INT8_TABLE,
    MODELS,
    OPS_OF,
    model_workloads,
    next_whole,
    ops_named,
    parse_shapes,
    ragged_workloads,
    table_grid_workloads,
    table_workloads,
)
from timed.sparse_mm.calls import workloads_of as sparse_workloads
from timed.workload import Workload


def test_tables():
    workloads = table_workloads(OPS_OF["all"])
    assert len(workloads) == len(FP8_TABLE) + 2 * len(INT8_TABLE) + len(GROUPS_TABLE) + len(GROUPS_32_TABLE) + len(
        BF16_TABLE
    )
    assert gemm(op=MeasuredOp.FP8_GROUPS, m=16, n=8192, k=8192) in workloads
    assert gemm(op=MeasuredOp.FP8_GROUPS_32, m=4096, n=25600, k=6144) in workloads
    assert gemm(op=MeasuredOp.FP8, m=16, n=1280, k=8192) in workloads
    assert gemm(op=MeasuredOp.INT8_AZP, m=2048, n=4096, k=14336) in workloads


def test_grid_has_every_weight_at_every_m():
    workloads = table_grid_workloads([MeasuredOp.FP8], (1, 64))
    assert len(workloads) == len({(n, k) for _, n, k in FP8_TABLE + INT8_TABLE}) * 2


def test_tensor_parallelism_divides_n_or_k():
    weights = {p.at[:-1] for p in model_workloads(["llama-3-70b"], [MeasuredOp.FP8], (1,))}
    assert {(10240, 8192), (5120, 8192), (2560, 8192)} <= weights, "QKV: N is divided"
    assert {(8192, 28672), (8192, 14336), (8192, 7168)} <= weights, "down: K is divided"
    assert len(weights) == 12


def test_models_by_the_beginning_of_their_names():
    both = {p.at[:-1] for p in model_workloads(["qwen"], [MeasuredOp.INT8], (1,))}
    each = {
        p.at[:-1]
        for name in MODELS
        if name.startswith("qwen")
        for p in model_workloads([name], [MeasuredOp.INT8], (1,))
    }
    assert both == each
    with pytest.raises(ValueError, match="no model begins with 'gpt': there are llama-3-8b, "):
        model_workloads(["gpt"], [MeasuredOp.FP8], (1,))


def test_every_model_dimension_suits_tma():
    for workload in model_workloads(["llama", "qwen", "mistral"], [MeasuredOp.FP8], (1,)):
        assert all(size % 16 == 0 for size in workload.weights.values()), str(workload)


def test_shapes_from_text():
    assert parse_shapes("1x2x3, 4x5x6", [MeasuredOp.FP8]) == [
        gemm(op=MeasuredOp.FP8, m=1, n=2, k=3),
        gemm(op=MeasuredOp.FP8, m=4, n=5, k=6),
    ]
    for text in ("1x2", "1x2x0", "axbxc", "", "1x2x3,"):
        with pytest.raises(ValueError, match="is not MxNxK, three positive numbers"):
            parse_shapes(text, [MeasuredOp.FP8])


def test_work_of_a_workload():
    workload = gemm(op=MeasuredOp.FP8, m=2, n=3, k=5)
    assert workload.flops == 60
    assert workload.bytes == 2 * 5 + 3 * 5 + 2 * 2 * 3


def test_every_ragged_workload_has_a_whole_one_beside_it():
    workloads = ragged_workloads()
    ragged = [p for p in workloads if p.step % 64]
    assert len(ragged) == len(set(ragged)) > 10
    for p in ragged:
        assert workload_of(p.op, p.sizes | {"m": next_whole(p.step)}) in workloads
    assert any(p.step % 4 for p in ragged)


def test_tiny_workloads_in_groups_have_two_groups():
    workload = tiny(gemm(op=MeasuredOp.FP8_GROUPS, m=8192, n=8192, k=8192))
    assert workload.sizes["k"] == 2 * MeasuredOp.FP8_GROUPS.groups.size and workload.flops < 1e6


def test_tiny_workloads_are_small():
    assert tiny(gemm(op=MeasuredOp.FP8, m=8192, n=8192, k=8192)).flops < 1e6
    assert tiny(gemm(op=MeasuredOp.FP8, m=1, n=2, k=3)) == gemm(op=MeasuredOp.FP8, m=1, n=2, k=3)


def test_ops_by_name_with_commas():
    assert ops_named("int8,fp8,int8") == (MeasuredOp.INT8, MeasuredOp.INT8_AZP, MeasuredOp.FP8)
    with pytest.raises(ValueError, match="--op 'fp4' is none of fp8, int8, fp8_groups, fp8_groups_32, bf16, all"):
        ops_named("fp8,fp4")


def test_random_sizes_of_sparse_gemms_are_those_of_their_seed():
    def drawn(seed: int) -> list[Workload]:
        return sparse_workloads(Namespace(op="fp8,bf16", rows="", draw=seed, draws=40))

    found = drawn(7)
    assert found == drawn(7) != drawn(8)
    sizes = [(p.kind, p.m, p.n, p.k) for p in found]
    assert [("bf16", *size) for _, *size in sizes[::2]] == sizes[1::2] and len(set(sizes)) == 80
    assert all(p.m % 16 == p.n % 128 == p.k % 128 == 0 and 16 <= p.m <= 8192 for p in found)
    assert all(1 << 22 <= p.n * p.k <= 1 << 28 and min(p.n, p.k) >= 512 for p in found)
    assert min(p.m for p in found) < 64 and max(p.m for p in found) > 2048 and max(p.k for p in found) > 16384


def test_random_batches_of_attention_have_lengths_of_their_seed() -> None:
    """All lengths are within bounds, and the longest is the workload's; a uniform batch has no lengths of its own."""

    def drawn(seed: int, op: str = "decode") -> list[Workload]:
        return kv_cache.workloads_of(Namespace(op=op, page=64, ragged=False, draw=seed, draws=20))

    first = drawn(1)
    assert first == drawn(1) != drawn(2) and {p.kind for p in first} == {"decode 4 bits", "decode 3 bits"}
    for p in first:
        lengths = kv_cache.lengths_of(p)
        assert len(lengths) == p.batch <= 64 and min(lengths) >= 16 and max(lengths) == p.length <= 32768
        assert p.sizes["tokens"] == sum(lengths)
    assert any(len(set(p.lengths)) > 1 for p in first)
    plain = kv_cache.workload_of("decode 4 bits", (3, 100))
    assert kv_cache.lengths_of(plain) == (100, 100, 100) and "tokens" not in plain.sizes
    assert kv_cache.lengths_of(kv_cache.resized(first[0], (4, 10))) == (3, 5, 8, 10)
    with pytest.raises(ValueError, match="--draw makes batches of decode and attend, not of pack eden4"):
        drawn(1, "pack eden4")
