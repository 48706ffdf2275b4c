"""The record of a call by `gemmill export`: the family's own struct as the binding fills it, and the reference's results."""

from typing import Any

import pytest
import torch

from gemmill.families.kv_cache.cases.packed_calls import AttendCase
from gemmill.families.kv_cache.config import KernelKind
from gemmill.families.scaled_mm.accepts import accepted
from gemmill.locations import kernels_dir
from gemmill.manifest import ManifestError
from gemmill.numerics.cases import cases_of
from gemmill.numerics.recording import record
from gemmill.registry import REGISTRY
from gemmill.wheel import WheelError
from gemmill.wheel.reproducer import arguments_header, read_arguments, reproducer

SIZE, ROWS = 256, 32
"""Of each size of a call, a multiple of whatever a kernel asks for; and of m, whose rows the reference takes one after the other."""


LAUNCHES = {"fused_experts": 5, "gated_mm": 2}
"""Kernels of variants that launch another family's too."""


def sized(config, size: int = SIZE):
    """A call of a config."""
    asked = [option.name for option in REGISTRY.family_of(config).questions if option.is_size]
    sizes = {name: min(size, ROWS) if name == "m" else size for name in asked}
    return cases_of(config).sized(config, sizes)


@pytest.mark.parametrize("family", [family.name for family in REGISTRY.families])
def test_every_variant_of_a_build_can_be_recorded(probe, family) -> None:
    """Each pointer of its struct leads into a tensor of the call, and each output has a value to compare results with."""
    header = arguments_header(kernels_dir() / family / "abi.h")
    needs = REGISTRY.choices[family].needs
    for entry in {entry.symbol: entry for entry in probe.variants_of(family)}.values():
        case = sized(entry.config)
        if needs(entry.config) is not None:  # whose kernels are those of several variants
            with pytest.raises(
                ValueError, match=rf" launches {LAUNCHES[family]} kernels for this call, and one can be exported$"
            ):
                record(probe.build, entry.name, case)
            continue
        recorded = record(probe.build, entry.name, case)
        _, fields = read_arguments(header, recorded.arguments)
        places = [recorded.place_of(field.value) for field in fields if field.is_pointer and field.value]
        assert None not in places, entry.name
        # Of a tensor that begins within another, as values in a cache of keys, the place is in that one.
        alone = {i for i, tensor in enumerate(recorded.tensors) if recorded.place_of(tensor.address)[0] == i}
        assert {tensor for tensor, _ in places} == alone, entry.name
        written = [tensor for tensor in recorded.tensors if tensor.wanted is not None]
        assert written and all(tensor.wanted != tensor.before for tensor in written), entry.name
        assert recorded.op in entry.ops


def test_a_gemms_numbers_and_operands(probe) -> None:
    entry = next(entry for entry in probe.variants_of("scaled_mm") if accepted(entry.config).out_dtype == "bf16")
    m, n, k = 32, 128, 256
    case = cases_of(entry.config).sized(entry.config, {"m": m, "n": n, "k": k})
    recorded = record(probe.build, entry.name, case)
    _, fields = read_arguments((kernels_dir() / "scaled_mm" / "abi.h").read_text(), recorded.arguments)
    values = {field.name: field.value for field in fields}
    assert [values[name] for name in ("m", "n", "k", "lda", "ldb", "ldd")] == [m, n, k, k, k, n]
    tensors = {tensor.name: tensor for tensor in recorded.tensors}
    a, b = (tensors[name] for name in ("a", "b"))
    assert (
        recorded.place_of(values["a"]) == (recorded.tensors.index(a), 0) and len(a.before) == m * k * a.dtype.itemsize
    )
    assert (b.shape, b.strides) == ((k, n), (1, k))
    wanted = torch.frombuffer(bytearray(tensors["out"].wanted), dtype=torch.bfloat16)
    assert wanted.numel() == m * n and wanted.isfinite().all()
    assert torch.frombuffer(bytearray(tensors["out"].before), dtype=torch.bfloat16).isnan().all(), "poisoned"


def test_the_thread_launches_again_afterwards(probe) -> None:
    entry = probe.variants_of("scaled_mm")[0]
    case = sized(entry.config)
    record(probe.build, entry.name, case)
    assert probe.run(case.op, *case.arguments("cpu")) is not None


def test_what_cannot_be_recorded(probe, monkeypatch) -> None:
    entry = next(
        e
        for e in probe.variants_of("scaled_mm")
        if accepted(e.config).alignment_a == 16 and accepted(e.config).a_dtype == "e4m3"
    )
    with pytest.raises(RuntimeError, match=rf"the pinned variant {entry.name} cannot take the call: "):
        record(probe.build, entry.name, sized(entry.config, 257))
    with pytest.raises(
        ValueError, match=r"^cutlass_scaled_mm launches 0 kernels for this call, and one can be exported$"
    ):
        record(probe.build, entry.name, sized(entry.config, 0))
    monkeypatch.setattr(probe.build, "_library", object())
    with (
        pytest.raises(
            ManifestError, match=r"^build \w+ is too old to be exported from: make it again with `gemmill build`$"
        ),
        probe.build.recording(),
    ):
        pass


def test_a_header_that_cannot_be_read(probe) -> None:
    entry = probe.variants_of("quant")[0]
    recorded = record(probe.build, entry.name, sized(entry.config))
    header = (kernels_dir() / "quant" / "abi.h").read_text()
    size = len(recorded.arguments)
    for changed, sentence in (
        ("", "abi.h declares no struct gemmill_..._args: a kernel's arguments cannot be written down"),
        (
            header.replace("float eps;", "half eps;"),
            "gemmill_quant_args declares 'half eps', whose type is none of int64_t, int32_t, uint64_t, uint32_t, float, double, "
            "uint8_t or a pointer",
        ),
        (
            header.replace("float eps;", "float eps; int64_t one, two;"),
            f"gemmill_quant_args has {size + 16} bytes and the build was given {size}: build again with `gemmill build`",
        ),
    ):
        assert changed != header
        with pytest.raises(WheelError) as caught:
            read_arguments(changed, recorded.arguments)
        assert str(caught.value) == sentence


def test_the_program_names_fields_and_tensors(probe) -> None:
    entry = next(entry for entry in probe.variants_of("quant") if "rmstoken_bf16_e4m3" in entry.name)
    case = sized(entry.config)
    made = reproducer(entry.config, record(probe.build, entry.name, case), f"{case.op}: {case}", "; told")
    main = next(file.text for file in made.files if file.path.name == "main.cu")
    assert f"// {case.op}: {case}\n" in main and "with the operands in cache; told" in main
    for line in ("gemmill_quant_args args{};", f"args.rows = {ROWS};", "// weight"):
        assert line in main
    script = next(file.text for file in made.files if file.path.name == "build.sh")
    assert "CUTLASS_INCLUDE" not in script, "its kernels are plain CUDA"
    assert len(made.data) == sum(
        len(t.before) + len(t.wanted or b"") for t in record(probe.build, entry.name, case).tensors
    )


def test_a_table_without_columns_has_no_pages(probe) -> None:
    """On a GPU it has no address, and would be taken for none: then each sequence has a page."""

    class WithoutPages(AttendCase):
        def arguments(self, device: torch.device | str) -> list[Any]:
            """Of which the fifth is the table."""
            given = super().arguments(device)
            return [*given[:4], given[4][:, :0], *given[5:]]

    kept = {"lengths": (70,), "heads": 2, "kv_heads": 1}
    entry = next(entry for entry in probe.variants_of("kv_cache") if entry.config.kind is KernelKind.ATTEND)
    header = (kernels_dir() / "kv_cache" / "abi.h").read_text()
    for case, pages in ((AttendCase(**kept), 2), (AttendCase(**kept, is_plain=True), 1), (WithoutPages(**kept), 0)):
        recorded = record(probe.build, entry.name, case)
        _, fields = read_arguments(header, recorded.arguments)
        assert {field.name: field.value for field in fields}["pages"] == pages
