"""Requests to an OpenAI-compatible endpoint: concurrent, retried, stopped at once.

A 429 halves the concurrency, waits as the server says, and counts neither as a request nor as a
failure. A refused key, a used-up quota, an unknown model and `EQUAL_FAILURES` equal failures in a
row end the run.
"""

import asyncio
import json
import os
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

import httpx

from prompt_aug.base.errors import UserError
from prompt_aug.endpoint import EndpointError
from prompt_aug.endpoint.budget import Budget, Price, Spending

KEY_VARIABLE, HOSTED = "OPENAI_API_KEY", "https://api.openai.com/v1"
QUOTA = {"insufficient_quota", "billing_hard_limit_reached"}
REFUSED = {
    401: "refuses the key",
    402: "wants payment",
    403: "refuses the key",
    404: "has no such model or path",
}
FINAL = (400, 413, 422)  # the same request gets the same answer
RETRIED = (408, 409, 429)  # and all from 500
ENDS = ("stop", "length", "content_filter")  # of a whole answer
EQUAL_FAILURES = 8
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds before a retry, doubled each time
MOST_PATIENCE = 60.0  # seconds; with a longer Retry-After a request is not retried
MOST_LIMITED = 60  # responses 429 in a row that end the run
T = TypeVar("T")


class RefusedError(EndpointError):
    """The endpoint refuses all requests, or all of them fail for the same reason."""


class StoppedError(EndpointError):
    """Raised by `Channel.send` once the channel is stopped; its cause is `Channel.stopped`."""


@dataclass(frozen=True, slots=True)
class Failure(Exception):  # noqa: N818 - an outcome, caught by the callers of `fetch`
    """A failed attempt and its reason; `sent` is False if nothing reached the server."""

    line: str
    status: int = 0
    sent: bool = True
    retry: bool = False
    wait: float | None = None

    def cost(self, wanted: Spending) -> Spending:
        """Return the spending to record: nothing, one request, or the whole reservation."""
        if not self.sent or self.status == 429:
            return Spending()
        return Spending(1) if self.status >= 400 else wanted


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """Where and how requests are sent; `per_request` responses are requested at once, as `n`."""

    base_url: str | None = None
    concurrency: int = 16
    retries: int = 6
    timeout: float = 300.0
    per_request: int = 8
    price: Price | None = None

    def client(self) -> httpx.AsyncClient:
        """Return a client. Raises EndpointError if the hosted endpoint has no key."""
        key = os.environ.get(KEY_VARIABLE)
        if not key and self.base_url is None:
            raise EndpointError(f"{KEY_VARIABLE} is not set. Set it, or --base-url.")
        return httpx.AsyncClient(
            base_url=(self.base_url or HOSTED).rstrip("/"),
            headers={"Authorization": f"Bearer {key or 'none'}"},
            timeout=self.timeout,
            limits=httpx.Limits(max_connections=self.concurrency),
        )


async def fetch(client: httpx.AsyncClient, path: str, body: Any = None) -> dict[str, Any]:
    """POST the JSON `body`, or GET without one; return the JSON object of the response.

    Raises Failure or RefusedError.
    """
    url = f"{client.base_url}{path}"
    try:
        response = await client.request("GET" if body is None else "POST", path, json=body)
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise Failure(f"{url}: cannot connect ({error})", sent=False, retry=True) from error
    except httpx.TimeoutException as error:
        raise Failure(f"no response in time ({type(error).__name__})", retry=True) from error
    except httpx.HTTPError as error:
        raise Failure(f"{type(error).__name__}: {error}", retry=True) from error
    try:
        found = json.loads(response.content)
    except (ValueError, RecursionError):
        found = None
    status, kind = response.status_code, response.headers.get("content-type", "no content type")
    if status == 200 and isinstance(found, dict):
        return found
    refusal = found.get("error") if isinstance(found, dict) else None
    refusal = refusal if isinstance(refusal, dict) else {"message": refusal}
    lines = [line.strip() for line in response.text.splitlines() if line.strip()]
    said = refusal.get("message") or f"{kind}: {lines[0][:160] if lines else 'an empty body'}"
    line = f"status {status}: {said}"[:300]
    if {str(refusal.get("code")), str(refusal.get("type"))} & QUOTA:
        raise RefusedError(f"{url}: the quota is used up ({line})")
    if status in REFUSED:
        raise RefusedError(f"{url}: the endpoint {REFUSED[status]} ({line}). Key: {KEY_VARIABLE}.")
    wait = _retry_after(response.headers.get("retry-after", ""))
    again = (status in RETRIED or status >= 500) and (wait or 0) <= MOST_PATIENCE
    raise Failure(line, status, retry=again, wait=wait)


def check_end(finish: object) -> None:
    """Raise Failure unless an answer with this finish_reason is whole.

    A server that shuts down gives half an answer.
    """
    if finish not in ENDS:
        raise Failure(f"an answer that ended by finish_reason {finish}", retry=True)


async def served_models(client: httpx.AsyncClient) -> dict[str, dict[str, Any]]:
    """Return the endpoint's list of models by id. Raises Failure or RefusedError."""
    found = (await fetch(client, "models")).get("data")
    rows = found if isinstance(found, list) else []
    return {m["id"]: m for m in rows if isinstance(m, dict) and isinstance(m.get("id"), str)}


def reported_tokens(answer: dict[str, Any], name: str) -> int | None:
    """Return a count of the answer's `usage`; None unless it is an integer of 0 or more."""
    usage = answer.get("usage")
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if type(count) is int and count >= 0 else None


def used_tokens(answer: dict[str, Any], wanted: Spending, endpoint: Endpoint) -> Spending:
    """Return the usage that the server reports for an answer, else the reservation."""
    read, written = (reported_tokens(answer, f"{of}_tokens") for of in ("prompt", "completion"))
    if not read or written is None:  # every prompt has a token
        return wanted
    return Spending(1, read, written).at(endpoint.price)


def _retry_after(said: str) -> float | None:
    """Return the seconds of a Retry-After header, which holds a number or a date."""
    try:
        if said.replace(".", "", 1).isdigit():
            return float(said)
        return parsedate_to_datetime(said).timestamp() - time.time()
    except (TypeError, ValueError):
        return None


class Channel:
    """Sends attempts to one endpoint: at most `limit` at a time, within a budget, with retries."""

    def __init__(self, endpoint: Endpoint, budget: Budget) -> None:
        self.endpoint, self.budget, self.limit = endpoint, budget, endpoint.concurrency
        self.active = self.equal = self.limited = 0
        self.last, self.resume_at = "", 0.0
        self.stopped: UserError | None = None
        self.ended = asyncio.Event()

    def stop(self, cause: UserError) -> None:
        """Start no further attempt."""
        self.stopped = self.stopped or cause
        self.ended.set()

    async def send(
        self,
        attempt: Callable[[], Awaitable[tuple[T, Spending]]],
        wanted: Spending,
        failed: Callable[[Failure], object] = lambda _: None,
    ) -> tuple[T, Spending]:
        """Return the result of `attempt` and what it used, after retries.

        `wanted` is reserved in the budget for each attempt, and `failed` receives each failure.
        Raises the last Failure, or StoppedError.
        """
        tried = 0
        while not self.stopped:
            wait = 0.02 if self.active >= self.limit else self.resume_at - time.time()
            if wait > 0:
                await self._pause(wait)
                continue
            try:
                found = await self._once(attempt, wanted)
            except Failure as failure:
                failed(failure)
                tried += failure.status != 429
                if failure.status == 429 and not failure.retry:  # all others would be refused too
                    self.stop(
                        RefusedError(f"{failure.line} (it asks to wait {failure.wait:.0f} s)")
                    )
                if not (failure.retry and tried <= self.endpoint.retries):
                    raise
                await self._wait(failure, tried)
            except EndpointError as error:
                self.stop(error)
            else:
                self.equal = self.limited = 0
                self.limit = min(self.limit + 1, self.endpoint.concurrency)
                return found
        raise StoppedError(str(self.stopped))

    async def _once(
        self, attempt: Callable[[], Awaitable[tuple[T, Spending]]], wanted: Spending
    ) -> tuple[T, Spending]:
        """Make one attempt within the budget. Raises Failure, EndpointError."""
        self.active += 1
        try:
            await self.budget.reserve(wanted)
            spent = wanted
            try:
                answer, spent = await attempt()
                return answer, spent
            except Failure as failure:
                spent = failure.cost(wanted)
                raise
            except EndpointError:
                spent = Spending(1)
                raise
            finally:
                self.budget.settle(wanted, spent)
        finally:
            self.active -= 1

    async def _wait(self, failure: Failure, attempt: int) -> None:
        """Wait before a retry; a 429 makes all workers wait and halves their number."""
        seconds = failure.wait
        if failure.status == 429:
            if time.time() >= self.resume_at:  # once for all requests that were under way
                self.limited += 1
                self.limit = max(1, self.limit // 2)
            if self.limited >= MOST_LIMITED:
                self.stop(RefusedError(f"{MOST_LIMITED} times in a row {failure.line}"))
            seconds = seconds if seconds is not None else min(2.0**self.limited, LONGEST_WAIT) / 4
            self.resume_at = max(self.resume_at, time.time() + seconds)
        elif seconds is None:
            seconds = min(FIRST_WAIT * 2 ** (attempt - 1), LONGEST_WAIT) * random.uniform(0.5, 1)
        await self._pause(seconds)

    async def _pause(self, seconds: float) -> None:
        """Sleep, but wake up at a stop."""
        try:
            await asyncio.wait_for(self.ended.wait(), max(seconds, 0.001))
        except TimeoutError:
            return

    def count(self, failure: Failure) -> None:
        """Count equal failures in a row, and stop at `EQUAL_FAILURES`."""
        self.equal = self.equal + 1 if failure.line == self.last else 1
        self.last = failure.line
        if self.equal >= EQUAL_FAILURES:
            self.stop(RefusedError(f"{self.equal} equal failures in a row: {failure.line}"))
