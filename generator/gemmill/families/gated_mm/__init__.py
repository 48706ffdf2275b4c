"""GEMMs that end a layer: gate and up of one product, an activation, their product, and its codes."""

NAME = "gated_mm"
