"""A family of kernels, declared once: its configs, their names, their build and the choice for a call."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from gemmill.family.grammar import Grammar
from gemmill.family.op import Op, OpSet
from gemmill.family.tuning import Tuning
from gemmill.questions import Asked
from gemmill.vocab import OK, Arch, Compiler, DType, Status


class Config(Protocol):
    """One variant: a frozen dataclass whose constructor refuses contradictions."""

    def __hash__(self) -> int: ...

    @property
    def arch(self) -> Arch:
        """Its architecture."""

    @property
    def tag(self) -> str:
        """The `Kernels` that it belongs to: the second field of its name."""

    @property
    def compiled(self) -> Self:
        """The same machine code with default launch settings: configs that share it share one compilation."""

    @property
    def operand_dtype(self) -> DType:
        """The dtype of the operand that identifies a call."""

    @property
    def out_dtype(self) -> DType:
        """Of the result."""

    @property
    def group_size(self) -> int:
        """Elements that share a scale; 0 where scales are of tensors, rows or columns."""


class WithoutSettings:
    """Configs without launch settings."""

    @property
    def compiled(self) -> Self:
        """Itself."""
        return self


class OfOperands:
    """Configs whose operands tell the types of a call."""

    operands: Any

    @property
    def operand_dtype(self) -> DType:
        """Dtype of the operand that identifies a call."""
        found: DType = self.operands.dtype
        return found

    @property
    def out_dtype(self) -> DType:
        """Dtype of the result."""
        found: DType = self.operands.out_dtype
        return found

    @property
    def group_size(self) -> int:
        """Elements that share a scale; 0 where scales are of tensors, rows or columns."""
        found: int = self.operands.group_size
        return found


Rule = Callable[[Any], Iterator[str]]
"""One constraint on a config, with its hardware reason: yields why it rejects the config. Its function's name is the rule's."""


def first_rejection(rules: Iterable[Rule], config: Any) -> Status:
    """The first rejection with the rule's name in it, or OK."""
    for rule in rules:
        for reason in rule(config):
            return Status(ok=False, rule=rule.__name__.strip("_"), reason=reason)
    return OK


@dataclass(frozen=True, kw_only=True)
class Spelled:
    """A config as a template prints it."""

    template: str
    """Path below templates/; the part before `.jinja` ends the emitted file's name."""
    values: Mapping[str, Any]
    """The values of the template's holes, in addition to name and symbol."""


def of_dsl(entry: str) -> Callable[[Any], Spelled]:
    """The file of a kernel of the CuTe DSL: the module that compiles it, and the kernel's name, which encodes its
    config.
    """
    spelled = Spelled(template="dsl/kernel.py.jinja", values={"entry": entry})
    return lambda config: spelled


@dataclass(frozen=True, kw_only=True)
class HostCode:
    """C++ of a family that launches kernels of the CuTe DSL without the DSL's host code and library."""

    header: str
    """Declares `gemmill::launch_gemm` with the family's arguments. Path below kernels/."""
    struct: str
    """The C++ type of its facts."""
    facts: Callable[[Any], Mapping[str, int | str]]
    """The facts of a kernel at run time: by a config, the fields of its struct in C++, in their order."""
    threads: Callable[[Any], int]
    """By a config, the threads of a CTA."""
    shared_bytes: Callable[[Any], int]
    """By a config, the dynamic shared memory of a CTA in bytes."""


@dataclass(frozen=True, kw_only=True)
class DslBody:
    """Where the CuTe DSL reads a kernel."""

    entry: str
    """The module that compiles a kernel: its imports lead to all bodies."""
    arguments: str
    """The C struct of the family's `abi.h` by whose fields a kernel names its arguments."""
    facts: Callable[[Any], Any]
    """The facts that a body reads of a config. Raises ValueError for a config without a possible kernel."""
    split: Callable[[Any], Any] = lambda config: None
    """By a config, the tile (rows and columns of D of a cluster) whose slices of K meet in a workspace; None where none do."""
    host: "HostCode | None" = None
    """gemmill's own host code of its kernels; None where the DSL's host code alone can launch them."""


@dataclass(frozen=True, kw_only=True)
class Kernels:
    """One kind of kernel, made by one compiler from configs of one type."""

    tag: str
    """In names, after the architecture."""
    doc: str
    grammar: Grammar
    """Names and filters of configs."""
    ops: Callable[[Any], tuple[str, ...]]
    """Ops that a kernel of a config can serve."""
    rules: tuple[Rule, ...]
    spell: Callable[[Any], Spelled]
    seconds: Callable[[Any], float]
    """CPU seconds that compiling a config may take on top of the cost of its unit."""
    unit_seconds: float
    """CPU seconds of a unit's headers and host passes, or of a process's imports."""
    unit_size: int
    """Kernels that share a unit at most."""
    dsl: DslBody | None = None
    """For kernels of the CuTe DSL."""

    @property
    def compiler(self) -> Compiler:
        """The compiler that makes them."""
        return Compiler.NVCC if self.dsl is None else Compiler.CUTEDSL

    @property
    def config(self) -> type[Any]:
        """The type of its configs."""
        return self.grammar.config


@dataclass(frozen=True, kw_only=True)
class Epilogues:
    """A family's op and kernels for a user's epilogue, given by the text of its steps (gemmill.gemm.traced)."""

    op: Callable[[str], Op]
    """The op that calls it."""
    operands: Callable[[str], tuple[DType, ...]]
    """The operands whose sums it takes."""
    configs: Callable[[str, Sequence[DType], Sequence[DType], Arch], Iterable[Any]]
    """Its kernels, of operands and results."""
    text_of: Callable[[Any], str]
    """The epilogue of a config; empty where it has none."""
    learn: Callable[[str], object]
    """Registers an epilogue, so that the configs of its kernels can describe their computation."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Kernels that answer the same ops."""

    name: str
    doc: str
    asks: OpSet
    """Its ops and their contracts."""
    kernels: tuple[Kernels, ...]
    selections: Mapping[str, Callable[[Arch], Iterable[Any]]]
    """By a selection's name, the family's configs in it; none for other selections."""
    tuning: Tuning
    """How a call comes to a variant."""
    epilogues: Epilogues | None = None
    """How its kernels end in users' epilogues; None where they do not."""
    home: Path | None = None
    """The folder in which its C++ lies, as `kernels/<name>`, and its templates, as `templates/<name>`; None for gemmill's."""
    questions: tuple[Asked, ...] = ()
    """The options of `gemmill explain` for a call, which the cases read."""
    package: str = ""
    """The package of its modules that need torch, which declarations do not; empty for gemmill's own of its name."""
    has_functions: bool = True
    """Whether there are `functions`."""
    peers: str | None = None
    """The module of the calls that users would make without gemmill: `PEERS`, and `vllm_takes`, whether vLLM's op of
    the same name takes a workload.
    """

    @property
    def cases(self) -> str:
        """The module whose `CASES` makes and judges its ops' calls."""
        return self._module("cases")

    @property
    def serving(self) -> str:
        """The module whose `SERVING` has its part of the runtime."""
        return self._module("serving")

    @property
    def functions(self) -> str | None:
        """The module whose `__all__` users find in `gemmill`: its ops as functions that allocate their results."""
        return self._module("functions") if self.has_functions else None

    def _module(self, name: str) -> str:
        return f"{self.package or f'gemmill.families.{self.name}'}.{name}"
