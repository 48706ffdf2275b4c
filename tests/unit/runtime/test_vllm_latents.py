"""vLLM's attention over compressed latents with gemmill's kernels, against recorded interfaces (tools/record_engines.py)."""

import importlib
import inspect
import sys
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

import gemmill
from builds import TableOnly
from engines import CLASSES, VLLM, vllm_modules
from gemmill.compat import linear
from gemmill.compat.vllm import latent_cache
from gemmill.compat.vllm import plugin as vllm_plugin
from gemmill.families import kv_cache
from gemmill.registry import REGISTRY
from gemmill.runtime import ops
from gemmill.space.selections import select

OWN, NAME, HEADS, PAGE, SCALE = "gemmill.compat.vllm.latents", "gemmill_eden4", 8, 16, 192**-0.5
E4M3, K_SCALE = "gemmill_eden4_e4m3", torch.tensor(0.25)
LAYER = {"num_heads": HEADS, "scale": SCALE, "kv_cache_dtype": NAME, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
SLOTS = (*range(16, 32), *range(32, 40))


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A stand-in of a newly started vLLM."""
    modules = vllm_modules()
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, OWN, raising=False)
    monkeypatch.setattr(linear, "_complained", set())
    linear.forget()
    monkeypatch.delenv("GEMMILL_VLLM", raising=False)
    yield modules
    sys.modules.pop(OWN, None)


@pytest.fixture
def served(make_manifest: Any, table_of: Any, monkeypatch: pytest.MonkeyPatch) -> TableOnly:
    """A loaded build of the default selection's kernels of latents and of their rotary parts."""
    configs = REGISTRY.configs_of(kv_cache.NAME, select("default").configs)
    configs = [config for config in configs if config.operands.head_dim in (64, 512) and config == config.compiled]
    build = TableOnly(make_manifest(*configs), table_of(*configs))
    monkeypatch.setattr(ops, "_active", build)
    return build


def own() -> ModuleType:
    return importlib.import_module(OWN)


@pytest.fixture
def impl(vllm: Any, served: TableOnly) -> Any:
    """A layer's, as vLLM would have made it in a model of bf16."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        return own().GemmillLatentImpl(**LAYER)
    finally:
        torch.set_default_dtype(before)


def stored(impl: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """A cache [blocks, tokens, 400] with 24 tokens in blocks 1 and 2, and a token that pads; and the tokens [24, 576]."""
    tokens = torch.randn(25, 576, generator=torch.Generator().manual_seed(3)).bfloat16()
    cache = torch.full((3, PAGE, 400), 0xFF, dtype=torch.uint8)
    slots = torch.tensor((*SLOTS, -1))
    impl.do_kv_cache_update(tokens[:, :512], tokens[:, None, 512:], cache, slots, NAME, torch.ones(()))
    return cache, tokens[:24]


@pytest.mark.parametrize(
    ("name", "mine", "theirs"),
    [
        ("GemmillLatentBackend", "MLACommonBackend", "AttentionBackend"),
        ("GemmillLatentImpl", "MLACommonImpl", "MLAAttentionImpl"),
    ],
)
def test_what_is_overridden_has_vllms_parameters(vllm: Any, name: str, mine: str, theirs: str) -> None:
    methods = CLASSES[theirs]["methods"] | CLASSES[mine]["methods"]
    overridden = {method: value for method, value in vars(getattr(own(), name)).items() if method in methods}
    assert overridden.keys() - {"__init__"} >= {"get_name", "customize_spec"} or "forward_mqa" in overridden
    for method, value in overridden.items():
        if method == "__init__":
            continue
        kind = {staticmethod: "staticmethod", classmethod: "classmethod"}.get(type(value))
        assert [x for x in methods[method]["decorators"] if x != "abstractmethod"] == ([kind] if kind else [])
        function = value.__func__ if kind else value
        found = [[p.name, p.default is not p.empty] for p in inspect.signature(function).parameters.values()]
        assert found == [[given, has] for given, _, has in methods[method]["parameters"]]


def test_cache_and_backend_are_registered_once(vllm: Any) -> None:
    """By names of their own: no value of vLLM's means anything else."""
    registry, dtypes = vllm["vllm.v1.attention.backends.registry"], vllm["vllm.config.cache"]
    for _ in range(2):
        vllm_plugin.register()
    backend = registry.AttentionBackendEnum["MLA_GEMMILL"]
    assert backend.get_path() == f"{OWN}.GemmillLatentBackend"
    assert (
        set(dtypes.handlers)
        == set(latent_cache.FORMATS)
        == {f"gemmill_{name}{end}" for name in ("eden4", "turboquant_mse4") for end in ("", "_e4m3")}
    )
    handler = dtypes.handlers[NAME]
    assert handler.name == NAME and handler.torch_dtype() is torch.uint8 and handler.quant_mode().name == "NONE"
    assert set(CLASSES["KVCacheDTypeHandler"]["methods"]) == {"torch_dtype", "quant_mode"}


def test_the_backend_serves_its_own_caches_of_latents_and_rotary_parts(vllm: Any) -> None:
    backend = own().GemmillLatentBackend
    assert backend.get_name() == "MLA_GEMMILL" and backend.get_impl_cls() is own().GemmillLatentImpl
    assert backend.supported_kv_cache_dtypes == list(latent_cache.FORMATS)
    assert backend.get_supported_head_sizes() == [576] and backend.get_supported_kernel_block_sizes() == [
        16,
        32,
        64,
        128,
    ]
    assert [backend.supports_compute_capability(SimpleNamespace(major=major)) for major in (8, 9, 10)] == [
        False,
        True,
        False,
    ]

    @dataclass(frozen=True)
    class Spec:
        block_size: int
        cache_dtype_str: str
        state_content_bytes: int | None = None

    for name, bytes_of in ((NAME, 400), (E4M3, 336)):
        assert backend.customize_spec(Spec(64, name)) == Spec(64, name, bytes_of)


def test_tokens_are_stored_and_attended_over(impl: Any) -> None:
    """By the reference, on CPU tensors: a sequence with a draft, and one that pads the batch."""
    cache, tokens = stored(impl)
    assert bool((cache[2, 8:] == 0xFF).all()) and bool((cache[0, 1:] == 0xFF).all())
    q = torch.randn(4, HEADS, 576, generator=torch.Generator().manual_seed(1)).bfloat16()
    meta = SimpleNamespace(
        decode=SimpleNamespace(
            block_table=torch.tensor([[1, 2], [0, 0]], dtype=torch.int32),
            seq_lens=torch.tensor([24, 0], dtype=torch.int32),
        )
    )
    latents = gemmill.kv_decompress_keys(gemmill.latent_cache(cache)[0], 512, torch.tensor(SLOTS), "eden4")[:, 0]
    kept = torch.cat((latents, tokens[:, 512:]), 1).double()
    for queries in (q, (q[..., :512], q[..., 512:])):
        out, lse = impl.forward_mqa(queries, cache, meta, None)
        assert out.shape == (4, HEADS, 512) and lse.shape == (4, HEADS) and not bool(out[2:].any())
        for row in range(2):
            seen = kept[: 23 + row]
            scores = SCALE * q[row].double() @ seen.T
            wanted = scores.softmax(-1) @ seen[:, :512]
            assert (out[row].double() - wanted).norm() < 0.01 * wanted.norm()
            assert (lse[row].double() - scores.logsumexp(-1)).abs().max() < 0.02


def test_rotary_parts_in_e4m3_are_divided_by_vllms_scale(
    vllm: Any, served: TableOnly, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored, attended over and gathered for prefill; a token that pads leaves nothing."""
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_default_dtype", lambda: torch.bfloat16)
        impl = own().GemmillLatentImpl(**LAYER | {"kv_cache_dtype": E4M3})
    tokens = torch.randn(25, 576, generator=torch.Generator().manual_seed(3)).bfloat16()
    cache, slots = torch.full((3, PAGE, 336), 0xFF, dtype=torch.uint8), torch.tensor((*SLOTS, -1))
    impl.do_kv_cache_update(tokens[:, :512], tokens[:, None, 512:], cache, slots, E4M3, K_SCALE)
    assert bool((cache[0] == 0xFF).all()) and bool((cache[2, 8:] == 0xFF).all())
    codes = (tokens[:24, 512:].float() / K_SCALE).to(torch.float8_e4m3fn)
    assert torch.equal(cache.flatten(0, 1)[list(SLOTS), 272:], codes.view(torch.uint8))
    kept = codes.double() * K_SCALE.double()
    latents = gemmill.kv_decompress_keys(gemmill.latent_cache(cache)[0], 512, torch.tensor(SLOTS), "eden4")[
        :, 0
    ].double()
    q = torch.randn(1, HEADS, 576, generator=torch.Generator().manual_seed(1)).bfloat16()
    table, lengths = torch.tensor([[1, 2]], dtype=torch.int32), torch.tensor([24], dtype=torch.int32)
    meta = SimpleNamespace(decode=SimpleNamespace(block_table=table, seq_lens=lengths))
    out, _ = impl.forward_mqa(q, cache, meta, SimpleNamespace(_k_scale=K_SCALE))
    wanted = (SCALE * q[0].double() @ torch.cat((latents, kept), 1).T).softmax(-1) @ latents
    assert (out[0].double() - wanted).norm() < 0.01 * wanted.norm()
    workspace = torch.full((24, 576), torch.nan).bfloat16()
    latent_cache.restored(cache, workspace, torch.tensor(SLOTS), "eden4", K_SCALE)
    assert torch.equal(workspace[:, 512:].double(), kept) and torch.equal(workspace[:, :512].double(), latents)


def test_of_a_prefix_vllm_gathers_restored_latents(vllm: Any, impl: Any) -> None:
    """Of two sequences, whose chunks begin at tokens 16 and 0 of blocks 1 and 2; of other caches it gathers by its own function."""
    latent_cache.put_before()
    latent_cache.put_before()
    cache, tokens = stored(impl)
    gather = getattr(vllm["vllm._custom_ops"], latent_cache.GATHERS)
    named = [name for name, *_ in VLLM["modules"]["vllm._custom_ops"][latent_cache.GATHERS]["parameters"]]
    assert list(inspect.signature(gather, follow_wrapped=False).parameters) == named
    workspace = torch.full((12, 576), torch.nan).bfloat16()
    table, ends = torch.tensor([[1, 2], [2, 0]], dtype=torch.int32), torch.tensor([0, 6, 11], dtype=torch.int32)
    told = {
        "src_cache": cache,
        "dst": workspace,
        "block_table": table,
        "cu_seq_lens": ends,
        "token_to_seq": torch.tensor([0] * 6 + [1] * 5, dtype=torch.int32),
        "num_tokens": 11,
        "scale": torch.ones(()),
        "seq_starts": torch.tensor([16, 0], dtype=torch.int32),
    }
    gather(**told, kv_cache_dtype=NAME)
    wanted = torch.cat((tokens[16:22], tokens[16:21]))
    assert torch.equal(workspace[:11, 512:], wanted[:, 512:]) and bool(workspace[11].isnan().all())
    error = (workspace[:11, :512].double() - wanted[:, :512].double()).norm()
    assert 0.05 * wanted.double().norm() < error < 0.12 * wanted.double().norm()
    before = workspace.clone()
    gather(**told, kv_cache_dtype="fp8")
    assert torch.equal(workspace[:11], before[:11])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"kv_lora_rank": 256}, "its latents and rotary parts have 256 and 64 elements, kernels take 512 and 64"),
        ({}, "build 0123abcd4567 has no variant of kv_latent_attention, which `gemmill build` compiles"),
    ],
)
def test_a_layer_without_kernels_is_refused_in_a_sentence(
    vllm: Any, served: TableOnly, monkeypatch: pytest.MonkeyPatch, change: dict[str, int], told: str
) -> None:
    if not change:
        choice_of = ops.choice_of
        missing = SimpleNamespace(entry=None)
        monkeypatch.setattr(
            ops, "choice_of", lambda name, *given: missing if "latent" in name else choice_of(name, *given)
        )
    monkeypatch.setattr(torch, "get_default_dtype", lambda: torch.bfloat16)
    with pytest.raises(ValueError) as error:
        own().GemmillLatentImpl(**LAYER | change)
    assert (
        str(error.value) == f"A cache of latents in {NAME} was asked for, but {told}: choose another --kv-cache-dtype."
    )


def test_the_report_names_the_cache(impl: Any) -> None:
    assert any("cache of latents in gemmill_eden4" in str(x) for x in gemmill.serving_report()["served"])
