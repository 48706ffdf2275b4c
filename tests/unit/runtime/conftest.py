"""Builds without an extension, for every test here."""

from builds import problem_call, smoke_build, smoke_configs, table_of

__all__ = ["problem_call", "smoke_build", "smoke_configs", "table_of"]
