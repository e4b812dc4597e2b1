"""Base class of the errors that a user can fix; commands print them without a traceback."""

import re


class UserError(Exception):
    """A mistake that the user can fix; the message names the value, the reason and the remedy.

    Every command catches this class and OSError, prints the message and exits with 1
    (`UsageError`: 2). Any other exception is a defect.
    """

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class UsageError(UserError):
    """Options that are missing, out of range or contradict each other; exit code 2, as argparse."""


def kind_of(message: str) -> str:
    """Return `message` with "#" in place of ids, counts and delays: all words that have a digit."""
    return re.sub(r"(?<!status )\b\w*\d[\w.-]*", "#", message)
