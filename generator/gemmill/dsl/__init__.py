"""What kernels of the CuTe DSL share, whichever family they are of."""
