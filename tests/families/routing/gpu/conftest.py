"""Tests here need a GPU: see tests/gpu/plugin.py."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.import_plugin("gpu.plugin")
