"""vLLM: `ops` gives gemmill's ops vLLM's names as it is imported, `plugin` puts kernels before vLLM's own. Neither imports the other."""
