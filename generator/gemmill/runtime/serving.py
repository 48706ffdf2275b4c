"""The part of the runtime that a family adds to its contracts."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch

from gemmill.family import Judged, ShapedCall
from gemmill.family.operand import Call
from gemmill.manifest import Manifest
from gemmill.registry import REGISTRY
from gemmill.runtime.schemas import OpSchema
from gemmill.runtime.select import Choice

Result = tuple[torch.Tensor, torch.Tensor]
"""A part of a tensor that the op writes, and the values that it gets. They are of its shape, or of one that broadcasts
to it."""


@dataclass(frozen=True, kw_only=True)
class Serving:
    """The reference of a family's ops, and the description of their choices."""

    results: Callable[[Judged, dict[str, Any]], Iterable[Result]]
    """The results of the reference for a legal call, each with its tensor. Arguments are by role."""
    asked: Callable[[Judged], ShapedCall]
    """The shaped call of a legal call: all inputs of a choice."""
    lacks: Callable[[Manifest, OpSchema, Call, Choice], str]
    """The text on why a build serves no such call, and the remedy."""


def serving_of(op: OpSchema) -> Serving:
    """The `Serving` of an op's family."""
    family, _ = REGISTRY.ops[op.name]
    found: Serving = import_module(family.serving).SERVING
    return found


def none_takes(
    manifest: Manifest,
    asked: ShapedCall,
    choice: Choice,
    *,
    kernels: str,
    sizes: str,
    operands: str,
    selection: str = "default",
    of_tma: bool = False,
) -> str:
    """The sentence that none of a family's `kernels` takes a call of these `sizes`, with the first reason of the trace.

    `sizes` and `operands` name the numbers of `asked`, with commas. `selection` is built then; `of_tma` says that rows must
    begin at multiples of 16 bytes for any.
    """
    named = sizes.count(",") + 1
    at, aligned = (", ".join(map(str, numbers)) for numbers in (asked.sizes[:named], asked.alignments))
    reason = choice.trace[0].reason if choice.trace else "it has none"
    built = f"`gemmill build --arch {manifest.arch} --select {selection}` builds"
    advice = (
        f"rows must begin at multiples of 16 bytes, and {built} the kernels that there are"
        if of_tma
        else f"{built} those that there are"
    )
    return (
        f"none of {count_of_variants(variants_of(manifest, asked.family))} of {kernels} in build {manifest.build_id} takes {sizes} = {at} with alignments of "
        f"{operands} = {aligned} bytes ({reason}); {advice}"
    )


def lacks_one(manifest: Manifest, family: str, wanted: str, *, kernels: str, selection: str = "default") -> str:
    """The sentence that a build lacks the one variant that serves such calls, among its `kernels` of a family."""
    return (
        f"build {manifest.build_id} lacks {wanted}, the variant for such calls, among its "
        f"{count_of_variants(variants_of(manifest, family))} of {kernels}; "
        f"`gemmill build --arch {manifest.arch} --select {selection}` builds it"
    )


def variants_of(manifest: Manifest, family: str) -> int:
    """The number of a family's variants in a build."""
    return sum(entry.family == family for entry in manifest.entries)


def count_of_variants(count: int) -> str:
    """A count of variants in words."""
    return f"{count} variant{'' if count == 1 else 's'}"
