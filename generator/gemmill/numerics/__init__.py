"""Calls of every op and what is right about them: how they are made and held against the reference, by no family's name."""
