"""The spelling of a GEMM's config, for each compiler."""
