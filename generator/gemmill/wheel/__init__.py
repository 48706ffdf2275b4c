"""Runtime, binaries and tables in one wheel, for machines without a compiler."""

from gemmill.wheel.abi import Abi, WheelError, audit
from gemmill.wheel.package import Wheel, write_wheel

__all__ = ["Abi", "Wheel", "WheelError", "audit", "write_wheel"]
