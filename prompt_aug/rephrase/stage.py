"""Requests for responses, and the store that keeps them by request hash and sample index:

    {"key", "sample", "text", "finish", ...}
    {"key", "sample", "error", "final", ...}

The next run requests failed samples again. An empty text is an answer, never requested again.
"""

import asyncio
import contextlib
import hashlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from prompt_aug.base.files import append_lines
from prompt_aug.base.progress import Progress
from prompt_aug.endpoint import Budget, EndpointError, Spending, named
from prompt_aug.endpoint import client as http
from prompt_aug.typed import Count, typed_lines


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
        self.failures: dict[tuple[str, int], dict[str, Any]] = {}  # of this run
        self.requested = Counter[str]()  # key -> how many samples were answered
        self.spent = Spending()
        texts = dict.fromkeys(("key", "text", "error", "root"), str)
        types = {"sample": Count, "used": list[Count]}
        for record in typed_lines(self.path, "key", "sample", **types, **texts):
            self._take(record)
        self.failures.clear()

    def _take(self, record: dict[str, Any]) -> None:
        key, sample = record["key"], record["sample"]
        if "text" in record:
            self.answers[key, sample] = record
            self.failures.pop((key, sample), None)
            self.requested[key] = max(self.requested[key], sample + 1)
        else:
            self.failures[key, sample] = record
        self.spent = self.spent.plus(Spending(*record.get("used", ())[:3]))

    def add(self, records: list[dict[str, Any]]) -> None:
        """Append the records."""
        append_lines(self.path, records)
        for record in records:
            self._take(record)

    def lost(self, request: Request) -> list[int]:
        """Return the samples of `request` without an answer."""
        return [s for s in range(request.samples) if (request.key, s) not in self.answers]

    def missing(self, request: Request) -> list[int]:
        """Return the `lost` samples that this run may request: the server did not refuse them."""
        failed = self.failures
        return [s for s in self.lost(request) if not failed.get((request.key, s), {}).get("final")]

    def answered(self, request: Request) -> list[dict[str, Any]]:
        """Return the records in the order of their samples; an empty text is a (wrong) response."""
        places = ((request.key, sample) for sample in range(request.samples))
        return [self.answers[place] for place in places if place in self.answers]

    def failed(self, requests: Iterable[Request]) -> Counter[str]:
        """Count the errors of samples of `requests` that have no answer."""
        keys = {request.key for request in requests}
        return Counter(str(r["error"]) for (key, _), r in self.failures.items() if key in keys)


SLOT = "{question}"  # occurs once in each prompt
PROMPTS = yaml.safe_load(Path(__file__).with_name("prompts.yaml").read_text(encoding="utf-8"))
BYTES_PER_TOKEN = 3
KNOWN = ("stop", "length", "content_filter")  # finish reasons
RENAMED = "max_completion_tokens"  # of OpenAI's reasoning models, which refuse max_tokens


class Stage:
    """A model at an endpoint, with its prompt and its stored responses."""

    def __init__(
        self, title: str, folder: Path, endpoint: http.Endpoint, prompt: str, sampling: Sampling
    ) -> None:
        self.title, self.store, self.endpoint = title, Store(folder), endpoint
        self.prompt, self.sampling = prompt, sampling
        self.prompt_sha256 = hashlib.sha256(prompt.encode()).hexdigest()

    def request(self, uid: str, text: str, samples: int) -> Request:
        """Return the request for `samples` responses to the prompt with this text."""
        messages = [{"role": "user", "content": self.prompt.replace(SLOT, text)}]
        parameters = self.sampling._asdict()
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
        self.limit, self.whole = "max_tokens", False  # has a text arrived whole?
        self.without = set[str]()  # parameters at their default that the endpoint refuses
        self.recorded = budget.spent  # the part of it that the records have
        self.empty: dict[str, list[str]] = {}  # uids by why a response has no text
        async with http.Channel(self.endpoint, budget) as self.channel:
            self.root = await self._served_root()
            async with asyncio.TaskGroup() as group:
                for _ in range(self.endpoint.concurrency):
                    group.create_task(self._work(queue))
        for status, uids in self.empty.items():
            print(f"warning: {self.title}: {named(status, uids)}", file=sys.stderr)
        if cause := self.channel.stopped:
            kept = f"{len(self.store.answers)} responses are kept in {self.store.path}"
            raise type(cause)(f"{cause} ({kept})") from cause

    async def _served_root(self) -> dict[str, str]:
        """Return {"root": the folder of the served weights}, or {} if the endpoint names none.

        Raises EndpointError if stored responses of this model's name have another root.
        """
        model, root = self.sampling.model, None
        with contextlib.suppress(http.Failure, EndpointError):  # the list is optional
            root = (await self.channel.models()).get(model, {}).get("root")
        if not isinstance(root, str):
            return {}
        records = [r for r in self.store.answers.values() if r.get("model") == model]
        if others := sorted({r.get("root", root) for r in records} - {root}):
            raise EndpointError(
                f"model={model}: {self.store.path} has responses of {others[0]}, and the endpoint "
                f"serves {root}. Choose another OUT."
            )
        return {"root": root}

    async def _work(self, queue: Iterator[Request]) -> None:
        for request in queue:
            missing = self.store.missing(request)
            while missing and not self.channel.stopped:
                records = await self._ask(request, missing[: self.per_request])
                self.store.add(records)
                self.bar.note = str(self.channel.budget.spent)
                self.bar.update(sum("text" in record for record in records))
                if not any("text" in record or record["final"] for record in records):
                    break
                missing = self.store.missing(request)

    def _body(self, request: Request, samples: list[int]) -> dict[str, Any]:
        """Return the JSON of a request for `samples`, with what this endpoint takes."""
        body = self.sampling._asdict() | {"messages": request.messages, "n": len(samples)}
        body[self.limit] = body.pop("max_tokens")
        if len(samples) == 1:  # some servers cache replies, or begin with the same seed
            body["seed"] = samples[0]
        return {name: value for name, value in body.items() if name not in self.without}

    def _adapted(self, body: Mapping[str, Any], line: str) -> bool:
        """Return whether a refusal names what the next request can have otherwise, as it then has.

        A parameter other than the seed is left out only at 1, the API's default.
        """
        if "max_tokens" in body and f"'{RENAMED}' instead" in line:
            self.limit = RENAMED
            return True
        refused = re.search(r"support|cannot|both|allowed", line)
        given = [name for name in ("top_p", "temperature") if refused and body.get(name) == 1]
        named = {name for name in (*given, "seed") if name in body and name in line}
        self.without = self.without | {*sorted(named)[-1:]}  # of both at once, top_p
        return bool(named)

    def _read(
        self, request: Request, choices: list[tuple[str, str, str]], answer: dict[str, Any]
    ) -> list[dict[str, Any]]:
        """Return a record for each choice; count those without a whole text."""
        answers = list[dict[str, Any]]()
        for text, finish, missing in choices:
            text = text if text.strip() else ""
            answers.append({"text": text, "finish": finish, "answered_by": answer.get("model")})
            if missing == "only_reasoning":  # the next run may find the server corrected
                answers[-1] = {"final": False, "error": missing}
            if not text:
                self.empty.setdefault(missing, []).append(request.uid)
        texts, first = [text for text, _, _ in choices if text.strip()], choices[0][1]
        lacking = "" if texts else f"an empty text ({first})"
        cut = all(finish == "length" for _, finish, _ in choices)
        self.whole |= any(text.strip() and finish == "stop" for text, finish, _ in choices)
        if texts and not self.whole and first not in KNOWN:
            line = f"finish_reason={first}: unknown, so texts may be cut off. Use another endpoint."
            self.channel.stop(EndpointError(line))
            return [{"final": False, "error": line}] * len(choices)
        if cut:  # of hard questions some are, and they arrive together
            lacking = "" if self.whole else lacking or "a text that is cut off"
        remedy = "If it is in reasoning_content, correct the server's reasoning parser"
        remedy = remedy if first == "stop" else "Raise --answer-tokens"
        line = str(answer.get("error") or f"{lacking}. {remedy}")
        self.channel.count(lacking, line)
        return answers

    async def _ask(
        self, request: Request, samples: list[int], *, alone: bool = False
    ) -> list[dict[str, Any]]:
        """Return a record for each response of one request, after retries; [] if stopped."""
        answers: list[dict[str, Any]]
        asked = samples[:1] if alone else samples
        wanted, body = self.estimate(request, len(asked)), self._body(request, asked)
        try:
            answer = await self.channel.ask("chat/completions", body, wanted)
        except EndpointError as error:
            self.channel.stop(error)
            return []
        except http.Failure as failure:
            final = failure.status in http.FINAL
            before = self.without
            if final and self._adapted(body, failure.line):
                answers = await self._ask(request, samples, alone=alone)
                if all("error" in answer for answer in answers):  # that was not the reason
                    self.without = before
                return answers
            if (final or failure.status >= 500) and len(asked) > 1:  # n may be unsupported
                return await self._ask(request, asked[:1] if final else asked, alone=True)
            self.channel.count(failure.line)
            answers = [{"final": final, "error": failure.line}] * len(samples)
        else:
            choices = http.choices_of(answer)
            if not answer["choices"]:
                choices *= len(samples)
            elif alone or len(choices) < len(samples):  # fewer than requested
                self.per_request = 1
            answers = self._read(request, choices, answer)
        source = {"key": request.key, "uid": request.uid, "prompt": self.prompt_sha256}
        common = {**source, **self.sampling._asdict(), **self.root}
        pairs = zip(samples, answers, strict=False)
        records = [common | {"sample": sample} | answer for sample, answer in pairs]
        spent = self.channel.budget.spent
        used, self.recorded = spent.plus(self.recorded, -1), spent
        records[0]["used"] = list(used)
        return records
