"""Whose files are run, and whose are refused."""

import grp
import os
import pwd
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from gemmill import ownership
from gemmill.ownership import distrust, own_files

ME, OTHER, MY_GROUP, TEAM = 4001, 4002, 5001, 5002
FOLDER, FILE = stat.S_IFDIR, stat.S_IFREG


@pytest.fixture
def me(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A user with a group of the same name, and one that others are in too; pytest has made its folder before."""
    groups = {MY_GROUP: ("me", []), TEAM: ("team", ["me", "other"])}
    monkeypatch.delenv("GEMMILL_SHARED_HOME", raising=False)
    monkeypatch.setattr(os, "geteuid", lambda: ME)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_name="me"))
    monkeypatch.setattr(grp, "getgrgid", lambda g: SimpleNamespace(gr_name=groups[g][0], gr_mem=groups[g][1]))


def status(mode: int, user: int = ME, group: int = TEAM) -> os.stat_result:
    return os.stat_result((mode, 0, 0, 1, user, group, 0, 0, 0, 0))


@pytest.mark.parametrize(
    "found",
    [
        status(FILE | 0o644),
        status(FOLDER | 0o755),
        status(FILE | 0o644, user=0),
        status(FILE | 0o664, group=MY_GROUP),
        status(FOLDER | 0o775, group=0),
        status(FOLDER | 0o1777, user=0),  # as /tmp
    ],
)
def test_trusted(me: None, found: os.stat_result) -> None:
    assert distrust(Path("/x"), found) == ""


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (status(FILE | 0o644, user=OTHER), ("belongs to user 4002", "make it your own")),
        (status(FILE | 0o664), ("can be written by group 5002", "`chmod g-w /x`")),
        (status(FOLDER | 0o775, group=6000), ("can be written by group 6000", "`chmod g-w /x`")),
        (status(FILE | 0o646), ("can be written by every user", "`chmod o-w /x`")),
        (status(FOLDER | 0o777, user=0), ("can be written by every user", "`chmod o-w /x`")),
        (status(FILE | 0o1666), ("can be written by every user", "`chmod o-w /x`")),
        (status(FOLDER | 0o1777, user=OTHER), ("belongs to user 4002", "make it your own")),
    ],
)
def test_refused(me: None, monkeypatch: pytest.MonkeyPatch, found: os.stat_result, expected: tuple[str, str]) -> None:
    monkeypatch.setattr(
        grp, "getgrgid", lambda g: SimpleNamespace(gr_name="team", gr_mem=["me"]) if g == TEAM else {}[g]
    )
    what, advice = expected
    assert distrust(Path("/x"), found) == (
        f"/x {what}, and its code would run here: {advice}, or set GEMMILL_SHARED_HOME=1 to trust them"
    )
    monkeypatch.setenv("GEMMILL_SHARED_HOME", "1")
    assert distrust(Path("/x"), found) == ""


def test_a_group_of_ones_own_name_may_have_others_in_it(me: None, monkeypatch: pytest.MonkeyPatch) -> None:
    found = status(FILE | 0o664, group=MY_GROUP)
    for members, is_own in ([], True), (["me"], True), (["other"], False), (["me", "other"], False):
        monkeypatch.setattr(grp, "getgrgid", lambda _, members=members: SimpleNamespace(gr_name="me", gr_mem=members))
        assert (distrust(Path("/x"), found) == "") == is_own, members


def test_who_installed_gemmill_is_trusted(me: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert distrust(Path("/x"), status(FILE | 0o644, user=OTHER)) != ""
    monkeypatch.setattr(ownership, "__file__", str(tmp_path / "ownership.py"))
    (tmp_path / "ownership.py").touch()
    assert distrust(Path("/x"), status(FILE | 0o644, user=(tmp_path / "ownership.py").stat().st_uid)) == ""
    assert distrust(tmp_path / "_builds" / "0123", status(FOLDER | 0o777, user=OTHER)) == "", "as its code may be"


@pytest.mark.parametrize(("shared", "mode"), [("0", 0o755), ("1", 0o777)])
def test_files_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: str, mode: int) -> None:
    monkeypatch.setenv("GEMMILL_SHARED_HOME", shared)
    before = os.umask(0)
    try:
        with own_files():
            (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
    finally:
        os.umask(before)
    assert [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "ab"] == [mode, 0o777]
