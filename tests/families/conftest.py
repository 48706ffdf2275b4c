"""Fixtures that every test here may ask for."""

from builds import shaped_call, smoke_build, smoke_configs, table_of
from making import gemmill, home, make_config, make_manifest, put_build

__all__ = [
    "gemmill",
    "home",
    "make_config",
    "make_manifest",
    "put_build",
    "shaped_call",
    "smoke_build",
    "smoke_configs",
    "table_of",
]
