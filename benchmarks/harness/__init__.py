"""Shared code of the benchmark programs: workloads, contenders, timing, and the record of device and build."""
