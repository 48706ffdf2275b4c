"""One line of a report."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """The meaning of a finding."""

    OK = "ok"
    NOTE = "note"
    """worth knowing; something is absent that this machine does not need"""
    PROBLEM = "problem"
    """the ops will not run, or not as they should"""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A finding about one subject."""

    subject: str
    state: State
    found: str
    advice: str = ""
    """The advice; empty where there is nothing to do."""


def ok(subject: str, found: str) -> Finding:
    """A finding that is as it must be."""
    return Finding(subject=subject, state=State.OK, found=found)


def note(subject: str, found: str, advice: str) -> Finding:
    """A finding that is worth knowing."""
    return Finding(subject=subject, state=State.NOTE, found=found, advice=advice)


def problem(subject: str, found: str, advice: str) -> Finding:
    """A finding that requires a change."""
    return Finding(subject=subject, state=State.PROBLEM, found=found, advice=advice)
