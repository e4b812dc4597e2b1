"""Requests to an OpenAI-compatible endpoint: concurrent, within a budget, stopped at once.

A 429 halves the concurrency, waits as the server says, and counts neither as a request nor as a
failure. A refused key, a used-up quota, an unknown model and `EQUAL_FAILURES` equal failures in a
row end the run.
"""

import asyncio
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from prompt_aug.rephrase.generate.budget import Budget, Price, Spending
from prompt_aug.rephrase.generate.prompts import RephraseError
from prompt_aug.rephrase.generate.store import Request, Store

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
EQUAL_FAILURES = 8
FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0  # seconds before a retry, doubled each time
MOST_PATIENCE = 60.0  # seconds; a server that names more is not asked again by this run
MOST_LIMITED = 60  # responses 429 in a row that end the run
BYTES_PER_TOKEN = 3


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

    def cost(self, wanted: Spending) -> Spending:
        """Return what the attempt is booked as: nothing, one request, or all that was reserved."""
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
        """Return a client. Raises RephraseError if the hosted endpoint has no key."""
        key = os.environ.get(KEY_VARIABLE)
        if not key and self.base_url is None:
            raise RephraseError(f"{KEY_VARIABLE} is not set. Set it, or --base-url.")
        return httpx.AsyncClient(
            base_url=(self.base_url or HOSTED).rstrip("/"),
            headers={"Authorization": f"Bearer {key or 'none'}"},
            timeout=self.timeout,
            limits=httpx.Limits(max_connections=self.concurrency),
        )

    def estimate(self, request: Request, samples: int) -> Spending:
        """Return what a request for `samples` responses may use at most."""
        size = sum(len(message["content"].encode()) for message in request.messages)
        tokens = size // BYTES_PER_TOKEN + 16, samples * request.sampling.max_tokens
        return Spending(1, *tokens).at(self.price)


async def post(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON object of the response. Raises Failure or RefusedError."""
    url = f"{client.base_url}{path}"
    try:
        response = await client.post(path, json=body)
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


def _retry_after(said: str) -> float | None:
    """Return the seconds that the server names, as a number or a date."""
    try:
        if said.replace(".", "", 1).isdigit():
            return float(said)
        return parsedate_to_datetime(said).timestamp() - time.time()
    except (TypeError, ValueError):
        return None


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
        start, attempt, used = time.time(), 0, Spending()
        while not self.stopped:
            wait = 0.02 if self.active >= self.limit else self.resume_at - time.time()
            if wait > 0:
                await self._pause(wait)
                continue
            body = {**asdict(request.sampling), "messages": request.messages, "n": len(samples)}
            try:
                answer, spent = await self._attempt(request, body)
            except Failure as failure:
                used = used.plus(failure.cost(self.endpoint.estimate(request, len(samples))))
                if len(samples) > 1 and failure.status in FINAL:
                    self.per_request, samples = 1, samples[:1]  # it may not know n
                    continue
                attempt += failure.status != 429
                if failure.retry and attempt <= self.endpoint.retries:
                    await self._wait(failure, attempt)
                    continue
                self._count(failure)
                failed = {"status": "failed", "final": failure.status in FINAL}
                answers = [failed | {"error": failure.line}] * len(samples)
                return _records(request, samples, answers, used, start)
            except RephraseError as error:
                self.stop(error)
                return []
            self.equal = self.limited = 0
            self.limit = min(self.limit + 1, self.endpoint.concurrency)
            if len(answer["choices"]) < len(samples):  # fewer than requested
                self.per_request = 1
            answers = [_taken(choice, answer.get("model")) for choice in answer["choices"]]
            return _records(request, samples, answers, used.plus(spent), start)
        return []

    async def _attempt(
        self, request: Request, body: dict[str, Any]
    ) -> tuple[dict[str, Any], Spending]:
        """Send one request within the budget. Raises Failure, RephraseError."""
        wanted = spent = self.endpoint.estimate(request, body["n"])
        self.active += 1
        try:
            await self.budget.reserve(wanted)
        except RephraseError:
            self.active -= 1
            raise
        try:
            answer = await post(self.client, "chat/completions", body)
            choices = answer.get("choices")
            if not (isinstance(choices, list) and choices and all(map(_is_choice, choices))):
                raise Failure(f"not a chat completion: {json.dumps(answer)[:160]}")
            usage = answer.get("usage") or {}
            if usage.get("prompt_tokens"):
                counts = int(usage["prompt_tokens"]), int(usage.get("completion_tokens") or 0)
                spent = Spending(1, *counts).at(self.endpoint.price)
            return answer, spent
        except Failure as failure:
            spent = failure.cost(wanted)
            raise
        except RephraseError:
            spent = Spending(1)
            raise
        finally:
            self.active -= 1
            self.budget.settle(wanted, spent)

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

    def _count(self, failure: Failure) -> None:
        """Count equal failures in a row, and stop at `EQUAL_FAILURES`."""
        self.equal = self.equal + 1 if failure.line == self.last else 1
        self.last = failure.line
        if self.equal >= EQUAL_FAILURES:
            self.stop(RefusedError(f"{self.equal} equal failures in a row: {failure.line}"))


def _is_choice(choice: Any) -> bool:
    return isinstance(choice, dict) and isinstance(choice.get("message"), dict)


def _taken(choice: dict[str, Any], model: str | None) -> dict[str, Any]:
    """Return the record of one choice; an empty text is a failure that no retry mends."""
    text, finish = choice["message"].get("content"), choice.get("finish_reason")
    if isinstance(text, str) and text.strip():
        return {"status": "answer", "text": text, "finish": finish, "answered_by": model}
    return {"status": "failed", "final": True, "empty": True, "error": f"an empty text ({finish})"}


def _records(
    request: Request,
    samples: list[int],
    answers: list[dict[str, Any]],
    used: Spending,
    start: float,
) -> list[dict[str, Any]]:
    """Return a record for each answer; the first has what all used."""
    common: dict[str, Any] = {"key": request.key, "uid": request.uid, "prompt": request.prompt}
    common |= asdict(request.sampling) | {"time": round(start, 3)}
    common["seconds"] = round(time.time() - start, 3)
    pairs = zip(samples, answers, strict=False)
    records = [common | {"sample": sample} | answer for sample, answer in pairs]
    records[0]["used"] = list(used[:3])
    return records
