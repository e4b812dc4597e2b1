"""The batch files of a hosted endpoint: half the price, answers within a day.

    python -m prompt_aug.rephrase ... --batch submit     # writes nothing but what was submitted
    python -m prompt_aug.rephrase ... --batch collect    # takes what is there; says what is left

A batch holds one line for each request, named ``key.first_sample.count``. What was submitted
stands in `batches.jsonl`, so that nothing is submitted twice while its batch is under way (only a
kill between the two leaves a batch that is not known). Collecting takes the answers of completed
batches and of those that expired or were cancelled in part; what they lack is submitted again by
the next `--batch submit`, and only that.
"""

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import openai

from prompt_aug.files import append_lines, iter_lines
from prompt_aug.rephrase.generate.budget import Budget, BudgetError, Spending, estimate
from prompt_aug.rephrase.generate.store import Request, Store

BATCHES = "batches.jsonl"
MOST_LINES, MOST_BYTES = 50_000, 150 * 2**20  # of one batch; the hosted limit is 200 MB
OPEN = ("validating", "in_progress", "finalizing", "cancelling")
ENDPOINT: Literal["/v1/chat/completions"] = "/v1/chat/completions"


class Batches:
    """The batches of a folder of answers."""

    def __init__(self, folder: Path, client: openai.OpenAI, store: Store) -> None:
        self.path, self.client, self.store = folder / BATCHES, client, store
        self.batches: dict[str, dict[str, Any]] = {}
        for record in iter_lines(self.path):
            self.batches[record["id"]] = self.batches.get(record["id"], {}) | record

    def under_way(self) -> set[tuple[str, int]]:
        """The samples that a batch not yet collected was asked for."""
        return {
            (key, sample)
            for batch in self.batches.values()
            if not batch.get("collected")
            for name in batch["names"]
            for key, sample in _samples(name)
        }

    def submit(self, requests: Sequence[Request], budget: Budget, per_request: int) -> int:
        """Submit what neither the store nor a batch has; the number of lines.

        Raises BudgetError, and submits nothing, if all of it together may break a limit.
        """
        busy = self.under_way()
        lines = [
            line
            for request in requests
            for line in _lines(request, self.store.missing(request), busy, per_request)
        ]
        wanted = sum((spending for _, _, spending in lines), Spending())
        if limit := budget.over(budget.spent + wanted):
            raise BudgetError(f"{limit} would be passed by {len(lines)} requests of batches")
        for part in _parts([(name, body) for name, body, _ in lines]):
            content = "".join(json.dumps(body) + "\n" for _, body in part)
            file = self.client.files.create(
                file=("requests.jsonl", io.BytesIO(content.encode())), purpose="batch"
            )
            batch = self.client.batches.create(
                input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h"
            )
            record = {"id": batch.id, "names": [name for name, _ in part]}
            append_lines(self.path, [record], sync=True)
            self.batches[batch.id] = record
        return len(lines)

    def collect(self, requests: Sequence[Request]) -> dict[str, int]:
        """Take the answers that are there; how many batches have which status."""
        known = {request.key: request for request in requests}
        statuses: dict[str, int] = {}
        for batch in list(self.batches.values()):
            if batch.get("collected"):
                continue
            found = self.client.batches.retrieve(batch["id"])
            statuses[found.status] = statuses.get(found.status, 0) + 1
            if found.status in OPEN:
                continue
            for file in (found.output_file_id, found.error_file_id):
                if file:
                    self._take(self.client.files.content(file).text, known)
            batch["collected"] = True
            append_lines(self.path, [{"id": batch["id"], "collected": True}])
        return statuses

    def _take(self, content: str, known: dict[str, Request]) -> None:
        """The records of one file of answers; a line that is none is left out, and asked again."""
        for line in content.splitlines():
            try:
                entry = json.loads(line)
                name, response = str(entry["custom_id"]), entry.get("response") or {}
                body = response.get("body") or {}
                samples = _samples(name)
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                continue
            request = known.get(samples[0][0]) if samples else None
            if request is not None:
                self.store.add(_records(request, samples, response.get("status_code"), body))


def _lines(
    request: Request, missing: list[int], busy: set[tuple[str, int]], per_request: int
) -> Iterator[tuple[str, dict[str, Any], Spending]]:
    """(name, line, what it may use) for runs of samples in a row."""
    left = [sample for sample in missing if (request.key, sample) not in busy]
    while left:
        run = [s for i, s in enumerate(left[:per_request]) if s == left[0] + i]
        left = left[len(run) :]
        name, sampling = f"{request.key}.{run[0]}.{len(run)}", request.sampling
        body = {
            "model": sampling.model,
            "messages": request.messages,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "n": len(run),
        }
        line = {"custom_id": name, "method": "POST", "url": ENDPOINT, "body": body}
        yield name, line, estimate(request.messages, len(run), sampling.max_tokens)


def _samples(name: str) -> list[tuple[str, int]]:
    """(key, sample) of a line's name; ValueError for another name."""
    key, first, count = name.split(".")
    return [(key, int(first) + i) for i in range(int(count))]


def _parts(
    lines: Sequence[tuple[str, dict[str, Any]]],
) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """The lines in batches of an allowed size."""
    part: list[tuple[str, dict[str, Any]]] = []
    size = 0
    for line in lines:
        length = len(json.dumps(line[1])) + 1
        if part and (len(part) == MOST_LINES or size + length > MOST_BYTES):
            yield part
            part, size = [], 0
        part.append(line)
        size += length
    if part:
        yield part


def _records(
    request: Request, samples: list[tuple[str, int]], status: Any, body: dict[str, Any]
) -> list[dict[str, Any]]:
    """A record for each choice of one answer, or a failure; one that expired leaves none."""
    sampling = request.sampling
    base = {"key": request.key, "uid": request.uid, "model": sampling.model, "batch": True}
    base |= {"temperature": sampling.temperature, "top_p": sampling.top_p}
    base |= {"max_tokens": sampling.max_tokens, "prompt": request.prompt}
    if status != 200:
        if status not in (400, 413, 422):
            return []
        error = str(body.get("error"))[:500]
        failed = {"status": "failed", "final": True, "error": error}
        return [base | {"sample": sample} | failed for _, sample in samples]
    usage = body.get("usage") or {}
    used = [1, int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)]
    records = []
    for (_, sample), choice in zip(samples, body.get("choices") or [], strict=False):
        text = (choice.get("message") or {}).get("content")
        record = base | {"sample": sample, "answered_by": body.get("model")}
        if isinstance(text, str) and text.strip():
            record |= {"status": "answer", "text": text, "finish": choice.get("finish_reason")}
        else:
            record |= {"status": "failed", "final": True, "error": "an empty text", "empty": True}
        records.append(record)
    if records:
        records[0]["used"] = used
    return records
