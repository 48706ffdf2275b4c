"""How scale factors lie over an operand."""

from enum import StrEnum


class ScaleGranularity(StrEnum):
    """The part of an operand that shares one scale."""

    CHANNEL = "channel"
    """one scale for the tensor, or one for each row of A (column of B): told at run time by the same binary"""
    GROUP = "group"
    """one scale for each group of `group_size` along K"""
    BLOCK = "block"
    """one scale for each block of `group_size` x `group_size`"""


class ScaleLayout(StrEnum):
    """The order in which a scale tensor of more than one dimension is stored."""

    VECTOR = "vector"
    """one dimension or none: there is nothing to order"""
    K_MAJOR = "kmajor"
    MN_MAJOR = "mnmajor"
