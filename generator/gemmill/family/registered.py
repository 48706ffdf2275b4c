"""All families together: the family of a config, and whether the declarations agree."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gemmill.family.classes import Classes
from gemmill.family.declaration import Config, Family, Kernels, first_rejection
from gemmill.family.op import Op
from gemmill.family.sweep import Measured, Sweep
from gemmill.family.tuning import Tuning
from gemmill.questions import Asked, merged
from gemmill.vocab import Status


@dataclass(frozen=True)
class Registry:
    """Families, each declared once. Raises ValueError for declarations that contradict one another; for contracts of ops,
    `check_contracts` does."""

    families: tuple[Family, ...]

    def __post_init__(self) -> None:
        for family in self.families:
            for word in (family.name, *(kernels.tag for kernels in family.kernels)):
                if not word.replace("_", "a").isalnum() or word != word.lower():
                    raise ValueError(
                        f"family {family.name!r}: {word!r} is no lower-case identifier, which names are made of"
                    )
            for kernels in family.kernels:
                if "_" in kernels.tag:
                    raise ValueError(
                        f"family {family.name!r}: tag {kernels.tag!r} has an underscore, which parts fields of names"
                    )
        self._refuse_shared(
            "have kernels of tag",
            lambda family: [tag for kernels in family.kernels for tag in (kernels.tag, *kernels.grammar.aliases)],
        )
        self._refuse_shared("have an op", lambda family: [op.schema.name for op in family.asks.ops])
        for family in self.families:
            if (fault := family.tuning.contradiction()) is not None:
                raise ValueError(f"family {family.name!r}: {fault}")
        self._refuse_shared(
            "measure a class",
            lambda family: [m.name for m in family.tuning.sweep.measured] if family.tuning.sweep else [],
        )
        merged(option for family in self.families for option in family.questions)
        names = [family.name for family in self.families]
        if len(set(names)) < len(names):
            raise ValueError(f"two families have one name, of {', '.join(names)}")

    def check_contracts(self) -> None:
        """Compile the contract of every op. Raises ValueError for one that contradicts itself.

        Not a part of construction: it takes longer than the rest, and a command that calls no op need not wait for it.
        """
        for family in self.families:
            for op in family.asks.ops:
                _check_program(family, op)
            if (fault := _axis_of_no_op(family)) is not None:
                raise ValueError(f"family {family.name!r}: {fault}")

    def _refuse_shared(self, have: str, words_of: Callable[[Family], Iterable[str]]) -> None:
        owners: dict[str, str] = {}
        for family in self.families:
            for word in words_of(family):
                if word in owners:
                    raise ValueError(f"families {owners[word]!r} and {family.name!r} both {have} {word!r}")
                owners[word] = family.name

    @cached_property
    def _by_tag(self) -> dict[str, tuple[Family, Kernels]]:
        return {kernels.tag: (family, kernels) for family in self.families for kernels in family.kernels}

    @cached_property
    def former_tags(self) -> dict[str, Kernels]:
        """The kernels of tags that stand in names of earlier releases."""
        return {
            tag: kernels for family in self.families for kernels in family.kernels for tag in kernels.grammar.aliases
        }

    @cached_property
    def ops(self) -> dict[str, tuple[Family, Op]]:
        """All ops by name, in the order of the declarations, each with its family."""
        return {op.schema.name: (family, op) for family in self.families for op in family.asks.ops}

    def add(self, family: Family, op: Op) -> None:
        """Register an op that no declaration has: a user's epilogue. Adding it again changes nothing. Raises ValueError
        where another has its name.
        """
        known = self.ops.setdefault(op.schema.name, (family, op))
        if known[1].schema != op.schema:
            raise ValueError(f"op {op.schema.name!r} is {known[1].schema.schema!r} already, not {op.schema.schema!r}")

    def family_of(self, config: Config) -> Family:
        """The family that a config belongs to."""
        return self._by_tag[config.tag][0]

    def kernels_of(self, config: Config) -> Kernels:
        """The kernels that a config is one of."""
        return self._by_tag[config.tag][1]

    def ops_of(self, config: Config) -> tuple[str, ...]:
        """Ops that a kernel of a config can serve."""
        return self.kernels_of(config).ops(config)

    def epilogue_of(self, config: Config) -> str:
        """The user's epilogue that a config's kernel ends in, as its family writes it; empty for none."""
        epilogues = self.family_of(config).epilogues
        return epilogues.text_of(config) if epilogues is not None else ""

    def check(self, config: Config) -> Status:
        """The first rule of its kernels that rejects a config, or OK."""
        return first_rejection(self.kernels_of(config).rules, config)

    def tagged(self, tag: str) -> Kernels:
        """The kernels of a tag, which may be a former one. Raises ValueError where there are none."""
        if tag not in self._by_tag and tag not in self.former_tags:
            raise ValueError(f"{tag!r} is no kind of kernel, expected one of {', '.join(self._by_tag)}")
        return self._by_tag[tag][1] if tag in self._by_tag else self.former_tags[tag]

    def named(self, name: str) -> Family:
        """The family of a name. Raises ValueError where there is none."""
        for family in self.families:
            if family.name == name:
                return family
        raise ValueError(f"family is {name!r}, expected one of {', '.join(family.name for family in self.families)}")

    @cached_property
    def choices(self) -> Mapping[str, Tuning]:
        """How calls come to variants, by the families' names."""
        return {family.name: family.tuning for family in self.families}

    @cached_property
    def tunings(self) -> Mapping[str, Tuning]:
        """The tunings of those families that choose among several variants by measurements."""
        return {name: tuning for name, tuning in self.choices.items() if tuning.is_measured}

    @cached_property
    def measured(self) -> Mapping[str, tuple[Family, Tuning, Sweep, Measured]]:
        """Measured classes of calls, by the names that tables know them by, with family, tuning and sweep."""
        return {
            measured.name: (family, family.tuning, family.tuning.sweep, measured)
            for family in self.families
            if family.tuning.sweep is not None
            for measured in family.tuning.sweep.measured
        }

    @cached_property
    def questions(self) -> Mapping[str, Asked]:
        """The options of calls of any family, by name."""
        return merged(option for family in self.families for option in family.questions)

    def configs_of(self, name: str, configs: Iterable[Any]) -> tuple[Any, ...]:
        """Those configs that belong to the family of a name."""
        return tuple(config for config in configs if self.family_of(config).name == name)


def _check_program(family: Family, op: Op) -> None:
    try:
        unknown = set(op.program.specials) - set(family.asks.specials)
    except ValueError as error:
        raise ValueError(f"family {family.name!r}, op {op.schema.name!r}: {error}") from None
    if unknown:
        raise ValueError(
            f"family {family.name!r}, op {op.schema.name!r}: no special check {min(unknown)!r}, of "
            f"{', '.join(family.asks.specials) or 'none'}"
        )


def _axis_of_no_op(family: Family) -> str | None:
    """The fault of the first class axis that would be 0 for every op, if there is one."""
    named = {name for op in family.asks.ops for name in op.program.values}
    for step in (step for op in family.asks.ops for step in op.contract if isinstance(step, Classes)):
        for axis in step.axes:
            if axis.expression.isidentifier() and axis.expression not in named:
                return (
                    f"class axis {axis.name!r} is told by {axis.expression!r}, and no op has a size of that name, of "
                    f"{', '.join(sorted(named))}"
                )
    return None
