"""The timed sides of layers of experts: vLLM's Triton kernel, read from its file, and the ways in which gemmill computes random layers."""

import inspect
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

import gemmill
from builds import TableOnly
from gemmill.compat import deep_gemm
from gemmill.families.fused_experts import selections
from gemmill.families.grouped_mm.selections import tiled
from gemmill.registry import REGISTRY
from gemmill.runtime import ops
from gemmill.runtime.variant_table import make_variant_table
from gemmill.space.names import to_name
from gemmill.space.selections import Selection, select
from gemmill.tuner.program import stand_in_build
from gemmill.vocab import Arch, DType
from harness.deep_gemm_experts import products_of
from timed.fused_experts.calls import KINDS, ExpertsMaker, ExpertsOperands, workload_of, workloads_of
from timed.fused_experts.contenders import ExpertsWay, TwoProducts, _kernel, variants_of
from timed.workload import Workload

SOURCE = """import vllm.envs

@triton.jit
def write_zeros_to_output(c_ptr):
    return c_ptr

@triton.jit
def fused_moe_kernel(c_ptr):
    return write_zeros_to_output(c_ptr)
"""


def test_kernels_of_a_file_have_a_module_and_their_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "fused_moe.py"
    source.write_text(SOURCE)
    triton, language = ModuleType("triton"), ModuleType("triton.language")
    triton.jit, triton.language = lambda function: function, language
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.setitem(sys.modules, "triton.language", language)
    kernel = _kernel(source)
    called = kernel.__globals__["write_zeros_to_output"]
    for function in (kernel, called):
        assert function.__module__ == "fused_moe", "Triton's compiler calls startswith on it"
        assert inspect.getsource(function).startswith("@triton.jit")


def on_meta(p: Workload) -> ExpertsOperands:
    """Operands without data, with scales of blocks or of rows."""

    def empty(*shape: int, kind: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=kind, device="meta")

    shapes = (p.experts, 2 * p.inner, p.hidden), (p.experts, p.hidden, p.inner)
    w13, w2 = (empty(*shape, kind=torch.float8_e4m3fn) for shape in shapes)
    scales = [empty(e, n // g, k // g) if (g := p.of.group_size) else empty(e, n) for e, n, k in shapes]
    x, out = (empty(p.tokens, p.hidden, kind=torch.bfloat16) for _ in range(2))
    ids, weights = empty(p.tokens, p.top, kind=torch.int32), empty(p.tokens, p.top)
    return ExpertsOperands(
        workload=p,
        out=out,
        x=x,
        w13=w13,
        w2=w2,
        w13_scales=scales[0],
        w2_scales=scales[1],
        ids=(ids,),
        weights=weights,
    )


@pytest.mark.parametrize("kind", ["fp8_groups", "fp8"])
def test_each_way_is_the_variant_that_the_model_would_choose_without_the_other(
    make_manifest, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    experts = selections.default(Arch.SM90A)
    configs = (*experts, *(c for c in tiled(Arch.SM90A) if c.operand_dtype is DType.E4M3))
    manifest = make_manifest(*configs)
    table = make_variant_table(manifest.entries, sorted({entry.symbol for entry in manifest.entries}), ())
    monkeypatch.setattr(ops, "_active", TableOnly(manifest, table))
    for tokens in (1, 8192):
        workload = KINDS[kind].at(experts=128, top=8, hidden=2048, inner=768, tokens=tokens)
        operands = on_meta(workload)
        found = {}
        for apart in (False, True):
            way = ExpertsWay(name=str(apart), namespace="gemmill", apart=apart)
            assert way.takes(workload) and not way.takes(replace(workload, of=KINDS["nvfp4"]))
            found[apart] = way._variant(operands)
        choice = gemmill.explain("fused_experts", *way.call(operands, 0).args).entry
        assert found[True].endswith("_t128a") and not found[False].endswith("a") and choice.name == found[tokens > 1]


def test_groups_of_32_go_one_way(make_manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    configs = (*selections.default(Arch.SM90A), *(c for c in tiled(Arch.SM90A) if c.operand_dtype is DType.E4M3))
    manifest = make_manifest(*configs)
    table = make_variant_table(manifest.entries, sorted({entry.symbol for entry in manifest.entries}), ())
    monkeypatch.setattr(ops, "_active", TableOnly(manifest, table))
    options = {"op": "fp8_groups_32", "layers": "deepseek-v4.1", "tokens": "1,4096", "draw": None}
    for workload in workloads_of(Namespace(**options)):
        assert workload.of.coded and not workload.of.grouped and workload.sizes["inner"] == 2304
        ways = [ExpertsWay(name=str(apart), namespace="gemmill", apart=apart) for apart in (False, True)]
        assert [way.takes(workload) for way in ways] == [False, True]
        assert ways[1]._variant(on_meta(workload)).endswith("group32_t128a")


def test_drawn_layers_are_those_of_their_seed() -> None:
    def drawn(seed: int) -> list[Workload]:
        options = {"op": "fp8_groups,fp8", "layers": "qwen3-next", "tokens": "1,4096", "draw": seed, "draws": 12}
        return workloads_of(Namespace(**options))

    first = drawn(7)
    assert first == drawn(7) != drawn(8) and len(first) == 48
    for p in first:
        assert p.top < p.experts and p.hidden % 128 == p.inner % 128 == 0
        assert 1024 <= p.hidden <= 8192 and 256 <= p.inner <= 16384 and 3 * p.experts * p.hidden * p.inner <= 1 << 33


@pytest.mark.parametrize("kind", ["fp8_groups", "fp8", "bf16", "nvfp4", "mxfp4_e4m3"])
def test_both_products_alone_are_legal_calls_of_all_rows(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference takes them, and their results have a row for each pair."""
    x = ExpertsMaker(torch.device("cpu"), 0).make(workload_of(kind, (4, 2, 256, 128), 9))
    made: list[torch.Size] = []
    empty = torch.empty

    def noted(*given: object, **told: object) -> torch.Tensor:
        made.append((found := empty(*given, **told)).shape)
        return found

    products = TwoProducts()
    assert products.takes(x.workload) and not products.takes(workload_of("nvfp4_2to4", (4, 2, 256, 128), 9))
    monkeypatch.setattr(torch, "empty", noted)
    call = products.call(x, 0)
    monkeypatch.undo()
    call()
    assert made == [(18, 256), (18, 256)]


def test_a_sweep_has_the_variants_of_a_workloads_weights_alone():
    configs = tuple(REGISTRY.configs_of("fused_experts", select("default").configs))
    selection = Selection(name="experts", arch=Arch.SM90A, configs=configs, rejections=())
    build = SimpleNamespace(manifest=stand_in_build(selection)[1])
    variants = variants_of(build)
    assert {variant.name for variant in variants} == {to_name(config) for config in configs} and variants_of(None) == []
    taken = {
        kind: {v.name.removeprefix("sm90a_fused") for v in variants if v.takes(workload_of(kind, (8, 2, 256, 256), 1))}
        for kind in ("mxfp4_e4m3", "nvfp4", "fp8_groups", "bf16")
    }
    tiles = ("16", "8o", "16o", "32o", "48o", "64o", "112o", "224o")
    assert taken["mxfp4_e4m3"] == {f"fp4experts_mxfp4_e4m3_t{tile}" for tile in tiles}
    assert all(taken.values()) and not set.intersection(*taken.values())
    assert all("_e4m3" in name for name in taken["fp8_groups"]) and all("_bf16" in name for name in taken["bf16"])


def test_deep_gemm_multiplies_both_products_of_a_layer() -> None:
    given = []

    def multiply(a, b, out, layout):
        deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a, b, out, layout)  # gemmill's op under its name stands in for it
        given.append((tuple(a[0].shape), tuple(out.shape), layout))

    contender = products_of(SimpleNamespace(m_grouped_fp8_gemm_nt_contiguous=multiply))
    p = workload_of("fp8_groups", (4, 2, 256, 128), 9)
    x = ExpertsMaker(torch.device("cpu"), 0).make(p)
    assert (
        contender.takes(p) and not contender.takes(workload_of("fp8", (4, 2, 256, 128), 9)) and not contender.complete
    )
    contender.call(x, 0)()
    (first, gates, layout), (second, parts, _) = given
    rows = len(layout)
    assert (first, gates, second, parts) == ((rows, 256), (rows, 256), (rows, 128), (rows, 256)) and rows % 128 == 0
    assert (layout >= 0).sum() == 18 and torch.equal(
        layout[layout >= 0].bincount(minlength=4), x.ids[0].flatten().bincount(minlength=4).int()
    )
