"""Stand-ins of serving engines, made from recorded interfaces of a release of each (tools/record_engines.py)."""

import json
from collections.abc import Callable
from dataclasses import make_dataclass
from enum import Enum
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

import gemmill
from gemmill.compat.vllm import fp4_experts as vllm_fp4_experts
from gemmill.compat.vllm import fused_experts as vllm_fused_experts
from gemmill.compat.vllm import routing as vllm_routing


def recorded(name: str) -> dict[str, Any]:
    """A record in the folder of the runtime's tests."""
    path = Path(__file__).parent / "unit" / "runtime" / "engines" / name
    return json.loads(path.read_text(encoding="utf-8"))


VLLM, SGLANG = recorded("vllm-0.33.0.json"), recorded("sglang-0.5.23.json")
LINEAR = VLLM["modules"]["vllm.model_executor.kernels.linear"]
CLASSES = {name: of for module in VLLM["modules"].values() for name, of in module.items() if "methods" in of}
_CONFIGS = VLLM["modules"]["vllm.model_executor.kernels.linear.scaled_mm.ScaledMMLinearKernel"]


FP4_EXPERTS = vllm_fp4_experts.PREPARES, vllm_fp4_experts.MULTIPLIES
MXFP4_EXPERTS = vllm_fp4_experts.PREPARES_MXFP4
NVFP4_ORACLE, FP4_EXPERTS_CHOICE = vllm_fp4_experts.CHOOSES


class Platform:
    """The part of vLLM's platform that plugins ask and override."""

    manager = "vllm.compilation.passes.pass_manager.PostGradPassManager"

    @classmethod
    def get_pass_manager_cls(cls) -> str:
        return cls.manager

    @classmethod
    def apply_config_platform_defaults(cls, vllm_config: Any) -> None:
        vllm_config.platform = cls.__name__


class _Base:
    """The construction that all of vLLM's kernels share."""

    def __init__(self, config: Any, layer_param_names: Any = None) -> None:
        self.config, self.layer_param_names = config, layer_param_names


def _missing(name: str) -> Callable[..., Any]:
    def missing(*given: object, **named: object) -> Any:
        raise NotImplementedError(f"vLLM's {name}")

    return missing


def _stand_in(name: str, base: type) -> type:
    """A class with the recorded methods, all of which raise."""
    methods = {method: _missing(method) for method in CLASSES[name]["methods"] if method != "__init__"}
    return type(name, (base,), methods)


def _triton_experts() -> dict[str, dict[str, Any]]:
    """vLLM's class of experts with Triton, which multiplies nothing, and the function that names it."""
    triton = _stand_in("TritonExperts", _stand_in("FusedMoEExpertsModular", _stand_in("FusedMoEExperts", object)))

    def made(self: Any, moe_config: Any, quant_config: Any) -> None:
        self.moe_config, self.quant_config = moe_config, quant_config

    triton.__init__ = made
    triton.is_supported_config = staticmethod(
        lambda cls, moe_config, weight_key, activation_key, activation_format: (
            activation_format == "standard",
            "vLLM's",
        )
    )
    triton.workspace_shapes = lambda self, m, n, k, top, *more: ((m, top, max(n // 2, k)), (m, top, max(n, k)), (m, k))
    triton.apply = lambda self, *given: ("vLLM's", *given)
    triton.w1_scale = property(lambda self: self.quant_config.w1_scale)
    triton.w2_scale = property(lambda self: self.quant_config.w2_scale)
    module, name = vllm_fused_experts.CHOOSES
    backends = Enum("Fp8MoeBackend", VLLM["modules"][module]["Fp8MoeBackend"]["members"])
    classes = {backend: [type(f"{backend.name}Experts", (), {})] for backend in backends} | {backends.TRITON: [triton]}
    return {module: {"Fp8MoeBackend": backends, name: lambda backend: list(classes[backend])}}


def _turboquant() -> dict[str, type]:
    """vLLM's backend of TurboQuant caches: it tells decodes from prefills as vLLM does, and computes nothing."""
    backend = _stand_in("TurboQuantAttentionBackend", object)
    impl = _stand_in("TurboQuantAttentionImpl", object)
    impl._store_kv = impl._decode_attention = impl._prefill_attention = lambda self, *given: "vLLM's"

    def forward(
        self: Any, layer: Any, query: Any, key: Any, value: Any, kv_cache: Any, attn_metadata: Any, *more: Any
    ) -> Any:
        decodes, tokens = attn_metadata.num_decodes, attn_metadata.num_decode_tokens
        if not attn_metadata.is_prefill:
            return [self._decode_attention(query, kv_cache, attn_metadata, None, None, None, layer)]
        of_decodes = SimpleNamespace(
            seq_lens=attn_metadata.seq_lens[:decodes], block_table=attn_metadata.block_table[:decodes], max_query_len=1
        )
        own = [self._decode_attention(query[:tokens], kv_cache, of_decodes, None, None, None, layer)] if decodes else []
        return [
            *own,
            self._prefill_attention(query[tokens:], key, value, kv_cache, attn_metadata, None, None, None, layer),
        ]

    impl.forward = forward

    class AttentionMetadataBuilder:
        def _init_reorder_batch_threshold(
            self,
            reorder_batch_threshold: int = 1,
            supports_spec_as_decode: bool = False,
            supports_dcp_with_varlen: bool = False,
        ) -> None:
            drafts = self.vllm_config.num_speculative_tokens if supports_spec_as_decode else 0
            self.reorder_batch_threshold = max(reorder_batch_threshold, 1 + drafts)

    builder = _stand_in("TurboQuantMetadataBuilder", AttentionMetadataBuilder)

    def made(self: Any, kv_cache_spec: Any, layer_names: Any, vllm_config: Any, device: Any) -> None:
        self.layer_names, self.vllm_config = layer_names, vllm_config
        self._init_reorder_batch_threshold(1, supports_spec_as_decode=False)

    def build(self: Any, common_prefix_len: int, common_attn_metadata: Any, fast_build: bool = False) -> Any:
        cam = common_attn_metadata
        counts = cam.query_start_loc_cpu.diff().tolist()
        decodes = next((i for i, n in enumerate(counts) if n > self.reorder_batch_threshold), len(counts))
        tokens = int(cam.query_start_loc_cpu[decodes]) if decodes < len(counts) else cam.num_actual_tokens
        named = {"num_decodes": decodes, "num_decode_tokens": tokens, "is_prefill": cam.max_query_len > 1}
        named["seq_lens_cpu"] = cam.seq_lens_cpu_upper_bound
        return SimpleNamespace(seq_lens=cam.seq_lens, block_table=cam.block_table_tensor, **named)

    builder.__init__, builder.build = made, build
    return {of.__name__: of for of in (backend, impl, builder)}


def _linear_kernels() -> dict[str, Any]:
    """vLLM's classes of linear kernels that gemmill's derive from, by name."""
    scaled = _stand_in("ScaledMMLinearKernel", _Base)
    block = _stand_in("Fp8BlockScaledMMLinearKernel", _stand_in("MMLinearKernel", _Base))
    in_blocks = {}
    for name in ("CutlassFp8BlockScaledMMKernel", "TritonFp8BlockScaledMMKernel"):
        of_kind = in_blocks[name] = _stand_in(name, block)
        of_kind.can_implement = classmethod(lambda cls, config: (True, None))
        of_kind.process_weights_after_loading = lambda self, layer: None
        of_kind._get_layer_params = lambda self, layer, **named: SimpleNamespace(
            weight=layer.weight, block_scale=layer.weight_scale_inv, block_scale_attr="weight_scale_inv"
        )
        of_kind.apply_block_scaled_mm = lambda self, *operands: "vLLM's"
    assert {"weight", "block_scale", "block_scale_attr"} <= {
        *CLASSES["Params"]["fields"],
        *CLASSES["FP8BlockParams"]["methods"],
    }
    fp8 = _stand_in("CutlassFP8ScaledMMLinearKernel", _stand_in("FP8ScaledMMLinearKernel", scaled))
    fp8.process_weights_after_loading = lambda self, layer: setattr(layer, "prepared", "vLLM's")
    fp8.apply_scaled_mm = lambda self, **operands: "vLLM's"
    fp8._get_layer_params = lambda self, layer: tuple(getattr(layer, name, None) for name in self.layer_param_names)
    int8 = _stand_in("CutlassInt8ScaledMMLinearKernel", _stand_in("Int8ScaledMMLinearKernel", scaled))
    int8.process_weights_after_loading = lambda self, layer: None
    int8.apply_weights = lambda self, layer, x, bias=None: "vLLM's"
    int8._get_layer_params = lambda self, layer: tuple(getattr(layer, name, None) for name in self.layer_param_names)

    marlin = {}
    for kind in ("NvFp4", "MxFp4"):
        of_kind = _stand_in(f"Marlin{kind}LinearKernel", _stand_in(f"{kind}LinearKernel", _Base))
        of_kind.can_implement = classmethod(lambda cls, config: (True, None))
        of_kind.process_weights_after_loading = lambda self, layer: None
        of_kind.apply_weights = lambda self, layer, x, bias=None: "vLLM's"
        marlin[of_kind.__name__] = of_kind
    return {
        "CutlassFP8ScaledMMLinearKernel": fp8,
        **in_blocks,
        "CutlassInt8ScaledMMLinearKernel": int8,
        **marlin,
    }


def _latents() -> dict[str, dict[str, Any]]:
    """vLLM's list of cache dtypes, and what its backends of MLA derive from: they compute nothing."""
    known, handlers = ["auto", "fp8"], {}

    def register(name: str) -> Callable[[type], type]:
        def decorate(handler: type) -> type:
            assert name not in known
            known.append(name)
            handlers[name] = handler()
            return handler

        return decorate

    backend = _stand_in("MLACommonBackend", _stand_in("AttentionBackend", object))
    backend.customize_spec = classmethod(lambda cls, spec: spec)
    impl = _stand_in("MLACommonImpl", _stand_in("MLAAttentionImpl", object))
    impl.__init__ = lambda self, **named: vars(self).update(named)
    return {
        "vllm.config": {"get_current_vllm_config_or_none": lambda: None},
        "vllm.config.cache": {
            "is_known_kv_cache_dtype": lambda name: name in known,
            "register_kv_cache_dtype": register,
            "handlers": handlers,
        },
        "vllm.v1.kv_cache_interface": {"KVQuantMode": Enum("KVQuantMode", ["NONE", "CUSTOM"])},
        "vllm.v1.attention.backend": {
            "AttentionCGSupport": Enum("AttentionCGSupport", CLASSES["AttentionCGSupport"]["members"])
        },
        "vllm.model_executor.layers": {},
        "vllm.model_executor.layers.attention": {},
        "vllm.model_executor.layers.attention.mla_attention": {
            "MLACommonBackend": backend,
            "MLACommonImpl": impl,
            "MLACommonMetadataBuilder": _stand_in("MLACommonMetadataBuilder", object),
            "QueryLenSupport": Enum("QueryLenSupport", CLASSES["QueryLenSupport"]["members"]),
        },
    }


def _routing() -> dict[str, dict[str, Any]]:
    """vLLM's gates, routers and runners of experts, which count their own calls: a runner calls its gate, then its router."""

    class GateLinear(torch.nn.Module):
        def __init__(
            self,
            input_size: int,
            output_size: int,
            bias: bool = False,
            out_dtype: torch.dtype | None = None,
            params_dtype: torch.dtype = torch.bfloat16,
            return_bias: bool = True,
        ) -> None:
            super().__init__()
            self.input_size, self.output_size, self.out_dtype, self.return_bias = (
                input_size,
                output_size,
                out_dtype,
                return_bias,
            )
            drawn = torch.randn(output_size, input_size, generator=torch.Generator().manual_seed(output_size))
            self.weight = torch.nn.Parameter((drawn / 4).to(params_dtype), requires_grad=False)
            self.bias = torch.nn.Parameter(torch.zeros(output_size, dtype=params_dtype)) if bias else None
            self.is_unquantized, self.calls = True, 0

        def forward(self, x: torch.Tensor) -> Any:
            self.calls += 1
            logits = torch.nn.functional.linear(x, self.weight).to(self.out_dtype or x.dtype)
            return (logits, None) if self.return_bias else logits

    class FusedTopKRouter:
        def __init__(
            self,
            top_k: int,
            global_num_experts: int,
            scoring_func: str = "softmax",
            renormalize: bool = True,
            eplb_state: Any = None,
        ) -> None:
            self.top_k, self.global_num_experts = top_k, global_num_experts
            self.scoring_func, self.renormalize, self.eplb_state, self.calls = scoring_func, renormalize, eplb_state, 0

        def _compute_routing(
            self,
            hidden_states: torch.Tensor,
            router_logits: torch.Tensor,
            indices_type: torch.dtype | None,
            *,
            input_ids: torch.Tensor | None = None,
        ) -> tuple[torch.Tensor, torch.Tensor]:
            self.calls += 1
            weights, ids = router_logits.float().softmax(1).topk(self.top_k)
            return weights / weights.sum(1, keepdim=True), ids.to(indices_type or torch.int32)

        def select_experts(
            self,
            hidden_states: torch.Tensor,
            router_logits: torch.Tensor,
            topk_indices_dtype: torch.dtype | None = None,
            *,
            input_ids: torch.Tensor | None = None,
        ) -> tuple[torch.Tensor, torch.Tensor]:
            return self._compute_routing(hidden_states, router_logits, topk_indices_dtype, input_ids=input_ids)

    class MoERunner(torch.nn.Module):
        def __init__(
            self,
            layer_name: str,
            moe_config: Any,
            router: Any,
            routed_experts: Any,
            gate: torch.nn.Module | None = None,
            shared_expert_gate: torch.nn.Module | None = None,
        ) -> None:
            super().__init__()
            self.layer_name, self.moe_config, self.router, self.gate = layer_name, moe_config, router, gate
            self.routed_experts, self._fse_fuse_gate = routed_experts, None not in (gate, shared_expert_gate)

        @property
        def is_monolithic(self) -> bool:
            return self.routed_experts.quant_method.is_monolithic

        @property
        def do_naive_dispatch_combine(self) -> bool:
            return self.moe_config.dp_size > 1

        def _maybe_dispatch(
            self, hidden_states: torch.Tensor, router_logits: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            return hidden_states, router_logits

        def forward(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            router_logits, _ = self.gate(hidden_states)
            hidden_states, router_logits = self._maybe_dispatch(hidden_states, router_logits)
            return self.router.select_experts(
                hidden_states=hidden_states,
                router_logits=router_logits,
                topk_indices_dtype=self.routed_experts.quant_method.topk_indices_dtype,
                input_ids=None,
            )

    made = ((vllm_routing.GATE, GateLinear), (vllm_routing.ROUTER, FusedTopKRouter), (vllm_routing.RUNNER, MoERunner))
    contents: dict[str, dict[str, Any]] = {module: {name: of} for (module, name), of in made}
    contents[vllm_routing.ROUTER[0]][vllm_routing.PADDING] = lambda num_tokens: None
    return contents


def _attention() -> dict[str, dict[str, Any]]:
    """vLLM's registry of attention backends, and the one over TurboQuant caches."""
    overridden: dict[Any, str] = {}
    members = {
        "is_overridden": lambda self: self in overridden,
        "get_path": lambda self: overridden.get(self, self.value),
    }
    backends = type("AttentionBackend", (), members)
    backend_enum = Enum("AttentionBackendEnum", {"TURBOQUANT": "vLLM's"}, type=backends)

    def register(backend: Any, class_path: Any = None) -> None:
        if isinstance(backend, str):  # a name of its own
            assert backend not in backend_enum._member_map_
            name, backend = backend, object.__new__(backend_enum)
            backend._name_, backend._value_ = name, class_path
            backend_enum._member_map_[name] = backend
        overridden[backend] = class_path

    return {
        "vllm.v1": {},
        "vllm.v1.attention": {},
        "vllm.v1.attention.backends": {},
        "vllm.v1.attention.backends.registry": {
            "AttentionBackendEnum": backend_enum,
            "register_backend": register,
        },
        "vllm.v1.attention.backends.turboquant_attn": _turboquant(),
    }


def vllm_modules() -> dict[str, ModuleType]:
    """Modules with vLLM's names and the plugin's imports: its int8 kernel computes as gemmill's, by the CPU reference."""
    platform = Enum("PlatformEnum", ["CUDA", "ROCM", "CPU", "XPU"])
    oracle = VLLM["modules"][NVFP4_ORACLE]
    experts_backends = Enum("NvFp4MoeBackend", oracle["NvFp4MoeBackend"]["members"])

    def coded(input: torch.Tensor, scale: Any = None, azp: Any = None, symmetric: bool = True) -> Any:
        assert scale is None and azp is None
        return gemmill.dynamic_scaled_int8_quant(input, symmetric)

    def prepare(*given: Any, **named: Any) -> Any:
        return "vLLM's"

    def choose_experts(config: Any, weight_key: Any, activation_key: Any) -> Any:
        named = {"auto": "HUMMING"}.get(config.moe_backend, config.moe_backend.upper())
        if named == "MARLIN" and getattr(config, "experts_per_token", 0) > 64:
            raise ValueError("NvFp4 MoE backend 'MARLIN' does not support the deployment configuration.")
        return experts_backends[named], object()

    def set_up(world_size: int = -1, rank: int = -1, **named: Any) -> str:
        return "vLLM's"

    def processed(model: Any, model_config: Any, target_device: Any) -> None:
        for kernel, layer in model:
            kernel.process_weights_after_loading(layer)

    lists = {
        attribute: {
            getattr(platform, key.partition(".")[2]): [type(name, (), {}) for name in names]
            for key, names in of["value"].items()
        }
        for attribute, of in LINEAR.items()
        if attribute.startswith("_POSSIBLE")
    }
    contents: dict[str, dict[str, Any]] = {
        "vllm": {},
        "vllm._custom_ops": {
            "scaled_int8_quant": coded,
            "cutlass_moe_mm": lambda *given, **named: "vLLM's",
            "gather_and_maybe_dequant_cache": lambda *given: "vLLM's",
        },
        "vllm.distributed": {"init_distributed_environment": set_up},
        "vllm.distributed.parallel_state": {"init_distributed_environment": set_up},
        "vllm.utils": {},
        "vllm.utils.deep_gemm": {
            "m_grouped_fp8_gemm_nt_contiguous": lambda *given, **named: "vLLM's",
            "fp8_m_grouped_gemm_nt_masked": lambda *given, **named: "vLLM's",
            "get_mk_alignment_for_contiguous_layout": lambda: [8, 8],
        },
        FP4_EXPERTS[0][0]: {FP4_EXPERTS[0][1]: prepare, MXFP4_EXPERTS[1]: lambda *given: prepare(*given)},
        FP4_EXPERTS[1][0]: {FP4_EXPERTS[1][1]: lambda *given, **named: "vLLM's"},
        NVFP4_ORACLE: {FP4_EXPERTS[0][1]: prepare, FP4_EXPERTS_CHOICE: choose_experts},
        "vllm.model_executor.layers.quantization.modelopt": {FP4_EXPERTS_CHOICE: choose_experts},
        **_triton_experts(),
        **_routing(),
        "vllm.envs": {"VLLM_BATCH_INVARIANT": False, "VLLM_DISABLED_KERNELS": []},
        "vllm.platforms": {"PlatformEnum": platform, "current_platform": type("Cuda", (Platform,), {})()},
        "vllm.model_executor": {},
        "vllm.model_executor.model_loader": {},
        "vllm.model_executor.model_loader.utils": {"process_weights_after_loading": processed},
        "vllm.model_executor.model_loader.base_loader": {"process_weights_after_loading": processed},
        "vllm.model_executor.kernels": {},
        "vllm.model_executor.kernels.linear": {
            **_linear_kernels(),
            **lists,
            "init_nvfp4_linear_kernel": lambda use_a16=False: f"vLLM's, {use_a16}",
            "_get_linear_backend": lambda *, quantization: "auto",
        },
        "vllm.model_executor.kernels.linear.nvfp4": {},
        "vllm.model_executor.kernels.linear.nvfp4.base": {
            "NvFp4LinearLayerConfig": make_dataclass(
                "NvFp4LinearLayerConfig", CLASSES["NvFp4LinearLayerConfig"]["fields"]
            )
        },
        **_attention(),
        **_latents(),
    }
    modules = {name: ModuleType(name) for name in contents}
    for name, module in modules.items():
        vars(module).update(contents[name])
    modules["vllm"].envs, modules["vllm"]._custom_ops = modules["vllm.envs"], modules["vllm._custom_ops"]
    return modules


def config_of(name: str, **fields: object) -> Any:
    """A config of vLLM's with the recorded fields, all of which must be given."""
    return make_dataclass(name, _CONFIGS[name]["fields"])(**fields)


def quant_key(group: tuple[int, int], static: bool = True, dtype: Any = torch.float8_e4m3fn) -> Any:
    """vLLM's description of codes with a scale for each group of rows and columns; -1 is all of them."""
    assert CLASSES["QuantKey"]["fields"][:2] == ["dtype", "scale"]
    assert CLASSES["ScaleDesc"]["fields"] == ["dtype", "static", "group_shape"]
    assert "is_per_tensor" in CLASSES["GroupShape"]["methods"]

    class GroupShape(tuple):
        row, col = group

        def is_per_tensor(self) -> bool:
            return group == (-1, -1)

    scale = SimpleNamespace(dtype=torch.float32, static=static, group_shape=GroupShape(group))
    return SimpleNamespace(dtype=dtype, scale=scale)


def fp8_config(
    weight: tuple[int, int] = (-1, 1),
    activation: tuple[int, int] = (1, -1),
    shape: tuple[int, int] = (64, 128),
    **changes: object,
) -> Any:
    """Of a layer of N x K with scales per channel and token."""
    fields = {
        "weight_quant_key": quant_key(weight),
        "activation_quant_key": quant_key(activation, static=activation == (-1, -1)),
        "weight_shape": shape,
        "input_dtype": torch.bfloat16,
        "out_dtype": torch.bfloat16,
    }
    return config_of("FP8ScaledMMLinearLayerConfig", **fields | changes)


def int8_config(**changes: object) -> Any:
    """Of a layer with scales per channel and token."""
    fields = {
        "is_static_input_scheme": False,
        "is_channelwise": True,
        "input_symmetric": True,
        "is_fused_module": False,
    }
    return config_of("Int8ScaledMMLinearLayerConfig", **fields | changes)


class HookRegistry:
    """SGLang's, which keeps hooks and applies none."""

    _hooks: dict[str, list[Any]] = {}

    @classmethod
    def register(cls, target: str, hook: Any, hook_type: str, *, source: Any = None) -> None:
        """Keep a hook."""
        cls._hooks.setdefault(target, []).append((hook_type, hook, source))


def sglang_modules() -> dict[str, ModuleType]:
    """Modules with SGLang's names and the plugin's imports."""
    of = SGLANG["modules"]["sglang.srt.plugins.hook_registry"]
    given = [parameter[0] for parameter in of["HookRegistry"]["methods"]["register"]["parameters"]]
    assert given == ["cls", "target", "hook", "hook_type", "source"]
    assert "AROUND" in of["HookType"]["members"] and "_hooks" in of["HookRegistry"]["fields"]
    names = ("sglang", "sglang.srt", "sglang.srt.plugins", "sglang.srt.plugins.hook_registry")
    modules = {name: ModuleType(name) for name in names}
    registry = type("HookRegistry", (HookRegistry,), {"_hooks": {}})
    vars(modules[names[-1]]).update(HookRegistry=registry, HookType=SimpleNamespace(AROUND="around"))
    return modules
