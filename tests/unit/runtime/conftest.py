"""Builds without an extension, for every test here."""

from builds import shaped_call, smoke_build, smoke_configs, table_of

__all__ = ["shaped_call", "smoke_build", "smoke_configs", "table_of"]
