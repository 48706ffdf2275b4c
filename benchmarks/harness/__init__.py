"""What the benchmark programs share: workloads, contenders, timing, the record of what was measured on what."""
