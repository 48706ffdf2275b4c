"""vLLM's TurboQuant backend with gemmill's kernels, against recorded interfaces of vLLM 0.33.0 (tools/record_engines.py)."""

import importlib
import inspect
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

import gemmill
from builds import TableOnly
from engines import CLASSES, vllm_modules
from gemmill.compat import linear
from gemmill.compat.vllm import plugin as vllm_plugin
from gemmill.families import kv_cache
from gemmill.registry import REGISTRY
from gemmill.runtime import ops
from gemmill.space.selections import select

NAME, HEADS, KV_HEADS, HEAD_DIM, PAGE, SLOT = "turboquant_4bit_nc", 4, 2, 128, 16, 134
OWN = "gemmill.compat.vllm.attention"


@pytest.fixture
def vllm(monkeypatch) -> SimpleNamespace:
    """A stand-in of a newly started vLLM."""
    modules = vllm_modules()
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, OWN, raising=False)
    monkeypatch.setattr(linear, "_complained", set())
    linear.forget()
    monkeypatch.delenv("GEMMILL_VLLM", raising=False)
    yield SimpleNamespace(envs=modules["vllm.envs"], **vars(modules["vllm.v1.attention.backends.registry"]))
    sys.modules.pop(OWN, None)


@pytest.fixture
def served(make_manifest, table_of, monkeypatch) -> TableOnly:
    """A loaded build of the smoke selection's kernels of caches."""
    configs = REGISTRY.configs_of(kv_cache.NAME, select("smoke").configs)
    build = TableOnly(make_manifest(*configs), table_of(*configs))
    monkeypatch.setattr(ops, "_active", build)
    return build


def own() -> ModuleType:
    return importlib.import_module(OWN)


def impl_of(dtype: str = NAME):
    """As vLLM would have made it."""
    made = own().GemmillTurboQuantImpl()
    told = {"kv_cache_dtype": dtype, "num_heads": HEADS, "num_kv_heads": KV_HEADS, "head_size": HEAD_DIM, "scale": 0.1}
    for name, value in told.items():
        setattr(made, name, value)
    return made


def new_cache(blocks: int = 3) -> torch.Tensor:
    """As a layer hands it on: [blocks, tokens, heads, slot]."""
    return torch.zeros(blocks, PAGE, KV_HEADS, SLOT, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("name", "mine", "methods"),
    [
        ("TurboQuantAttentionBackend", "GemmillTurboQuantBackend", {"get_impl_cls", "get_builder_cls"}),
        ("TurboQuantAttentionImpl", "GemmillTurboQuantImpl", {"_store_kv", "_decode_attention", "forward"}),
        ("TurboQuantMetadataBuilder", "GemmillTurboQuantBuilder", {"build", "_init_reorder_batch_threshold"}),
    ],
)
def test_what_is_overridden_has_vllms_parameters(vllm, name: str, mine: str, methods: set[str]) -> None:
    theirs = CLASSES["AttentionMetadataBuilder"]["methods"] if name.endswith("Builder") else {}
    theirs = theirs | CLASSES[name]["methods"]
    overridden = {method: value for method, value in vars(getattr(own(), mine)).items() if method in theirs}
    assert overridden.keys() == methods
    for method, value in overridden.items():
        function = value.__func__ if isinstance(value, staticmethod) else value
        assert ("staticmethod" in theirs[method]["decorators"]) == isinstance(value, staticmethod)
        found = [[p.name, p.default is not p.empty] for p in inspect.signature(function).parameters.values()]
        assert found == [[given, has] for given, _, has in theirs[method]["parameters"]]


def test_the_backend_is_registered_once_and_no_other_plugins_is_replaced(vllm, monkeypatch) -> None:
    backend = vllm.AttentionBackendEnum.TURBOQUANT
    for _ in range(2):
        vllm_plugin.register()
    module, _, name = backend.get_path().rpartition(".")
    assert (module, name) == (OWN, "GemmillTurboQuantBackend")
    assert own().GemmillTurboQuantBackend.get_impl_cls() is own().GemmillTurboQuantImpl
    vllm.register_backend(backend, "another.plugins.Backend")
    vllm_plugin.register()
    assert backend.get_path() == "another.plugins.Backend"


def test_it_is_switched_off(vllm, monkeypatch) -> None:
    monkeypatch.setenv("GEMMILL_VLLM", "0")
    vllm_plugin.register()
    assert not vllm.AttentionBackendEnum.TURBOQUANT.is_overridden()


def test_tokens_are_stored_and_attended_over(vllm, served) -> None:
    """By the reference, on CPU tensors: the backend stores the ops' bytes, and slots of -1 are left alone."""
    torch.manual_seed(3)
    impl, cache, layer = impl_of(), new_cache(), object()
    keys, values = torch.randn(2, 20, KV_HEADS, HEAD_DIM).bfloat16()
    slots = torch.cat((torch.arange(16, 32), torch.tensor([-1, 0, 1, -1]))).int()
    impl._store_kv(keys, values, cache, slots, layer)
    stored = (cache != 0).any(-1).all(-1).flatten()
    assert stored.nonzero().flatten().tolist() == [0, 1, *range(16, 32)]
    meta = SimpleNamespace(
        block_table=torch.tensor([[1, 0]], dtype=torch.int32), seq_lens=torch.tensor([18], dtype=torch.int32)
    )
    q = torch.randn(1, HEADS, HEAD_DIM).bfloat16()
    out = impl._decode_attention(q, cache, meta, None, None)
    order = torch.cat((torch.arange(16), torch.tensor([17, 18])))
    k, v = (x[order].float().repeat_interleave(HEADS // KV_HEADS, 1) for x in (keys, values))
    weights = torch.softmax(0.1 * torch.einsum("hd,thd->ht", q[0].float(), k), dim=-1)
    wanted = torch.einsum("ht,thd->hd", weights, v)
    assert out.shape == q.shape and (out[0].float() - wanted).norm() < 0.2 * wanted.norm()


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("apart", "its pages are apart, and new tokens are stored by the number of their slot"),
        ("split", "its slots are split, as AMD's GPUs have them"),
        ("slot", "slots have 140 bytes, turboquant_4bit_nc with head dim 128 has 134"),
        ("batch", "a decode step and a chunk of a prefill hold orders of their own, and VLLM_BATCH_INVARIANT is set"),
        (
            "dtype",
            "build 0123abcd4567 has no variant for turboquant_4bit_nc with head dim 128: `gemmill build` compiles more",
        ),
    ],
)
def test_vllm_goes_on_with_its_kernels_in_one_sentence(vllm, served, caplog, what: str, told: str) -> None:
    impl, cache = impl_of(), new_cache()
    keys = torch.zeros(1, KV_HEADS, HEAD_DIM, dtype=torch.float16 if what == "dtype" else torch.bfloat16)
    if what == "apart":
        cache = torch.zeros(3, PAGE + 1, KV_HEADS, SLOT, dtype=torch.uint8)[:, :PAGE]
    if what == "slot":
        cache = torch.zeros(3, PAGE, KV_HEADS, 140, dtype=torch.uint8)
    impl._soa_store = what == "split"
    vllm.envs.VLLM_BATCH_INVARIANT = what == "batch"
    before = cache.clone()
    for _ in range(2):
        impl._store_kv(keys, keys, cache, torch.zeros(1, dtype=torch.int64), None)
        assert impl._decode_attention(keys, cache, None, None, None) == "vLLM's"
    assert torch.equal(cache, before), "vLLM's kernels would have written, ours did not"
    (message,) = caplog.messages
    assert message == f"a TurboQuant cache stays with the engine: {told.replace('0123abcd4567', served.build_id)}"


def test_a_cache_whose_call_fails_stays_with_vllm(vllm, served, caplog, monkeypatch) -> None:
    """From then on: the bytes are the same."""

    def failing(*given: object, **named: object) -> None:
        raise RuntimeError("slots are int32:\npass int64")

    impl = impl_of()
    monkeypatch.setattr(gemmill, "kv_compress_values", failing)
    keys = torch.zeros(1, KV_HEADS, HEAD_DIM, dtype=torch.bfloat16)
    for _ in range(2):
        assert impl._store_kv(keys, keys, new_cache(), torch.zeros(1, dtype=torch.int64), None) is None
        assert impl._decode_attention(keys, new_cache(), None, None, None) == "vLLM's"
    assert caplog.messages == ["a TurboQuant cache stays with the engine: a call failed (slots are int32: pass int64)"]


def test_an_unusable_build_is_one_sentence(vllm, caplog, monkeypatch) -> None:
    def refuse() -> None:
        raise RuntimeError("build x needs torch 2.11 or later,\ntorch 2.9 is installed: upgrade torch")

    monkeypatch.setattr(ops, "_active", None)
    monkeypatch.setattr(ops, "load", refuse)
    impl = impl_of()
    assert impl._decode_attention(torch.zeros(1, HEADS, HEAD_DIM).bfloat16(), new_cache(), None, None, None) == "vLLM's"
    (message,) = caplog.messages
    assert message == (
        "a TurboQuant cache stays with the engine: gemmill cannot serve here (build x needs torch 2.11 or later, torch 2.9 is "
        "installed: upgrade torch)"
    )


def stored_cache(impl, lengths: list[int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A cache with random tokens of sequences, their page table and lengths. Pages of sequences alternate."""
    pages = -(-max(lengths) // PAGE)
    table = torch.arange(len(lengths) * pages, dtype=torch.int32).reshape(pages, -1).T.contiguous()
    cache = new_cache(blocks=len(lengths) * pages)
    for own_pages, length in zip(table, lengths, strict=True):
        place = torch.arange(length)
        slots = own_pages.long()[place // PAGE] * PAGE + place % PAGE
        impl._store_kv(*torch.randn(2, length, KV_HEADS, HEAD_DIM).bfloat16(), cache, slots, None)
    return cache, table, torch.tensor(lengths, dtype=torch.int32)


def batch_of(counts: list[int], table: torch.Tensor, lengths: torch.Tensor, padding: int = 0) -> SimpleNamespace:
    """vLLM's metadata of a batch. `padding` counts sequences without query rows, whose tokens are counted all the same."""
    begins = torch.tensor([0, *counts, *[0] * padding]).cumsum(0).int()
    grown = torch.cat((table, table.new_zeros(padding, table.shape[1])))
    given = {
        "query_start_loc_cpu": begins,
        "seq_lens": torch.cat((lengths, lengths.new_zeros(padding))),
        "block_table_tensor": grown,
        "seq_lens_cpu_upper_bound": torch.cat((lengths - 1, lengths.new_zeros(padding))),  # as of a draft model
        "num_reqs": len(counts) + padding,
        "max_query_len": max(counts),
        "num_actual_tokens": sum(counts) + padding * max(counts),
    }
    assert given.keys() <= {*CLASSES["CommonAttentionMetadata"]["fields"]}
    return SimpleNamespace(**given)


def builder_of(drafts: int, layer: str = "model.layers.2.self_attn.attn"):
    """As vLLM makes it for a model with so many draft tokens a step."""
    return own().GemmillTurboQuantBuilder(None, [layer], SimpleNamespace(num_speculative_tokens=drafts), "cpu")


def one_by_one(impl, q: torch.Tensor, counts: list[int], cache, table, lengths) -> torch.Tensor:
    """Each token as a sequence of its own, that ends with it."""
    owner = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    ends = torch.cat([torch.arange(int(n) - count, int(n)) + 1 for n, count in zip(lengths, counts, strict=True)])
    meta = SimpleNamespace(block_table=table[owner], seq_lens=ends.int())
    return impl._decode_attention(q, cache, meta, None, None)


@pytest.mark.parametrize(
    ("counts", "padding"),
    [([3, 3], 0), ([3, 3], 2), ([1, 3, 2], 0), ([2, 1], 0), ([1, 3], 1), ([20, 20], 0), ([1, 1], 0)],
)
def test_rows_of_a_sequence_pass_the_cache_together(vllm, served, monkeypatch, counts, padding) -> None:
    """Each row sees the same tokens as alone, and up to 32 rows of the heads of a KV head are one call."""
    torch.manual_seed(5)
    impl = impl_of()
    cache, table, lengths = stored_cache(impl, [40, 25, 33][: len(counts)])
    meta = builder_of(drafts=19).build(0, batch_of(counts, table, lengths, padding))
    assert not meta.is_prefill and meta.num_decodes == len(counts) + padding
    q = torch.randn(sum(counts) + padding * max(counts), HEADS, HEAD_DIM).bfloat16()
    wanted = one_by_one(impl, q[: sum(counts)], counts, cache, table, lengths)
    calls, attention = [], gemmill.kv_attention
    monkeypatch.setattr(
        gemmill, "kv_attention", lambda q, *given, **named: calls.append(q.shape[1]) or attention(q, *given, **named)
    )
    (out,) = impl.forward(None, q, None, None, cache, meta)
    assert out.shape == q.shape and torch.equal(out[: sum(counts)], wanted)
    assert calls == ([16, 4] if max(counts) == 20 else [max(counts)])


def test_a_padded_uniform_batch_needs_no_index(vllm) -> None:
    """A CUDA graph of it holds no tensor that the batch was built with, but lengths and page table."""
    table, lengths = torch.zeros(2, 1, dtype=torch.int32), torch.tensor([9, 9], dtype=torch.int32)
    for counts, padding, is_uniform in (([4, 4], 0, True), ([4, 4], 3, True), ([4, 3], 0, False), ([2, 4], 1, False)):
        rows = builder_of(drafts=3).build(0, batch_of(counts, table, lengths, padding)).rows
        assert rows.most == 4 and (rows.taken is None and rows.given is None) == is_uniform


@pytest.mark.parametrize(
    ("layer", "counts", "wanted"),
    [
        ("draft_model.model.layers.2.self_attn.attn", [3, 133], [40, 133]),
        ("draft_model.model.layers.2.self_attn.attn", [3, 3], [39, 132]),
        ("model.layers.2.self_attn.attn", [3, 133], [39, 132]),
    ],
)
def test_prefills_of_a_draft_model_have_the_devices_lengths(vllm, layer: str, counts, wanted) -> None:
    """vLLM's lengths on the CPU lack a token there, so that a query of 133 tokens would follow -1 others."""
    table, lengths = torch.zeros(2, 1, dtype=torch.int32), torch.tensor([40, 133], dtype=torch.int32)
    meta = builder_of(3, layer).build(0, batch_of(counts, table, lengths))
    assert meta.seq_lens_cpu.device.type == "cpu" and meta.seq_lens_cpu.tolist() == wanted
    assert "seq_lens_cpu" in CLASSES["TurboQuantMetadata"]["fields"]


def test_decodes_with_drafts_stand_before_prefills(vllm, served) -> None:
    torch.manual_seed(6)
    impl, counts = impl_of(), [3, 1, 18]
    cache, table, lengths = stored_cache(impl, [40, 25, 18])
    meta = builder_of(drafts=2).build(0, batch_of(counts, table, lengths))
    assert meta.is_prefill and (meta.num_decodes, meta.num_decode_tokens) == (2, 4)
    q = torch.randn(sum(counts), HEADS, HEAD_DIM).bfloat16()
    out, prefilled = impl.forward(None, q, None, None, cache, meta)
    assert prefilled == "vLLM's"
    assert torch.equal(out, one_by_one(impl_of(), q[:4], counts[:2], cache, table[:2], lengths[:2]))
    (prefilled,) = impl.forward(
        None, q, None, None, cache, builder_of(drafts=0).build(0, batch_of([3, 18], table, lengths))
    )
    assert prefilled == "vLLM's", "without drafts a query of several tokens is a prefill, as in vLLM"


@pytest.mark.parametrize("counts", [[3, 3], [1, 3]])
def test_of_a_refused_layer_vllm_decodes_row_by_row(vllm, served, caplog, monkeypatch, counts) -> None:
    """Its kernel takes a row of each sequence, and its layers share the memory of their output."""
    lengths, memory, seen = torch.tensor([9, 2], dtype=torch.int32), torch.zeros(2, HEADS, HEAD_DIM), []

    def decoded(self, query, kv_cache, attn_metadata, *more):
        seen.append(attn_metadata.seq_lens.tolist())
        memory.copy_(query.float() + attn_metadata.seq_lens[:, None, None])
        return memory

    module = sys.modules["vllm.v1.attention.backends.turboquant_attn"]
    monkeypatch.setattr(module.TurboQuantAttentionImpl, "_decode_attention", decoded)
    impl, cache = impl_of(), torch.zeros(3, PAGE, KV_HEADS, 140, dtype=torch.uint8)
    meta = builder_of(drafts=2).build(0, batch_of(counts, torch.zeros(2, 1, dtype=torch.int32), lengths))
    q = torch.arange(sum(counts), dtype=torch.bfloat16)[:, None, None].expand(-1, HEADS, HEAD_DIM)
    (out,) = impl.forward(None, q, None, None, cache, meta)
    assert seen == [[7, 0], [8, 1], [9, 2]] and "140 bytes" in caplog.messages[0]
    wanted = [0 + 7, 1 + 8, 2 + 9, 3 + 0, 4 + 1, 5 + 2] if counts == [3, 3] else [0 + 9, 1 + 0, 2 + 1, 3 + 2]
    assert out[:, 0, 0].tolist() == wanted and meta.seq_lens.tolist() == [9, 2]
