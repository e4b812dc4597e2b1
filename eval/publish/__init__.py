"""Scores and samples for other people's tools: ``python -m eval.publish RUN``."""
