"""Layers of any model that transformers knows: makes it on torch's meta device, without weights, and lists its modules.

A folder or config.json at hand needs no network. transformers fetches the config alone of a model's id at Hugging Face.
Code that comes with a model does not run.
"""

import importlib.util
import re
from collections.abc import Iterator, Mapping
from fnmatch import translate
from pathlib import Path
from typing import Any

from gemmill.tuner.models import Layer, ModelError, knows, layers_of, read_model

PACKAGE = "transformers"
INSTALL = "`pip install 'gemmill[models]'`"
_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_FUSED: Mapping[str, tuple[str, ...]] = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "qkv_a": ("q_a_proj", "kv_a_proj_with_mqa"),
    "gate_up": ("gate_proj", "up_proj"),
}
"""Layers of one input that engines multiply by at once."""
_STYLES: Mapping[str, str] = dict.fromkeys(
    ("q_proj", "k_proj", "v_proj", "q_b_proj", "kv_b_proj", "gate_proj", "up_proj"), "colwise"
) | {
    "o_proj": "rowwise",
    "down_proj": "rowwise",
}
"""How engines divide layers of which a model's plan says nothing, as those of shared experts."""
_OF_HEADS = ("k_proj", "v_proj")
"""With more ranks than key-value heads, each rank keeps a copy of one."""
_LEFT_OUT = re.compile(r"(^|\.)experts\.|\.(gate|router|shared_expert_gate)$")
"""Routed experts, which are grouped GEMMs, and their routers."""


def is_id(named: str) -> bool:
    """Whether a text has the form of a model's id at Hugging Face, OWNER/NAME."""
    return _ID.fullmatch(named) is not None


def is_installed() -> bool:
    """Whether transformers is there."""
    return importlib.util.find_spec(PACKAGE) is not None


def layers_named(named: str, ranks: int = 1) -> list[Layer]:
    """The layers of a shipped model, of a config.json that gemmill or transformers knows, or of an id at Hugging
    Face.

    They are those of one of `ranks` ranks. Raises ModelError.
    """
    if is_id(named) and not Path(named).exists():
        return layers_by_transformers(named, ranks)
    config = read_model(named)
    if knows(config):
        return layers_of(config, ranks)
    if is_installed():
        return layers_by_transformers(named, ranks)
    try:
        return layers_of(config, ranks)
    except ModelError as error:
        raise ModelError(f"{error}; or {INSTALL}, and transformers tells them") from None


def layers_by_transformers(named: str, ranks: int = 1) -> list[Layer]:
    """The layers of one of `ranks` ranks, each size once; `named` is a folder, a config.json or an id. Raises ModelError."""
    if not is_installed():
        raise ModelError(
            f"the layers of {named!r} are read by transformers, which is not installed: {INSTALL}, or name a config.json of an "
            "architecture that gemmill knows"
        )
    try:
        model, config = _on_meta(named)
    except Exception as error:  # transformers raises errors of its parts
        told = str(error).strip().splitlines() or [type(error).__name__]
        raise ModelError(
            f"transformers cannot make {named!r} ({told[0]}): name another, or list the shapes in a file for --shapes"
        ) from None
    plan = getattr(model, "tp_plan", None) or {}
    if ranks > 1 and not plan:
        raise ModelError(
            f"transformers does not say how ranks divide {type(model).__name__}: leave --tp out, or list the shapes in a file "
            "for --shapes"
        )
    by_size = {(layer.n, layer.k): layer for layer in reversed(list(_layers(model, config, plan, ranks)))}
    if not by_size:
        raise ModelError(
            f"{type(model).__name__} of {named!r} has no linear layers: list the shapes in a file for --shapes"
        )
    return list(reversed(by_size.values()))


def _on_meta(named: str) -> tuple[Any, Any]:
    """The model of a config, without memory for its weights, and the config of its language part."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(named, local_files_only=Path(named).exists(), trust_remote_code=False)
    config = config.get_text_config()
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, trust_remote_code=False), config


def _layers(model: Any, config: Any, plan: Mapping[str, str], ranks: int) -> Iterator[Layer]:
    """In the order of modules; those that engines fuse stand where the first of them does."""
    forms = [(re.compile(translate(form)), style) for form, style in plan.items()]
    sizes = {}
    for name, size in _sizes(model):
        style = next((style for form, style in forms if form.match(name)), _STYLES.get(name.rpartition(".")[2], ""))
        sizes[name] = _of_rank(name, size, style, config, ranks)
    for name, (_, k) in sizes.items():
        parent, own = name[: name.rfind(".") + 1], name[name.rfind(".") + 1 :]
        label, parts = next(
            ((label, parts) for label, parts in _FUSED.items() if own in parts and parent + parts[0] in sizes),
            (own.removesuffix("_proj"), (own,)),
        )
        if own == parts[0]:
            n = sum(sizes[parent + part][0] for part in parts if parent + part in sizes)
            yield Layer(name=("shared_" if "shared_expert" in parent else "") + label, n=n, k=k)


def _sizes(model: Any) -> Iterator[tuple[str, tuple[int, int]]]:
    """Outputs and inputs of each layer that multiplies, by name, without the output head."""
    import torch
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    for name, module in model.named_modules():
        if module is head or _LEFT_OUT.search(name):
            continue
        if isinstance(module, torch.nn.Linear):
            yield name, (module.out_features, module.in_features)
        elif isinstance(module, Conv1D):  # of GPT-2 and its kind: the same product, its weight [k, n]
            yield name, (module.nf, module.nx)


def _of_rank(name: str, size: tuple[int, int], style: str, config: Any, ranks: int) -> tuple[int, int]:
    """A rank's part of outputs and inputs. Raises ModelError where ranks do not divide them."""
    n, k = size
    if style.startswith("colwise"):
        heads = getattr(config, "num_key_value_heads", None)
        if name.rpartition(".")[2] in _OF_HEADS and heads and ranks > heads:
            return n // heads, k
        return _divided(name, n, ranks), k
    return (n, _divided(name, k, ranks)) if style.startswith("rowwise") else (n, k)


def _divided(name: str, size: int, ranks: int) -> int:
    if size % ranks:
        raise ModelError(
            f"{name} has a dimension of {size}, which is not divided by {ranks} ranks of tensor parallelism"
        )
    return size // ranks
