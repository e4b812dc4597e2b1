"""Requests for the responses that a store lacks, at an OpenAI-compatible endpoint."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from prompt_aug.base.errors import UserError
from prompt_aug.endpoint.budget import Budget, Spending
from prompt_aug.endpoint.client import (
    FINAL,
    Channel,
    Endpoint,
    Failure,
    StoppedError,
    post,
    used_tokens,
)
from prompt_aug.rephrase.generate.store import Request, Store

BYTES_PER_TOKEN = 3


def estimate(endpoint: Endpoint, request: Request, samples: int) -> Spending:
    """Return what a request for `samples` responses may use at most."""
    size = sum(len(message["content"].encode()) for message in request.messages)
    tokens = size // BYTES_PER_TOKEN + 16, samples * request.sampling.max_tokens
    return Spending(1, *tokens).at(endpoint.price)


class Generation:
    """Requests what a store lacks."""

    def __init__(self, store: Store, endpoint: Endpoint, budget: Budget) -> None:
        self.store, self.endpoint = store, endpoint
        self.channel, self.per_request = Channel(endpoint, budget), endpoint.per_request
        self.report: Callable[[int], object] = lambda _: None

    async def run(self, requests: Sequence[Request]) -> None:
        """Complete all requests. Raises what stopped it, after the attempts in flight ended."""
        queue = iter(requests)
        async with self.endpoint.client() as self.client, asyncio.TaskGroup() as group:
            for _ in range(self.endpoint.concurrency):
                group.create_task(self._work(queue))
        if self.channel.stopped:
            raise self.channel.stopped

    def stop(self, cause: UserError) -> None:
        """Start no further attempt."""
        self.channel.stop(cause)

    async def _work(self, queue: Iterator[Request]) -> None:
        for request in queue:
            missing = self.store.missing(request)
            while missing and not self.channel.stopped:
                records = await self._ask(request, missing[: self.per_request])
                self.store.add(records)
                self.report(sum(record["status"] == "answer" for record in records))
                if not any(r["status"] == "answer" or r["final"] for r in records):
                    break
                missing = self.store.missing(request)

    async def _ask(self, request: Request, samples: list[int]) -> list[dict[str, Any]]:
        """Return a record for each response of one request, after retries; [] if stopped."""
        start, used = time.time(), Spending()
        wanted = estimate(self.endpoint, request, len(samples))

        def failed(failure: Failure) -> None:
            nonlocal used
            used = used.plus(failure.cost(wanted))

        while True:
            body = {**asdict(request.sampling), "messages": request.messages, "n": len(samples)}
            try:
                answer, spent = await self.channel.send(
                    partial(self._attempt, body, wanted), wanted, failed
                )
            except Failure as failure:
                if len(samples) > 1 and failure.status in FINAL:
                    self.per_request, samples = 1, samples[:1]  # it may not know n
                    wanted = estimate(self.endpoint, request, 1)
                    continue
                self.channel.count(failure)
                lost = {"status": "failed", "final": failure.status in FINAL}
                answers = [lost | {"error": failure.line}] * len(samples)
                return _records(request, samples, answers, used, start)
            except StoppedError:
                return []
            if len(answer["choices"]) < len(samples):  # fewer than requested
                self.per_request = 1
            answers = [_taken(choice, answer.get("model")) for choice in answer["choices"]]
            return _records(request, samples, answers, used.plus(spent), start)

    async def _attempt(
        self, body: dict[str, Any], wanted: Spending
    ) -> tuple[dict[str, Any], Spending]:
        """Send one request and return the answer with what it used. Raises Failure."""
        answer = await post(self.client, "chat/completions", body)
        choices = answer.get("choices")
        if not (isinstance(choices, list) and choices and all(map(_is_choice, choices))):
            raise Failure(f"not a chat completion: {json.dumps(answer)[:160]}")
        return answer, used_tokens(answer, wanted, self.endpoint)


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
