"""Steps of a conversion: each tensor of a checkpoint belongs to one, and every output has its place before the first
step.
"""

import fnmatch
from dataclasses import dataclass, field, replace

import torch

from gemmill.checkpoints import sparse
from gemmill.checkpoints.file import WORD_OF, CheckpointError, Stored
from gemmill.checkpoints.folder import Checkpoint
from gemmill.checkpoints.keys import named
from gemmill.checkpoints.names import ENDINGS, PARTS, Spelling, recognised, spelling_of
from gemmill.quantize.weights import BLOCK_SCALED, check_format, check_shape, empty_weight
from gemmill.vocab.format import ScaleRounding

KEPT = ("*embed*", "*norm*", "*lm_head*", "head.*", "*router*", "*.gate.weight", "*.gate.wg.weight")
"""Patterns over keys of layers that no project quantises."""
FLOATS = ("BF16", "F16", "F32", "F64")
BF16 = "bf16"
"""The word of --to for decoded weights, next to the formats."""
_CODES_OF = {
    ".weight_scale": (".weight", ".weight_packed"),
    ".weight_scale_inv": (".weight",),
    ".weight_scale_2": (".weight",),
    ".weight_global_scale": (".weight", ".weight_packed"),
    "_scales": ("_blocks",),
}
"""The suffixes that scales alone have, and the codes that must accompany them."""


FP8_NAMES = {"fp8": "channel", "fp8_channel": "channel", "fp8_block": "block128"}
"""Names that other projects use for formats with e4m3 weights, and our formats."""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The request of a conversion."""

    to: str
    """A weight format, nvfp4_2to4, or bf16; a name of FP8_NAMES becomes the format that it stands for."""
    names: str | None = None
    """The project whose key names OUT has; None: the first that has the format."""
    source: str | None = None
    """The format of quantised layers, where shapes do not tell."""
    only: tuple[str, ...] = ()
    """Patterns over layers' keys: others stay as they are."""
    keep: tuple[str, ...] = ()
    """Patterns over keys of layers that stay as they are, in addition to KEPT."""
    requantize: bool = False
    """Whether layers of another format are to be decoded and quantised again."""
    scale_rounding: str = "up"
    rescale: bool = False
    """Whether to fit scales of pruned weights to the weights that remain."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "to", FP8_NAMES.get(self.to, self.to))


@dataclass(frozen=True, kw_only=True)
class Step:
    """A layer, or a tensor that stays."""

    name: str
    """The layer's key, without its suffix; of a tensor that stays its whole key."""
    shard: str
    """The output file, with the name of its source."""
    reads: dict[str, Stored]
    """The tensors, by the suffix after the layer's name; a tensor that stays has ""."""
    spelling: Spelling | None = None
    """The spelling of a quantised layer."""
    kept: Spelling | None = None
    """The spelling of a quantised layer that stays."""
    changes: bool = False
    """Whether it makes codes, or bf16 of codes."""
    writes: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    """Dtype (a word of the format) and shape of each output, by key."""

    @property
    def nbytes(self) -> int:
        """The bytes to read."""
        return sum(tensor.nbytes for tensor in self.reads.values())

    @property
    def is_experts(self) -> bool:
        """Whether it is one tensor of several experts."""
        if self.spelling is not None:
            return self.spelling.experts
        return self.changes and any(len(tensor.shape) == 3 for tensor in self.reads.values())


def steps_of(checkpoint: Checkpoint, asked: Asked) -> list[Step]:
    """The steps of a conversion, in the order of the files' bytes.

    Raises CheckpointError, in a sentence, for names and formats that do not exist or do not go together. So it does for
    a shape that the format cannot take, for quantised layers, and for scales without their weight.
    """
    _check_options(asked)
    if asked.to != BF16:
        _check_target(asked)
    left = dict(checkpoint.tensors)
    steps = []
    for name in checkpoint:
        ending = next((e for e in sorted(ENDINGS, key=len, reverse=True) if name.endswith(e)), None)
        if ending is None or name not in left:
            continue
        layer = name.removesuffix(ending)
        group = {s: left[layer + s] for s in PARTS if layer + s in left}
        if (spelling := recognised(layer, group, asked.source, checkpoint.stated)) is not None:
            step = _quantised(layer, spelling, group, asked)
            steps.append(step)
            for tensor in step.reads.values():
                del left[tensor.name]
    _refuse_incomplete(left, asked)
    steps += [_plain(name, tensor, asked) for name, tensor in left.items()]
    if asked.source is not None and not any(step.spelling or step.kept for step in steps):
        raise CheckpointError(
            f"{checkpoint.path} has no quantised layer, and --from says that they are {asked.source}: leave --from out"
        )
    if not any(step.changes or step.spelling for step in steps):
        raise CheckpointError(f"{checkpoint.path} has no layer to convert: {_which(asked)}")
    order = {file.name: i for i, file in enumerate(checkpoint.files)}
    steps.sort(
        key=lambda step: (order[step.shard], min(t.start for t in step.reads.values() if t.path.name == step.shard))
    )
    written: set[str] = set()
    for step in steps:
        if doubled := [key for key in step.writes if key in written]:
            raise CheckpointError(
                f"{named(doubled)} would be written twice, for a tensor of that name and for a layer: leave one out with --keep"
            )
        written |= step.writes.keys()
    return steps


def _check_options(asked: Asked) -> None:
    if asked.scale_rounding not in set(ScaleRounding):
        raise CheckpointError(
            f"scales cannot be rounded by {asked.scale_rounding!r}: --rounding is {' or '.join(ScaleRounding)}"
        )
    if asked.source is not None:
        try:
            check_format(asked.source)
        except ValueError as error:
            raise CheckpointError(f"--from: {error}") from None


def _check_target(asked: Asked) -> None:
    if asked.rescale and asked.to != sparse.SPARSE:
        raise CheckpointError(
            f"rescaling is of pruned weights, and they become {asked.to}: convert to {sparse.SPARSE}, or leave it out"
        )
    if asked.to == sparse.SPARSE:
        if asked.names is not None:
            raise CheckpointError(f"{asked.names} has no names for {sparse.SPARSE}: leave --names out")
        return
    try:
        check_format(asked.to)
    except ValueError as error:
        raise CheckpointError(f"{error}, {sparse.SPARSE}, and {BF16}") from None
    spelling_of(asked.to, asked.names)


def _which(asked: Asked) -> str:
    patterns = (
        f"that fits {', '.join(asked.only)}"
        if asked.only
        else f"beside what is kept, {', '.join((*KEPT, *asked.keep))}"
    )
    return f"a layer is a float matrix whose key ends in .weight, {patterns}"


def _stays(key: str, asked: Asked) -> bool:
    def fits(patterns: tuple[str, ...]) -> bool:
        return any(fnmatch.fnmatchcase(key, pattern) for pattern in patterns)

    return fits(asked.keep) or (not fits(asked.only) if asked.only else fits(KEPT))


def _refuse_incomplete(left: dict[str, Stored], asked: Asked) -> None:
    """Refuse codes without a layer, and scales without codes, each by its key. Raises CheckpointError."""
    lacking: dict[str, str] = {}
    for name, tensor in left.items():
        ending = next((ending for ending in ENDINGS if name.endswith(ending)), None)
        is_codes = ending is not None and tensor.dtype in ("U8", "I8", "F8_E4M3", "F8_E5M2") and len(tensor.shape) > 1
        if ending is None or not is_codes or _stays(name, asked):
            continue
        layer = name.removesuffix(ending)
        found = f"{name} is {tensor.dtype} {list(tensor.shape)}, which is quantised already, and "
        if scales := [left[layer + scale] for scale in (*_CODES_OF, ".scale") if layer + scale in left]:
            told = ", ".join(f"{s.name} {s.dtype} {list(s.shape)}" for s in scales)
            raise CheckpointError(f"{found}its scales fit no format: {told}")
        lacking[f"{layer}.weight_scale"] = found
    if lacking:
        told = f"{len(lacking)} layers are quantised already, and their scales are missing"
        told = told if len(lacking) > 1 else next(f"{found}its scale is missing" for found in lacking.values())
        raise CheckpointError(f"{told}: expected {named(lacking)} or another project's name for it")
    alone = {
        name: [name.removesuffix(scales) + part for part in codes]
        for name in left
        for scales, codes in _CODES_OF.items()
        if name.endswith(scales) and not any(name.removesuffix(scales) + part in left for part in codes)
    }
    if alone:
        wanted = named(key for keys in alone.values() for key in keys)
        are = "is the scale of a layer" if len(alone) == 1 else "are scales of layers"
        raise CheckpointError(f"{named(alone)} {are} whose weight is missing: expected {wanted}")


def _plain(name: str, tensor: Stored, asked: Asked) -> Step:
    """An unquantised tensor: a layer to be, or one that stays."""
    stays = Step(name=name, shard=tensor.path.name, reads={"": tensor}, writes={name: (tensor.dtype, tensor.shape)})
    if asked.to == BF16 or tensor.dtype not in FLOATS or _stays(name, asked):
        return stays
    if asked.to == sparse.SPARSE:
        return (
            _to_sparse(
                Step(name=name.removesuffix(".weight"), shard=stays.shard, reads={".weight": tensor}), tensor.shape
            )
            if (name.endswith(".weight") and len(tensor.shape) == 2)
            else stays
        )
    spelling = spelling_of(asked.to, asked.names)
    if spelling.experts:
        is_layer = name.endswith(spelling.expert_layers) and len(tensor.shape) == 3
        shape = (
            spelling.as_rows(torch.empty(tensor.shape, device="meta", dtype=torch.float32)).shape if is_layer else ()
        )
        layer, key = name, name
    else:
        is_layer = name.endswith(".weight") and len(tensor.shape) == 2
        shape, layer, key = tensor.shape, name.removesuffix(".weight"), ".weight"
    if not is_layer:
        return stays
    _check_layer(tensor, name, shape, asked)
    step = Step(name=layer, shard=tensor.path.name, reads={key: tensor}, changes=True)
    return replace(step, writes=_written(step, spelling, shape[0], shape[1], has_input=False))


def _to_sparse(step: Step, shape: tuple[int, ...]) -> Step:
    """The step that prunes a layer [N, K]. Raises CheckpointError for a shape without whole patterns."""
    sparse.check(f"{step.name}.weight", shape)
    return replace(step, changes=True, writes=sparse.written(step.name, *shape))


def _check_layer(tensor: Stored, name: str, shape: tuple[int, ...], asked: Asked) -> None:
    """Refuse a tensor by its name, where the format cannot take the [N, K] that it stands for. Raises
    CheckpointError.
    """
    try:
        check_shape(asked.to, shape)
    except ValueError as error:
        is_codes = tensor.dtype not in FLOATS
        of = f"{list(shape)} of {tensor.dtype} codes" if is_codes else str(list(tensor.shape))
        raise CheckpointError(f"{name} is {of}: {error}, or leave it as it is with --keep '{tensor.name}'") from None


def _quantised(layer: str, spelling: Spelling, group: dict[str, Stored], asked: Asked) -> Step:
    """A layer that the source has in a format."""
    parts = (*spelling.parts, *((spelling.input,) if spelling.input in group else ()))
    reads = {part: group[part] for part in parts}
    codes = reads[spelling.codes]
    step = Step(name=layer, shard=codes.path.name, reads=reads, spelling=spelling)
    if _stays(codes.name, asked):
        return replace(step, spelling=None, kept=spelling, writes={t.name: (t.dtype, t.shape) for t in reads.values()})
    n, k = _sizes(spelling, codes)
    if asked.to == BF16:
        values = spelling.from_rows(torch.empty(n, k, device="meta", dtype=torch.float32), experts_of(step))
        key = layer if spelling.experts else f"{layer}.weight"
        return replace(step, changes=True, writes={key: ("BF16", tuple(values.shape))})
    if asked.to == sparse.SPARSE and spelling.format == "nvfp4" and not spelling.experts:
        return _to_sparse(step, (n, k))
    changes = spelling.format != asked.to
    if changes and not asked.requantize:
        raise CheckpointError(
            f"{layer} is {spelling.format} already: to {asked.to} it would be rounded twice; pass --requantize if that is meant, "
            f"or --to {spelling.format} to change its names"
        )
    if asked.to == sparse.SPARSE:
        if spelling.experts:
            raise CheckpointError(f"{layer} has experts in one tensor: {sparse.SPARSE} is of one matrix each; keep it")
        return _to_sparse(step, (n, k))
    target = spelling_of(asked.to, asked.names)
    if target.experts != spelling.experts:
        raise CheckpointError(
            f"{layer} has {'experts in one tensor' if spelling.experts else 'one matrix'}, and the names of {target.project} "
            f"are for {'one matrix each' if spelling.experts else 'experts in one tensor'}: keep it, or choose other names"
        )
    if changes:
        _check_layer(codes, layer, (n, k), asked)
    step = replace(step, changes=changes)
    has_input = spelling.input in reads and target.input is not None
    return replace(step, writes=_written(step, target, n, k, has_input=has_input))


def _sizes(spelling: Spelling, codes: Stored) -> tuple[int, int]:
    """The N (of all experts) and K of a layer, by its codes."""
    n, row = codes.shape[0], codes.shape[-1]
    if spelling.experts:
        n, row = codes.shape[0] * codes.shape[1], codes.shape[2] * codes.shape[3]
    format = BLOCK_SCALED.get(spelling.format)
    return n, row if format is None or format.code.bits == 8 else format.k_of(row)


def experts_of(step: Step) -> int | None:
    """The number of experts that share a step's rows."""
    return next(iter(step.reads.values())).shape[0] if step.is_experts else None


def _written(
    step: Step, target: Spelling, n: int, k: int, *, has_input: bool
) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The shapes and dtypes of the outputs, found by writing a weight that has a shape and no values."""
    tensors = target.write(empty_weight(target.format, n, k), experts_of(step))
    written = {step.name + part: (WORD_OF[tensor.dtype], tuple(tensor.shape)) for part, tensor in tensors.items()}
    if has_input:
        written[f"{step.name}{target.input}"] = "F32", target.global_shape
    return written
