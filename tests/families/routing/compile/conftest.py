"""Tests here compile: see tests/compile/plugin.py."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.import_plugin("compile.plugin")
