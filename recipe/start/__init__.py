"""Preflight checks: reject configurations that cannot run or would run something else."""
