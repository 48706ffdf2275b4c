"""The weight classes with LightX2V's interface: loaded, offloaded, filled block by block, and with adapters."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from gemmill.checkpoints.file import CheckpointError
from gemmill.checkpoints.names import spelling_of
from gemmill.compat import lightx2v
from gemmill.compat.lightx2v import MM_WEIGHT_REGISTER
from gemmill.quantize import quantize_weight
from stored import save

N, K = 64, 128
FORMAT = {"nvfp4": "nvfp4", "mxfp4": "mxfp4", "mxfp6-mxfp8": "mxfp6", "mxfp8": "mxfp8"}


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


X = drawn(5, K, seed=9)


def stored(scheme: str, block: int = 0) -> dict[str, Tensor]:
    """A layer of a block as LightX2V's converter writes it."""
    weight = quantize_weight(drawn(N, K, seed=block), FORMAT[scheme])
    name = f"blocks.{block}.ffn.0"
    tensors = {name + part: tensor for part, tensor in spelling_of(FORMAT[scheme], "lightx2v").write(weight).items()}
    absmax = {f"{name}.input_absmax": X.abs().max()} if scheme == "nvfp4" else {}
    return tensors | absmax | {f"{name}.bias": drawn(1, N, seed=block + 50)}


def layer(scheme: str, **more: object) -> object:
    return MM_WEIGHT_REGISTER[scheme]("blocks.0.ffn.0.weight", "blocks.0.ffn.0.bias", **more)


def loaded(scheme: str, block: int = 0) -> object:
    made = MM_WEIGHT_REGISTER[scheme](f"blocks.{block}.ffn.0.weight", f"blocks.{block}.ffn.0.bias")
    made.load(stored(scheme, block))
    return made


@pytest.mark.parametrize("scheme", MM_WEIGHT_REGISTER)
def test_it_computes_what_the_weight_means(scheme: str) -> None:
    out = loaded(scheme).apply(X)
    values = quantize_weight(drawn(N, K), FORMAT[scheme]).values()
    wanted = X.float() @ values.t() + drawn(1, N, seed=50).float()
    assert out.dtype is torch.bfloat16
    assert (out.float() - wanted).norm() <= (0.04 if "8" in scheme else 0.15) * wanted.norm()


@pytest.mark.parametrize("scheme", MM_WEIGHT_REGISTER)
def test_it_moves_and_its_state_dict_brings_it_back(scheme: str) -> None:
    made = loaded(scheme)
    out = made.apply(X)
    made.to_cpu(non_blocking=True)
    assert torch.equal(made.apply(X), out)
    state = made.state_dict()
    extra = {"blocks.0.ffn.0.input_global_scale", "blocks.0.ffn.0.alpha"} if scheme == "nvfp4" else set()
    assert state.keys() == {"blocks.0.ffn.0.weight", "blocks.0.ffn.0.weight_scale", "blocks.0.ffn.0.bias"} | extra
    again = layer(scheme)
    again.load(state)  # of nvfp4 by input_global_scale and alpha
    assert torch.equal(again.apply(X), out)


@pytest.mark.parametrize("scheme", MM_WEIGHT_REGISTER)
def test_buffers_are_filled_block_by_block(scheme: str) -> None:
    made = layer(scheme, create_cuda_buffer=True)
    made.load(stored(scheme))
    with pytest.raises(CheckpointError, match=r"^blocks\.0\.ffn\.0\.weight is not loaded: call load, and"):
        made.apply(X)
    state = {key: t for block in (0, 1) for key, t in loaded(scheme, block).state_dict().items()}
    for block in (1, 0, 1):
        made.load_state_dict(state, block)
        assert torch.equal(made.apply(X), loaded(scheme, block).apply(X))
    made.load_state_dict(state, 7)
    assert made.weight is None, "a block that lacks the layer"


@pytest.mark.parametrize("scheme", MM_WEIGHT_REGISTER)
def test_pinned_buffers_are_filled_from_a_blocks_file(scheme: str, tmp_path: Path) -> None:
    for block in (0, 1):
        save(tmp_path / f"block_{block}.safetensors", stored(scheme, block))
    made = layer(scheme, create_cpu_buffer=True, lazy_load=True, lazy_load_file=tmp_path)
    made.load({})
    assert made.weight is None and made.pin_weight is not None
    made.load_state_dict_from_disk(1)
    made.to_cuda()
    assert made.weight_name == "blocks.1.ffn.0.weight" and torch.equal(made.apply(X), loaded(scheme, 1).apply(X))
    alone = layer(scheme, lazy_load=True, lazy_load_file=tmp_path / "block_0.safetensors")
    alone.load({})
    assert torch.equal(alone.apply(X), loaded(scheme).apply(X))


def test_files_of_blocks_that_are_not_there(tmp_path: Path) -> None:
    missing = layer("mxfp8", lazy_load=True, lazy_load_file=tmp_path)
    with pytest.raises(CheckpointError) as error:
        missing.load({})
    assert str(error.value) == (
        f"{tmp_path}/block_0.safetensors cannot be read: No such file or directory; check the name, or bring the file back"
    )
    with pytest.raises(CheckpointError) as error:
        layer("mxfp8", lazy_load=True).load({})
    assert str(error.value) == (
        "blocks.0.ffn.0.weight is to be loaded lazily and has no lazy_load_file: name a block's file, or the folder of them"
    )
    with pytest.raises(CheckpointError) as error:
        MM_WEIGHT_REGISTER["mxfp8"]("head.weight", lazy_load=True, lazy_load_file=tmp_path).load({})
    assert str(error.value) == (
        f"head.weight names no block, and {tmp_path} is a folder of blocks' files: name the file itself"
    )


def test_functions_and_classes_are_of_one_module() -> None:
    assert {f"cutlass_scaled_{kind}_mm" for kind in ("nvfp4", "mxfp4", "mxfp8", "mxfp6_mxfp8")} <= set(lightx2v.__all__)
    classes = {made.__name__ for made in MM_WEIGHT_REGISTER.values()}
    assert classes | {"MM_WEIGHT_REGISTER"} == {name for name in lightx2v.__all__ if name.startswith("MM")}
    assert all(hasattr(lightx2v, name) for name in lightx2v.__all__)


@pytest.mark.parametrize("scheme", ["mxfp4", "mxfp6-mxfp8", "mxfp8"])
def test_weights_in_bf16_are_quantised_when_they_are_loaded(scheme: str) -> None:
    made = layer(scheme)
    made.set_config({"weight_auto_quant": True})
    made.load({"blocks.0.ffn.0.weight": drawn(N, K), "blocks.0.ffn.0.bias": drawn(1, N, seed=50)})
    assert torch.equal(made.apply(X), loaded(scheme).apply(X))


def test_nvfp4_is_not_quantised_when_it_is_loaded() -> None:
    made = layer("nvfp4")
    made.set_config({"weight_auto_quant": True})
    with pytest.raises(CheckpointError, match=r"nvfp4 needs the input's range, so convert first$"):
        made.load({"blocks.0.ffn.0.weight": drawn(N, K)})


def test_adapters_are_added_replaced_and_removed() -> None:
    made = loaded("mxfp8")
    plain, prefix = made.apply(X), "diffusion_model.blocks.0.ffn.0"
    for seed, register in ((1, made.register_lora), (2, made.update_lora)):
        down, up = drawn(4, K, seed=seed), drawn(N, 4, seed=seed + 10)
        adapter = {
            f"{prefix}.lora_down.weight": down,
            f"{prefix}.lora_up.weight": up,
            f"{prefix}.alpha": torch.tensor(8.0),
        }
        register(adapter, 0.5)
        wanted = plain + 0.5 * 2.0 * ((X @ down.t()) @ up.t())
        assert torch.equal(made.apply(X), wanted)
    made.to_cpu()
    assert torch.equal(made.apply(X), wanted)
    made.remove_lora()
    made.register_lora({"another.lora_down.weight": down})
    assert torch.equal(made.apply(X), plain)
    made.register_diff({f"{prefix}.diff_b": torch.ones(N).bfloat16()})
    assert made.has_diff and not torch.equal(made.apply(X), plain)
    with pytest.raises(CheckpointError) as error:
        made.register_diff({f"{prefix}.diff": drawn(N, K)})
    assert str(error.value) == (
        f"{prefix}.diff is a difference of blocks.0.ffn.0.weight, which is quantised: merge it before quantising"
    )


def test_missing_keys_are_named() -> None:
    tensors = stored("nvfp4")
    del tensors["blocks.0.ffn.0.weight_global_scale"]
    with pytest.raises(CheckpointError) as error:
        layer("nvfp4").load(tensors)
    assert str(error.value) == "blocks.0.ffn.0.weight cannot be loaded: missing blocks.0.ffn.0.weight_global_scale"
    with pytest.raises(CheckpointError) as error:
        layer("mxfp8").load({"blocks.0.ffn.0.weight": tensors["blocks.0.ffn.0.weight"]})
    assert str(error.value) == (
        "blocks.0.ffn.0.weight cannot be loaded: missing blocks.0.ffn.0.weight_scale, blocks.0.ffn.0.bias"
    )


def test_a_bias_has_one_dimension_or_two() -> None:
    codes, scales = lightx2v.scaled_mxfp8_quant(X)
    alpha, bias = torch.ones(1), drawn(1, 5)
    both = [lightx2v.cutlass_scaled_mxfp8_mm(codes, codes, scales, scales, alpha, b) for b in (bias, bias[0])]
    assert torch.equal(*both)
