"""Builds as wheels and folders, for machines without a compiler."""

from gemmill.wheel.abi import Abi, WheelError, audit
from gemmill.wheel.hub import write_hub_folder
from gemmill.wheel.package import Shipped, write_kernels, write_wheel

__all__ = ["Abi", "Shipped", "WheelError", "audit", "write_hub_folder", "write_kernels", "write_wheel"]
