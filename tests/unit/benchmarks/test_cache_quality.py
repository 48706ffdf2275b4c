"""The program that measures the price of cache formats, at a small size; the page's figures are those of its results."""

import json
import lzma
import re
from pathlib import Path

import pytest
import torch

import cache_quality
from cache_quality import Format, divergences, format_of, needles
from harness.decoders import Checkpoint, Decoder, RandomDecoder, Sizes, trained_like

ROOT = Path(__file__).parents[3]
CPU = torch.device("cpu")
SIZES = Sizes(layers=2, heads=2, kv_heads=1, head_dim=64, vocabulary=64)
TOKENS = cache_quality.random_tokens(80, SIZES.vocabulary, seed=1)
BY_BITS = [format_of(f"k_eden{bits}_v_eden{bits}") for bits in (4, 3, 2)]


def as_it_is(keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return keys, values


@pytest.fixture(scope="module")
def decoder() -> RandomDecoder:
    return RandomDecoder(SIZES, seed=3, device=CPU)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    transformers = pytest.importorskip("transformers")
    told = {"hidden_size": 128, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64, "vocab_size": 64}
    config = transformers.LlamaConfig(**told, num_hidden_layers=2, intermediate_size=128)
    torch.manual_seed(4)
    transformers.LlamaForCausalLM(config).save_pretrained(tmp_path)
    return Checkpoint(tmp_path, CPU)


def goes_on(decoder: Decoder) -> None:
    """Behind its own cache a decoder gives the output of all tokens at once, and another cache changes it."""
    nothing = [(x[:0], y[:0]) for x, y in decoder.prefill(TOKENS[:1])]
    whole = decoder.logits(TOKENS, nothing, as_it_is)[-8:]
    past = decoder.prefill(TOKENS[:-8])
    assert len(past) == 2 and past[0][0].shape == (72, 1, 64)
    behind = decoder.logits(TOKENS[-8:], past, as_it_is)
    assert behind.shape == (8, 64) and (behind - whole).abs().max() < 1e-4 * whole.abs().max()
    other = decoder.logits(TOKENS[-8:], [(x, torch.zeros_like(y)) for x, y in past], as_it_is)
    assert (other - whole).abs().max() > 1e-2 * whole.abs().max()
    zeroed = decoder.logits(TOKENS[-8:], past, lambda keys, values: (keys, 0 * values))
    assert (zeroed - whole).abs().max() > 1e-3 * whole.abs().max(), "new tokens pass the format as well"


def test_a_random_decoder_goes_on_behind_a_cache(decoder: RandomDecoder) -> None:
    goes_on(decoder)


def test_a_checkpoint_goes_on_behind_a_cache(checkpoint: Checkpoint) -> None:
    with torch.inference_mode():
        goes_on(checkpoint)


def test_random_weights_have_a_falling_spectrum() -> None:
    weight = trained_like(64, 256, torch.Generator().manual_seed(0), CPU)
    assert float(weight.square().sum()) == pytest.approx(64, rel=1e-4), "products with unit variance keep it"
    sizes = torch.linalg.svdvals(weight)
    assert float(sizes[0] / sizes[-1]) == pytest.approx((65 / 2) ** 0.5, rel=1e-3)


def test_more_bits_move_logits_less(decoder: RandomDecoder) -> None:
    exact, *rows = divergences(decoder, TOKENS, 16, BY_BITS)
    assert (exact["format"], exact["kl"], exact["same"]) == ("bf16", 0.0, 1.0)
    four, three, two = (row["kl"] for row in rows)
    assert 0 < 2 * four < three < two / 2


def test_fewer_bits_lose_more_needles() -> None:
    exact, *rows = needles(576, [BY_BITS[0], BY_BITS[2]], CPU)
    assert (exact["found"], exact["kept"], exact["error"]) == (1.0, 1.0, 0.0)
    assert 1 >= rows[0]["found"] > 1.2 * rows[1]["found"] > 0.3
    assert 0.05 < rows[0]["error"] < rows[1]["error"] / 2


def test_a_needles_exact_weight_is_a_half() -> None:
    keys = torch.randn(100, 128, generator=torch.Generator().manual_seed(0))
    q = cache_quality.sharpened(keys[:5], keys)
    weights = (q @ keys.T * 128**-0.5).softmax(-1)
    assert torch.allclose(weights.diagonal(), torch.tensor(0.5), atol=1e-3)


def test_an_unknown_format_is_a_sentence() -> None:
    with pytest.raises(
        ValueError, match=r"Format k_eden5_v_eden4 was asked for; formats are k_K_v_V of a K of eden2, .*: choose one"
    ):
        format_of("k_eden5_v_eden4")
    assert format_of("turboquant_k8v4") == Format(name="turboquant_k8v4", keys="e4m3", values="uniform4")


def test_the_program_writes_a_record(tmp_path: Path, capsys) -> None:
    sizes = ["--tokens", "48", "--rows", "4", "--layers", "1", "--heads", "2", "--kv-heads", "1"]
    told = [*sizes, "--device", "cpu", "--formats", "turboquant_4bit_nc", "--out-dir", str(tmp_path)]
    assert cache_quality.main(told) == 0
    (path,) = tmp_path.glob("cache-quality-cpu-*.json")
    record = json.loads(path.read_text())
    assert [row["format"] for row in record["rows"]] == ["bf16", "turboquant_4bit_nc"]
    assert record["rows"][1]["bits"] == 4.1875 and record["rows"][1]["kl"] > 0
    assert "| turboquant_4bit_nc | 4.188 |" in capsys.readouterr().out


def test_the_page_has_the_figures_of_the_results() -> None:
    page = (ROOT / "docs" / "kv_cache.md").read_text()
    named = re.findall(r"\(\.\./(benchmarks/results/cache-quality-[\w-]+\.json\.xz)\)", page)
    assert named
    for path in named:
        results = json.loads(lzma.decompress((ROOT / path).read_bytes()))
        assert f"{results['date'][:10]}, {results['commit'][:10]}: format |" in page, path
        for row in results["rows"]:
            figures = " | ".join(f"{row[name]:.3g}" for name in ("same", "found", "kept", "error"))
            told = f"| {row['bits']:.4g} | {row['kl']:.3g} +- {row['kl_error']:.2g} | {figures} |"
            assert f"| {row['format']} {told}" in page, (path, row["format"])
