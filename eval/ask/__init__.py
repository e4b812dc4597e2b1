"""Benchmarks, settings, models and engines: all that makes samples."""
