"""The memory of a call: every byte that is no output's is watched."""

import pytest
import torch

from gemmill.numerics.memory import Memory, Slot

CPU = torch.device("cpu")


def slot(rows: int = 3, columns: int = 4, stride: int = 6, dtype: torch.dtype = torch.bfloat16, **changes) -> Slot:
    return Slot(
        **{
            "dtype": dtype,
            "shape": (rows, columns),
            "strides": (stride, 1),
            "rows": rows,
            "columns": columns,
            "row_stride": stride,
            "column_stride": 1,
            "values": None,
        }
        | changes
    )


def memory_of(**slots: Slot) -> tuple[Memory, torch.Tensor]:
    memory = Memory(slots, CPU)
    return memory, memory.bytes.clone()


def changed(memory: Memory, before: torch.Tensor, *, written: bool = True) -> int:
    return int(memory.changed(before, written=written).sum())


def test_an_output_may_be_written_and_nothing_around_it() -> None:
    memory, before = memory_of(out=slot(written=True), a=slot())
    memory.tensor("out").fill_(2.0)
    assert changed(memory, before) == 0
    assert changed(memory, before, written=False) == 3 * 4 * 2
    memory.tensor("out").as_strided((1,), (1,), memory.tensor("out").storage_offset() + 4).fill_(2.0)
    assert changed(memory, before) == 2, "the gap between its rows"
    found = memory.places(memory.changed(before, written=True))
    assert (
        found
        == "2 bytes of or around the arguments changed that are no output's, the first 8 bytes after the first of out"
    )


@pytest.mark.parametrize("byte", [0, -1])
def test_the_ends_are_guarded(byte: int) -> None:
    memory, before = memory_of(out=slot(written=True))
    memory.bytes[byte] = 0
    assert changed(memory, before) == 1
    assert memory.places(memory.changed(before, written=True)).endswith("before them all" if byte == 0 else "of out")


def test_an_operand_may_not_be_written() -> None:
    memory, before = memory_of(out=slot(written=True), a=slot())
    memory.tensor("a")[1, 1] = 1.0
    assert changed(memory, before) == 2


@pytest.mark.parametrize(
    ("dtype", "written", "poison"),
    [
        (torch.bfloat16, False, torch.nan),
        (torch.float32, True, torch.nan),
        (torch.float8_e4m3fn, True, torch.nan),
        (torch.int8, False, 127),
        (torch.int8, True, 85),
    ],
)
def test_gaps_and_outputs_are_poisoned(dtype: torch.dtype, written: bool, poison: float) -> None:
    memory, _ = memory_of(x=slot(dtype=dtype, written=written))
    x = memory.tensor("x")
    whole = x.as_strided((3 * 6 - 2,), (1,), x.storage_offset()).float()
    assert torch.equal(whole, torch.full_like(whole, poison)) or (whole.isnan().all() and poison != poison)


def test_a_shift_is_counted_in_elements_from_an_aligned_address() -> None:
    memory, _ = memory_of(a=slot(shift=3, dtype=torch.float32), b=slot())
    base = memory.bytes.data_ptr()
    assert (memory.tensor("a").data_ptr() - base) % 256 == 12
    assert (memory.tensor("b").data_ptr() - base) % 256 == 0


def test_strides_of_one_element_reach_nowhere() -> None:
    odd = slot(rows=1, stride=1 << 33, strides=(1 << 33, 1), written=True)
    memory, before = memory_of(out=odd)
    memory.tensor("out").fill_(1.0)
    assert memory.bytes.numel() < 2048 and changed(memory, before) == 0
    assert torch.equal(memory.dense("out").float(), torch.ones(1, 4))


def test_dense_copies_have_the_values_and_none_of_the_layout() -> None:
    memory, _ = memory_of(
        b=slot(column_major=True), w=slot(rows=1, columns=4, shape=(4,), strides=(1,), reference_shape=(4,))
    )
    memory.tensor("b").copy_(torch.arange(12).view(3, 4))
    dense = memory.dense("b")
    assert torch.equal(dense, memory.tensor("b")) and dense.stride() == (1, 4)
    assert memory.dense("w").shape == (4,)


def test_rows_that_packed_scales_pad_may_be_written_in_all_columns_but_the_last() -> None:
    packed = slot(
        rows=3,
        columns=2,
        dtype=torch.int32,
        shape=(3, 2),
        strides=(1, 4),
        row_stride=1,
        column_stride=4,
        written=True,
        padding_rows=1,
    )
    memory, before = memory_of(s=packed)
    first = memory.tensor("s").storage_offset()
    memory.bytes.view(torch.int32)[first + 3] = 0
    assert changed(memory, before) == 0
    memory.bytes.view(torch.int32)[first + 7] = 0
    assert changed(memory, before) == 4


@pytest.mark.parametrize(("stride", "overlaps"), [(0, True), (3, True), (4, False), (9, False)])
def test_rows_over_one_another(stride: int, overlaps: bool) -> None:
    assert slot(stride=stride, strides=(stride, 1)).is_overlapping is overlaps


def test_an_argument_can_be_laid_over_another() -> None:
    memory, _ = memory_of(a=slot(), b=slot(rows=1000), c=slot())
    over = memory.over("c", "a")
    assert over is not None and over.data_ptr() == memory.tensor("a").data_ptr()
    assert memory.over("b", "c") is None, "it would end outside"
