"""Grouped GEMMs: rows that belong to experts, each multiplied by its expert's weights."""

NAME = "grouped_mm"
