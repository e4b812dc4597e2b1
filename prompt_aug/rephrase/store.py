"""Raw responses in an append-only file, found again by request hash and sample index:

    {"key", "sample", "status": "answer", "text", "finish", ...}
    {"key", "sample", "status": "failed", "error", "final", ...}

A `final` failure (the server refuses the request) is retried only by the next run. An empty text
is never retried.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from prompt_aug.base.files import append_lines, iter_lines
from prompt_aug.endpoint.budget import Spending


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
