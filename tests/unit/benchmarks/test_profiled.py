"""benchmarks/profiled.py reads ncu's table; ncu itself runs on a GPU alone."""

import argparse

import pytest

import profiled

_HEAD = ("ID", "Process ID", "Kernel Name", "gpu__time_duration.sum", "lts__t_bytes.sum", "launch__grid_size")


def _csv(*rows: tuple[str, ...]) -> str:
    lines = [",".join(f'"{cell}"' for cell in row) for row in (_HEAD, ("", "", "", "us", "Mbyte", ""), *rows)]
    return "\n".join(["==PROF== Connected", *lines, "==WARNING== counters, some"])


def test_kernels_are_told_apart_by_the_marks_between_calls() -> None:
    mark = ("0", "7", "vectorized_elementwise_kernel<4, FillFunctor<float>>", "1.0", "0", "1")
    text = _csv(
        mark,
        ("1", "7", "nvjet_qqtst", "10.5", "2.5", "1,056"),
        mark,
        ("3", "7", "a", "1", "1", "2"),
        ("4", "7", "b", "2", "1", "3"),
    )
    found = list(profiled.kernels_of(text))
    assert [[kernel["kernel"] for kernel in call] for call in found] == [["nvjet_qqtst"], ["a", "b"]]
    assert found[0][0] == {"kernel": "nvjet_qqtst", "us": 10.5, "l2_bytes": 2.5e6, "ctas": 1056.0}


def test_a_program_that_prints_no_table_is_told_with_its_words() -> None:
    with pytest.raises(ValueError, match="it printed no table, but: ==ERROR== ERR_NVGPUCTRPERM"):
        list(profiled.kernels_of("==ERROR== ERR_NVGPUCTRPERM"))


def test_shapes_are_drawn_by_their_seed_within_what_is_promised() -> None:
    shapes = profiled.drawn(3, 40)
    assert shapes == profiled.drawn(3, 40) != profiled.drawn(4, 40)
    assert {shape.dtype for shape in shapes} == {"e4m3", "bf16"}
    for shape in shapes:
        assert 100 <= shape.m <= 1500 and 696 <= shape.n <= 4000 and 9_992 <= shape.k <= 40_000
        assert shape.n % 16 == 0 == shape.k % 16
        assert profiled.shape_of(str(shape)) == shape


def test_a_shape_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(
        argparse.ArgumentTypeError, match="'fp8:1x2x3' is no shape: expected e4m3:MxNxK, bf16:MxNxK, e4m3_2to4:"
    ):
        profiled.shape_of("fp8:1x2x3")


def test_sparse_shapes_are_beside_cusparselt(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = profiled.shape_of("e4m3_2to4:16x64x128")
    monkeypatch.setattr(profiled, "cusparselt", lambda operands, i: lambda: operands.dense[i])
    calls = profiled.sparse_calls_of(shape, "cpu")
    assert list(calls) == [profiled.PEERS[shape.dtype], "gemmill"]
    dense = calls["cusparselt"]().float()
    assert dense.shape == (64, 128) and int((dense.unflatten(1, (-1, 4)) != 0).sum(-1).max()) == 2
