"""What becomes of gates: a word that families share."""

from enum import StrEnum


class Activation(StrEnum):
    """What becomes of a gate, before up is multiplied by it."""

    SILU = "silu"
    """gate / (1 + exp(-gate))"""
    GELU = "gelu"
    """with erf"""
    GELU_TANH = "gelutanh"
    """with the tanh that is close to it"""
    SWIGLU = "swiglu"
    """with alpha, limit and beta at run time: of min(gate, limit), gate / (1 + exp(-alpha gate)); of up held within the limit,
    up + beta"""

    @property
    def spelled(self) -> str:
        """In a call."""
        return "gelu_tanh" if self is Activation.GELU_TANH else self.value
