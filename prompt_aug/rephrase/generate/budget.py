"""What may be spent: requests, tokens, money, reserved before anything is sent.

    spent + reserved + wanted <= limit     for each limit that is set

`wanted` is an estimate (the prompt's bytes / 3 and all the output tokens that may come), so that
what is really used stays below the limit, or above it by no more than the requests in flight. Every
attempt counts as a request. An attempt without an answer (a timeout, a broken stream) keeps its
reservation as spent: the server may have charged for it. One refused with a status is free.
"""

import asyncio
from dataclasses import dataclass, field, replace
from decimal import Decimal

import genai_prices

from prompt_aug.rephrase.generate.prompts import RephraseError

BYTES_PER_TOKEN = 3


@dataclass(frozen=True, slots=True)
class Price:
    """Dollars per token, read and written."""

    input: Decimal
    output: Decimal

    def of(self, tokens_in: int, tokens_out: int) -> Decimal:
        return self.input * tokens_in + self.output * tokens_out


@dataclass(frozen=True, slots=True)
class Spending:
    """Requests (attempts), tokens of prompts, tokens of answers."""

    requests: int = 0
    tokens_in: int = 0
    tokens_out: int = 0

    def __add__(self, other: "Spending") -> "Spending":
        return Spending(
            self.requests + other.requests,
            self.tokens_in + other.tokens_in,
            self.tokens_out + other.tokens_out,
        )

    def __sub__(self, other: "Spending") -> "Spending":
        return Spending(
            self.requests - other.requests,
            self.tokens_in - other.tokens_in,
            self.tokens_out - other.tokens_out,
        )


def price_of(model: str, base_url: str | None, *, batch: bool = False) -> Price | None:
    """The price of a model at an endpoint, None where `genai_prices` knows none.

    Of a batch half the price is taken, as hosted batch endpoints charge.
    """
    million = 10**6
    prices = []
    for usage in ({"input_tokens": million}, {"output_tokens": million}):
        counts = {"input_tokens": 0, "output_tokens": 0, **usage}
        try:
            found = genai_prices.calc_price(
                genai_prices.Usage(**counts), model, provider_api_url=base_url
            )
        except LookupError:
            return None
        prices.append(found.total_price / million / (2 if batch else 1))
    return Price(*prices)


class BudgetError(RephraseError):
    """A limit is reached; what was asked so far is kept."""


@dataclass(slots=True)
class Budget:
    """The limits, what is spent (of earlier runs in the same folder too), what is reserved."""

    max_requests: int | None = None
    max_tokens: int | None = None
    max_cost: Decimal | None = None
    price: Price | None = None
    spent: Spending = field(default_factory=Spending)
    reserved: Spending = field(default_factory=Spending)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    def __post_init__(self) -> None:
        if self.max_cost is not None and self.price is None:
            raise RephraseError(
                "--max-cost: the price of this model at this endpoint is not known, so a limit in "
                "money cannot be kept: use --max-total-tokens, or --price IN OUT (dollars per "
                "million)"
            )

    def cost(self, spending: Spending) -> Decimal | None:
        """Dollars, None without a price."""
        if self.price is None:
            return None
        return self.price.of(spending.tokens_in, spending.tokens_out)

    def over(self, spending: Spending) -> str | None:
        """The limit that `spending` would break, None where it breaks none."""
        if self.max_requests is not None and spending.requests > self.max_requests:
            return f"--max-requests {self.max_requests}"
        tokens = spending.tokens_in + spending.tokens_out
        if self.max_tokens is not None and tokens > self.max_tokens:
            return f"--max-total-tokens {self.max_tokens}"
        cost = self.cost(spending)
        if self.max_cost is not None and cost is not None and cost > self.max_cost:
            return f"--max-cost {self.max_cost}"
        return None

    async def reserve(self, wanted: Spending) -> None:
        """Wait until `wanted` fits; BudgetError where it never will, as nothing is in flight."""
        async with self.changed:
            while limit := self.over(self.spent + self.reserved + wanted):
                if self.reserved == Spending() or self.over(self.spent + wanted):
                    raise BudgetError(f"{limit} is reached: {self.summary()}")
                await self.changed.wait()
            self.reserved += wanted

    async def settle(self, wanted: Spending, used: Spending) -> None:
        """Replace a reservation by what was used."""
        async with self.changed:
            self.reserved -= wanted
            self.spent += used
            self.changed.notify_all()

    def summary(self) -> str:
        """What is spent, in words."""
        cost = self.cost(self.spent)
        money = "" if cost is None else f", ${cost:.4f}"
        tokens = f"{self.spent.tokens_in} + {self.spent.tokens_out} tokens"
        return f"{self.spent.requests} requests, {tokens}{money}"


def estimate(messages: list[dict[str, str]], answers: int, max_tokens: int) -> Spending:
    """What a request for `answers` answers may use at most, the prompt by its length."""
    size = sum(len(message["content"].encode()) for message in messages)
    return Spending(1, size // BYTES_PER_TOKEN + 16, answers * max_tokens)


def without_answer(wanted: Spending) -> Spending:
    """What an attempt that was refused with a status has used: one request."""
    return replace(Spending(), requests=wanted.requests)
