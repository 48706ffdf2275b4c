"""Families of kernels: one folder each."""
