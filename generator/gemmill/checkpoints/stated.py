"""The quantisation in a model's config.json, read and written: the key `quantization_config`, as Transformers and vLLM
read it.

    compressed-tensors    vllm-project/compressed-tensors, `quantization/quant_config.py` and the schemes of `quant_scheme.py`
    modelopt              vLLM 0.33.0's `quantization/modelopt.py`; older exports have `hf_quant_config.json` instead
    deepseek              DeepSeek-V3's config.json; vLLM's `quantization/fp8.py`
    deepseek-v4           DeepSeek-V4's config.json: the same, scales as powers of two, and `expert_dtype`
    gpt-oss               gpt-oss-120b's config.json; Transformers' `Mxfp4Config`

LightX2V reads none of it: its command line names the format.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gemmill.checkpoints.file import CheckpointError, parsed_json
from gemmill.quantize.weights import ASYMMETRIC, BLOCKS

CONFIG = "config.json"
_MODELOPT = "hf_quant_config.json"
KEY = "quantization_config"
_EXPERTS = "expert_dtype"
_PACKED = {"nvfp4": "nvfp4-pack-quantized", "mxfp4": "mxfp4-pack-quantized", "mxfp8": "mxfp8-quantized"}
_INT, _FLOAT = "int-quantized", "float-quantized"
_FORMATS_OF_CT = {name: format for format, name in _PACKED.items()}
_ALGORITHMS = {
    "NVFP4": "nvfp4",
    "W4A16_NVFP4": "nvfp4",
    "MXFP8": "mxfp8",
    "FP8_PER_CHANNEL_PER_TOKEN": "channel",
    "FP8_PB_WO": "block128",
}
"""ModelOpt's words, and our formats."""
_FP8_BLOCKS: dict[str, Any] = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
}


def read_config(folder: Path) -> dict[str, Any] | None:
    """A model's config.json; None where there is none. Raises CheckpointError where it is no JSON object."""
    path = folder / CONFIG
    return _read(path) if path.is_file() else None


def stated_format(folder: Path) -> str | None:
    """The weight format that a checkpoint's folder states; None where it states none, or one of other projects.

    Raises CheckpointError for a file that is no JSON object.
    """
    stated = (read_config(folder) or {}).get(KEY)
    if stated is None and (folder / _MODELOPT).is_file():
        found = _read(folder / _MODELOPT).get("quantization")
        stated = {"quant_method": "modelopt", **found} if isinstance(found, dict) else None
    if not isinstance(stated, dict):
        return None
    method = str(stated.get("quant_method", "")).lower()
    if method.startswith("modelopt"):
        return _ALGORITHMS.get(str(stated.get("quant_algo", "")).upper())
    if method == "fp8":
        return _of_blocks(stated.get("weight_block_size"))
    if method == "compressed-tensors":
        return _of_compressed_tensors(stated)
    return "mxfp4" if method == "mxfp4" else None


def with_quantization(
    config: dict[str, Any], project: str, format: str | None, kept: Sequence[str], *, has_inputs: bool
) -> dict[str, Any]:
    """A model's config after its layers are stored in a format under a project's names; `format` None: without
    quantised layers.

    kept: names of modules whose matrices stay. has_inputs: whether the file has the range of every layer's input.
    """
    stated = None if format is None else _stated(project, format, list(kept), has_inputs)
    made = {key: value for key, value in config.items() if key not in (KEY, _EXPERTS)}
    if project == "deepseek-v4" and format == "mxfp4":
        made[_EXPERTS] = "fp4"
    return made if stated is None else made | {KEY: stated}


def _stated(project: str, format: str, kept: list[str], has_inputs: bool) -> dict[str, Any] | None:
    if project == "compressed-tensors":
        return _compressed_tensors(format, kept, has_inputs)
    if project == "modelopt":
        groups = {"group_0": {"targets": ["Linear"], **_scheme(format, has_inputs)}}
        algorithm = "NVFP4" if has_inputs else "W4A16_NVFP4"
        told = {"quant_method": "modelopt", "quant_algo": algorithm, "group_size": 16}
        return told | {"config_groups": groups, "ignore": kept}
    if project in ("deepseek", "deepseek-v4"):
        block = BLOCKS.get(format, BLOCKS["block128"])  # V4's config states its other layers, which are not mxfp4
        blocks = {"weight_block_size": list(block)}
        scales = {"scale_fmt": "ue8m0"} if project == "deepseek-v4" or format == "block32" else {}
        return _FP8_BLOCKS | blocks | scales | {"modules_to_not_convert": kept}
    return {"quant_method": "mxfp4", "modules_to_not_convert": kept} if project.startswith("gpt-oss") else None


def _compressed_tensors(format: str, kept: list[str], has_inputs: bool) -> dict[str, Any]:
    name = _PACKED.get(format, _INT if format in ("int8", ASYMMETRIC) else _FLOAT)
    return {
        "quant_method": "compressed-tensors",
        "format": name,
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "format": name, **_scheme(format, has_inputs)}},
        "ignore": kept,
        "kv_cache_scheme": None,
    }


def _scheme(format: str, has_inputs: bool) -> dict[str, Any]:
    """The quantisation of weights and activations in compressed-tensors' words."""

    def args(bits: int, strategy: str, dynamic: bool | str, **more: Any) -> dict[str, Any]:
        kind = "int" if format in ("int8", ASYMMETRIC) else "float"
        return {"num_bits": bits, "type": kind, "strategy": strategy, "symmetric": True, "dynamic": dynamic, **more}

    match format:
        case "nvfp4":
            inputs = args(4, "tensor_group", "local", group_size=16) if has_inputs else None
            return {"weights": args(4, "tensor_group", False, group_size=16), "input_activations": inputs}
        case "mxfp4":
            return {"weights": args(4, "group", False, group_size=32), "input_activations": None}
        case "mxfp8":
            weights, inputs = (args(8, "group", dynamic, group_size=32) for dynamic in (False, True))
            return {"weights": weights, "input_activations": inputs}
        case "block128":
            weights = args(8, "block", False, block_structure=[128, 128])
            return {"weights": weights, "input_activations": args(8, "group", True, group_size=128)}
        case "group128":
            weights, inputs = (args(8, "group", dynamic, group_size=128) for dynamic in (False, True))
            return {"weights": weights, "input_activations": inputs}
    weights = args(8, "channel", False) | {"symmetric": format != ASYMMETRIC}
    return {"weights": weights, "input_activations": args(8, "token", True)}


def _of_compressed_tensors(stated: dict[str, Any]) -> str | None:
    """The weight format that compressed-tensors' config states. For e4m3 the sharing of scales decides, for int8 the
    presence of zero points.
    """
    name = stated.get("format")
    if name not in (_INT, _FLOAT):
        return _FORMATS_OF_CT.get(str(name))
    groups = stated.get("config_groups")
    schemes = (
        [group.get("weights") for group in groups.values() if isinstance(group, dict)]
        if isinstance(groups, dict)
        else []
    )
    if name == _INT:
        symmetric = {weights.get("symmetric") is not False for weights in schemes if isinstance(weights, dict)}
        return "int8" if symmetric in (set(), {True}) else ASYMMETRIC if symmetric == {False} else None
    formats = {_of_strategy(weights) for weights in schemes if isinstance(weights, dict)}
    return formats.pop() if len(formats) == 1 else None


def _of_strategy(weights: dict[str, Any]) -> str | None:
    if weights.get("strategy") == "block":
        return _of_blocks(weights.get("block_structure", [128, 128]))
    if weights.get("strategy") == "group":
        return _of_blocks([1, weights.get("group_size")])
    return "channel" if weights.get("strategy") == "channel" else None


def _of_blocks(sides: object) -> str | None:
    """The format whose scales are of blocks of these rows and columns."""
    return next((format for format, block in BLOCKS.items() if sides == list(block)), None)


def _read(path: Path) -> dict[str, Any]:
    config = parsed_json(path.read_bytes())
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} is no JSON object: copy it again, or take it away")
    return config
