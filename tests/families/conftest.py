"""Fixtures that every test here may ask for."""

from making import gemmill, home, make_config, make_manifest, put_build

__all__ = ["gemmill", "home", "make_config", "make_manifest", "put_build"]
