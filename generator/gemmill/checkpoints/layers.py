"""Single layers of a checkpoint, for those who run them."""

from dataclasses import dataclass

from torch import Tensor

from gemmill.checkpoints.file import CheckpointError, Stored
from gemmill.checkpoints.folder import Checkpoint
from gemmill.checkpoints.names import ENDINGS, PARTS, Spelling, recognised
from gemmill.quantize.weights import QuantizedWeight


@dataclass(frozen=True, kw_only=True)
class Layer:
    """A layer as a checkpoint has it."""

    weight: QuantizedWeight
    bias: Tensor | None
    """[N]."""
    input_absmax: Tensor | None
    """f32 [1], where the input was calibrated."""


def read_layer(checkpoint: Checkpoint, name: str, format: str | None = None) -> Layer:
    """A quantised layer by its name, without `.weight`; on the CPU. `format`: where shapes do not tell it.

    Raises CheckpointError for a layer that is not there, is not quantised, or has experts in one tensor.
    """
    stored = stored_parts(checkpoint, name)
    spelling = recognised(name, stored, format)
    if spelling is None:
        found = ", ".join(f"{part} {tensor.dtype} {list(tensor.shape)}" for part, tensor in stored.items())
        raise CheckpointError(
            f"{checkpoint.path} has no quantised layer {name}: it has {found or 'nothing of that name'}"
        )
    if spelling.experts:
        raise CheckpointError(f"{name} has the experts of a layer in one tensor, and a linear layer has one matrix")
    read = {part: stored[part].read() for part in (*spelling.parts, spelling.input) if part in stored}
    bias = f"{name}.bias"
    return Layer(
        weight=spelling.read(read),
        bias=checkpoint.read(bias) if bias in checkpoint else None,
        input_absmax=spelling.absmax(read[spelling.input]) if spelling.input in read else None,
    )


def quantised_layers(checkpoint: Checkpoint, format: str | None = None) -> list[str]:
    """The names of a checkpoint's quantised layers that are matrices, in its order; `format` as of `read_layer`."""
    names = dict.fromkeys(key.removesuffix(ending) for key in checkpoint for ending in ENDINGS if key.endswith(ending))
    return [name for name in names if _is_layer(recognised(name, stored_parts(checkpoint, name), format))]


def _is_layer(spelling: Spelling | None) -> bool:
    return spelling is not None and not spelling.experts


def stored_parts(checkpoint: Checkpoint, name: str) -> dict[str, Stored]:
    """What there is of a layer, by what follows its name."""
    return {part: checkpoint.tensors[name + part] for part in PARTS if name + part in checkpoint}
