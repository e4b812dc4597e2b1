"""The one exception that the commands of `eval` turn into a message and exit code 1."""

from prompt_aug.base.errors import UserError


class EvaluationError(UserError):
    """What is wrong, why, and what to do about it; no traceback is wanted."""
