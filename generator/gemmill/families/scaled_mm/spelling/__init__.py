"""Spelling a config of a GEMM, for each compiler."""
