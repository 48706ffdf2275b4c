"""The file of a kernel of the CuTe DSL that ends in a user's epilogue: it has the epilogue's steps too."""

from gemmill.families.scaled_mm.own import OwnConfig
from gemmill.family import Spelled


def spell_own(config: OwnConfig) -> Spelled:
    """The template of a config with a user's epilogue, and the text of its steps."""
    return Spelled(template="scaled_mm/cutedsl/epilogue_mm.py.jinja", values={"epilogue": repr(config.traced.text)})
