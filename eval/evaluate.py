"""Evaluate one checkpoint on one benchmark: sample what is missing, grade, score.

A worker locks the folder of an item; other workers skip it, and the lock of a dead worker is free.
A killed evaluation resumes and ends with the same files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eval.ask.benchmarks import LoadedBenchmark
from eval.ask.checkpoints import LARGE, Checkpoint, verify
from eval.ask.endpoint import Server
from eval.ask.questions import Questions
from eval.ask.samples import SampleFiles, check_owner
from eval.ask.session import Session
from eval.ask.settings import Settings, benchmark_identity, folder_name, shared_identity
from eval.scores.score import combine, read_entry, score_benchmark
from prompt_aug.base.files import InUseError, lock, write_json, write_lines
from prompt_aug.prompts import Prompts
from prompt_aug.templates import Bank
from prompt_aug.verifiers import verifiers_of
from recipe.run.folder import EvaluationFolder


class Evaluation:
    """One set of settings over some benchmarks, for any number of checkpoints.

    `root` holds a folder per set of settings.
    """

    def __init__(
        self, root: Path, settings: Settings, benchmarks: Sequence[LoadedBenchmark]
    ) -> None:
        self.settings, self.benchmarks = settings, benchmarks
        self.questions = Questions(settings, benchmarks)
        template = self.questions.prompts.bank[settings.template]
        self.templates = [template, *map(self.questions.template, benchmarks)]
        self.identity = shared_identity(settings, template)
        self.folder = root / folder_name(self.identity)
        self.functions = verifiers_of(settings.verifiers, settings.verifier_limits)
        self.verifiers = {
            b.name: self.functions.record({q.source for q in b.questions}) for b in benchmarks
        }

    def items(self, checkpoints: Sequence[Checkpoint]) -> list["Item"]:
        """Return the items, done or not. Raises UserError for a wrong model or folder."""
        for checkpoint in checkpoints:
            verify(checkpoint, most=LARGE)
        return [Item(self, c, benchmark) for c in checkpoints for benchmark in self.benchmarks]

    def plan(self, tokenizer: Any) -> str:
        lines = [f"{key}: {value}" for key, value in self.identity.items()]
        for benchmark in self.benchmarks:
            lines.append(
                f"{benchmark.name}: {len(benchmark.questions)} questions x {benchmark.samples}, "
                f"extraction {self.settings.extraction}, first prompt:\n"
                f"{self.questions.render(benchmark, tokenizer)[0].shown()}"
            )
        return "\n".join(lines)

    def prepare(self) -> None:
        """Load the verifiers; write settings.json and prompts.yaml with all sweeps' templates."""
        if any(self.verifiers.values()):
            self.functions.load()
        folder = EvaluationFolder(self.folder / "any")
        earlier = Prompts.read(folder.prompts).bank if folder.prompts.exists() else {}
        used = {template.name: template for template in [*earlier.values(), *self.templates]}
        if used != dict(earlier):
            bank = Bank(list(used.values()))
            replace(self.questions.prompts, bank=bank).write(folder.prompts)
        write_json(folder.settings, self.identity)


@dataclass
class Item:
    """A checkpoint on a benchmark. `entry` is its part of the scores, None until it is done."""

    evaluation: Evaluation
    checkpoint: Checkpoint
    benchmark: LoadedBenchmark

    def __post_init__(self) -> None:
        name, settings = self.benchmark.name, self.evaluation.settings
        self.name = f"{self.checkpoint.name} {name}"
        self.above = EvaluationFolder(self.evaluation.folder / self.checkpoint.name)
        self.folder = self.above.benchmark(name)
        self.template = self.evaluation.questions.template(self.benchmark)
        self.verifiers = self.evaluation.verifiers[name]
        self.identity = benchmark_identity(  # of its scores, apart from the model and the grader
            self.benchmark, self.template, settings.extraction, self.verifiers
        )
        check_owner(self.folder, self.checkpoint)
        self.entry = self._read()

    def complete(self, session: Session | Server) -> bool:
        """Sample, grade and score what is not done. Return False if another worker holds it."""
        try:
            held = lock(self.folder.root)
        except InUseError:
            return False
        with held:
            self.entry = self._read() or self._make(session)
        return True

    def _read(self) -> Mapping[str, Any] | None:
        return read_entry(self.above, self.benchmark.name, self.checkpoint.identity, self.identity)

    def _make(self, session: Session | Server) -> Mapping[str, Any]:
        checkpoint, benchmark, identity = self.checkpoint, self.benchmark, self.checkpoint.identity
        questions = self.evaluation.questions
        questions.fit(checkpoint, session.tokenizer(checkpoint))
        lines = questions.lines(benchmark, self.verifiers.get("functions", ()))
        write_lines(self.folder.questions, lines)
        requests = questions.requests(benchmark, lines)
        probes = [prompt.ids for prompt in questions.rendered[benchmark.name]]
        samples = SampleFiles(self.folder, identity).complete(
            requests,
            lambda: session.engine_for(checkpoint, questions.kind, questions.context, probes),
        )
        score_benchmark(
            self.folder, identity, self.template, lines, samples,
            settings=self.identity, path=benchmark.path,
        )  # fmt: skip
        scores = combine(self.above, checkpoint.step, checkpoint.model, identity)
        return scores["benchmarks"][benchmark.name]
