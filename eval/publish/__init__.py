"""Exports of scores and samples, one module each: ``python -m eval.publish RUN``."""
