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
