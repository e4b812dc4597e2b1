"""Preflight: whether a run can start, and whether every key does what it says."""
