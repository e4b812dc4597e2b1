"""Limits in requests, tokens and dollars, reserved before a request is sent.

    spent + reserved + wanted <= limit     for each limit that is set

`wanted` is an estimate: the prompt's bytes / 3, and all output tokens that may come. An attempt
without a response keeps its reservation as spent, because the server may have charged for it. An
attempt that was never sent, or was answered with an error status, costs no tokens.
"""

import asyncio
from dataclasses import dataclass, field
from decimal import Decimal
from typing import NamedTuple

import genai_prices

from prompt_aug.rephrase.generate.prompts import RephraseError

BYTES_PER_TOKEN, MILLION = 3, 10**6


class BudgetError(RephraseError):
    """A limit is reached; completed requests are kept."""


class Price(NamedTuple):
    """Dollars per token, read and written."""

    input: Decimal
    output: Decimal


class Spending(NamedTuple):
    """Requests, tokens of prompts, tokens of responses, dollars (0 without a price)."""

    requests: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    dollars: Decimal = Decimal(0)

    def plus(self, other: "Spending", sign: int = 1) -> "Spending":
        return Spending(
            self.requests + sign * other.requests,
            self.tokens_in + sign * other.tokens_in,
            self.tokens_out + sign * other.tokens_out,
            self.dollars + sign * other.dollars,
        )

    def at(self, price: Price | None) -> "Spending":
        """Return the same tokens with their dollars."""
        if price is None:
            return self
        return self._replace(dollars=price.input * self.tokens_in + price.output * self.tokens_out)


def price_of(model: str, base_url: str | None) -> Price | None:
    """Return the price of a model at an endpoint, None if `genai_prices` has none."""
    prices = []
    for tokens in ((MILLION, 0), (0, MILLION)):
        usage = genai_prices.Usage(input_tokens=tokens[0], output_tokens=tokens[1])
        try:
            found = genai_prices.calc_price(usage, model, provider_api_url=base_url)
        except LookupError:
            return None
        prices.append(found.total_price / MILLION)
    return Price(*prices)


def estimate(messages: list[dict[str, str]], answers: int, max_tokens: int) -> Spending:
    """Return what a request for `answers` responses may use at most."""
    size = sum(len(message["content"].encode()) for message in messages)
    return Spending(1, size // BYTES_PER_TOKEN + 16, answers * max_tokens)


@dataclass(slots=True)
class Budget:
    """The limits, what all stages and earlier runs spent, and what is reserved."""

    max_requests: int | None = None
    max_tokens: int | None = None
    max_cost: Decimal | None = None
    spent: Spending = field(default_factory=Spending)
    reserved: Spending = field(default_factory=Spending)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def over(self, spending: Spending) -> str | None:
        """Return the limit that `spending` would break."""
        for name, limit, value in (
            ("--max-requests", self.max_requests, spending.requests),
            ("--max-total-tokens", self.max_tokens, spending.tokens_in + spending.tokens_out),
            ("--max-cost", self.max_cost, spending.dollars),
        ):
            if limit is not None and value > limit:
                return f"{name} {limit}"
        return None

    async def reserve(self, wanted: Spending) -> None:
        """Wait until `wanted` fits. Raises BudgetError if it never will."""
        async with self.changed:
            while limit := self.over(self.spent.plus(self.reserved).plus(wanted)):
                if self.reserved.requests == 0 or self.over(self.spent.plus(wanted)):
                    raise BudgetError(f"{limit} is reached: {self.summary()}")
                await self.changed.wait()
            self.reserved = self.reserved.plus(wanted)

    async def settle(self, wanted: Spending, used: Spending) -> None:
        """Replace a reservation by what was used."""
        async with self.changed:
            self.reserved = self.reserved.plus(wanted, -1)
            self.spent = self.spent.plus(used)
            self.changed.notify_all()

    def summary(self) -> str:
        """Return what is spent, in words."""
        requests, tokens_in, tokens_out, dollars = self.spent
        money = f", ${dollars:.4f}" if dollars else ""
        return f"{requests} requests, {tokens_in} + {tokens_out} tokens{money}"
