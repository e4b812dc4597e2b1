"""Evaluate one checkpoint on one benchmark: sample what is missing, grade, score.

A work item is a (checkpoint, benchmark) pair. A worker locks the item's folder; other workers skip
it, and the lock of a dead worker is free. A killed evaluation resumes and ends with the same files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eval import EvaluationError
from eval.benchmarks import LoadedBenchmark
from eval.checkpoints import Checkpoint
from eval.endpoint import Server
from eval.samples import TOO_LONG, PendingSamples, SampleFiles
from eval.score import combine, score_benchmark
from eval.session import Session, signature
from eval.settings import Settings, benchmark_identity, differences, folder_name, shared_identity
from prompt_aug.base.files import FileError, lock, read_json, write_json, write_lines
from prompt_aug.grading import VERSION
from prompt_aug.prompts import Prompts
from prompt_aug.questions import to_row
from prompt_aug.templates import Bank, Template
from prompt_aug.verifiers import verifier_row, verifiers_of
from recipe.run.folder import BenchmarkFolder, EvaluationFolder


@dataclass(frozen=True)
class Item:
    """A work item: a checkpoint on a benchmark, asked with `template`, and its files."""

    checkpoint: Checkpoint
    benchmark: LoadedBenchmark
    evaluation: EvaluationFolder
    template: Template
    identity: Mapping[str, Any]  # the settings of its scores, apart from the model and the grader

    @property
    def once(self) -> dict[str, Any]:
        """The settings of its scores if repeated greedy responses are equal."""
        return {**self.identity, "samples": 1, "samples_requested": self.benchmark.samples}

    @property
    def folder(self) -> BenchmarkFolder:
        return self.evaluation.benchmark(self.benchmark.name)

    @property
    def name(self) -> str:
        return f"{self.checkpoint.name} {self.benchmark.name}"

    def is_done(self) -> bool:
        """Return True if this grader has scored these questions, samples and weights."""
        try:
            entry = read_json(self.folder.scores)
            return (
                (entry["model"], entry["grader"]) == (self.checkpoint.identity, VERSION)
                and entry["settings"] in (self.identity, self.once)
                and self.benchmark.name in read_json(self.evaluation.scores)["benchmarks"]
            )
        except (FileError, KeyError):
            return False


class Evaluation:
    """One set of settings over some benchmarks, for any number of checkpoints.

    `root` holds a folder per set of settings. `prompts` renders every question.
    """

    def __init__(
        self, root: Path, settings: Settings, benchmarks: Sequence[LoadedBenchmark]
    ) -> None:
        self.settings, self.benchmarks = settings, benchmarks
        self.prompts = settings.prompts()
        names = [settings.template, *(b.template for b in benchmarks if b.template)]
        self.templates = [self.prompts.bank[name] for name in names]
        self.identity = shared_identity(settings, self.templates[0])
        self.folder = root / folder_name(self.identity)
        self._longest: dict[str, int] = {}
        self.known = verifiers_of(settings.verifiers, settings.verifier_limits)
        self.verifiers = {
            b.name: self.known.record({q.source for q in b.questions}) for b in benchmarks
        }

    def items(self, checkpoint: Checkpoint) -> list[Item]:
        """Return the work items of one checkpoint, done or not."""
        folder = EvaluationFolder(self.folder / checkpoint.name)
        items = []
        for benchmark in self.benchmarks:
            template = self.prompts.bank[benchmark.template or self.settings.template]
            verifiers, extraction = self.verifiers[benchmark.name], self.settings.extraction
            identity = benchmark_identity(benchmark, template, extraction, verifiers)
            items.append(Item(checkpoint, benchmark, folder, template, identity))
        return items

    def plan(self, tokenizer: Any) -> str:
        lines = [f"{key}: {value}" for key, value in self.identity.items()]
        for benchmark in self.benchmarks:
            prompt = PendingSamples(benchmark, self.prompts, tokenizer).prompts[0]
            lines.append(
                f"{benchmark.name}: {len(benchmark.questions)} questions x {benchmark.samples}, "
                f"extraction {self.settings.extraction}, first prompt:\n{prompt.shown()}"
            )
        return "\n".join(lines)

    def prepare(self) -> None:
        """Load the verifiers; write settings.json and prompts.yaml with all sweeps' templates."""
        if any(self.verifiers.values()):
            self.known.load()
        folder = EvaluationFolder(self.folder / "any")
        written = read_json(folder.settings) if folder.settings.exists() else self.identity
        if changed := differences(written, self.identity):
            raise EvaluationError(f"{folder.settings} was changed: {'; '.join(changed)}")
        known = Prompts.read(folder.prompts).bank if folder.prompts.exists() else {}
        used = {template.name: template for template in [*known.values(), *self.templates]}
        if used != dict(known):
            replace(self.prompts, bank=Bank(list(used.values()))).write(folder.prompts)
        if not folder.settings.exists():
            write_json(folder.settings, self.identity)

    def run(self, item: Item, session: Session | Server) -> dict[str, Any]:
        """Complete `item` and return the scores of its checkpoint.

        Raises InUseError if another worker holds the item.
        """
        checkpoint, folder = item.checkpoint, item.folder
        with lock(folder.root):
            if not item.is_done():
                tokenizer = session.tokenizer(checkpoint)
                pending = PendingSamples(item.benchmark, self.prompts, tokenizer)
                kind = signature(checkpoint.model, tokenizer)
                context = self._context(checkpoint, kind, tokenizer)
                write_lines(folder.questions, self._questions(item, pending, context))
                files = SampleFiles(folder, checkpoint.identity)

                def complete(counts: Sequence[int]) -> None:
                    if requests := pending.requests(context, files.load(), counts):
                        probes = [prompt.ids for prompt in pending.prompts]
                        engine = session.engine_for(checkpoint, kind, context, probes)
                        pending.generate(engine, requests, files)

                settings = item.identity
                if self.settings.greedy and pending.repeat():
                    complete(pending.repeat())
                    if pending.repeats_are_equal(files.load()):
                        settings = item.once
                if settings is item.identity:
                    complete([item.benchmark.samples] * len(pending.prompts))
                record = {"settings": settings, "path": item.benchmark.path}
                score_benchmark(folder, checkpoint.identity, item.template, **record)
            return combine(item.evaluation, checkpoint.step, checkpoint.model, checkpoint.identity)

    def _questions(self, item: Item, pending: PendingSamples, context: int) -> list[dict[str, Any]]:
        """Return the lines of questions.jsonl; those of a verifier's data source have their row."""
        questions = pending.questions(context)
        functions = self.verifiers[item.benchmark.name].get("functions", ())
        for line, question in zip(questions, item.benchmark.questions, strict=True):
            if question.source in functions:
                line["row"] = verifier_row(to_row(question))
        unasked = sum(not question["asked"] for question in questions)
        count, name = len(questions), item.benchmark.name
        if unasked == count:
            raise EvaluationError(
                f"no question of {name} fits into the context of {context} tokens: raise "
                "max_model_len or use a model with a longer context"
            )
        if unasked:
            print(
                f"warning: {unasked} of {count} questions of {name} do not fit into the "
                f"context of {context} tokens and count as wrong ({TOO_LONG})"
            )
        return questions

    def _context(self, checkpoint: Checkpoint, kind: str, tokenizer: Any) -> int:
        """Return max_model_len, or the longest prompt of all benchmarks plus max_tokens.

        One engine then serves them all. The model's own context length is the upper limit.
        """
        limit, asked = _positions(checkpoint), self.settings.max_model_len
        if asked is not None and limit is not None and asked > limit:
            raise EvaluationError(
                f"max_model_len {asked} is more than the {limit} positions of {checkpoint.model}"
            )
        if asked is not None:
            return asked
        if kind not in self._longest:
            pending = [PendingSamples(b, self.prompts, tokenizer) for b in self.benchmarks]
            self._longest[kind] = max(len(prompt.ids) for p in pending for prompt in p.prompts)
        needed = self._longest[kind] + self.settings.max_tokens
        return min(needed, limit or needed)


def _positions(checkpoint: Checkpoint) -> int | None:
    """Return the model's context, as the endpoint or the model's configuration states it."""
    if "endpoint" in checkpoint.identity:
        return checkpoint.positions
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(checkpoint.model, trust_remote_code=False).get_text_config()
    return getattr(config, "max_position_embeddings", None)
