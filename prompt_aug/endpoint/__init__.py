"""OpenAI-compatible endpoints: errors, and limits in requests and tokens. `client` sends."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from prompt_aug.base.errors import UserError


class EndpointError(UserError, ValueError):
    """No further request is sent: the endpoint refuses, a limit is reached, or a user stops."""


def named(status: str, uids: Sequence[str]) -> str:
    """Return a line on the responses with this status: their number and first questions."""
    shown = list(dict.fromkeys(uids))
    more = ", ..." if len(shown) > 3 else ""
    return f"{len(uids)} responses: {status} (questions {', '.join(shown[:3])}{more})"


class BudgetError(EndpointError):
    """A limit is reached."""


class Spending(NamedTuple):
    """Requests, tokens of prompts, tokens of responses."""

    requests: int = 0
    tokens_in: int = 0
    tokens_out: int = 0

    def plus(self, second: "Spending", sign: int = 1) -> "Spending":
        return Spending(*(a + sign * b for a, b in zip(self, second, strict=True)))

    def __str__(self) -> str:
        return f"{self.requests} requests, {self.tokens_in} + {self.tokens_out} tokens"


@dataclass(slots=True)
class Budget:
    """The limits, what all stages and earlier runs spent, and what is reserved."""

    max_requests: int | None = None
    max_tokens: int | None = None
    spent: Spending = field(default_factory=Spending)
    reserved: Spending = field(default_factory=Spending)

    def over(self, used: Spending) -> str | None:
        """Return the first limit that `used` exceeds, as an option; None without one."""
        if self.max_requests is not None and used.requests > self.max_requests:
            return f"--max-requests {self.max_requests}"
        if self.max_tokens is not None and used.tokens_in + used.tokens_out > self.max_tokens:
            return f"--max-total-tokens {self.max_tokens}"
        return None

    async def reserve(self, wanted: Spending) -> None:
        """Wait until `wanted` fits. Raises BudgetError if it never will."""
        while limit := self.over(self.spent.plus(self.reserved).plus(wanted)):
            if self.reserved.requests == 0 or self.over(self.spent.plus(wanted)):
                raise BudgetError(f"{limit} is reached: {self.spent}")
            await asyncio.sleep(0.01)
        self.reserved = self.reserved.plus(wanted)

    def settle(self, wanted: Spending, used: Spending) -> None:
        """Replace a reservation by what was used."""
        self.reserved = self.reserved.plus(wanted, -1)
        self.spent = self.spent.plus(used)
