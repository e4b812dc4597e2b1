"""Requests to an OpenAI-compatible endpoint: concurrent, within a budget, stopped cleanly.

Retries are the client library's alone, with its handling of Retry-After. They are counted by a
transport below it, which reserves the budget for every attempt before it is sent and ends all work
on what no retry repairs: a key that is refused, a quota that is used up, a limit that is reached.
"""

import asyncio
import json
import os
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import httpx2
import openai

from prompt_aug.rephrase.generate.budget import (
    Budget,
    BudgetError,
    Spending,
    estimate,
    without_answer,
)
from prompt_aug.rephrase.generate.prompts import RephraseError
from prompt_aug.rephrase.generate.store import Request, Store

KEY_VARIABLE = "OPENAI_API_KEY"
QUOTA = ("insufficient_quota", "billing_hard_limit_reached")


class RefusedError(RephraseError):
    """The endpoint refuses all requests: a wrong key, a used-up quota, an unknown model."""


class _Stop(openai.OpenAIError):  # the client passes its own class on, without a retry
    def __init__(self, cause: RephraseError) -> None:
        super().__init__(str(cause))
        self.cause = cause


@dataclass(slots=True)
class _Attempts:
    """What one request may use, has reserved for the attempt in flight, and has used."""

    wanted: Spending
    pending: bool = False
    used: Spending = field(default_factory=Spending)


_attempts: ContextVar[_Attempts] = ContextVar("attempts")


class _Counted(httpx2.AsyncBaseTransport):
    """Reserves each attempt; ends the work where the answer's status says so."""

    def __init__(self, inner: httpx2.AsyncBaseTransport, budget: Budget) -> None:
        self.inner, self.budget = inner, budget

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        state = _attempts.get()
        await settle(self.budget, state, state.wanted)  # the attempt before was never answered
        try:
            await self.budget.reserve(state.wanted)
        except BudgetError as error:
            raise _Stop(error) from error
        state.pending = True
        response = await self.inner.handle_async_request(request)
        if response.status_code >= 400:
            await settle(self.budget, state, without_answer(state.wanted))
            await response.aread()
            if refusal := _refusal(response):
                raise _Stop(refusal)
        return response

    async def aclose(self) -> None:
        await self.inner.aclose()


def _refusal(response: httpx2.Response) -> RefusedError | None:
    """The error for what no retry repairs; it never holds the key."""
    code, message = _error_of(response)
    if response.status_code in (401, 403):
        return RefusedError(
            f"the endpoint refuses the key (status {response.status_code}): set {KEY_VARIABLE}"
        )
    if code in QUOTA or (response.status_code == 402):
        return RefusedError(f"the endpoint's quota is used up ({message[:200]})")
    if response.status_code == 404:
        return RefusedError(f"the endpoint has no such model or path ({message[:200]})")
    return None


def _error_of(response: httpx2.Response) -> tuple[str, str]:
    """(code, message) of an OpenAI error body, empty where there is none."""
    try:
        error = json.loads(response.content).get("error")
    except (ValueError, AttributeError, RecursionError):
        return "", ""
    if not isinstance(error, dict):
        return "", str(error or "")
    return str(error.get("code") or error.get("type") or ""), str(error.get("message") or "")


async def settle(budget: Budget, state: _Attempts, used: Spending) -> None:
    """End the attempt in flight, if there is one, as having used `used`."""
    if state.pending:
        state.pending = False
        state.used += used
        await budget.settle(state.wanted, used)


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """Where and how to ask. `per_request` answers are asked for at once, as `n`."""

    base_url: str | None = None
    concurrency: int = 16
    retries: int = 6
    timeout: float = 300.0
    per_request: int = 8

    def key(self) -> str:
        """The key of the environment, "none" where an endpoint of one's own needs none."""
        key = os.environ.get(KEY_VARIABLE)
        if not key and self.base_url is None:
            raise RephraseError(f"set {KEY_VARIABLE}, or --base-url of an endpoint without a key")
        return key or "none"

    def batch_client(self) -> openai.OpenAI:
        """A client for files and batches, which are no attempts at answers."""
        return openai.OpenAI(
            api_key=self.key(),
            base_url=self.base_url,
            max_retries=self.retries,
            timeout=self.timeout,
        )

    def client(self, budget: Budget) -> openai.AsyncOpenAI:
        """The library's client over the counting transport."""
        limits = httpx2.Limits(max_connections=self.concurrency)
        inner = httpx2.AsyncHTTPTransport(limits=limits)
        return openai.AsyncOpenAI(
            api_key=self.key(),
            base_url=self.base_url,
            max_retries=self.retries,
            timeout=self.timeout,
            http_client=httpx2.AsyncClient(transport=_Counted(inner, budget), timeout=self.timeout),
        )


class Generation:
    """Asks for what a store lacks of a list of requests."""

    def __init__(self, store: Store, endpoint: Endpoint, budget: Budget) -> None:
        self.store, self.endpoint, self.budget = store, endpoint, budget
        self.per_request = endpoint.per_request
        self.stopped: RephraseError | None = None
        self.report: Callable[[int], object] = lambda _: None

    async def run(self, requests: Sequence[Request]) -> None:
        """Ask for all of them. Raises BudgetError or RefusedError after what is in flight ended."""
        queue = iter(requests)
        async with self.endpoint.client(self.budget) as client:

            async def work() -> None:
                for request in queue:
                    if self.stopped:
                        return
                    await self._complete(client, request)

            async with asyncio.TaskGroup() as group:
                for _ in range(self.endpoint.concurrency):
                    group.create_task(work())
        if self.stopped:
            raise self.stopped

    def stop(self, cause: RephraseError) -> None:
        """Start no further request."""
        self.stopped = self.stopped or cause

    async def _complete(self, client: openai.AsyncOpenAI, request: Request) -> None:
        """Ask until nothing of `request` is missing; a failure ends it."""
        missing = self.store.missing(request)
        while missing and not self.stopped:
            wanted = missing[: self.per_request]
            records = await self._ask(client, request, wanted)
            self.store.add(records)
            answered = sum(record["status"] == "answer" for record in records)
            self.report(answered)
            if not any(record["status"] == "answer" or record["final"] for record in records):
                return
            if len(records) < len(wanted):  # the endpoint gives fewer answers than asked for
                self.per_request = 1
            missing = self.store.missing(request)

    async def _ask(
        self, client: openai.AsyncOpenAI, request: Request, samples: list[int]
    ) -> list[dict[str, Any]]:
        """One request of the client; the records of its samples."""
        sampling = request.sampling
        state = _Attempts(estimate(request.messages, len(samples), sampling.max_tokens))
        _attempts.set(state)
        start = time.time()
        try:
            answer = await client.chat.completions.create(
                model=sampling.model,
                messages=request.messages,  # type: ignore[arg-type]
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=sampling.max_tokens,
                n=len(samples),
            )
            choices, used = _read(answer)
        except _Stop as error:
            self.stop(error.cause)
            return []
        except (openai.OpenAIError, httpx2.HTTPError, ValueError, TypeError) as error:
            await settle(self.budget, state, state.wanted)
            if len(samples) > 1 and isinstance(error, openai.BadRequestError):
                self.per_request = 1  # it may not know n: ask for one, and then say what it says
                return await self._ask(client, request, samples[:1])
            return _failures(request, samples, error, state.used, start)
        await settle(self.budget, state, used or state.wanted)
        return _records(request, samples, choices, answer, state.used, start)


def _read(answer: Any) -> tuple[list[Any], Spending | None]:
    """(choices, what was used) of an answer. Raises ValueError where it is none."""
    choices = getattr(answer, "choices", None)
    if not isinstance(choices, list) or not choices:
        raise ValueError("the endpoint's answer has no choices")
    usage = answer.usage
    if usage is None or not usage.prompt_tokens:
        return choices, None
    return choices, Spending(1, int(usage.prompt_tokens), int(usage.completion_tokens or 0))


def _records(
    request: Request,
    samples: list[int],
    choices: list[Any],
    answer: Any,
    used: Spending,
    start: float,
) -> list[dict[str, Any]]:
    """A record for each choice; one without a text is a failure. The first has what all used."""
    records = []
    for sample, choice in zip(samples, choices, strict=False):
        text = getattr(choice.message, "content", None)
        record = _base(request, sample, start)
        if isinstance(text, str) and text.strip():
            record |= {"status": "answer", "text": text, "finish": choice.finish_reason}
            record |= {"answered_by": answer.model}
        else:
            record |= {"status": "failed", "final": True, "empty": True}
            record |= {"error": f"an empty text ({choice.finish_reason})"}
        records.append(record)
    records[0]["used"] = [used.requests, used.tokens_in, used.tokens_out]
    return records


def _failures(
    request: Request, samples: list[int], error: Exception, used: Spending, start: float
) -> list[dict[str, Any]]:
    """A record for each sample that got no answer."""
    final = isinstance(error, openai.BadRequestError | openai.UnprocessableEntityError)
    records = [
        _base(request, sample, start)
        | {"status": "failed", "final": final, "error": f"{type(error).__name__}: {error}"[:500]}
        for sample in samples
    ]
    records[0]["used"] = [used.requests, used.tokens_in, used.tokens_out]
    return records


def _base(request: Request, sample: int, start: float) -> dict[str, Any]:
    sampling = request.sampling
    return {
        "key": request.key,
        "sample": sample,
        "uid": request.uid,
        "model": sampling.model,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "max_tokens": sampling.max_tokens,
        "prompt": request.prompt,
        "time": round(start, 3),
        "seconds": round(time.time() - start, 3),
    }
