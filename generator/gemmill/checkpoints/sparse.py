"""2:4 sparse nvfp4 layers in checkpoints: one matrix is four tensors in the article's layout (`gemmill.formats.sparse_fp4`).

NAME.comp_T [K / 4, N]    NAME.meta_T [K / 8, N]    NAME.scale_T [K / 16, N]    NAME.weight_scale_2 [1]
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gemmill.checkpoints.file import WORD_OF, CheckpointError
from gemmill.checkpoints.folder import Checkpoint
from gemmill.formats.sparse_fp4 import SPAN, SparseFp4, from_transposed_2to4
from gemmill.quantize.errors import LayerError
from gemmill.quantize.sparsity import prune_to_fp4
from gemmill.quantize.weights import QuantizedWeight
from gemmill.vocab.format import NVFP4

SPARSE = "nvfp4_2to4"
"""Its word in --to."""
PARTS = (".comp_T", ".meta_T", ".scale_T", ".weight_scale_2")


def check(name: str, shape: Sequence[int]) -> None:
    """Raises CheckpointError, by a layer's name, for a shape that is not [N, K] with whole patterns."""
    if len(shape) != 2 or shape[1] % SPAN:
        raise CheckpointError(
            f"{name} is {list(shape)}: {SPARSE} takes [N, K] with K a multiple of {SPAN}; leave it as it is with --keep '{name}'"
        )


def written(name: str, n: int, k: int) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Dtypes and shapes of the tensors made from a layer [n, k], by key."""
    codes = WORD_OF[torch.uint8]
    shapes = (
        (codes, (k // 4, n)),
        (codes, (k // 8, n)),
        (WORD_OF[torch.float8_e4m3fn], (k // NVFP4.group, n)),
        ("F32", (1,)),
    )
    return {name + part: shape for part, shape in zip(PARTS, shapes, strict=True)}


def made(
    name: str, weight: Tensor | QuantizedWeight, inputs: Tensor | None, *, rescale: bool
) -> tuple[dict[str, Tensor], LayerError]:
    """The tensors made from a layer, by key, and its error. Raises ValueError for infinite or NaN weights, by their
    place.
    """
    sparse, (error,) = prune_to_fp4([[weight]], rescale=rescale, inputs=None if inputs is None else [inputs])
    tensors = sparse.transposed_2to4()
    _, n, k = sparse.shape
    layer = LayerError(name=name, format=SPARSE, n=n, k=k, weights=error.weights, outputs=error.outputs)
    return {
        name + part: tensors[part[1:]].squeeze(0) if part != PARTS[-1] else tensors[part[1:]] for part in PARTS
    }, layer


def sparse_experts(checkpoint: Checkpoint, experts: Sequence[Sequence[str]], device: str = "cpu") -> SparseFp4:
    """The weights of experts, each made of layers whose rows follow one another: gate and up, or down alone.

    Every layer's factor is kept. Raises CheckpointError for a layer that is not there, and ValueError, in a sentence, for
    shapes that disagree and for patterns that there are not.
    """
    each: list[Mapping[str, Tensor]] = []
    for parts in experts:
        layers = [_read(checkpoint, name, device) for name in parts]
        joined = {part: torch.cat([layer[part] for layer in layers], dim=-1)[None] for part in PARTS}
        each.append(joined)
    return from_transposed_2to4({part[1:]: torch.cat([one[part] for one in each]) for part in PARTS})


def _read(checkpoint: Checkpoint, name: str, device: str) -> dict[str, Tensor]:
    lacking = [name + part for part in PARTS if name + part not in checkpoint]
    if lacking:
        raise CheckpointError(
            f"{checkpoint.path} has no {lacking[0]}: {name} is no layer of {SPARSE}, which `gemmill convert` makes"
        )
    return {part: checkpoint.read(name + part).to(device) for part in PARTS}
