"""A tiny model quantised and written by the library compressed-tensors itself."""

from pathlib import Path
from typing import Any


def write(model: Any, scheme: str, folder: Path) -> None:
    """Write `model` with its linear layers, but lm_head, in a preset scheme of compressed-tensors; scales by largest magnitudes."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config, preset_name_to_scheme
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    groups = {"group_0": preset_name_to_scheme(scheme, ["Linear"])}
    apply_quantization_config(model, QuantizationConfig(config_groups=groups, ignore=["lm_head"]))
    for layer in model.modules():
        if (quantised := getattr(layer, "quantization_scheme", None)) is None:
            continue
        args, values = quantised.weights, layer.weight.data.float()
        groups = _grouped(values, args)
        low, high = groups.amin(-1), groups.amax(-1)
        scale = None
        if hasattr(layer, "weight_global_scale"):
            scale = generate_gparam(values.min().reshape(1), values.max().reshape(1))
            layer.weight_global_scale.data.copy_(scale)
        if hasattr(layer, "input_global_scale"):
            layer.input_global_scale.data.fill_(448 * 6 / 8.0)  # inputs up to 8
        scales, points = calculate_qparams(low, high, args, scale)
        layer.weight_scale.data.copy_(scales.reshape(layer.weight_scale.shape))
        layer.weight_zero_point.data.copy_(
            points.reshape(layer.weight_zero_point.shape).to(layer.weight_zero_point.dtype)
        )
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(folder)
    compressor.update_config(str(folder))


def _grouped(values: Any, args: Any) -> Any:
    """Values [N, K] with those that share a scale in the last dimension."""
    rows, columns = values.shape
    match getattr(args.strategy, "value", args.strategy):
        case "channel":
            return values[:, None]
        case "block":
            n, k = args.block_structure
            return values.reshape(rows // n, n, columns // k, k).transpose(1, 2).flatten(2)
    return values.unflatten(1, (-1, args.group_size))
