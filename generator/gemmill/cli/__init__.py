"""The `gemmill` command: one file a verb. Each verb calls the layer that does the work, and prints its result."""

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command, which ends the process. It names a missing package that only the command needs."""
    try:
        from gemmill.cli.app import main as run
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("typer", "rich", "click"):
            raise
        print(
            f"gemmill: the command needs typer and rich, and {error.name} is not installed: `pip install 'gemmill[cli]'`",
            file=sys.stderr,
        )
        sys.exit(2)
    run(arguments)
