"""One reference rendering for each template of the cutedsl backend; `pytest tests -k golden --update-golden` rewrites them."""

from pathlib import Path

import pytest

from gemmill.emit import emit
from gemmill.emit.adapter import ANY_CODE, emit_adapter, emit_host_code, entry_of
from gemmill.gemm.traced import learn, of_text
from gemmill.locations import templates_dir
from gemmill.space.names import parse_name
from rendered import hold_text

FOLDER = Path(__file__).parent / "cutedsl"
NAME = "sm90a_cutedsl_e4m3_e4m3_f32_bf16_scaledbias_channel_t128x256x128_c2x1x1_cooperative_promoted_persistent_swapab_s4_a16b16d8"
SYMBOL = "gemmill_example"
HEADER = f"""\
#pragma once
typedef struct {{
    cudaLibrary_t module;
}} {SYMBOL}_Kernel_Module_t;

void _mlir_{SYMBOL}_cuda_init(void **);
void _mlir_{SYMBOL}_cuda_load_to_device(void **);
void _mlir_{SYMBOL}__mlir_ciface_cutlass___call_____Ptrgeneric_Ptrgeneric__FakeStream(void **args, int32_t num_args);

static inline int32_t cute_dsl_{SYMBOL}_wrapper({SYMBOL}_Kernel_Module_t *module, void *call, void *how, int64_t ticket, cudaStream_t stream) {{
    int32_t ret = 0;
"""
OWN = '{"name":"doubled","accumulator":"f32","inputs":[],"steps":[["add",[0,0],0.0]],"result":1}'
OWN_NAME = NAME.replace("_cutedsl_", f"_epiloguemm_{learn(of_text(OWN)).key}_").replace("_scaledbias_", "_scaled_")
TEXTS = {
    "kernel.py": lambda: emit(parse_name(NAME)).text,
    "epilogue_mm.py": lambda: emit(parse_name(OWN_NAME)).text,
    "adapter.cpp": lambda: emit_adapter(SYMBOL, NAME, entry_of(HEADER)),
    "host_code.cpp": lambda: emit_host_code(SYMBOL, NAME, ANY_CODE),
}


@pytest.mark.parametrize("case", TEXTS)
def test_rendering_is_the_reference(case: str, update_golden: bool) -> None:
    hold_text(TEXTS[case](), FOLDER / case, update_golden)


def test_every_template_has_its_reference() -> None:
    folders = (templates_dir() / "dsl", templates_dir() / "scaled_mm" / "cutedsl")
    assert {path.name.removesuffix(".jinja") for folder in folders for path in folder.iterdir()} == set(TEXTS)
    assert {path.name for path in FOLDER.iterdir()} == set(TEXTS)


@pytest.mark.parametrize("missing", ["args, int32_t num_args", "void *how", "int64_t ticket"])
def test_a_header_that_cannot_be_read(missing: str) -> None:
    with pytest.raises(
        ValueError, match=r"^the C header that the CuTe DSL wrote declares no entry function of \(void \*call, "
    ):
        entry_of(HEADER.replace(missing, "?"))
