"""Fused experts: both products of a mixture of experts' layer, with what comes before, between and after them."""

NAME = "fused_moe"
