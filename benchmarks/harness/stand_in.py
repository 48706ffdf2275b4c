"""gemmill's variants for a dry run where no build is loaded: the reference, under the names of the smoke selection."""

from gemmill.families import scaled_mm
from gemmill.families.scaled_mm.reference import scaled_mm as reference_of_scaled_mm
from gemmill.registry import REGISTRY
from gemmill.space.names import to_name
from gemmill.space.selections import select
from gemmill.tune.operands import Operands
from gemmill.tune.peers import Multiply
from gemmill.tune.problems import ops_of
from harness.contenders import LocalContender


def multiply(x: Operands, i: int) -> None:
    """The reference, written to operands.out."""
    x.out.copy_(
        reference_of_scaled_mm(x.a, x.weights[i], x.a_scales, x.b_scales, x.out.dtype, azp_adj=x.azp_adj[i], azp=x.azp)
    )


def variants(with_multiply: Multiply = multiply) -> list[LocalContender]:
    """In the place of the loaded variants."""
    configs = [
        config
        for config in REGISTRY.configs_of(scaled_mm.NAME, select("smoke").configs)
        if config.problem.out_dtype == "bf16"
    ]
    return [
        LocalContender(name=to_name(config), multiply=with_multiply, ops=ops_of(REGISTRY.accepted(config)))
        for config in configs
    ]
