"""Whether other users of the machine can write the code that gemmill runs: builds, and the objects that builds link."""

import grp
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gemmill import settings


def distrust(path: Path, status: os.stat_result) -> str:
    """Why others could put their code into a file or folder, with the remedy, or nothing. It trusts this user, root,
    and the owner of the installed gemmill and its dependencies: their code runs anyway.
    """
    if settings.shared_home() or path.is_relative_to(Path(__file__).parent):
        return ""
    if status.st_uid not in (0, os.geteuid(), Path(__file__).stat().st_uid):
        found, advice = f"belongs to user {status.st_uid}", "make it your own"
    elif _open_to(status, stat.S_IWOTH):
        found, advice = "can be written by every user", f"`chmod o-w {path}`"
    elif _open_to(status, stat.S_IWGRP) and not _is_own_group(status.st_gid):
        found, advice = f"can be written by group {status.st_gid}", f"`chmod g-w {path}`"
    else:
        return ""
    return f"{path} {found}, and its code would run here: {advice}, or set GEMMILL_SHARED_HOME=1 to trust them"


def is_trusted(*paths: Path) -> bool:
    """Whether no other user can write any of these. Raises OSError where one is not there."""
    return not any(distrust(path, path.stat()) for path in paths)


@contextmanager
def own_files() -> Iterator[None]:
    """Let this process and those that it starts make files that others cannot write, whatever the user's umask is."""
    before = os.umask(0o022)
    try:
        os.umask(before if settings.shared_home() else before | 0o022)
        yield
    finally:
        os.umask(before)


def _open_to(status: os.stat_result, writers: int) -> bool:
    # In a folder as /tmp is, others add files and cannot touch these: check each file by itself.
    sticky = stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX
    return bool(status.st_mode & writers) and not sticky


def _is_own_group(group: int) -> bool:
    """Whether a group has nobody else in it: root's, or the one that many systems give each user, under the same name."""
    if group == 0:
        return True
    try:
        user, found = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return found.gr_name == user and set(found.gr_mem) <= {user}
