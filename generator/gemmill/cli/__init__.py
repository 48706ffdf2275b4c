"""The `gemmill` command: one file a verb. Each verb calls the layer that does the work, and prints what that says."""

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command, which ends the process. Where a package that the command alone needs is missing, it is named."""
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
