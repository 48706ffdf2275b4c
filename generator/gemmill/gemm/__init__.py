"""What families of GEMMs share: the parts of a config, and the parts of which their CuTe DSL kernels are made."""
