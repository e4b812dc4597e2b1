"""OpenAI-compatible endpoints: requests with retries, rate limits and a budget.

`prompt_aug.rephrase` and `eval` send their requests through this package.
"""

from prompt_aug.base.errors import UserError


class EndpointError(UserError, ValueError):
    """No further request is sent: the endpoint refuses, a limit is reached, or a user stops."""
