"""Block-scaled formats: their quantisation and the GEMM that reads codes and scales."""
