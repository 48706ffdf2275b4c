"""gemmill's variants for a dry run where no build is loaded: the reference, under the names of the smoke selection."""

import torch

from gemmill.numerics.measured import Bind, through
from gemmill.registry import REGISTRY
from gemmill.space.names import to_name
from gemmill.space.selections import select
from harness.contenders import LocalContender, classes_served, of_classes


def variants(family: str, bind: Bind | None = None) -> list[LocalContender]:
    """In the place of a family's loaded variants."""
    return [
        LocalContender(name=to_name(config), bind=bind or through(torch.ops.gemmill), suits=of_classes(classes))
        for config in REGISTRY.configs_of(family, select("smoke").configs)
        if (classes := classes_served(config, family))
    ]
