"""Candidate rows for each architecture, as data."""
