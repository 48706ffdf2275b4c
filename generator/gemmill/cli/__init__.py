"""The `gemmill` command: one file a verb. Each calls the layer that does the work and prints what it says."""

from gemmill.cli.app import main

__all__ = ["main"]
