"""The field's words: each has the values that the layers below read from it."""

from enum import EnumType

import pytest

from gemmill import vocab
from gemmill.vocab import OK, Arch, DType, EpilogueKind, KernelSchedule, Status, arch_of


@pytest.mark.parametrize("dtype", DType)
def test_every_dtype_has_size_torch_name_and_cutlass_type(dtype: DType) -> None:
    assert dtype.bits in (4, 6, 8, 16, 32, 64)
    assert dtype.torch_name.isidentifier()
    assert dtype.cutlass_type


def test_dtype_sizes_are_those_of_their_names() -> None:
    floats = {"e4m3": 8, "e5m2": 8, "e3m2": 6, "e2m1": 4, "bf16": 16, "f16": 16, "f32": 32}
    assert {d: d.bits for d in DType} == floats | {"s8": 8, "u8": 8, "s32": 32, "s64": 64}
    assert len({d.cutlass_type for d in DType}) == len(DType)
    of_torch = [d.torch_name for d in DType if d.bits >= 8]
    assert len(set(of_torch)) == len(of_torch)
    assert {d.torch_name for d in DType if d.bits < 8} == {"uint8"}
    assert [d for d in DType if not d.is_float] == [DType.S8, DType.U8, DType.S32, DType.S64]


@pytest.mark.parametrize(
    ("arch", "capabilities", "gencode", "tag"),
    [
        (Arch.SM90A, ((9, 0),), "arch=compute_90a,code=sm_90a", "cutlass::arch::Sm90"),
        (Arch.SM100A, ((10, 0),), "arch=compute_100a,code=sm_100a", "cutlass::arch::Sm100"),
        (Arch.SM120F, ((12, 0), (12, 1)), "arch=compute_120f,code=sm_120f", "cutlass::arch::Sm120"),
    ],
)
def test_arch_spellings(arch: Arch, capabilities: tuple[tuple[int, int], ...], gencode: str, tag: str) -> None:
    assert (arch.capabilities, arch.gencode, arch.cutlass_tag) == (capabilities, gencode, tag)


def test_a_family_target_serves_its_family_and_others_one_capability() -> None:
    served = {
        arch: [(major, minor) for major in range(7, 14) for minor in range(10) if arch_of((major, minor)) is arch]
        for arch in Arch
    }
    assert served == {Arch.SM90A: [(9, 0)], Arch.SM100A: [(10, 0)], Arch.SM120F: [(12, 0), (12, 1)]}
    assert [arch_of(capability) for capability in ((8, 9), (10, 3), (12, 2))] == ["sm89a", "sm103a", "sm122a"]


def test_shared_memory_is_the_guides_table_in_kib() -> None:
    assert {a: a.shared_memory_bytes // 1024 for a in Arch} == {"sm90a": 227, "sm100a": 227, "sm120f": 99}


def test_epilogues_tell_what_they_read() -> None:
    assert [e for e in EpilogueKind if not e.takes_bias] == [EpilogueKind.SCALED]
    assert [e for e in EpilogueKind if e.takes_azp] == [EpilogueKind.SCALED_AZP, EpilogueKind.SCALED_AZP_PER_TOKEN]


def test_only_the_fallback_does_without_tma() -> None:
    assert [s for s in KernelSchedule if not s.uses_tma] == [KernelSchedule.MMA_SYNC]


@pytest.mark.parametrize("name", [n for n, word in vars(vocab).items() if isinstance(word, EnumType)])
def test_words_fit_into_names(name: str) -> None:
    """Names are joined by underscores and must be C identifiers."""
    for word in getattr(vocab, name):
        assert word.value.isalnum() and word.value.islower(), word


def test_status_is_its_truth() -> None:
    assert OK
    status = Status(ok=False, rule="tile", reason="too wide")
    assert not status
    assert (status.rule, status.reason) == ("tile", "too wide")


def test_status_refuses_contradictions() -> None:
    with pytest.raises(ValueError, match="an accepted Status has no reason, got rule='r' reason='why'"):
        Status(ok=True, rule="r", reason="why")
    with pytest.raises(ValueError, match="a rejected Status needs a reason"):
        Status(ok=False)


def test_builds_have_run_on_hopper_alone() -> None:
    assert [arch for arch in Arch if arch.has_run] == [Arch.SM90A]
