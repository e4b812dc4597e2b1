"""The errors of training that a user can fix; all but `RolloutError` are `UserError`."""

from prompt_aug.base.errors import UserError


class ConfigError(UserError):
    """A run that cannot start, or would not do what its configuration says."""


class HungError(UserError, RuntimeError):
    """Nothing has finished for so long that an engine or a reward worker must hang."""


class ExhaustedError(UserError, RuntimeError):
    """Dynamic sampling: the questions a step may generate are spent, and the batch is not full."""


class RolloutError(RuntimeError):
    """Rollouts of a step are missing: a defect. The message has the number and the first error."""


class LostEngineError(RolloutError):
    """They are missing because an engine, or a worker, is gone: it can be asked for nothing."""
