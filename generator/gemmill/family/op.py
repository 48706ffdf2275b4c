"""The ops of a family, and the contract of each, declared once for all code that checks calls."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from gemmill.family.compiling import compile_contract
from gemmill.family.expansion import Expansion
from gemmill.family.judging import Judged
from gemmill.family.operand import Call
from gemmill.family.program import Program
from gemmill.family.schema import OpSchema
from gemmill.family.steps import Step
from gemmill.family.tensor import Tensor
from gemmill.vocab import Format
from gemmill.vocab.format import FORMATS


@dataclass(frozen=True, kw_only=True)
class Op:
    """One op, whatever answers it."""

    schema: OpSchema
    contract: tuple[Step, ...]
    """The steps in the order of the checks: the first that fails gives the sentence."""
    tensors: tuple[Tensor, ...] = ()
    """The declarations that the contract's checks of tensors use."""
    roles: Mapping[str, str] = field(default_factory=dict)
    """The family's names of arguments, by the argument's name, where these differ."""
    fixed: Mapping[str, int | Format] = field(default_factory=dict)
    """Sizes and choices that the op itself stands for; `format` may be one, whose number is its place in FORMATS."""

    @cached_property
    def role_of(self) -> tuple[str, ...]:
        """The role of each argument."""
        return tuple(self.roles.get(name, name) for name in self.schema.arguments)

    @cached_property
    def returned(self) -> tuple[str, ...]:
        """The role of each tensor that it returns."""
        return tuple(self.roles.get(name, name) for name in self.schema.returns)

    @cached_property
    def program(self) -> Program:
        """The contract as instructions. Raises ValueError where it contradicts itself."""
        names = (*self.schema.arguments, *self.schema.returns)
        for name, role in self.roles.items():
            if name not in names:
                raise ValueError(f"role {role!r} is given to {name!r}, expected one of {', '.join(names)}")
        roles = (*self.role_of, *self.returned)
        if len(set(roles)) < len(roles):
            raise ValueError(f"two of its arguments have one role, of {', '.join(roles)}")
        parameters = dict(zip(self.role_of, self.schema.parameters, strict=True))
        expansion = Expansion(self.tensors, parameters, self.returned, self.fixed)
        steps = list(expansion.steps(self.contract))
        fixed = {
            name: FORMATS.index(value) if isinstance(value, Format) else value for name, value in self.fixed.items()
        }
        kinds = {role: parameter.kind for role, parameter in parameters.items()}
        return compile_contract(kinds, fixed, steps, expansion.results)


@dataclass(frozen=True, kw_only=True)
class OpSet:
    """The ops of a family."""

    ops: tuple[Op, ...]
    specials: Mapping[str, Callable[[Judged], str | None]] = field(default_factory=dict)
    """Checks written by hand, each with its twin of the same name in the extension: the sentence, or None."""

    def judged(self, op: Op, call: Call) -> Judged:
        """A call with the facts that its contract computes."""
        return Judged(
            schema=op.schema, roles=(*op.role_of, *op.returned), program=op.program, call=call, specials=self.specials
        )
