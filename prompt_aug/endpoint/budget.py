"""Limits in requests, tokens and dollars: spent + reserved + wanted <= limit."""

import asyncio
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple

from prompt_aug.endpoint import EndpointError

Price = tuple[Decimal, Decimal]  # dollars per token, read and written


class BudgetError(EndpointError):
    """A limit is reached."""


class Spending(NamedTuple):
    """Requests, tokens of prompts, tokens of responses, dollars (0 without a price)."""

    requests: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    dollars: Decimal = Decimal(0)

    def plus(self, second: "Spending", sign: int = 1) -> "Spending":
        requests, read, written = (a + sign * b for a, b in zip(self[:3], second[:3], strict=True))
        return Spending(requests, read, written, self.dollars + sign * second.dollars)

    def at(self, price: Price | None) -> "Spending":
        """Return the same tokens with their dollars."""
        read, written = price or (Decimal(0), Decimal(0))
        return self._replace(dollars=read * self.tokens_in + written * self.tokens_out)

    def __str__(self) -> str:
        money = f", ${self.dollars:.4f}" if self.dollars else ""
        return f"{self.requests} requests, {self.tokens_in} + {self.tokens_out} tokens{money}"


@dataclass(slots=True)
class Budget:
    """The limits, what all stages and earlier runs spent, and what is reserved."""

    max_requests: int | None = None
    max_tokens: int | None = None
    max_cost: Decimal | None = None
    spent: Spending = field(default_factory=Spending)
    reserved: Spending = field(default_factory=Spending)

    def over(self, used: Spending) -> str | None:
        """Return the first limit that `used` exceeds, as an option; None without one."""
        tokens = used.tokens_in + used.tokens_out
        for name, value, limit in (
            ("requests", used.requests, self.max_requests),
            ("total-tokens", tokens, self.max_tokens),
            ("cost", used.dollars, self.max_cost),
        ):
            if limit is not None and value > limit:
                return f"--max-{name} {limit}"
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
