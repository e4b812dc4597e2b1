"""Evaluation: sample, grade, score and report the checkpoints of a run, or any model."""
