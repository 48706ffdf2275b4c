"""Findings on what this machine has, what a build needs, and whether the two fit."""

from gemmill.doctor.extension import examine_builds
from gemmill.doctor.finding import Finding
from gemmill.doctor.machine import examine_driver, examine_python, examine_toolchain, examine_torch


def examine() -> list[Finding]:
    """All findings, in the order in which one depends on another. No extension is loaded, and no kernel starts."""
    examinations = (examine_python, examine_torch, examine_driver, examine_toolchain, examine_builds)
    return [finding for examination in examinations for finding in examination()]
