"""The errors of training that a user can fix; all but `RolloutError` are `UserError`."""

from prompt_aug.base.errors import UserError


class ConfigError(UserError):
    """A run that cannot start, or would not do what its configuration says."""


class ExhaustedError(UserError, RuntimeError):
    """Dynamic sampling reached its limit of questions in a step before the batch was full."""


class DivergedError(UserError, RuntimeError):
    """Several steps in a row had a gradient that is not finite."""


class RolloutError(RuntimeError):
    """Rollouts of a step are missing, which is a bug; the message has the count and first error."""
