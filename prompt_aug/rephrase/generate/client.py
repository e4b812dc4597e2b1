"""Requests to an OpenAI-compatible endpoint: concurrent, within a budget, stopped at once.

Retries are ours, so that a stop takes effect at the next response. A 429 halves the concurrency,
waits as the server says, and counts neither as a request nor as a failure. A refused key, a used-up
quota, an unknown model and `EQUAL_FAILURES` equal failures in a row end the run.
"""

import asyncio
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from prompt_aug.rephrase.generate.budget import (
    Budget,
    BudgetError,
    Price,
    Spending,
    estimate,
)
from prompt_aug.rephrase.generate.prompts import RephraseError
from prompt_aug.rephrase.generate.store import Request, Store

KEY_VARIABLE, HOSTED = "OPENAI_API_KEY", "https://api.openai.com/v1"
QUOTA = ("insufficient_quota", "billing_hard_limit_reached")
REFUSED = {
    401: "refuses the key",
    402: "wants payment",
    403: "refuses the key",
    404: "has no such model or path",
}
FINAL = (400, 413, 422)  # the same request gets the same answer
EQUAL_FAILURES = 8
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds before a retry, doubled each time
MOST_PATIENCE = 60.0  # seconds; a server that names more is not asked again by this run
MOST_LIMITED = 60  # responses 429 in a row that end the run


class RefusedError(RephraseError):
    """The endpoint refuses all requests, or gives one failure for all."""


@dataclass(frozen=True, slots=True)
class Failure(Exception):  # noqa: N818 - an outcome, raised and caught in this file
    """Why an attempt gave no responses; `sent` is False if nothing reached the server."""

    line: str
    status: int = 0
    sent: bool = True
    retry: bool = False
    wait: float | None = None


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
        """Return a client. Raises RephraseError if the hosted endpoint has no key."""
        key = os.environ.get(KEY_VARIABLE)
        if not key and self.base_url is None:
            raise RephraseError(f"{KEY_VARIABLE} is not set. Set it, or --base-url.")
        return httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key or 'none'}"}, timeout=self.timeout
        )

    def url(self, path: str) -> str:
        """Return the address of `path`."""
        return f"{(self.base_url or HOSTED).rstrip('/')}/{path}"


async def post(client: httpx.AsyncClient, url: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON object of the response. Raises Failure."""
    try:
        response = await client.post(url, json=body)
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
    status = response.status_code
    if status == 200 and isinstance(found, dict):
        return found
    refusal = found.get("error") if isinstance(found, dict) else None
    said = refusal.get("message") if isinstance(refusal, dict) else refusal
    line = f"status {status}: {said or _first_line(response)}"[:300]
    if isinstance(refusal, dict) and {refusal.get("code"), refusal.get("type")} & {*QUOTA}:
        raise RefusedError(f"{url}: the quota is used up ({line})")
    if status in REFUSED:
        raise RefusedError(f"{url}: the endpoint {REFUSED[status]} ({line}). Key: {KEY_VARIABLE}.")
    wait = _retry_after(response)
    again = status in (408, 409, 429) or status >= 500
    raise Failure(line, status, retry=again and (wait or 0) <= MOST_PATIENCE, wait=wait)


def _retry_after(response: httpx.Response) -> float | None:
    """Return the seconds that the server names, as a number or a date."""
    said = response.headers.get("retry-after", "")
    try:
        if said.replace(".", "", 1).isdigit():
            return float(said)
        return parsedate_to_datetime(said).timestamp() - time.time()
    except (TypeError, ValueError):
        return None


def _first_line(response: httpx.Response) -> str:
    """Return the kind of a body that is no JSON object, and its first line."""
    kind = response.headers.get("content-type", "no content type")
    lines = [line.strip() for line in response.text.splitlines() if line.strip()]
    return f"{kind}: {lines[0][:160] if lines else 'an empty body'}"


class Generation:
    """Requests what a store lacks."""

    def __init__(self, store: Store, endpoint: Endpoint, budget: Budget) -> None:
        self.store, self.endpoint, self.budget = store, endpoint, budget
        self.per_request, self.limit = endpoint.per_request, endpoint.concurrency
        self.active = self.equal = self.limited = 0
        self.last, self.resume_at = "", 0.0
        self.stopped: RephraseError | None = None
        self.ended = asyncio.Event()
        self.report: Callable[[int], object] = lambda _: None

    async def run(self, requests: Sequence[Request]) -> None:
        """Complete all requests. Raises what stopped it, after the attempts in flight ended."""
        queue = iter(requests)
        async with self.endpoint.client() as self.client, asyncio.TaskGroup() as group:
            for _ in range(self.endpoint.concurrency):
                group.create_task(self._work(queue))
        if self.stopped:
            raise self.stopped

    def stop(self, cause: RephraseError) -> None:
        """Start no further attempt."""
        self.stopped = self.stopped or cause
        self.ended.set()

    async def _work(self, queue: Iterator[Request]) -> None:
        for request in queue:
            missing = self.store.missing(request)
            while missing and not self.stopped:
                records = await self._ask(request, missing[: self.per_request])
                self.store.add(records)
                self.report(sum(record["status"] == "answer" for record in records))
                if not any(r["status"] == "answer" or r["final"] for r in records):
                    break
                missing = self.store.missing(request)

    async def _ask(self, request: Request, samples: list[int]) -> list[dict[str, Any]]:
        """Return a record for each response of one request, after retries; [] if stopped."""
        sampling, start = request.sampling, time.time()
        body = {
            "model": sampling.model,
            "messages": request.messages,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "n": len(samples),
        }
        wanted = estimate(request.messages, len(samples), sampling.max_tokens).at(
            self.endpoint.price
        )
        attempt, used = 0, Spending()
        while not self.stopped:
            try:
                answer, spent = await self._attempt(body, wanted)
            except Failure as failure:
                used = used.plus(self._cost(failure, wanted))
                if len(samples) > 1 and failure.status in FINAL:
                    self.per_request = 1  # it may not know n: request one, and report its answer
                    return await self._ask(request, samples[:1])
                attempt += failure.status != 429
                if failure.retry and attempt <= self.endpoint.retries:
                    await self._wait(failure, attempt)
                    continue
                self._failed(failure)
                return _failures(request, samples, failure, used, start)
            except RephraseError as error:
                self.stop(error)
                return []
            self.equal = self.limited = 0
            self.limit = min(self.limit + 1, self.endpoint.concurrency)
            if len(answer["choices"]) < len(samples):  # fewer than requested
                self.per_request = 1
            return _records(request, samples, answer, used.plus(spent), start)
        return []

    async def _attempt(
        self, body: dict[str, Any], wanted: Spending
    ) -> tuple[dict[str, Any], Spending]:
        """Send one request when the concurrency allows. Raises Failure, RephraseError."""
        while self.active >= self.limit or time.time() < self.resume_at:
            await self._pause(0.02 if self.active >= self.limit else self.resume_at - time.time())
            if self.stopped:
                raise self.stopped
        self.active += 1
        spent = wanted
        try:
            await self.budget.reserve(wanted)
        except BudgetError:
            self.active -= 1
            raise
        try:
            answer = await post(self.client, self.endpoint.url("chat/completions"), body)
            _check(answer)
            usage = answer.get("usage") or {}
            if usage.get("prompt_tokens"):
                counts = int(usage["prompt_tokens"]), int(usage.get("completion_tokens") or 0)
                spent = Spending(1, *counts).at(self.endpoint.price)
            return answer, spent
        except Failure as failure:
            spent = self._cost(failure, wanted)
            raise
        except RephraseError:
            spent = Spending(1)
            raise
        finally:
            self.active -= 1
            await self.budget.settle(wanted, spent)

    @staticmethod
    def _cost(failure: Failure, wanted: Spending) -> Spending:
        """Return what a failed attempt is booked as."""
        if not failure.sent or failure.status == 429:
            return Spending()
        return Spending(1) if failure.status >= 400 else wanted

    async def _wait(self, failure: Failure, attempt: int) -> None:
        """Wait before a retry; a 429 makes all workers wait and halves their number."""
        seconds = failure.wait
        if failure.status == 429:
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

    def _failed(self, failure: Failure) -> None:
        """Count equal failures in a row, and stop at `EQUAL_FAILURES`."""
        self.equal = self.equal + 1 if failure.line == self.last else 1
        self.last = failure.line
        if self.equal >= EQUAL_FAILURES:
            self.stop(RefusedError(f"{self.equal} equal failures in a row: {failure.line}"))


def _check(answer: dict[str, Any]) -> None:
    """Raises Failure for an object of another schema, and shows its beginning."""
    choices = answer.get("choices")
    if (
        not isinstance(choices, list)
        or not choices
        or not all(isinstance(c, dict) and isinstance(c.get("message"), dict) for c in choices)
    ):
        raise Failure(f"not a chat completion: {json.dumps(answer)[:160]}")


def _records(
    request: Request, samples: list[int], answer: dict[str, Any], used: Spending, start: float
) -> list[dict[str, Any]]:
    """Return a record for each choice; the first has what all used."""
    records = []
    for sample, choice in zip(samples, answer["choices"], strict=False):
        text, record = choice["message"].get("content"), _base(request, sample, start)
        if isinstance(text, str) and text.strip():
            record |= {"status": "answer", "text": text, "finish": choice.get("finish_reason")}
            record |= {"answered_by": answer.get("model")}
        else:
            record |= {"status": "failed", "final": True, "empty": True}
            record |= {"error": f"an empty text ({choice.get('finish_reason')})"}
        records.append(record)
    records[0]["used"] = list(used[:3])
    return records


def _failures(
    request: Request, samples: list[int], failure: Failure, used: Spending, start: float
) -> list[dict[str, Any]]:
    """Return a record for each sample without a response."""
    failed = {"status": "failed", "final": failure.status in FINAL, "error": failure.line}
    records = [_base(request, sample, start) | failed for sample in samples]
    records[0]["used"] = list(used[:3])
    return records


def _base(request: Request, sample: int, start: float) -> dict[str, Any]:
    sampling = {
        k: getattr(request.sampling, k) for k in ("model", "temperature", "top_p", "max_tokens")
    }
    times = {"time": round(start, 3), "seconds": round(time.time() - start, 3)}
    return (
        {"key": request.key, "sample": sample, "uid": request.uid, "prompt": request.prompt}
        | sampling
        | times
    )
