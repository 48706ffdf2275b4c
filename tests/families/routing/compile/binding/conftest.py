"""Tests here call an extension whose kernels only record: see tests/compile/binding/probes.py."""

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.import_plugin("compile.binding.probes")
