"""The report of a run: ``python -m eval.report RUN``."""
