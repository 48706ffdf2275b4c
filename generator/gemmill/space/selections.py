"""Named sets of configs: smoke, default, nvcc, serving, sweep."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from pathlib import Path

from gemmill.family import Config
from gemmill.registry import REGISTRY
from gemmill.space.names import parse_name, to_name
from gemmill.vocab import Arch, Compiler, Status


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """A combination that a rule keeps out, with the reason."""

    name: str
    status: Status


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The configs to build, and those that the rules rejected."""

    name: str
    arch: Arch
    configs: tuple[Config, ...]
    rejections: tuple[Rejection, ...]


@dataclass(frozen=True, kw_only=True)
class SelectionFile:
    """The list in a file of `gemmill prune`; the file has more, for readers."""

    name: str
    arch: Arch
    variants: tuple[str, ...]
    """Names of variants."""


def select(name: str, arch: Arch = Arch.SM90A) -> Selection:
    """The named selection for an architecture, or that of a file which `gemmill prune` wrote (its name ends in .json).

    Raises ValueError if there is none, or if a config is in it twice.
    """
    if name.endswith(".json"):
        return read_selection(Path(name), arch)
    try:
        enumerate_configs = SELECTIONS[name]
    except KeyError:
        raise ValueError(
            f"no selection {name!r}: there are {', '.join(SELECTIONS)}, and files that `gemmill prune` writes (*.json)"
        ) from None
    return _named(name, arch, enumerate_configs)


@cache
def _named(name: str, arch: Arch, enumerate_configs: Callable[[Arch], Iterable[Config]]) -> Selection:
    return _checked(name, arch, enumerate_configs(arch))


def read_selection(path: Path, arch: Arch) -> Selection:
    """The selection that a file lists by names of variants. Raises ValueError."""
    from gemmill.typed_json import read_json

    listed = read_json(path, SelectionFile, "name a file that `gemmill prune` wrote")
    if listed.arch != arch:
        raise ValueError(f"selection file {path} is for {listed.arch}, {arch} was asked for: name it with --arch")
    try:
        configs = [parse_name(variant) for variant in listed.variants]
    except ValueError as error:
        raise ValueError(f"selection file {path}, variants: {error}") from None
    return _checked(listed.name, arch, configs)


def _checked(name: str, arch: Arch, configs: Iterable[Config]) -> Selection:
    accepted: dict[str, Config] = {}
    rejections: list[Rejection] = []
    for config in configs:
        key = to_name(config)
        if key in accepted:
            raise ValueError(f"selection {name!r} has {key} twice")
        if status := REGISTRY.check(config):
            accepted[key] = config
        else:
            rejections.append(Rejection(name=key, status=status))
    return Selection(name=name, arch=arch, configs=tuple(accepted.values()), rejections=tuple(rejections))


def with_configs(selection: Selection, configs: Iterable[Config]) -> Selection:
    """A selection and more configs, of which rules keep some out. Raises ValueError where it has one twice."""
    added = _checked(selection.name, selection.arch, (*selection.configs, *configs))
    return replace(added, rejections=(*selection.rejections, *added.rejections))


def _of_families(name: str, arch: Arch) -> Iterable[Config]:
    return chain.from_iterable(f.selections[name](arch) for f in REGISTRY.families if name in f.selections)


def _without_dsl(arch: Arch) -> Iterable[Config]:
    """The default configs of families that name no others for nvcc, those of the CuTe DSL left out."""
    for family in REGISTRY.families:
        enumerate_configs = family.selections.get("nvcc", family.selections["default"])
        yield from (c for c in enumerate_configs(arch) if REGISTRY.kernels_of(c).compiler is Compiler.NVCC)


def _serving(arch: Arch) -> Iterable[Config]:
    """The default configs that suffice for models in bf16, as `gemmill prune` listed them (docs/tuning.md). Nothing was measured
    on other architectures, or of families that the list does not have: there they are the default ones."""
    if arch is not Arch.SM90A:
        return _of_families("default", arch)
    listed = read_selection(SERVING, arch).configs
    known = {REGISTRY.family_of(config).name for config in listed}
    others = (f for f in REGISTRY.families if f.name not in known and "default" in f.selections)
    return chain(listed, *(f.selections["default"](arch) for f in others))


SERVING = Path(__file__).with_name("serving.json")
SELECTIONS: dict[str, Callable[[Arch], Iterable[Config]]] = {
    "smoke": partial(_of_families, "smoke"),
    "default": partial(_of_families, "default"),
    "nvcc": _without_dsl,
    "serving": _serving,
    "sweep": partial(_of_families, "sweep"),
}
