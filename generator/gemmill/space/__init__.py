"""Configs of kernels, the rules on which combinations can exist, and the selections to build."""
