"""Calls of every op: how to make them, and how to compare their results with the reference. No module here names a
family.
"""
