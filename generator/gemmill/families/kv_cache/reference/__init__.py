"""The computation of the compressed cache's ops, in torch: rotations, formats, pages, attention."""
