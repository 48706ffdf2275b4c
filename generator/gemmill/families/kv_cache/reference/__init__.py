"""What the compressed cache's ops compute, in torch: rotations, formats, pages, attention."""
