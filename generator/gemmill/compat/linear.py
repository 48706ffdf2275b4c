"""Answers to a serving engine that asks before it gives a linear layer to gemmill. They follow from the active
build's manifest.
"""

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Protocol, TypeVar

import torch

from gemmill.formats.fp4_blocks import CODE_BYTES
from gemmill.formats.layout import SIDE, STAGE_COLUMNS
from gemmill.runtime import agreement, ops, served
from gemmill.runtime.holding import holds_here
from gemmill.runtime.notices import LOG
from gemmill.vocab import Arch

ROWS = (1, 64, 4096)
"""The M of calls for which gemmill reports a layer's variants when it takes the layer."""
BLOCK, FINE_BLOCK = 128, 32
"""The elements that share a scale along K, and the rows of a weight that do: DeepSeek V3's, and V4.1's."""
BLOCKS = (BLOCK, FINE_BLOCK)


class Layer(Protocol):
    """A layer, as far as variants for it depend on it; its text is for the log."""

    @property
    def rows(self) -> tuple[int, ...]:
        """The rows for which the log names its variants when gemmill takes it."""
        ...

    def call(self, m: int) -> tuple[Any, ...]:
        """The op's name and its arguments for m rows, on torch's meta device."""
        ...

    def __hash__(self) -> int:
        """The hash of the layer's value."""
        ...


@dataclass(frozen=True, kw_only=True)
class Linear:
    """A quantised linear layer, as far as a variant for it depends on it."""

    rows: ClassVar[tuple[int, ...]] = ROWS
    n: int
    """The columns of the result."""
    k: int
    codes: torch.dtype
    """The dtype of activations and weight."""
    out_dtype: torch.dtype
    blocks: int = 0
    """Of BLOCKS, where scales are 1 x blocks of activations and blocks x blocks of the weight; 0 per token and channel, or one value."""
    azp: bool = False
    """Whether activations have zero points."""
    format: str = ""
    """The format of packed weights with activations of 16 bits, "nvfp4" or "mxfp4". It is empty where both have one
    dtype.
    """
    experts: int = 0
    """The number of experts by whose weights one call multiplies; 0 for a layer of one weight."""

    def call(self, m: int) -> tuple[Any, ...]:
        """The op's name and its arguments for m rows, on torch's meta device."""
        return _call(self, m)

    def __str__(self) -> str:
        if self.format:
            what = f"layer of {self.experts} experts" if self.experts else "linear layer"
            return f"{what} of N x K = {self.n} x {self.k}, {self.format} weights, {_name(self.codes)} activations"
        scales = f"scales of blocks of {self.blocks}" if self.blocks else "scales per token and channel"
        names = " to ".join(_name(kind) for kind in (self.codes, self.out_dtype))
        what = f"layer of {self.experts} experts" if self.experts else "linear layer"
        return f"{what} of N x K = {self.n} x {self.k}, {names}, {scales}{', zero points' * self.azp}"


def _name(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


def absence(capability: int | None = None) -> str | None:
    """The reason why gemmill takes no layer on a GPU of a compute capability such as 90, in one sentence; None if
    there is a build.

    Loads a build if none is yet. A removed build goes on serving. Raises nothing.
    """
    try:
        arch = Arch(ops.active().manifest.arch)
    except Exception as error:  # whatever is wrong with gemmill, the engine has kernels of its own
        return unusable(error)
    if capability is None or divmod(capability, 10) in arch.capabilities:
        return None
    return f"gemmill's build is for {arch}, the GPU has compute capability {capability}"


def refusal(layer: Layer) -> str | None:
    """The reason why gemmill does not take a layer, in one sentence, which goes to the log once; None if it does.

    Loads a build if none is yet. Raises nothing.
    """
    try:
        why, _ = _answer_of_build(layer, ops.active().build_id, holds_here())
    except Exception as error:  # the same
        why = unusable(error)
    if why is not None:
        served.left(str(layer), why)
    return why


def unusable(error: Exception) -> str:
    """One sentence on the obstacle that keeps gemmill from serving."""
    return f"gemmill cannot serve here ({_in_a_line(error)})"


def _in_a_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


@cache
def _answer_of_build(layer: Layer, build_id: str, _holds: bool) -> tuple[str | None, str]:
    """The reason why a build does not serve a layer, None if it does, and the variants that serve it; of calls that hold one order,
    or choose freely."""
    chosen, order = [], ""
    for m in layer.rows:
        try:
            choice = ops.explain(*layer.call(m))
        except RuntimeError as error:
            return str(error).splitlines()[0], ""
        if choice.refused is not None:
            return choice.refused, ""
        if choice.entry is None:
            return f"build {build_id} has no variant for {m} rows of a {layer}: `gemmill build` compiles more", ""
        chosen.append(f"{choice.entry.name} ({choice.trust.name.lower()}) for {m} rows")
        if choice.held is not None:
            order = f"; all in the order {choice.held.order}, for batch invariance"
    return None, f"build {build_id} has {', '.join(chosen)}{order}"


def serves(layer: Layer, by: str, of: object, call: Callable[..., Any], *tensors: torch.Tensor | None) -> bool:
    """Whether gemmill serves a layer: its first call has to pass. Raises nothing.

    `by` is the kernel's name, `of` the engine's layer.
    """
    if passes := first_call_passes(layer, call, *tensors):
        take(layer, by, of)
    return passes


def first_call_passes(layer: Layer, call: Callable[..., Any], *tensors: torch.Tensor | None) -> bool:
    """Whether a trial of a layer's first call passes; a failure goes to the log. Raises nothing.

    The trial makes the call with meta tensors, for which ops run the fakes that torch.compile asks, once for layers that
    are alike. Then it makes it with these. So an engine has its weights until both have passed. Fake tensors in place of
    meta ones would import symbolic shapes, which takes seconds.
    """
    given = [None if tensor is None else tensor.data for tensor in tensors]  # without engines' subclasses
    alike = layer, *(None if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype) for tensor in given)
    kind = "of meta tensors, as torch.compile's fake ones, "
    try:
        with torch.no_grad():
            if alike not in _passed:
                call(*(None if tensor is None else _on_meta(tensor) for tensor in given))
            kind = ""
            call(*given)
    except Exception as error:  # the same
        _fails(layer, f"its first call {kind}failed ({_in_a_line(error)})")
        return False
    _passed.add(alike)
    return True


def _on_meta(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")


_passed: set[Hashable] = set()
"""Layers with their tensors' shapes, strides and dtypes, whose calls of meta tensors pass: tens of layers are alike."""


def take(layer: Layer, by: str, of: object | None = None, rows: str = "") -> None:
    """Note that gemmill serves a layer. `rows` says which, where it is not all."""
    build = ops.active()
    agreement.warn_once(build.build_id, build.tuned.digest)
    _, variants = _answer_of_build(layer, build.build_id, holds_here())
    served.took(served.ServedLayers(layer=str(layer), by=by, variants=variants, rows=rows), of)


Result = TypeVar("Result")
_calls: dict[Hashable, bool] = {}
"""Whether calls of a layer come to gemmill, remembered because each call needs it."""


def called(
    key: Hashable,
    layer: Callable[[], Layer | None],
    by: str,
    ours: Callable[[], Result],
    theirs: Callable[[], Result],
) -> Result:
    """The result of an engine's call: gemmill's where the build has variants and no call of the layer has failed yet.

    `key` identifies a layer, and is hashed at each call: a tuple of values at hand. `layer` runs once for each key, and
    is None for one that stays with the engine. `by` is the kernel's name.
    """
    serves = _calls.get(key)
    if serves is None:
        return _first_call(key, layer(), by, ours, theirs)
    if not serves:
        return theirs()
    try:
        return ours()
    except Exception as error:  # the same
        return _failed_call(key, layer(), error, theirs)


def _first_call(
    key: Hashable, layer: Layer | None, by: str, ours: Callable[[], Result], theirs: Callable[[], Result]
) -> Result:
    _calls[key] = layer is not None and refusal(layer) is None
    if layer is None or not _calls[key]:
        return theirs()
    try:
        result = ours()
    except Exception as error:  # the same
        return _failed_call(key, layer, error, theirs)
    take(layer, by)
    return result


def _failed_call(key: Hashable, layer: Layer | None, error: Exception, theirs: Callable[[], Result]) -> Result:
    _calls[key] = False
    if layer is not None:
        _fails(layer, f"a call failed ({_in_a_line(error)})")
    return theirs()


def forget() -> None:
    """Ask and log again, as a new process does."""
    _answer_of_build.cache_clear()
    _calls.clear()
    _passed.clear()
    served.forget()


def _fails(layer: Layer, why: str) -> None:
    served.left(str(layer), why, level=logging.WARNING)


def _call(linear: Linear, m: int) -> tuple[Any, ...]:
    """The op's name and its arguments, on torch's meta device."""

    def empty(*shape: int, kind: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=kind, device="meta")

    if linear.format:
        rows, columns = -(-linear.n // SIDE), -(-linear.k // STAGE_COLUMNS) * STAGE_COLUMNS // SIDE
        of_block = CODE_BYTES + SIDE * SIDE // {"nvfp4": 16, "mxfp4": 32}[linear.format]
        blocks, base = empty(rows, columns, of_block, kind=torch.uint8), empty(linear.n)
        out, a = empty(m, linear.n, kind=linear.out_dtype), empty(m, linear.k, kind=linear.codes)
        alpha = empty(max(linear.experts, 1)) if linear.format == "nvfp4" else None
        if linear.experts:
            of_all = (empty(linear.experts, *t.shape, kind=t.dtype) for t in (blocks, base))
            offsets, token_ids = (empty(length, kind=torch.int32) for length in (linear.experts + 1, m))
            packed, bases = of_all
            return "grouped_fp4_mm", out, a, packed, None, bases, alpha, None, offsets, None, token_ids, linear.format
        return "fp4_weight_mm", out, a, blocks, base, alpha, None, linear.format, True
    if linear.experts:  # as `moe_mm.cutlass_moe_mm` calls it: behind the rows of each are those of nobody
        a, b = empty(m, linear.k, kind=linear.codes), empty(linear.experts, linear.n, linear.k, kind=linear.codes)
        ends, owners = (empty(2 * linear.experts - less, kind=torch.int32) for less in (0, 1))
        scales = (empty(m, 1), empty(linear.experts, linear.n))
        if linear.blocks:
            groups = -(-linear.k // linear.blocks)
            scales = (empty(m, groups), empty(linear.experts, -(-linear.n // linear.blocks), groups))
        return "grouped_mm", empty(m, linear.n, kind=linear.out_dtype), a, b, *scales, ends, owners
    scales = (empty(m, 1), empty(1, linear.n))
    if linear.blocks:
        groups = -(-linear.k // linear.blocks)
        scales = (empty(m, groups), empty(-(-linear.n // linear.blocks), groups).t())
    codes = (empty(m, linear.k, kind=linear.codes), empty(linear.n, linear.k, kind=linear.codes).t())
    out = empty(m, linear.n, kind=linear.out_dtype)
    if not linear.azp:
        return "cutlass_scaled_mm", out, *codes, *scales, None
    zero_points = (empty(linear.n, kind=torch.int32), empty(m, kind=torch.int32))
    return "cutlass_scaled_mm_azp", out, *codes, *scales, *zero_points, None


def packed_fp4(format: str, codes: torch.Tensor, scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
    """A checkpoint's codes [N, K / 2] and scales [N, K / group], or [E, ...] of experts, in the order of Hopper's kernels.
    None, and a line in the log, for weights that they cannot take."""
    from gemmill.formats.quantise import BlockScaled
    from gemmill.quantize.experts import stacked_blocks
    from gemmill.quantize.fp4_blocks import to_blocks
    from gemmill.quantize.prepack import prepack
    from gemmill.vocab.format import format_named

    kind, given = format_named(format), (codes.view(torch.uint8), scales.view(torch.uint8))
    try:
        if codes.dim() == 3:
            return stacked_blocks(kind, *given)
        made = to_blocks(prepack(BlockScaled(format=kind, codes=given[0], scales=given[1]), for_op="fp4_weight_mm"))
    except Exception as error:  # the same
        layer = f"layer of {format} weights of N x K = {codes.shape[-2]} x {2 * codes.shape[-1]}"
        served.left(layer, _in_a_line(error), level=logging.WARNING)
        return None
    return made.blocks, made.base


def block_of(weight: torch.Size, scales: torch.Size) -> int:
    """The size of BLOCKS that scales [..., N / size, K / size] of a weight [..., N, K] are of, by their shapes; 0 where they are of none.
    Where shapes fit both, they mean the same."""
    found = tuple(scales[-2:])
    return next((size for size in BLOCKS if found == tuple(-(-extent // size) for extent in weight[-2:])), 0)


def row_of(scales: torch.Tensor) -> torch.Tensor:
    """Scales per channel as gemmill takes them, [1, N], from engines' [N, 1]; a single one as it is."""
    return scales if scales.numel() == 1 or (scales.dim() == 2 and scales.shape[0] == 1) else scales.reshape(1, -1)


_complained: set[str] = set()


def guarded(engine: str, register: Callable[[], None]) -> None:
    """Register with an engine; where that fails, say so once, in one sentence. Raises nothing."""
    try:
        register()
    except Exception as error:  # the same
        if engine not in _complained:
            _complained.add(engine)
            LOG.warning("%s goes on with its own kernels: %s", engine, unusable(error))
