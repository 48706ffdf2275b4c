"""One folder for each family of kernels."""
