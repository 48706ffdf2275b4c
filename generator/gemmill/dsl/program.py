"""What an emitted file does when it is run on its own."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gemmill.space.names import parse_name, symbol_of


def main(export: Callable[[Any, str, Path], object], name: str) -> None:
    """Compile the kernel of a name by its family's `export`, into the folder that the command line names."""
    config = parse_name(name)
    symbol = symbol_of(config)
    parser = argparse.ArgumentParser(description=f"Compile {symbol} without a GPU; writes its object and C header.")
    parser.add_argument("--out", type=Path, default=Path(), metavar="FOLDER", help="by default the current folder")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    export(config, symbol, folder)
    print(folder / f"{symbol}.o")
