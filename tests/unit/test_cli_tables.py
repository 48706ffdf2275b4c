"""Tables on a terminal of 80 columns: they fit, and name variants by the alias that every verb takes."""

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

import gemmill
from gemmill.cli import output
from gemmill.locations import runtime_tables_dir
from gemmill.manifest.schema import own_digest
from gemmill.runtime.table_file import read_table
from gemmill.space.names import alias_of

COLUMNS = 80
(TABLE,) = runtime_tables_dir().glob("*.json")


def on_a_terminal(*arguments: str) -> list[str]:
    """The lines that a command prints there."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    environment |= {"PYTHONPATH": str(Path(gemmill.__file__).parents[1]), "TERM": "xterm"}
    command = [sys.executable, "-m", "gemmill", *arguments]
    process = subprocess.Popen(command, stdout=theirs, stderr=subprocess.DEVNULL, env=environment)
    os.close(theirs)
    text = b""
    try:
        while piece := os.read(ours, 1 << 16):
            text += piece
    except OSError:  # its end is closed
        pass
    os.close(ours)
    assert process.wait() == 0
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", text.decode()).splitlines()


@pytest.mark.parametrize(
    "arguments", [("table", "show", str(TABLE)), ("list", "--select", "smoke"), ("plan", "--select", "smoke")]
)
def test_a_table_fits(arguments: tuple[str, ...]) -> None:
    lines = on_a_terminal(*arguments)
    begin = next(i for i, line in enumerate(lines) if "───" in line)
    body = [line for line in lines[begin:] if line.startswith(" ")]
    assert len(body) > 5 and max(map(len, body)) <= COLUMNS
    if arguments[0] == "table":
        winner = read_table(TABLE).rows[0].variants[0]
        assert alias_of(winner) in body[1] and winner[:20] not in "\n".join(body)


def test_builds_and_variants_have_a_line_each(put_build, make_config, home) -> None:
    for build in ("97cda050d7a3", "f8045a55a83e"):
        manifest = put_build(make_config(), build_id=build, selection="default")
        path = home / "builds" / build / "manifest.json"
        data = json.loads(path.read_text()) | {"gemmill_version": f"{gemmill.__version__}+g1299053"}
        path.write_text(json.dumps(data | {"digest": own_digest(data)}))
    (name,) = [entry.name for entry in manifest.entries]
    assert len(name) > COLUMNS
    title, listed = _body(on_a_terminal("builds", "list"))
    assert title == "2 builds for sm90a" and len(listed) == 2
    assert all(line.removesuffix("  serves").endswith("2026-11-20 12:00  1299053") for line in listed), listed
    (line,) = _body(on_a_terminal("list", "--build", "97cda050d7a3"))[1]
    shown, alias = line.split()[:2]
    begin, end = shown.split("…")
    assert alias == alias_of(name) and name.startswith(begin) and name.endswith(end) and min(len(begin), len(end)) > 10


def _body(lines: list[str]) -> tuple[str, list[str]]:
    """Title and rows of a table, all of which fit."""
    begin = next(i for i, line in enumerate(lines) if "───" in line)
    rows = [line.rstrip() for line in lines[begin + 1 :] if line.startswith(" ")]
    rows = [row for row in rows if row]
    assert max(map(len, rows)) <= COLUMNS
    return lines[0].strip(), rows


def test_a_wide_terminal_and_a_file_have_names(monkeypatch) -> None:
    name = read_table(TABLE).rows[0].variants[0]
    assert output.short(name) == name, "what is no terminal is read by programs"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    assert output.short(name) == name
    monkeypatch.setenv("COLUMNS", "80")
    assert output.short(name) == alias_of(name) and output.short("none") == "none"
