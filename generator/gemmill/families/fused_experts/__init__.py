"""Fused experts: both products of a mixture of experts' layer, with the operations before, between and after them."""

NAME = "fused_experts"
