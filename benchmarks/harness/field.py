"""The contenders of one run: gemmill or its stand-in, the variants of a sweep, the peers that this machine has."""

from dataclasses import dataclass, field

import torch

import gemmill
from gemmill.manifest import ManifestError
from gemmill.runtime.library import Build
from gemmill.tune.peers import through_ops
from gemmill.tune.problems import Problem
from gemmill.tune.statistics import first_line
from harness import stand_in
from harness.contenders import (
    Contender,
    LocalContender,
    constant_weights_contender,
    gemmill_contender,
    plausible,
    torch_contenders,
    variant_contenders,
    vllm_contender,
)
from harness.deep_gemm import deep_gemm_contender
from harness.remote import RemoteContender, RemoteError

PLAUSIBLE = 2.5
"""Variants that the analytic model puts beyond this many times its best are not timed."""


class FieldError(Exception):
    """Something that was asked for cannot be timed; the text is one sentence."""


@dataclass(frozen=True, kw_only=True)
class Field:
    """Who runs."""

    subject: LocalContender
    also: tuple[LocalContender, ...]
    """Other ways of calling the subject: timed and shown, compared with nothing."""
    variants: tuple[LocalContender, ...]
    peers: tuple[Contender, ...]
    loaded: Build | None
    """The build that is timed; None for the stand-in."""
    build: dict[str, object] | None
    """Which build the subject is, for the record; None for the stand-in."""
    notes: tuple[str, ...] = field(default=())
    """Sentences for the record about what is not as one would expect."""

    @property
    def all(self) -> list[Contender]:
        return [self.subject, *self.also, *self.variants, *self.peers]

    def contenders(self, problem: Problem) -> list[Contender]:
        """Those worth timing on a problem."""
        return [self.subject, *self.also, *plausible(self.variants, problem, PLAUSIBLE), *self.peers]


def make_field(
    *,
    build: str | None,
    sweep: bool,
    match: str,
    vllm_so: str | None,
    vllm_apart: bool,
    deep_gemm: str | None,
    dry_run: bool,
) -> Field:
    """Load what is to be timed. Raises FieldError."""
    notes: list[str] = []
    peers: list[Contender] = [*torch_contenders()]
    if vllm_so:
        peers.append(_vllm(vllm_so, vllm_apart, notes))
    if deep_gemm:
        try:
            peers.append(deep_gemm_contender(deep_gemm))
        except (OSError, ImportError, RuntimeError, AttributeError) as error:
            raise FieldError(f"DeepGEMM in {deep_gemm} cannot be used: {first_line(error)}") from None
    loaded: Build | None = None
    try:
        loaded = gemmill.load(build)
        manifest = loaded.manifest
        subject, also = gemmill_contender(), [] if sweep else [constant_weights_contender()]
        variants = variant_contenders(loaded.table, through_ops(torch.ops.gemmill)) if sweep else []
        facts: dict[str, object] | None = {
            "id": manifest.build_id,
            "selection": manifest.selection,
            "arch": manifest.arch,
            "variants": len(manifest.entries),
        }
    except (OSError, RuntimeError, ManifestError) as error:
        if not dry_run:
            raise FieldError(f"there is no build to time: {first_line(error)}") from None
        notes.append(f"gemmill's reference stands in for it: {first_line(error)}")
        subject, also, facts = stand_in.subject(), [], None
        variants = stand_in.variants() if sweep else []
    variants = [variant for variant in variants if match in variant.name]
    if sweep and not variants:
        raise FieldError(f"no loaded variant has {match!r} in its name")
    return Field(
        subject=subject,
        also=tuple(also),
        variants=tuple(variants),
        peers=tuple(peers),
        loaded=loaded,
        build=facts,
        notes=tuple(notes),
    )


def _vllm(library: str, apart: bool, notes: list[str]) -> Contender:
    """vLLM in this process if its library loads, else in its own."""
    if not apart:
        try:
            return vllm_contender(library)
        except (OSError, RuntimeError, AttributeError) as error:
            notes.append(f"vllm runs in its own process, because in this one: {first_line(error)}")
    try:
        return RemoteContender(library)
    except RemoteError as error:
        raise FieldError(f"vLLM's library {library} cannot be used: {first_line(error)}") from None
