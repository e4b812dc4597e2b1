"""Requests for responses, and the store that keeps them by request hash and sample index:

    {"key", "sample", "status": "answer", "text", "finish", ...}
    {"key", "sample", "status": "failed", "error", "final", ...}

A `final` failure (the server refuses the request) is retried only by the next run. An empty text
is never retried.
"""

import asyncio
import contextlib
import hashlib
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from prompt_aug.base.errors import UserError
from prompt_aug.base.files import append_lines, iter_lines
from prompt_aug.base.progress import Progress
from prompt_aug.endpoint import Budget, EndpointError, Spending, named
from prompt_aug.endpoint import client as http


class Sampling(NamedTuple):
    """How a model is sampled: a part of the key."""

    model: str
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 1024


class Request(NamedTuple):
    """The messages of one text, and the number of responses wanted: `samples`."""

    key: str
    uid: str
    messages: list[dict[str, str]]
    samples: int


class Store:
    """The responses of a folder; one process writes."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "answers.jsonl"
        self.answers: dict[tuple[str, int], dict[str, Any]] = {}
        self.failures: dict[tuple[str, int], dict[str, Any]] = {}
        self.requested = Counter[str]()  # key -> how many samples were requested and need no retry
        self.spent = Spending()
        for record in iter_lines(self.path):
            if record.get("final") and not record.get("empty"):
                record = {**record, "final": False}  # the server may have been fixed since
            self._take(record)

    def _take(self, record: dict[str, Any]) -> None:
        place = (str(record["key"]), int(record["sample"]))
        if record["status"] == "answer":
            self.answers.setdefault(place, record)
            self.failures.pop(place, None)
        elif place not in self.answers:
            self.failures[place] = record
        if record["status"] == "answer" or record.get("final"):
            self.requested[place[0]] = max(self.requested[place[0]], place[1] + 1)
        self.spent = self.spent.plus(Spending(*record.get("used", (0, 0, 0))))

    def add(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Append the records; a sample that is there already is not written again."""
        new = [dict(r) for r in records if (r["key"], r["sample"]) not in self.answers]
        append_lines(self.path, new)
        for record in new:
            self._take(record)

    def _records(self, request: Request) -> list[dict[str, Any]]:
        """Return the record of each sample: a response, else a failure, else an empty one."""
        places = ((request.key, sample) for sample in range(request.samples))
        return [self.answers.get(place) or self.failures.get(place, {}) for place in places]

    def missing(self, request: Request) -> list[int]:
        """Return the samples of `request` without a response and without a final failure."""
        records = enumerate(self._records(request))
        return [sample for sample, r in records if not ("text" in r or r.get("final"))]

    def lost(self, request: Request) -> list[int]:
        """Return the samples of `request` without a response, the empty ones not counted."""
        return [s for s, r in enumerate(self._records(request)) if not r.keys() & {"text", "empty"}]

    def texts(self, request: Request) -> list[dict[str, Any]]:
        """Return the records of the responses of `request`, in the order of their samples."""
        return [record for record in self._records(request) if "text" in record]

    def responses(self, request: Request) -> list[str]:
        """Return the texts, and "" for each empty one: no candidate, but a (wrong) response."""
        records = self._records(request)
        return [record.get("text", "") for record in records if record.keys() & {"text", "empty"}]

    def failed(self, requests: Iterable[Request]) -> Counter[str]:
        """Count the errors of samples of `requests` that have no response."""
        keys = {request.key for request in requests}
        return Counter(
            str(record.get("error"))
            for (key, _), record in self.failures.items()
            if key in keys and not record.get("empty")
        )


SLOT = "{question}"


class RephraseError(UserError, ValueError):
    """An unusable setting, file or endpoint."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """An instruction with `SLOT` once."""

    text: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def messages(self, question: str) -> list[dict[str, str]]:
        """Return the chat with the question in its slot."""
        return [{"role": "user", "content": self.text.replace(SLOT, question)}]


def load_prompt(name: str) -> Prompt:
    """Return the prompt of that name in prompts.yaml."""
    prompts = yaml.safe_load(Path(__file__).with_name("prompts.yaml").read_text(encoding="utf-8"))
    return Prompt(prompts[name]["text"])


BYTES_PER_TOKEN = 3
SIGNALS = (signal.SIGINT, signal.SIGTERM)
STOP_SECONDS = 30.0  # after a signal, for the requests that are under way


class EndedBySignalError(RephraseError):
    """A signal stopped the run; completed requests are kept."""


class Stage:
    """A model at an endpoint, with its prompt and its stored responses."""

    def __init__(
        self, title: str, folder: Path, endpoint: http.Endpoint, prompt: Prompt, sampling: Sampling
    ) -> None:
        self.title, self.store, self.endpoint = title, Store(folder), endpoint
        self.prompt, self.sampling = prompt, sampling

    def request(self, uid: str, text: str, samples: int) -> Request:
        """Return the request for `samples` responses to the prompt with this text."""
        messages, parameters = self.prompt.messages(text), self.sampling._asdict()
        content = json.dumps([parameters.pop("model"), messages, parameters], sort_keys=True)
        return Request(hashlib.sha256(content.encode()).hexdigest()[:32], uid, messages, samples)

    def estimate(self, request: Request, samples: int) -> Spending:
        """Return what a request for `samples` responses may use at most."""
        size = sum(len(message["content"].encode()) for message in request.messages)
        return Spending(1, size // BYTES_PER_TOKEN + 16, samples * self.sampling.max_tokens)

    def send(self, requests: Iterable[Request], budget: Budget) -> None:
        """Request the missing responses. Raise the cause if the channel is stopped."""
        missing = [request for request in requests if self.store.missing(request)]
        total = sum(len(self.store.missing(request)) for request in missing)
        if missing:
            with Progress(self.title, total, "answers") as self.bar:
                asyncio.run(self._send(missing, budget))

    async def _send(self, requests: Iterable[Request], budget: Budget) -> None:
        self.per_request, queue = self.endpoint.per_request, iter(requests)
        self.recorded = budget.spent  # the part of it that the records have
        self.empty: dict[str, list[str]] = {}  # uids by why a response has no text
        self.workers = list[asyncio.Task[None]]()
        async with http.Channel(self.endpoint, budget) as self.channel:
            for number in SIGNALS:
                with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):
                    asyncio.get_running_loop().add_signal_handler(number, self._stop)
            self.root = await self._served_root()
            async with asyncio.TaskGroup() as group:
                for _ in range(self.endpoint.concurrency):
                    self.workers.append(group.create_task(self._work(queue)))
        for status, uids in self.empty.items():
            print(f"warning: {self.title}: {named(status, uids)}", file=sys.stderr)
        if cause := self.channel.stopped:
            kept = f"{len(self.store.answers)} responses are kept in {self.store.path}"
            raise type(cause)(f"{cause} ({kept})") from cause

    async def _served_root(self) -> dict[str, str]:
        """Return {"root": the folder of the served weights}, or {} if the endpoint has none.

        Raises RephraseError if stored responses of this model's name have another root.
        """
        name, root = self.sampling.model, None
        with contextlib.suppress(http.Failure, EndpointError):  # the list is optional
            root = (await self.channel.models()).get(name, {}).get("root")
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
        loop = asyncio.get_running_loop()
        for worker in self.workers:  # what is under way may still arrive
            loop.call_later(STOP_SECONDS, worker.cancel)
        for number in SIGNALS:  # a second one ends it at once
            loop.remove_signal_handler(number)

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

    async def _ask(
        self, request: Request, samples: list[int], *, alone: bool = False
    ) -> list[dict[str, Any]]:
        """Return a record for each response of one request, after retries; [] if stopped."""
        start, began = time.time(), time.monotonic()
        wanted = self.estimate(request, len(samples))
        body = self.sampling._asdict() | {"messages": request.messages, "n": len(samples)}
        try:
            answer = await self.channel.ask("chat/completions", body, wanted)
        except EndpointError as error:
            self.channel.stop(error)
            return []
        except http.Failure as failure:
            final = failure.status in http.FINAL
            if final and len(samples) > 1:  # n may be unsupported
                return await self._ask(request, samples[:1], alone=True)
            self.channel.count(failure.line)
            lost: dict[str, Any] = {"status": "failed", "final": final, "error": failure.line}
            answers = [lost] * len(samples)
        else:
            choices = http.choices_of(answer)
            if not answer["choices"]:
                choices *= len(samples)
            elif alone or len(choices) < len(samples):  # fewer than requested
                self.per_request = 1
            answers = [_taken(choice, answer.get("model")) for choice in choices]
            lacking = "" if any("text" in a for a in answers) else answers[0]["error"]
            self.channel.count(lacking, f"{lacking}. Raise --answer-tokens")
        for record in answers:
            if status := record.get("empty"):
                self.empty.setdefault(status, []).append(request.uid)
        source = {"key": request.key, "uid": request.uid, "prompt": self.prompt.sha256}
        timing = {"time": round(start, 3), "seconds": round(time.monotonic() - began, 3)}
        common = {**source, **timing, **self.sampling._asdict(), **self.root}
        pairs = zip(samples, answers, strict=False)
        records = [common | {"sample": sample} | answer for sample, answer in pairs]
        spent = self.channel.budget.spent
        used, self.recorded = spent.plus(self.recorded, -1), spent
        records[0]["used"] = list(used)
        return records


def _taken(choice: tuple[str, str, str], model: str | None) -> dict[str, Any]:
    """Return the record of one choice; an empty text is a final failure, not retried."""
    text, finish, missing = choice
    if text.strip():
        return {"status": "answer", "text": text, "finish": finish, "answered_by": model}
    return {
        "status": "failed",
        "final": True,
        "empty": missing,
        "error": f"an empty text ({finish})",
    }
