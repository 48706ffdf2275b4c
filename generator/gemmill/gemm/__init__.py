"""The shared base of GEMM families: the parts of a config, and the parts of their CuTe DSL kernels."""
