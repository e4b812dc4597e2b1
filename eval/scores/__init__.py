"""Verdicts and scores of stored samples."""
