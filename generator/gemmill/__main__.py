"""`python -m gemmill` is the `gemmill` command."""

from gemmill.cli import main

main()
