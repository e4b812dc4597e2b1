"""Responses on disk while an evaluation runs: a part file that a killed run continues.

``<benchmark>.jsonl.part`` opens with a line that says what was asked, then holds one line per
sample. It is removed only after scores.json stands.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from eval.benchmarks import LoadedBenchmark
from eval.engine import Completion, Engine, Request
from eval.errors import EvaluationError
from prompt_aug.files import append_lines, read_lines, write_lines
from prompt_aug.prompts import Prompts
from prompt_aug.templates import Rendered

TOO_LONG = "prompt_too_long"
SampleKey = tuple[int, int]


class PartFile:
    """The samples generated so far for one benchmark and one checkpoint."""

    def __init__(self, path: Path, identity: dict[str, Any]) -> None:
        self.path, self.identity = path, identity

    def load(self) -> dict[SampleKey, dict[str, Any]]:
        """Samples by (question, sample). Those of other settings are dropped, with a note."""
        lines = read_lines(self.path)
        if lines and lines[0] == self.identity:
            return {(line["question"], line["sample"]): line for line in lines[1:]}
        if lines:
            print(f"note: {self.path} was made with other settings; its samples are dropped")
        write_lines(self.path, [self.identity])
        return {}

    def append(self, samples: Sequence[dict[str, Any]]) -> None:
        """Add samples; on return they are on the disk."""
        append_lines(self.path, samples, sync=True)


class PendingSamples:
    """One benchmark under one template and tokenizer: its prompts, and the samples still to make.

    Lengths are tokens. A prompt that leaves no room for a single token of response within the
    model's context cannot be asked; its samples count as wrong, with a status of their own, so
    that the denominator stays what it is.
    """

    def __init__(
        self, benchmark: LoadedBenchmark, prompts: Prompts, tokenizer: Any, part: PartFile
    ) -> None:
        self.benchmark, self.part = benchmark, part
        self.template = prompts.validation_template
        self.rendered: list[Rendered] = []
        self.token_ids: list[tuple[int, ...]] = []
        for question in benchmark.questions:
            try:
                prompt = prompts.render(self.template, question.text, tokenizer)
            except ValueError as error:
                raise EvaluationError(
                    f"{benchmark.name}: question {question.uid} cannot be rendered: {error}"
                ) from error
            self.rendered.append(prompt.rendered)
            self.token_ids.append(prompt.ids)
        self.samples = part.load()

    @property
    def longest_prompt(self) -> int:
        return max(len(ids) for ids in self.token_ids)

    def pending(self, context: int) -> list[Request]:
        """The samples that can be made and are not made yet, in question order."""
        return [
            Request(
                question=index,
                sample=sample,
                uid=self.benchmark.questions[index].uid,
                prompt_token_ids=ids,
                stop=tuple(self.rendered[index].stop),
            )
            for index, ids in enumerate(self.token_ids)
            for sample in range(self.benchmark.samples)
            if len(ids) < context and (index, sample) not in self.samples
        ]

    def complete(self, engine: Engine, requests: Sequence[Request], chunk: int) -> None:
        """Generate `requests`, `chunk` at a time, each chunk safe on disk before the next."""
        with tqdm(
            total=len(requests), desc=f"generate {self.benchmark.name}", unit="sample"
        ) as bar:
            for start in range(0, len(requests), chunk):
                part = requests[start : start + chunk]
                completions = engine.generate(part)
                if len(completions) != len(part):
                    raise EvaluationError(
                        f"{len(part)} prompts gave {len(completions)} completions"
                    )
                records = [
                    self._record(request.question, request.sample, completion)
                    for request, completion in zip(part, completions, strict=True)
                ]
                self.part.append(records)
                self.samples |= {(r["question"], r["sample"]): r for r in records}
                bar.update(len(part))

    def lines(self) -> Iterator[dict[str, Any]]:
        """Every sample in order, those that could not be asked included."""
        for index in range(len(self.benchmark.questions)):
            for sample in range(self.benchmark.samples):
                made = self.samples.get((index, sample))
                unasked = Completion(text="", tokens=0, finish_reason=TOO_LONG)
                yield made or self._record(index, sample, unasked)

    def _record(self, index: int, sample: int, completion: Completion) -> dict[str, Any]:
        question, rendered = self.benchmark.questions[index], self.rendered[index]
        return {
            "uid": question.uid,
            "question": index,
            "sample": sample,
            "template": self.template,
            "prompt": rendered.text,
            "response": completion.text,
            "gold": list(question.answers),
            "tokens": completion.tokens,
            "prompt_tokens": len(self.token_ids[index]),
            "finish_reason": completion.finish_reason,
        }
