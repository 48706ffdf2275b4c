"""Importing this puts the toy into the registry, before anything else of gemmill's is imported."""

import sys
from importlib import import_module

PROGRAM, sys.argv[0] = sys.argv[0], "gemmill"  # as its own command does: then gemmill imports nothing else
registry = import_module("gemmill.registry")
registry.FAMILIES = (*registry.FAMILIES, "toy")
assert registry.REGISTRY.families[-1].name == "toy"
sys.argv[0] = PROGRAM
