"""Activations of gates: a word that families share."""

from enum import StrEnum


class Activation(StrEnum):
    """The function of a gate, before up multiplies it."""

    SILU = "silu"
    """gate / (1 + exp(-gate))"""
    GELU = "gelu"
    """gelu with erf"""
    GELU_TANH = "gelutanh"
    """gelu with the tanh that comes close to erf"""
    SWIGLU = "swiglu"
    """gate / (1 + exp(-alpha gate)) of min(gate, limit), and up + beta of up clamped to the limit; alpha, limit and
    beta are run-time arguments
    """

    @property
    def spelled(self) -> str:
        """Its word in a call."""
        return "gelu_tanh" if self is Activation.GELU_TANH else self.value
