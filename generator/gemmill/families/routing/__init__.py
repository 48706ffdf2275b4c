"""Routers of mixtures of experts: each token's logits of all experts, and the topk largest of their softmax."""

NAME = "routing"
