"""One line of a report."""

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """What a finding means."""

    OK = "ok"
    NOTE = "note"
    """worth knowing; something that is not needed for what the machine has is absent"""
    PROBLEM = "problem"
    """the ops will not run, or not as they should"""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What was found about one subject."""

    subject: str
    state: State
    found: str
    advice: str = ""
    """What to do about it; empty where there is nothing to do."""


def ok(subject: str, found: str) -> Finding:
    """What is as it must be."""
    return Finding(subject=subject, state=State.OK, found=found)


def note(subject: str, found: str, advice: str) -> Finding:
    """What is worth knowing."""
    return Finding(subject=subject, state=State.NOTE, found=found, advice=advice)


def problem(subject: str, found: str, advice: str) -> Finding:
    """What must be changed."""
    return Finding(subject=subject, state=State.PROBLEM, found=found, advice=advice)
