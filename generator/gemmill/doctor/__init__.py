"""Findings on the hardware and software of this machine, the needs of a build, and whether the two fit."""

from gemmill.doctor.extension import examine_builds
from gemmill.doctor.finding import Finding
from gemmill.doctor.machine import examine_driver, examine_python, examine_toolchain, examine_torch


def examine() -> list[Finding]:
    """All findings, each after those that it depends on. It loads no extension, and starts no kernel."""
    examinations = (examine_python, examine_torch, examine_driver, examine_toolchain, examine_builds)
    return [finding for examination in examinations for finding in examination()]
