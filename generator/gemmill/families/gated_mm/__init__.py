"""GEMMs with an ending: columns of the product are gates and ups, and activation(gate) * up is stored, as values or as
codes."""

NAME = "gated_mm"
