"""The calls that a kernel takes at run time, derived from its config and stored in the manifest."""

from dataclasses import dataclass

from gemmill.families.moe.biased_config import BiasedGroupedConfig, BiasedUnalignedGroupedConfig
from gemmill.families.moe.config import MOST_EXPERTS, GroupedConfig, PackedGroupedConfig, UnalignedGroupedConfig
from gemmill.families.moe.ops import GROUPED_MM, NAMES
from gemmill.families.moe.packed_ops import FP4_NAMES
from gemmill.vocab import DType


@dataclass(frozen=True, kw_only=True)
class UnalignedGroupedAccepts:
    """The calls that a kernel takes, however operands lie."""

    ops: tuple[str, ...]
    """Ops that the kernel can serve."""
    dtype: DType
    out_dtype: DType
    group_size: int
    """Columns that share a scale along K; 0 where scales are per token and per channel."""
    most_experts: int

    @property
    def format(self) -> str | None:
        """Format of packed weights; None where weights are not packed."""
        return None

    @property
    def ends(self) -> bool:
        """Whether it serves calls with alpha or bias, where weights are not packed, and no others."""
        return False

    @property
    def operand_dtype(self) -> DType:
        """Dtype of the operand that calls are told apart by."""
        return self.dtype

    @property
    def gathers(self) -> tuple[bool, ...]:
        """Whether rows of a come in order, by their numbers, or both ways."""
        return False, True


@dataclass(frozen=True, kw_only=True)
class GroupedAccepts(UnalignedGroupedAccepts):
    """The calls that a kernel takes: rows of a, b and out begin at multiples of 16 bytes."""

    indexed: bool
    """Whether it gathers rows of a by their numbers."""

    @property
    def gathers(self) -> tuple[bool, ...]:
        """Whether rows of a come in order, or by their numbers."""
        return (self.indexed,)


@dataclass(frozen=True, kw_only=True)
class BiasedUnalignedGroupedAccepts(UnalignedGroupedAccepts):
    """The calls with alpha or bias that a kernel takes, however operands lie."""

    @property
    def ends(self) -> bool:
        """Whether it serves calls with alpha or bias, and no others."""
        return True


@dataclass(frozen=True, kw_only=True)
class BiasedGroupedAccepts(GroupedAccepts):
    """The calls with alpha or bias that a kernel takes: rows of a, b and out begin at multiples of 16 bytes."""

    @property
    def ends(self) -> bool:
        """Whether it serves calls with alpha or bias, and no others."""
        return True


@dataclass(frozen=True, kw_only=True)
class PackedGroupedAccepts(UnalignedGroupedAccepts):
    """The calls that a kernel of packed weights takes: rows of a and packed weights begin at multiples of 16 bytes."""

    packed_as: str
    """Format of the weights."""

    @property
    def format(self) -> str | None:
        """Format of packed weights."""
        return self.packed_as


def accepted(config: GroupedConfig) -> GroupedAccepts:
    """The calls that a kernel of this config takes."""
    kind = BiasedGroupedAccepts if isinstance(config, BiasedGroupedConfig) else GroupedAccepts
    return kind(
        ops=(GROUPED_MM.name,) if config.indexed else NAMES,
        dtype=config.dtype,
        out_dtype=config.out_dtype,
        group_size=config.group_size,
        indexed=config.indexed,
        most_experts=MOST_EXPERTS,
    )


def accepted_unaligned(config: UnalignedGroupedConfig) -> UnalignedGroupedAccepts:
    """The calls that a kernel of this config takes."""
    is_biased = isinstance(config, BiasedUnalignedGroupedConfig)
    kind = BiasedUnalignedGroupedAccepts if is_biased else UnalignedGroupedAccepts
    return kind(
        ops=NAMES,
        dtype=config.dtype,
        out_dtype=config.out_dtype,
        group_size=config.group_size,
        most_experts=MOST_EXPERTS,
    )


def accepted_packed(config: PackedGroupedConfig) -> PackedGroupedAccepts:
    """The calls that a kernel of this config takes."""
    return PackedGroupedAccepts(
        ops=FP4_NAMES,
        dtype=config.dtype,
        out_dtype=config.out_dtype,
        group_size=0,
        most_experts=MOST_EXPERTS,
        packed_as=str(config.format),
    )
