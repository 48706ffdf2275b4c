"""What a family can be asked: ops, and what must hold for a call of each, declared once for all who judge calls."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from gemmill.family.compiling import compile_contract
from gemmill.family.judging import Judged
from gemmill.family.operand import Call
from gemmill.family.program import Program
from gemmill.family.schema import OpSchema
from gemmill.family.steps import Step
from gemmill.family.tensor import Expansion, Tensor


@dataclass(frozen=True, kw_only=True)
class Op:
    """One op, whatever answers it."""

    schema: OpSchema
    contract: tuple[Step, ...]
    """In the order in which a call is judged: the first sentence is the one to say."""
    tensors: tuple[Tensor, ...] = ()
    """What the contract's checks of tensors judge by."""
    roles: Mapping[str, str] = field(default_factory=dict)
    """What the family calls an argument, by the argument's name, where these differ."""
    fixed: Mapping[str, int] = field(default_factory=dict)
    """Sizes and choices that the op itself stands for."""

    @cached_property
    def role_of(self) -> tuple[str, ...]:
        """The role of each argument."""
        return tuple(self.roles.get(name, name) for name in self.schema.arguments)

    @cached_property
    def program(self) -> Program:
        """The contract as instructions. Raises ValueError where it contradicts itself."""
        for name, role in self.roles.items():
            if name not in self.schema.arguments:
                raise ValueError(
                    f"role {role!r} is given to {name!r}, expected one of {', '.join(self.schema.arguments)}"
                )
        parameters = dict(zip(self.role_of, self.schema.parameters, strict=True))
        expansion = Expansion(self.tensors, parameters, (*self.role_of, *self.fixed))
        steps = [inner for step in self.contract for inner in expansion.expanded(step)]
        return compile_contract(self.schema, self.role_of, self.fixed, steps)


@dataclass(frozen=True, kw_only=True)
class OpSet:
    """What can be asked of a family."""

    ops: tuple[Op, ...]
    specials: Mapping[str, Callable[[Judged], str | None]] = field(default_factory=dict)
    """Checks written by hand, each with its twin of the same name in the extension: the sentence, or None."""

    def judged(self, op: Op, call: Call) -> Judged:
        """A call with what is found out about it."""
        return Judged(schema=op.schema, roles=op.role_of, program=op.program, call=call, specials=self.specials)
