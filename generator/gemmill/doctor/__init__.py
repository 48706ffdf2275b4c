"""What this machine has, what a build needs, and whether the two fit."""

from gemmill.doctor.finding import Finding, State
from gemmill.doctor.report import examine

__all__ = ["Finding", "State", "examine"]
