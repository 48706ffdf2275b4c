"""Calls of every op: how they are made, and how they are held against the reference. No family is named."""
