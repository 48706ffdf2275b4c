#!/usr/bin/env python3
"""Records the parts of a serving engine on which gemmill's plugins rely: parameters of functions and methods, orders of its lists.

    tools/record_engines.py vllm FOLDER > tests/unit/runtime/engines/vllm-0.33.0.json      FOLDER: the sdist, unpacked
    tools/record_engines.py sglang FOLDER > tests/unit/runtime/engines/sglang-0.5.23.json  FOLDER: the wheel, unpacked

Nothing of the engine is run, and nothing of its text is kept but names.
"""

import argparse
import ast
import json
import re
from pathlib import Path

_LINEAR = "vllm.model_executor.kernels.linear"
_SCALED = "vllm.model_executor.kernels.linear.scaled_mm"
_FUSED_MOE = "vllm.model_executor.layers.fused_moe"
_EXPERTS = f"{_FUSED_MOE}.experts"
_QUANT = "vllm.model_executor.layers.quantization.utils.quant_utils"
WANTED = {
    "vllm": {
        "vllm.plugins": ["load_general_plugins"],
        "vllm.distributed.parallel_state": ["init_distributed_environment"],
        "vllm.config.vllm": ["get_current_vllm_config_or_none"],
        "vllm.config.compilation": ["CompilationMode"],
        "vllm.config.offload": ["OffloadConfig", "UVAOffloadConfig", "PrefetchOffloadConfig"],
        "vllm.model_executor.kernels.linear": [
            "_POSSIBLE_FP8_KERNELS",
            "_POSSIBLE_FP8_BLOCK_KERNELS",
            "_POSSIBLE_INT8_KERNELS",
            "_POSSIBLE_NVFP4_KERNELS",
            "_POSSIBLE_MXFP4_KERNELS",
            "is_supported_and_can_implement_kernel",
            "register_linear_kernel",
            "init_nvfp4_linear_kernel",
            "_get_linear_backend",
            "FP8ScaledMMLinearKernel",
            "CutlassFp8BlockScaledMMKernel",
            "CutlassFP8ScaledMMLinearKernel",
            "CutlassInt8ScaledMMLinearKernel",
            "MarlinNvFp4LinearKernel",
            "MarlinMxFp4LinearKernel",
            "TritonFp8BlockScaledMMKernel",
        ],
        f"{_SCALED}.ScaledMMLinearKernel": [
            "Int8ScaledMMLinearLayerConfig",
            "FP8ScaledMMLinearLayerConfig",
            "ScaledMMLinearKernel",
            "FP8ScaledMMLinearKernel",
            "Int8ScaledMMLinearKernel",
        ],
        f"{_SCALED}.BlockScaledMMLinearKernel": ["Fp8BlockScaledMMLinearKernel", "FP8BlockParams"],
        f"{_SCALED}.cutlass": [
            "CutlassInt8ScaledMMLinearKernel",
            "CutlassFP8ScaledMMLinearKernel",
            "CutlassFp8BlockScaledMMKernel",
        ],
        f"{_SCALED}.triton": ["TritonFp8BlockScaledMMKernel"],
        "vllm.model_executor.kernels.linear.base": ["MMLinearKernel", "Params"],
        f"{_LINEAR}.nvfp4.base": ["NvFp4LinearKernel", "NvFp4LinearLayerConfig"],
        f"{_LINEAR}.nvfp4.marlin": ["MarlinNvFp4LinearKernel"],
        f"{_LINEAR}.mxfp4.base": ["MxFp4LinearKernel", "MxFp4LinearLayerConfig"],
        f"{_LINEAR}.mxfp4.marlin": ["MarlinMxFp4LinearKernel"],
        _QUANT: ["QuantKey", "ScaleDesc", "GroupShape"],
        "vllm.model_executor.model_loader.utils": ["process_weights_after_loading"],
        "vllm.model_executor.model_loader.base_loader": ["process_weights_after_loading"],
        "vllm._custom_ops": [
            "scaled_int8_quant",
            "cutlass_scaled_mm",
            "cutlass_moe_mm",
            "gather_and_maybe_dequant_cache",
        ],
        "vllm.config.cache": ["KVCacheDTypeHandler", "register_kv_cache_dtype", "is_known_kv_cache_dtype"],
        "vllm.model_executor.layers.attention.mla_attention": [
            "MLACommonBackend",
            "MLACommonImpl",
            "MLACommonMetadataBuilder",
            "QueryLenSupport",
        ],
        "vllm.utils.deep_gemm": [
            "m_grouped_fp8_gemm_nt_contiguous",
            "fp8_m_grouped_gemm_nt_masked",
            "get_mk_alignment_for_contiguous_layout",
        ],
        f"{_EXPERTS}.deep_gemm_moe": ["m_grouped_fp8_gemm_nt_contiguous"],
        f"{_EXPERTS}.batched_deep_gemm_moe": ["fp8_m_grouped_gemm_nt_masked"],
        "vllm.model_executor.layers.quantization.utils.marlin_utils_fp4": [
            "prepare_nvfp4_moe_layer_for_marlin",
            "prepare_moe_mxfp4_layer_for_marlin",
        ],
        f"{_EXPERTS}.marlin_moe": ["fused_marlin_moe"],
        f"{_FUSED_MOE}.oracle.nvfp4": [
            "prepare_nvfp4_moe_layer_for_marlin",
            "NvFp4MoeBackend",
            "select_nvfp4_moe_backend",
        ],
        "vllm.model_executor.layers.quantization.modelopt": ["select_nvfp4_moe_backend"],
        f"{_FUSED_MOE}.oracle.fp8": ["Fp8MoeBackend", "backend_to_kernel_cls", "select_fp8_moe_backend"],
        f"{_FUSED_MOE}.modular_kernel": [
            "FusedMoEExperts",
            "FusedMoEExpertsModular",
            "FusedMoEPrepareAndFinalizeModular",
            "FusedMoEKernelModularImpl",
        ],
        f"{_FUSED_MOE}.prepare_finalize.no_dp_ep": ["MoEPrepareAndFinalizeNoDPEPModular"],
        f"{_EXPERTS}.triton_moe": ["TritonExperts"],
        f"{_FUSED_MOE}.config": ["FusedMoEConfig", "FusedMoEParallelConfig"],
        f"{_FUSED_MOE}.activation": ["MoEActivation"],
        f"{_FUSED_MOE}.router.gate_linear": ["GateLinear"],
        f"{_FUSED_MOE}.router.fused_topk_router": ["FusedTopKRouter", "_get_padding_mask"],
        f"{_FUSED_MOE}.router.base_router": ["BaseRouter"],
        f"{_FUSED_MOE}.router.fused_moe_router": ["FusedMoERouter"],
        f"{_FUSED_MOE}.runner.moe_runner": ["MoERunner"],
        "vllm.model_executor.layers.linear": ["LinearBase", "ReplicatedLinear"],
        "vllm.platforms.interface": ["get_pass_manager_cls", "apply_config_platform_defaults"],
        "vllm.compilation.passes.pass_manager": ["PostGradPassManager"],
        "vllm.compilation.passes.inductor_pass": ["InductorPass", "get_pass_context"],
        "vllm.v1.attention.backends.registry": ["register_backend", "AttentionBackendEnum"],
        "vllm.v1.attention.backend": [
            "AttentionMetadataBuilder",
            "CommonAttentionMetadata",
            "AttentionBackend",
            "MLAAttentionImpl",
            "AttentionCGSupport",
        ],
        "vllm.v1.attention.backends.turboquant_attn": [
            "TurboQuantAttentionBackend",
            "TurboQuantAttentionImpl",
            "TurboQuantMetadata",
            "TurboQuantMetadataBuilder",
        ],
    },
    "sglang": {
        "sglang.srt.plugins": ["GENERAL_PLUGINS_GROUP", "load_plugins"],
        "sglang.srt.plugins.hook_registry": ["HookRegistry", "HookType"],
        "sglang.srt.layers.quantization.fp8_utils": [
            "fp8_scaled_mm",
            "w8a8_block_fp8_matmul_deepgemm",
            "w8a8_block_fp8_matmul_triton",
        ],
        "sglang.srt.layers.quantization.w8a8_int8": ["int8_scaled_mm"],
        "sglang.srt.layers.quantization.marlin_utils_fp4": [
            "prepare_nvfp4_layer_for_marlin",
            "apply_fp4_marlin_linear",
            "prepare_moe_nvfp4_layer_for_marlin",
        ],
        "sglang.srt.layers.moe.fused_moe_triton.fused_marlin_moe": ["fused_marlin_moe"],
        "sglang.srt.layers.moe.moe_runner.triton_utils.fused_moe": ["fused_experts"],
        "sglang.srt.layers.moe.moe_runner.triton": ["fused_experts"],
        "sglang.srt.layers.deep_gemm_wrapper.entrypoint": [
            "grouped_gemm_nt_f8f8bf16_contig",
            "grouped_gemm_nt_f8f8bf16_masked",
        ],
        "sglang.srt.layers.moe.cutlass_moe": ["fp8_blockwise_scaled_grouped_mm"],
        "sglang.kernels.ops.gemm": ["fp8_scaled_mm"],
        "sglang.kernels.ops.gemm.fp8_kernel": ["w8a8_block_fp8_matmul_deepgemm", "w8a8_block_fp8_matmul_triton"],
    },
}

_WITH_ATTRIBUTES = (
    "GateLinear",
    "LinearBase",
    "ReplicatedLinear",
    "FusedTopKRouter",
    "BaseRouter",
    "FusedMoERouter",
    "MoERunner",
)
"""Classes of whose objects the plugin reads attributes that their constructors set."""


def main() -> None:
    """Print the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engine", choices=WANTED)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    modules = {module: record(given.folder, module, names) for module, names in WANTED[given.engine].items()}
    print(text({"engine": given.engine, "version": version(given.folder), "modules": modules}))


def text(value: object, margin: str = "") -> str:
    """JSON with one line for each signature: only dictionaries of dictionaries are spread over lines."""
    if not isinstance(value, dict) or not any(isinstance(item, dict) for item in value.values()):
        return json.dumps(value)
    inner = margin + " "
    items = (f"{inner}{json.dumps(key)}: {text(item, inner)}" for key, item in value.items())
    return "{\n" + ",\n".join(items) + f"\n{margin}}}"


def version(folder: Path) -> str:
    """That of the sdist, or of the wheel."""
    (about,) = [*folder.glob("PKG-INFO"), *folder.glob("*.dist-info/METADATA")]
    return re.findall(r"^Version: (\S+)$", about.read_text(), re.MULTILINE)[0]


def record(folder: Path, module: str, names: list[str]) -> dict[str, object]:
    """A module's value of each name."""
    path = folder / module.replace(".", "/")
    tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())
    found: dict[str, object] = {}
    for node in ast.walk(tree):
        for name in names:
            if name not in found and (what := described(node, name)) is not None:
                found[name] = what
    if missing := set(names) - set(found):
        raise SystemExit(f"{module} has no {', '.join(sorted(missing))}: the plugin relies on it")
    for name, what in found.items():
        if isinstance(what, dict) and "imported_from" in what and (made := calls(tree, name)):
            what["calls"] = made
    return {name: found[name] for name in names}


def calls(tree: ast.AST, name: str) -> list[list[str]]:
    """The arguments of each call of a function: the texts of positional ones, then names with a `=`."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == name]
    return [
        [*map(ast.unparse, node.args), *(f"{given.arg}=" if given.arg else "**" for given in node.keywords)]
        for node in found
    ]


def described(node: ast.AST, name: str) -> object | None:
    """The value that a statement gives a name, if it defines it."""
    if isinstance(node, ast.FunctionDef) and node.name == name:
        return {"parameters": parameters(node)}
    if isinstance(node, ast.ClassDef) and node.name == name:
        return of_class(node)
    if isinstance(node, ast.ImportFrom) and any(name == (alias.asname or alias.name) for alias in node.names):
        return {"imported_from": "." * node.level + (node.module or "")}
    if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return {"value": of_value(node.value)}
    return None


def of_class(node: ast.ClassDef) -> dict[str, object]:
    """Names of bases and fields, of some classes those of objects' attributes, and of each method its parameters and decorators."""
    methods = {
        item.name: {"parameters": parameters(item), "decorators": [ast.unparse(d) for d in item.decorator_list]}
        for item in node.body
        if isinstance(item, ast.FunctionDef)
    }
    fields = [
        item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    ]
    members = [
        t.id for item in node.body if isinstance(item, ast.Assign) for t in item.targets if isinstance(t, ast.Name)
    ]
    bases = [ast.unparse(base).partition("[")[0] for base in node.bases]
    of_objects = {"attributes": attributes(node)} if node.name in _WITH_ATTRIBUTES else {}
    return {"bases": bases, "fields": fields, "members": members, **of_objects, "methods": methods}


def attributes(node: ast.ClassDef) -> list[str]:
    """Names that the constructor assigns to or registers with `self`, in their order."""
    (made,) = [item for item in node.body if isinstance(item, ast.FunctionDef) and item.name == "__init__"]
    found: dict[str, None] = {}
    for part in ast.walk(made):
        targets = (
            part.targets if isinstance(part, ast.Assign) else [part.target] if isinstance(part, ast.AnnAssign) else []
        )
        texts = [ast.unparse(target) for target in targets]
        if isinstance(part, ast.Call) and ast.unparse(part.func) == "self.register_parameter":
            texts = [f"self.{part.args[0].value}"] if isinstance(part.args[0], ast.Constant) else []
        found |= dict.fromkeys(text.removeprefix("self.") for text in texts if re.fullmatch(r"self\.\w+", text))
    return [*found]


def of_value(node: ast.expr) -> object:
    """Texts, and names in lists and dictionaries."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Dict):
        return {ast.unparse(key): of_value(value) for key, value in zip(node.keys, node.values, strict=True) if key}
    if isinstance(node, ast.List):
        return [ast.unparse(item) for item in node.elts]
    return None


def parameters(node: ast.FunctionDef) -> list[list[object]]:
    """Name, kind and whether there is a default, of each."""
    given = node.args
    plain = [*given.posonlyargs, *given.args]
    defaults = [False] * (len(plain) - len(given.defaults)) + [True] * len(given.defaults)
    found: list[list[object]] = [
        [argument.arg, "positional", has] for argument, has in zip(plain, defaults, strict=True)
    ]
    if given.vararg:
        found.append([given.vararg.arg, "*", True])
    found += [
        [argument.arg, "keyword", default is not None]
        for argument, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    if given.kwarg:
        found.append([given.kwarg.arg, "**", True])
    return found


if __name__ == "__main__":
    main()
