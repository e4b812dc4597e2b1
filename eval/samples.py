"""Samples on disk: append-only, a file per worker; and the prompts that are still to be sampled.

A sample belongs to (question, number of the sample): its seed depends on nothing else, so asking
for 8 samples after 4 makes only the missing 4. Nothing is ever taken out of a file. The first line
of a file says which model and which engine made what follows; samples of other weights stay where
they are and are not read.
"""

import hashlib
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from eval.benchmarks import LoadedBenchmark
from eval.engine import Completion, Engine, Request
from eval.errors import EvaluationError
from prompt_aug.base.files import append_lines, iter_lines
from prompt_aug.base.progress import Progress
from prompt_aug.prompts import Prompt, Prompts
from recipe.run.folder import BenchmarkFolder

TOO_LONG = "prompt_too_long"
FLUSH_SAMPLES, FLUSH_SECONDS = 256, 2.0  # what a kill costs at most
SampleKey = tuple[str, str, int]  # uid, digest of the prompt, number
Sample = Mapping[str, Any]
Pair = tuple[Request, Completion]


def prompt_digest(text: str) -> str:
    """Tells two prompts of one uid apart, whose questions differ in white space only."""
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def worker_name() -> str:
    """A name that no other process has or had."""
    return f"{socket.gethostname()}-{os.getpid()}-{time.time_ns():x}"


class SampleFiles:
    """The samples of one benchmark, made by the model of `identity`."""

    def __init__(self, folder: BenchmarkFolder, identity: Mapping[str, Any]) -> None:
        self._folder, self._identity = folder, dict(identity)
        self._mine = folder.samples(worker_name())

    def load(self) -> dict[SampleKey, Sample]:
        """Every sample of this model. Of two that were made for one key the first file's counts."""
        found: dict[SampleKey, Sample] = {}
        for path in self._folder.sample_files():
            lines = iter_lines(path)
            if next(lines, {}).get("model") != self._identity:
                continue
            for line in lines:
                found.setdefault((line["uid"], line["prompt_sha256"], line["sample"]), line)
        return found

    def append(self, samples: Iterable[Sample], engine: Mapping[str, Any]) -> None:
        """Add samples to this worker's file; on return they are on the disk."""
        head = [] if self._mine.exists() else [{"model": self._identity, "engine": dict(engine)}]
        append_lines(self._mine, [*head, *map(dict, samples)], sync=True)


class PendingSamples:
    """The prompts of one benchmark under one record of prompts and one tokenizer.

    Lengths are tokens. A prompt that leaves no room for a single token of response within the
    model's context cannot be asked; its samples count as wrong, with a status of their own, so
    that the denominator stays what it is.
    """

    def __init__(self, benchmark: LoadedBenchmark, prompts: Prompts, tokenizer: Any) -> None:
        self.benchmark = benchmark
        self.template = benchmark.template or prompts.validation_template
        self.prompts: list[Prompt] = []
        for question in benchmark.questions:
            try:
                text, system = question.text, question.system
                self.prompts.append(prompts.render(self.template, text, tokenizer, system))
            except ValueError as error:
                raise EvaluationError(
                    f"{benchmark.name}: question {question.uid} cannot be rendered: {error}"
                ) from error

    @property
    def longest_prompt(self) -> int:
        return max(len(prompt.ids) for prompt in self.prompts)

    def key(self, question: int, sample: int) -> SampleKey:
        """Under which key the sample of the question at this place is stored."""
        text = self.prompts[question].rendered.text
        return self.benchmark.questions[question].uid, prompt_digest(text), sample

    def questions(self, context: int) -> list[dict[str, Any]]:
        """The lines of questions.jsonl: all that grading and scoring need, without an engine."""
        return [
            {
                "uid": question.uid,
                "prompt_sha256": prompt_digest(prompt.rendered.text),
                "question": question.text,
                "gold": list(question.answers),
                "options": list(question.options),
                "level": question.level,
                "template": self.template,
                "prompt": prompt.rendered.text,
                "prompt_tokens": len(prompt.ids),
                "asked": len(prompt.ids) < context,
            }
            for question, prompt in zip(self.benchmark.questions, self.prompts, strict=True)
        ]

    def requests(self, context: int, made: Mapping[SampleKey, Sample]) -> list[Request]:
        """The samples that can be made and are not made yet, in question order, each once."""
        wanted: dict[SampleKey, Request] = {}
        for index, prompt in enumerate(self.prompts):
            for sample in range(self.benchmark.samples if len(prompt.ids) < context else 0):
                if (key := self.key(index, sample)) not in made:
                    request = Request(
                        question=index,
                        sample=sample,
                        uid=key[0],
                        prompt_token_ids=prompt.ids,
                        stop=tuple(prompt.rendered.stop),
                    )
                    wanted.setdefault(key, request)
        return list(wanted.values())

    def generate(self, engine: Engine, requests: Sequence[Request], files: SampleFiles) -> None:
        """Sample `requests`; what is done is on the disk a moment later, in any order."""
        facts, done = engine.facts(), 0
        title = f"generate {self.benchmark.name}"
        with Progress(title, len(requests), "samples") as bar:
            for batch in _batches(engine.stream(requests)):
                files.append((self._record(*pair) for pair in batch), facts)
                done += len(batch)
                bar.update(len(batch))
        if done != len(requests):
            raise EvaluationError(f"{len(requests)} prompts gave {done} completions")

    def _record(self, request: Request, completion: Completion) -> dict[str, Any]:
        uid, digest, sample = self.key(request.question, request.sample)
        return {
            "uid": uid,
            "prompt_sha256": digest,
            "sample": sample,
            "response": completion.text,
            "tokens": completion.tokens,
            "finish_reason": completion.finish_reason,
        }


def _batches(items: Iterator[Pair]) -> Iterator[list[Pair]]:
    """Lists of items, each given out soon after its first item came; also before an error."""
    batch: list[Pair] = []
    began = time.monotonic()
    try:
        for item in items:
            batch.append(item)
            if len(batch) >= FLUSH_SAMPLES or time.monotonic() - began > FLUSH_SECONDS:
                whole, batch, began = batch, [], time.monotonic()
                yield whole
    except BaseException:
        if batch:
            yield batch
        raise
    if batch:
        yield batch
