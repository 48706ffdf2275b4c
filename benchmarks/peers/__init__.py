"""What users would call instead of gemmill: one plug-in a file, which says of which families it has something."""

from peers import article, deep_gemm, flash_attention, humming, sglang, torch_ops, vllm, vllm_turboquant

PEERS = (torch_ops, article, vllm, deep_gemm, sglang, humming, flash_attention, vllm_turboquant)
"""Modules with `add_options(parser)` and `contenders(family, options, notes)`, which raises FieldError."""
