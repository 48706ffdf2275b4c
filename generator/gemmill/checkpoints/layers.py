"""Single layers of a checkpoint, for programs that run them."""

from dataclasses import dataclass, replace

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
    """The bias [N]."""
    input_absmax: Tensor | None
    """The largest magnitude of the input, f32 [1], where it was calibrated."""


def read_layer(checkpoint: Checkpoint, name: str, format: str | None = None, *, expert: int | None = None) -> Layer:
    """A quantised layer by its name, without `.weight`; on the CPU. `format`: where neither shapes nor a config.json tell it.

    expert: which one, where a tensor has the experts of a layer. Raises CheckpointError for a layer that is not there or not quantised,
    and for an expert that it has not.
    """
    spelling = spelling_in(checkpoint, name, format)
    stored = _of_expert(checkpoint, name, spelling, expert)
    read = {part: stored[part].read() for part in (*spelling.parts, spelling.input) if part in stored}
    return Layer(
        weight=spelling.read(read),
        bias=read_bias(checkpoint, name, spelling, expert),
        input_absmax=spelling.absmax(read[spelling.input]) if spelling.input in read else None,
    )


def spelling_in(checkpoint: Checkpoint, name: str, format: str | None = None) -> Spelling:
    """The storage of a layer. Raises CheckpointError where it is not there or not quantised; `format` as of
    `read_layer`.
    """
    stored = stored_parts(checkpoint, name)
    spelling = recognised(name, stored, format, checkpoint.stated)
    if spelling is None:
        found = ", ".join(f"{part} {tensor.dtype} {list(tensor.shape)}" for part, tensor in stored.items())
        raise CheckpointError(
            f"{checkpoint.path} has no quantised layer {name}: it has {found or 'nothing of that name'}"
        )
    return spelling


def read_bias(checkpoint: Checkpoint, name: str, spelling: Spelling, expert: int | None = None) -> Tensor | None:
    """The bias [N]; None where the layer has none."""
    key = spelling.bias_of(name)
    bias = checkpoint.read(key) if key in checkpoint else None
    return bias[expert].clone() if bias is not None and expert is not None else bias


def _of_expert(checkpoint: Checkpoint, name: str, spelling: Spelling, expert: int | None) -> dict[str, Stored]:
    """A layer's parts, or those of one of its experts."""
    stored = stored_parts(checkpoint, name)
    if not spelling.experts and expert is None:
        return stored
    count = stored[spelling.codes].shape[0] if spelling.experts else 0
    if expert is None or not 0 <= expert < count:
        asked = "none was named" if expert is None else f"expert {expert} was asked for"
        raise CheckpointError(
            f"{name} has {count or 'no'} experts in one tensor, and {asked}: "
            + (f"name one from 0 to {count - 1}" if count else "name none")
        )
    return {part: _row(tensor, expert, count) for part, tensor in stored.items()}


def _row(tensor: Stored, index: int, count: int) -> Stored:
    """Row `index` of a tensor of `count` rows, as [1, ...]."""
    size = tensor.nbytes // count
    start = tensor.start + index * size
    return replace(tensor, shape=(1, *tensor.shape[1:]), start=start, stop=start + size)


def quantised_layers(checkpoint: Checkpoint, format: str | None = None) -> list[str]:
    """The names of a checkpoint's quantised matrices, in its order; `format` as of `read_layer`."""
    names = dict.fromkeys(key.removesuffix(ending) for key in checkpoint for ending in ENDINGS if key.endswith(ending))
    return [
        name for name in names if _is_layer(recognised(name, stored_parts(checkpoint, name), format, checkpoint.stated))
    ]


def _is_layer(spelling: Spelling | None) -> bool:
    return spelling is not None and not spelling.experts


def stored_parts(checkpoint: Checkpoint, name: str) -> dict[str, Stored]:
    """The tensors of a layer, by the suffix after its name."""
    return {part: checkpoint.tensors[name + part] for part in PARTS if name + part in checkpoint}
