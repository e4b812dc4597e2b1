"""OpenAI-compatible endpoints: requests with retries, limits and a budget."""

from collections.abc import Sequence

from prompt_aug.base.errors import UserError


class EndpointError(UserError, ValueError):
    """No further request is sent: the endpoint refuses, a limit is reached, or a user stops."""


def named(status: str, uids: Sequence[str]) -> str:
    """Return a line on the responses with this status: their number and first questions."""
    shown = list(dict.fromkeys(uids))
    more = ", ..." if len(shown) > 3 else ""
    return f"{len(uids)} responses: {status} (questions {', '.join(shown[:3])}{more})"
