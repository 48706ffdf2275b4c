"""GEMMs of 2:4 sparse weights: the format keeps half of each four along K, and the sparse tensor core skips the rest."""

NAME = "sparse_mm"
