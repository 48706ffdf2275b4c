"""Workloads: one class of calls at one size, which a sweep measures."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gemmill.family import ShapedCall, Sizes
from gemmill.registry import REGISTRY


@dataclass(frozen=True, order=True)
class Workload:
    """A class of calls of a family, by the name that tables know it by, and its sizes."""

    op: str
    at: tuple[int, ...]
    """Sizes in the sort order of tables' rows, the bucketed one last."""

    def __getattr__(self, name: str) -> int:
        """A size by its name."""
        if "at" not in vars(self) or name not in (sizes := self.sizes):  # a copy has no fields at first
            raise AttributeError(f"a workload has no {name!r}")
        return sizes[name]

    @property
    def family(self) -> str:
        """The name of the family with the class."""
        return REGISTRY.measured[self.op][0].name

    @property
    def kind(self) -> str:
        """The word for its computation."""
        return self.op

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes by name, in the order of the family's names."""
        tuning = REGISTRY.measured[self.op][1]
        by_name = dict(zip(tuning.key, self.at, strict=True))
        return {name: by_name[name] for name in tuning.sizes}

    @property
    def weights(self) -> dict[str, int]:
        """The sizes that a row of a table must match nearly."""
        return dict(zip(REGISTRY.measured[self.op][1].near, self.at, strict=False))

    @property
    def step(self) -> int:
        """The size along which a sweep measures weights in steps."""
        return self.at[-1]

    @property
    def flops(self) -> float:
        """The number of multiplications and additions."""
        return REGISTRY.measured[self.op][3].flops(self.sizes)

    @property
    def operand_bits(self) -> int:
        """The bits of the product's wider operand."""
        return REGISTRY.measured[self.op][3].operand_bits

    @property
    def bytes(self) -> int:
        """The bytes that must be read and written, each once."""
        return REGISTRY.measured[self.op][3].bytes(self.sizes)

    @property
    def call(self) -> ShapedCall:
        """The call with operands as torch allocates them."""
        return REGISTRY.measured[self.op][3].call(self.sizes)

    def __str__(self) -> str:
        return f"{self.op} {self.shape}"

    @property
    def shape(self) -> str:
        """Its sizes as the family lists them."""
        return " x ".join(map(str, self.sizes.values()))


def workload_of(op: str, sizes: Sizes) -> Workload:
    """The workload of a class and sizes by name. Raises ValueError where there is no such class, or these are not its sizes."""
    if op not in REGISTRY.measured:
        raise ValueError(f"op is {op!r}, expected one of {', '.join(REGISTRY.measured)}")
    tuning = REGISTRY.measured[op][1]
    if sizes.keys() != set(tuning.sizes):
        raise ValueError(f"sizes of {op} are {', '.join(tuning.sizes)}, not {', '.join(sizes)}")
    return Workload(op, tuple(sizes[name] for name in tuning.key))


def grid(ops: Iterable[str], weights: Iterable[Sizes], steps: Sequence[int] | None = None) -> list[Workload]:
    """Every weight for every op at every step (None: the family's own). A weight has an op's near sizes by name.

    Workloads that share weights are neighbours. Raises ValueError where an op has other near sizes.
    """
    known, workloads = list(weights), []
    for op in ops:
        _, tuning, sweep, _ = REGISTRY.measured[op]
        if any(weight.keys() != set(tuning.near) for weight in known):
            raise ValueError(f"weights of {op} have {', '.join(tuning.near)}, not {', '.join(known[0])}")
        for near in sorted({tuple(weight[name] for name in tuning.near) for weight in known}):
            workloads += [Workload(op, (*near, step)) for step in (sweep.steps if steps is None else steps)]
    return workloads


def tiny(workload: Workload) -> Workload:
    """The same workload cut down for a dry run on a CPU."""
    _, _, sweep, measured = REGISTRY.measured[workload.op]
    sizes = {
        name: min(size, max(sweep.tiny[name], measured.least.get(name, 0))) for name, size in workload.sizes.items()
    }
    return workload_of(workload.op, sizes)
