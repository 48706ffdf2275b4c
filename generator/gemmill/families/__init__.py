"""The families of kernels, one folder each, with the same file names in all. Families do not import one another."""
