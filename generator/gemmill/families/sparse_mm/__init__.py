"""GEMMs of 2:4 sparse weights: half of each four along K is kept, and the sparse tensor core skips the rest."""

NAME = "sparse_mm"
