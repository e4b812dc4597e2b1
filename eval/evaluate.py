"""Evaluates one checkpoint on one benchmark: sample what is missing, grade, score.

A work item is (checkpoint, benchmark). Who works on one holds the lock of its folder; another
worker skips it, and the lock of a dead worker is free. Killed anywhere and started again, it ends
the same.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.benchmarks import LoadedBenchmark
from eval.checkpoints import Checkpoint
from eval.errors import EvaluationError
from eval.samples import PendingSamples, SampleFiles
from eval.score import combine, score_benchmark
from eval.session import Session, signature
from eval.settings import Settings, benchmark_identity, differences, folder_name, shared_identity
from prompt_aug.base.files import FileError, lock, read_json, write_json, write_lines
from prompt_aug.base.tokenizers import load_tokenizer
from prompt_aug.grading import VERSION
from prompt_aug.prompts import Prompts
from prompt_aug.templates import Bank, Template
from recipe.run.folder import BenchmarkFolder, EvaluationFolder


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Item:
    """One piece of work: a checkpoint on a benchmark, asked with `template`, and its files."""

    checkpoint: Checkpoint
    benchmark: LoadedBenchmark
    evaluation: EvaluationFolder
    template: Template
    extraction: str

    @property
    def identity(self) -> dict[str, Any]:
        """What its scores must agree on, beside the model and the grader."""
        return benchmark_identity(self.benchmark, self.template, self.extraction)

    @property
    def folder(self) -> BenchmarkFolder:
        return self.evaluation.benchmark(self.benchmark.name)

    @property
    def name(self) -> str:
        return f"{self.checkpoint.name} {self.benchmark.name}"

    def is_done(self) -> bool:
        """Whether these very questions, samples and weights are scored by this grader."""
        try:
            entry = read_json(self.folder.scores)
            return bool(
                entry["settings"] == self.identity
                and entry["model"] == self.checkpoint.identity
                and entry["grader"] == VERSION
                and self.benchmark.name in read_json(self.evaluation.scores)["benchmarks"]
            )
        except (FileError, KeyError):
            return False


class Evaluation:
    """One set of settings over some benchmarks, for any number of checkpoints.

    `root` holds a folder per settings. `prompts` is the record that every question is asked with.
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

    def items(self, checkpoint: Checkpoint) -> list[Item]:
        """The work on one checkpoint, done or not."""
        evaluation = EvaluationFolder(self.folder / checkpoint.name)
        return [
            Item(
                checkpoint=checkpoint,
                benchmark=benchmark,
                evaluation=evaluation,
                template=self.prompts.bank[benchmark.template or self.settings.template],
                extraction=self.settings.extraction,
            )
            for benchmark in self.benchmarks
        ]

    def plan(self, tokenizer: Any) -> str:
        """What would be asked: the settings, and the first prompt of every benchmark."""
        told = [f"{key}: {value}" for key, value in self.identity.items()]
        for benchmark in self.benchmarks:
            prompt = PendingSamples(benchmark, self.prompts, tokenizer).prompts[0]
            told.append(
                f"{benchmark.name}: {len(benchmark.questions)} questions x {benchmark.samples}, "
                f"extraction {self.settings.extraction}, first prompt:\n{prompt.shown()}"
            )
        return "\n".join(told)

    def prepare(self) -> None:
        """Write settings.json and prompts.yaml; the same settings give the same files.

        Templates of single benchmarks are added to those that an earlier sweep has used.
        """
        folder = EvaluationFolder(self.folder / "any")
        written = read_json(folder.settings) if folder.settings.exists() else self.identity
        if changed := differences(written, self.identity):
            raise EvaluationError(f"{folder.settings} was changed: {'; '.join(changed)}")
        known = Prompts.read(folder.prompts).bank if folder.prompts.exists() else {}
        used = {template.name: template for template in known.values()}
        used |= {template.name: template for template in self.templates}
        if set(used) != set(known):
            dataclasses.replace(self.prompts, bank=Bank(list(used.values()))).write(folder.prompts)
        if not folder.settings.exists():
            write_json(folder.settings, self.identity)

    def run(self, item: Item, session: Session) -> dict[str, Any]:
        """Make what is missing of `item` and return the scores of its checkpoint.

        Raises InUseError where another worker has it.
        """
        with lock(item.folder.root):
            if not item.is_done():
                self._make(item, session)
            checkpoint = item.checkpoint
            return combine(item.evaluation, checkpoint.step, checkpoint.model, checkpoint.identity)

    def _make(self, item: Item, session: Session) -> None:
        checkpoint, benchmark = item.checkpoint, item.benchmark
        tokenizer = load_tokenizer(checkpoint.model)
        pending = PendingSamples(benchmark, self.prompts, tokenizer)
        context = self._context(checkpoint, tokenizer)
        _warn_too_long(pending, context)
        write_lines(item.folder.questions, pending.questions(context))
        files = SampleFiles(item.folder, checkpoint.identity)
        if requests := pending.requests(context, files.load()):
            probes = [prompt.ids for prompt in pending.prompts]
            kind = signature(checkpoint.model, tokenizer)
            engine = session.engine_for(checkpoint, kind, context, probes)
            pending.generate(engine, requests, files)
        score_benchmark(
            item.folder,
            checkpoint.identity,
            item.template,
            settings=item.identity,
            path=benchmark.path,
        )

    def _context(self, checkpoint: Checkpoint, tokenizer: Any) -> int:
        """The engine's context in tokens: as long as any benchmark needs, within the model's.

        Over all benchmarks, so that one engine serves them all. A prompt's own limit does not
        depend on it: a response ends at max_tokens, or where the model's positions end.
        """
        from transformers import AutoConfig

        kind = signature(checkpoint.model, tokenizer)
        if kind not in self._longest:
            asked = [PendingSamples(b, self.prompts, tokenizer) for b in self.benchmarks]
            self._longest[kind] = max(pending.longest_prompt for pending in asked)
        needed = self._longest[kind] + self.settings.max_tokens
        config = AutoConfig.from_pretrained(checkpoint.model)
        limit = getattr(config.get_text_config(), "max_position_embeddings", None)
        if self.settings.max_model_len is None:
            return min(needed, limit or needed)
        if limit is not None and self.settings.max_model_len > limit:
            raise EvaluationError(
                f"max_model_len {self.settings.max_model_len} is more than the {limit} positions "
                f"of {checkpoint.model}"
            )
        return self.settings.max_model_len


def _warn_too_long(pending: PendingSamples, context: int) -> None:
    lengths = [len(prompt.ids) for prompt in pending.prompts]
    unasked = sum(length >= context for length in lengths)
    if unasked == len(lengths):
        raise EvaluationError(
            f"no question of {pending.benchmark.name} fits into the context of {context} tokens "
            f"(the shortest prompt has {min(lengths)}); raise max_model_len or take a model with "
            "a longer context"
        )
    if unasked:
        print(
            f"warning: {unasked} of {len(lengths)} questions of {pending.benchmark.name} do not "
            f"fit into the context of {context} tokens and count as wrong (prompt_too_long)"
        )
