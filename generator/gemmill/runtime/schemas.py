"""The ops: names and schemas, in the order in which the extension numbers them."""

from dataclasses import dataclass

NAMESPACE = "gemmill"


@dataclass(frozen=True, kw_only=True)
class OpSchema:
    """An out-variant op; every argument is a tensor, the first is written."""

    name: str
    arguments: tuple[str, ...]
    optional: frozenset[str]

    @property
    def schema(self) -> str:
        """The schema in torch's language."""
        first, *rest = self.arguments
        typed = [f"Tensor(a!) {first}"] + [f"Tensor{'?' if name in self.optional else ''} {name}" for name in rest]
        return f"{self.name}({', '.join(typed)}) -> ()"


SCALED_MM = OpSchema(
    name="cutlass_scaled_mm",
    arguments=("out", "a", "b", "a_scales", "b_scales", "bias"),
    optional=frozenset({"bias"}),
)
SCALED_MM_AZP = OpSchema(
    name="cutlass_scaled_mm_azp",
    arguments=("out", "a", "b", "a_scales", "b_scales", "azp_adj", "azp", "bias"),
    optional=frozenset({"azp", "bias"}),
)
OPS = (SCALED_MM, SCALED_MM_AZP)
BY_NAME = {op.name: op for op in OPS}
