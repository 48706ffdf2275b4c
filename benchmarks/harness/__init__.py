"""What the benchmark programs share: problems, contenders, timing, the record of what was measured on what."""
