"""Requests for the responses that a store lacks, at an OpenAI-compatible endpoint."""

import asyncio
import contextlib
import hashlib
import json
import signal
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from prompt_aug.base.progress import Progress
from prompt_aug.endpoint import client as http
from prompt_aug.endpoint.budget import Budget, Spending
from prompt_aug.rephrase.generate.prompts import Prompt, RephraseError
from prompt_aug.rephrase.generate.store import Request, Sampling, Store

BYTES_PER_TOKEN = 3
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class EndedBySignalError(RephraseError):
    """A signal stopped the run; completed requests are kept."""


class Stage:
    """A model at an endpoint, with its prompt and its stored responses."""

    def __init__(
        self, title: str, folder: Path, endpoint: http.Endpoint, prompt: Prompt, sampling: Sampling
    ) -> None:
        self.title, self.store, self.endpoint = title, Store(folder), endpoint
        self.prompt, self.sampling = prompt, sampling

    def request(self, uid: str, text: str, candidate: str = "", *, samples: int = 1) -> Request:
        """Return the request for `samples` responses to the prompt with these texts."""
        messages, parameters = self.prompt.messages(text, candidate), self.sampling._asdict()
        content = json.dumps([parameters.pop("model"), messages, parameters], sort_keys=True)
        return Request(hashlib.sha256(content.encode()).hexdigest()[:32], uid, messages, samples)

    def estimate(self, request: Request, samples: int) -> Spending:
        """Return what a request for `samples` responses may use at most."""
        size = sum(len(message["content"].encode()) for message in request.messages)
        tokens = size // BYTES_PER_TOKEN + 16, samples * self.sampling.max_tokens
        return Spending(1, *tokens).at(self.endpoint.price)

    def send(self, requests: Iterable[Request], budget: Budget) -> None:
        """Request the missing responses. Raise the cause if the channel is stopped."""
        missing = [request for request in requests if self.store.missing(request)]
        total = sum(len(self.store.missing(request)) for request in missing)
        if missing:
            with Progress(self.title, total, "answers") as self.bar:
                asyncio.run(self._send(missing, budget))

    async def _send(self, requests: Iterable[Request], budget: Budget) -> None:
        self.channel = http.Channel(self.endpoint, budget)
        self.per_request, queue = self.endpoint.per_request, iter(requests)
        self.empty = 0  # answers in a row without a text
        for number in SIGNALS:
            with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                asyncio.get_running_loop().add_signal_handler(number, self._stop)
        async with self.endpoint.client() as self.client:
            self.root = await self._served_root()
            async with asyncio.TaskGroup() as group:
                for _ in range(self.endpoint.concurrency):
                    group.create_task(self._work(queue))
        if cause := self.channel.stopped:
            kept = f"{len(self.store.answers)} responses are kept in {self.store.path}"
            raise type(cause)(f"{cause} ({kept})") from cause

    async def _served_root(self) -> dict[str, str]:
        """Return {"root": the folder of the served weights}, or {} if the endpoint has none.

        Raises RephraseError if stored responses of this model's name have another root.
        """
        name, root = self.sampling.model, None
        with contextlib.suppress(http.Failure, http.RefusedError):  # the list is optional
            root = (await http.served_models(self.client)).get(name, {}).get("root")
        if not isinstance(root, str):
            return {}
        stored = {
            r.get("root", root) for r in self.store.answers.values() if r.get("model") == name
        }
        if others := sorted(stored - {root}):
            raise RephraseError(
                f"model={name}: {self.store.path} has responses of {others[0]}, and the endpoint "
                f"serves {root}. Use another folder for the responses, or delete this one."
            )
        return {"root": root}

    def _stop(self) -> None:
        why = "stopped by a signal. Run the same command again to resume."
        self.channel.stop(EndedBySignalError(why))
        for number in SIGNALS:  # a second one ends it at once
            asyncio.get_running_loop().remove_signal_handler(number)

    async def _work(self, queue: Iterator[Request]) -> None:
        for request in queue:
            missing = self.store.missing(request)
            while missing and not self.channel.stopped:
                records = await self._ask(request, missing[: self.per_request])
                self.store.add(records)
                self.bar.note = str(self.channel.budget.spent)
                self.bar.update(sum(record["status"] == "answer" for record in records))
                if not any(r["status"] == "answer" or r["final"] for r in records):
                    break
                missing = self.store.missing(request)

    async def _ask(self, request: Request, samples: list[int]) -> list[dict[str, Any]]:
        """Return a record for each response of one request, after retries; [] if stopped."""
        start, used, alone = time.time(), Spending(), False

        def failed(failure: http.Failure) -> None:
            nonlocal used
            used = used.plus(failure.cost(wanted))

        while True:
            wanted = self.estimate(request, len(samples))
            body = self.sampling._asdict() | {"messages": request.messages, "n": len(samples)}
            attempt = partial(self._attempt, body, wanted)
            try:
                answer, spent = await self.channel.send(attempt, wanted, failed)
            except http.StoppedError:
                return []
            except http.Failure as failure:
                final = failure.status in http.FINAL
                if final and len(samples) > 1:
                    alone, samples = True, samples[:1]  # n may be unsupported
                    continue
                self.channel.count(failure)
                lost = {"status": "failed", "final": final, "error": failure.line}
                answers = [lost] * len(samples)
            else:
                used = used.plus(spent)
                answers = [_taken(choice, answer.get("model")) for choice in answer["choices"]]
                if alone or len(answers) < len(samples):  # fewer than requested
                    self.per_request = 1
                self._count_empty(answers)
            break
        common = {"key": request.key, "uid": request.uid, "prompt": self.prompt.sha256}
        seconds = {"time": round(start, 3), "seconds": round(time.time() - start, 3)}
        common |= self.sampling._asdict() | self.root | seconds
        pairs = zip(samples, answers, strict=False)
        records = [common | {"sample": sample} | answer for sample, answer in pairs]
        records[0]["used"] = list(used[:3])
        return records

    def _count_empty(self, answers: list[dict[str, Any]]) -> None:
        """Stop if answers stay without text, as when thoughts use up the limit of tokens."""
        self.empty = self.empty + 1 if all(a.get("empty") for a in answers) else 0
        if self.empty >= http.EQUAL_FAILURES:
            why = f"{self.empty} answers in a row are {answers[0]['error']}"
            self.channel.stop(
                http.RefusedError(f"{why}: raise --answer-tokens (of a solver: --solve-tokens)")
            )

    async def _attempt(self, body: Any, wanted: Spending) -> tuple[dict[str, Any], Spending]:
        """Send one request and return the answer with what it used. Raises http.Failure."""
        answer = await http.fetch(self.client, "chat/completions", body)
        choices = answer.get("choices")
        listed = [c for c in choices if isinstance(c, dict)] if isinstance(choices, list) else []
        if not listed or [c for c in listed if isinstance(c.get("message"), dict)] != choices:
            raise http.Failure(f"not a chat completion: {json.dumps(answer)[:160]}")
        for choice in listed:
            http.check_end(choice.get("finish_reason"))
        return answer, http.used_tokens(answer, wanted, self.endpoint)


def _taken(choice: dict[str, Any], model: str | None) -> dict[str, Any]:
    """Return the record of one choice; an empty text is a final failure, not retried."""
    text, finish = choice["message"].get("content"), choice.get("finish_reason")
    if isinstance(text, str) and text.strip():
        return {"status": "answer", "text": text, "finish": finish, "answered_by": model}
    return {"status": "failed", "final": True, "empty": True, "error": f"an empty text ({finish})"}
