"""Names and schemas of the declared ops, and the families that own them."""

from gemmill.family import ArgumentKind, Family, Op, OpSchema, Parameter
from gemmill.registry import REGISTRY

__all__ = ["BY_NAME", "NAMESPACE", "OPS", "ArgumentKind", "OpSchema", "Parameter", "add", "of_family"]

NAMESPACE = "gemmill"
OPS = tuple(op.schema for _, op in REGISTRY.ops.values())
BY_NAME = {op.name: op for op in OPS}


def add(family: Family, op: Op) -> None:
    """Add an op that no family declares. Raises ValueError where another op has its name."""
    REGISTRY.add(family, op)
    BY_NAME[op.schema.name] = op.schema


def of_family(name: str) -> tuple[OpSchema, ...]:
    """The ops of a family."""
    return tuple(op.schema for op in REGISTRY.named(name).asks.ops)
