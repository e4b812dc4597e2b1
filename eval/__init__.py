"""Evaluation: sample, grade, score and report the checkpoints of a run, or any model."""

from prompt_aug.base.errors import UserError


class EvaluationError(UserError):
    """A problem that the user can fix. Commands print it in one line and return exit code 1."""
