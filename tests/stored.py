"""Checkpoints for tests, and layers as several projects store them, put together by hand from each project's own description."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from gemmill.checkpoints.steps import Asked, Step

WORDS = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.int64: "I64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e8m0fnu: "F8_E8M0",
}


def save(path: Path, tensors: dict[str, Tensor]) -> Path:
    """A safetensors file, as the format's description has it."""
    header, data = {}, b""
    for name, tensor in tensors.items():
        part = bytes(tensor.contiguous().view(-1).view(torch.uint8).tolist())
        offsets = [len(data), len(data) + len(part)]
        header[name] = {"dtype": WORDS[tensor.dtype], "shape": list(tensor.shape), "data_offsets": offsets}
        data += part
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def shards(folder: Path, files: dict[str, dict[str, Tensor]]) -> Path:
    """A sharded checkpoint with its index."""
    folder.mkdir()
    for name, tensors in files.items():
        save(folder / name, tensors)
    weight_map = {key: name for name, tensors in files.items() for key in tensors}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


NVFP4 = Asked(to="nvfp4")


def drawn(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def model(tmp_path: Path) -> Path:
    """Two shards: layers, and other tensors."""
    first = {
        "embed.weight": drawn(10, 32),
        "layers.0.up.weight": drawn(48, 64),
        "layers.0.up.bias": drawn(48),
        "layers.0.norm.weight": drawn(64),
        "layers.0.conv.weight": drawn(4, 4, 3),
    }
    second = {
        "layers.1.up.weight": drawn(40, 96, dtype=torch.float32),
        "steps": torch.tensor(3),
        "lm_head.weight": drawn(8, 64),
    }
    return shards(tmp_path / "in", {"m-1.safetensors": first, "m-2.safetensors": second})


class Seen:
    """An observer that stops a conversion after so many steps."""

    def __init__(self, after: int = 100) -> None:
        self.after, self.steps, self.total, self.done = after, list[str](), 0, 0

    def planned(self, total: int, done: int) -> None:
        self.total, self.done = total, done

    def advanced(self, step: Step) -> None:
        self.steps.append(step.name)
        if len(self.steps) == self.after:
            raise KeyboardInterrupt


E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
N, K = 136, 192
"""Of the layers below: neither a multiple of 128, groups of a row not one of 4."""


def _drawn(*shape: int, high: int) -> Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(high))


def _fp4(group: int) -> tuple[Tensor, Tensor]:
    """Codes 0 to 15 with a 6 in each group, and their values."""
    codes = _drawn(N, K, high=16)
    codes[codes == 8] = 0  # a zero without a sign: with one it would not come back
    codes[:, ::group] = 7
    values = torch.tensor([*E2M1, *(-x for x in E2M1)])[codes]
    return codes, values


def _packed(codes: Tensor) -> Tensor:
    """The first of two codes in the low nibble: compressed-tensors' pack_fp4_to_uint8, LightX2V's kernels, DeepSeek's."""
    return (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)


def _swizzled(scales: Tensor) -> Tensor:
    """As the block-scaled tensor cores of LightX2V's kernels load them, one byte after another."""
    rows, columns = scales.shape
    tiles = -(-columns // 4)
    out = torch.zeros(-(-rows // 128) * 128, tiles * 4, dtype=torch.uint8)
    flat = out.view(-1)
    for m in range(rows):
        for k in range(columns):
            flat[(m // 128 * tiles + k // 4) * 512 + m % 32 * 16 + m % 128 // 32 * 4 + k % 4] = scales[m, k]
    return out


def _nvfp4() -> tuple[Tensor, Tensor, Tensor]:
    """Packed codes, scales, values; the global scale is 2."""
    codes, values = _fp4(16)
    scales = torch.tensor([448.0, 1.5, 0.0625, 13.0])[_drawn(N, K // 16, high=4)]
    scales[0, 0] = 448.0
    return _packed(codes), scales.to(torch.float8_e4m3fn), values * scales.repeat_interleave(16, 1) / 2


def _mx(group_codes: Callable[[], tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor]:
    codes, values = group_codes()
    exponents = _drawn(N, K // 32, high=9) - 4
    return codes, (exponents + 127).to(torch.uint8), values * torch.exp2(exponents.float()).repeat_interleave(32, 1)


def _e4m3(largest_at: slice) -> tuple[Tensor, Tensor]:
    """Codes with a 448 where they say, and values."""
    values = torch.randn(N, K, generator=torch.Generator().manual_seed(1)).mul(40).clamp(-440, 440)
    values[:, largest_at] = 448.0
    codes = values.to(torch.float8_e4m3fn)
    return codes, codes.float()


def _fp6() -> tuple[Tensor, Tensor]:
    """e3m2, four codes in three bytes, least significant first."""
    numbers = [m / 4 * 2.0**-2 for m in range(4)] + [
        (1 + m / 4) * 2.0 ** (e - 3) for e in range(1, 8) for m in range(4)
    ]
    codes = _drawn(N, K, high=64)
    codes[codes == 32] = 0
    codes[:, ::32] = 31
    quads = codes.view(N, K // 4, 4)
    words = quads[..., 0] | quads[..., 1] << 6 | quads[..., 2] << 12 | quads[..., 3] << 18
    packed = torch.stack([words & 255, words >> 8 & 255, words >> 16], dim=-1).reshape(N, -1).to(torch.uint8)
    return packed, torch.tensor([*numbers, *(-x for x in numbers)])[codes]


def _blocks() -> tuple[Tensor, Tensor, Tensor]:
    codes, values = _e4m3(slice(0, None, 128))
    scales = torch.tensor([[0.5, 2.0], [1.0, 0.25]])
    spread = scales.repeat_interleave(128, 0)[:N].repeat_interleave(128, 1)[:, :K]
    return codes, scales, values * spread


def _fine_blocks() -> tuple[Tensor, Tensor, Tensor]:
    """In blocks of 32 x 32, by powers of two: DeepSeek V4.1's."""
    codes, values = _e4m3(slice(0, None, 32))
    scales = torch.exp2(_drawn(-(-N // 32), -(-K // 32), high=5).float() - 2)
    return codes, scales, values * scales.repeat_interleave(32, 0)[:N].repeat_interleave(32, 1)[:, :K]


def _row_groups() -> tuple[Tensor, Tensor, Tensor]:
    """A scale for each 1 x 128 of a row: the strategy "group" of compressed-tensors."""
    codes, values = _e4m3(slice(0, None, 128))
    scales = torch.exp2(_drawn(N, -(-K // 128), high=5).float() - 2)
    return codes, scales, values * scales.repeat_interleave(128, 1)[:, :K]


def _rows(kind: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    codes, values = _e4m3(slice(0, 1))
    if kind is torch.int8:
        codes = _drawn(N, K, high=255).sub(127).to(torch.int8)
        codes[:, 0] = 127
        values = codes.float()
    scales = torch.exp2(_drawn(N, 1, high=5).float() - 2)
    return codes, scales, values * scales


def _gpt_oss(before: str) -> tuple[dict[str, Tensor], Tensor]:
    """Two experts, half of the rows each, [E, N, K]; `before` stands before the parts' names."""
    codes, scales, values = _mx(lambda: _fp4(32))
    blocks = _packed(codes).view(2, N // 2, K // 32, 16)
    return {f"{before}blocks": blocks, f"{before}scales": scales.view(2, N // 2, K // 32)}, values.view(2, N // 2, K)


def layers() -> dict[tuple[str, str], tuple[dict[str, Tensor], Tensor]]:
    """A layer as each project stores it in each format, by the suffixes of its name, and its values.

    compressed-tensors: vllm-project/compressed-tensors, src/compressed_tensors/compressors/{nvfp4,mxfp4,mxfp8,naive_quantized};
    LightX2V: ModelTC/LightX2V f8aee98, tools/convert/quant/quant.py and converter.py; ModelOpt: NVIDIA/Model-Optimizer,
    modelopt/torch/export/quant_utils.py; DeepSeek: deepseek-ai/DeepSeek-V3, inference/fp8_cast_bf16.py; DeepSeek V4: vLLM 0.33.0,
    vllm/models/deepseek_v4/nvidia/model.py; gpt-oss: openai/gpt-oss, gpt_oss/torch/weights.py, whose experts are [E, N, K] once
    decoded, where those of Transformers' integrations/mxfp4.py are [E, K, N].
    """
    of_experts, experts = _gpt_oss("_")
    e8m0 = torch.float8_e8m0fnu
    nv, nv_scales, nv_values = _nvfp4()
    fp4, scales4, values4 = _mx(lambda: _fp4(32))
    fp6, scales6, values6 = _mx(_fp6)
    fp8, scales8, values8 = _mx(lambda: _e4m3(slice(0, None, 32)))
    fp4 = _packed(fp4)
    swizzled = {name: _swizzled(s).view(e8m0) for name, s in (("4", scales4), ("6", scales6), ("8", scales8))}
    blocks, block_scales, block_values = _blocks()
    fine, fine_scales, fine_values = _fine_blocks()
    grouped, grouped_scales, grouped_values = _row_groups()
    channel, channel_scales, channel_values = _rows(torch.float8_e4m3fn)
    int8, int8_scales, int8_values = _rows(torch.int8)
    shifted, points = int8.clone(), torch.arange(-3, len(int8) - 3, dtype=torch.int8).reshape(-1, 1)
    shifted[:, 1] = -128  # so that a row's range has all codes
    nv_swizzled = _swizzled(nv_scales.view(torch.uint8)).view(torch.float8_e4m3fn)
    two = torch.tensor(2.0)
    of_ct = {
        "nvfp4": (
            {".weight_packed": nv, ".weight_scale": nv_scales, ".weight_global_scale": two.reshape(1)},
            nv_values,
        ),
        "mxfp4": ({".weight_packed": fp4, ".weight_scale": scales4}, values4),
        "mxfp8": ({".weight": fp8, ".weight_scale": scales8}, values8),
        "channel": ({".weight": channel, ".weight_scale": channel_scales}, channel_values),
        "int8": ({".weight": int8, ".weight_scale": int8_scales}, int8_values),
        "int8_asymmetric": (
            {".weight": shifted, ".weight_scale": int8_scales, ".weight_zero_point": points},
            (shifted.float() - points) * int8_scales,
        ),
        "block128": ({".weight": blocks, ".weight_scale": block_scales}, block_values),
        "group128": ({".weight": grouped, ".weight_scale": grouped_scales}, grouped_values),
    }
    of_lightx2v = {name: of_ct[name] for name in ("channel", "int8", "block128")} | {
        "nvfp4": ({".weight": nv, ".weight_scale": nv_swizzled, ".weight_global_scale": two}, nv_values),
        "mxfp4": ({".weight": fp4, ".weight_scale": swizzled["4"]}, values4),
        "mxfp6": ({".weight": fp6, ".weight_scale": swizzled["6"]}, values6),
        "mxfp8": ({".weight": fp8.view(torch.uint8), ".weight_scale": swizzled["8"]}, values8),
    }
    v4 = {".weight": fp4.view(torch.int8), ".scale": scales4.view(e8m0)}
    return {
        **{("compressed-tensors", format): layer for format, layer in of_ct.items()},
        **{("lightx2v", format): layer for format, layer in of_lightx2v.items()},
        ("modelopt", "nvfp4"): ({".weight": nv, ".weight_scale": nv_scales, ".weight_scale_2": 1 / two}, nv_values),
        ("deepseek", "block128"): ({".weight": blocks, ".weight_scale_inv": block_scales}, block_values),
        ("deepseek", "block32"): ({".weight": fine, ".weight_scale_inv": fine_scales}, fine_values),
        ("deepseek-v4", "mxfp4"): (v4, values4),
        ("deepseek-v4", "block32"): ({".weight": fine, ".scale": fine_scales.to(e8m0)}, fine_values),
        ("gpt-oss", "mxfp4"): (of_experts, experts.transpose(1, 2)),
        ("gpt-oss-torch", "mxfp4"): _gpt_oss("."),
    }
