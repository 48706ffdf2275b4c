"""The calls that users would make instead of gemmill's: one plug-in a file, which names the families that it serves."""

from peers import article, deep_gemm, flash_attention, humming, sglang, torch_ops, vllm, vllm_turboquant

PEERS = (torch_ops, article, vllm, deep_gemm, sglang, humming, flash_attention, vllm_turboquant)
"""Modules with `add_options(parser)` and `contenders(family, options, notes)`, which raises FieldError."""
