"""Block-scaled formats in torch: codes, scales and their layouts, which several families share."""
