"""Evaluate one checkpoint on one benchmark: sample what is missing, grade, score.

A work item is a (checkpoint, benchmark) pair. A worker locks the item's folder; other workers skip
it, and the lock of a dead worker is free. A killed evaluation resumes and ends with the same files.
"""

import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eval import EvaluationError
from eval.benchmarks import LoadedBenchmark
from eval.checkpoints import Checkpoint
from eval.endpoint import Server
from eval.engine import Request, SampleKey
from eval.samples import Sample, SampleFiles
from eval.score import TOO_LONG, combine, order_of, question_key, score_benchmark
from eval.session import Session, signature
from eval.settings import Settings, benchmark_identity, folder_name, shared_identity
from prompt_aug.base.files import FileError, lock, read_json, read_lines, write_json, write_lines
from prompt_aug.grading import VERSION
from prompt_aug.prompts import Prompt, Prompts
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
                and entry["settings"] == self.identity
                and entry["order"] == order_of(read_lines(self.folder.questions))
                and self.benchmark.name in read_json(self.evaluation.scores)["benchmarks"]
            )
        except (FileError, KeyError, TypeError):
            return False


@dataclass(frozen=True)
class Rendered:
    """The prompts of all benchmarks for one `kind` of model, and the context of its engine."""

    kind: str
    prompts: Mapping[str, list[Prompt]]
    context: int


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
        self._rendered: Rendered | None = None
        self.functions = verifiers_of(settings.verifiers, settings.verifier_limits)
        self.verifiers = {
            b.name: self.functions.record({q.source for q in b.questions}) for b in benchmarks
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

    def render(self, benchmark: LoadedBenchmark, tokenizer: Any) -> list[Prompt]:
        """Return the prompts of a benchmark in question order."""
        template = benchmark.template or self.settings.template
        return [
            self.prompts.render(template, question.text, tokenizer, question.system)
            for question in benchmark.questions
        ]

    def plan(self, tokenizer: Any) -> str:
        lines = [f"{key}: {value}" for key, value in self.identity.items()]
        for benchmark in self.benchmarks:
            lines.append(
                f"{benchmark.name}: {len(benchmark.questions)} questions x {benchmark.samples}, "
                f"extraction {self.settings.extraction}, first prompt:\n"
                f"{self.render(benchmark, tokenizer)[0].shown()}"
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
            replace(self.prompts, bank=Bank(list(used.values()))).write(folder.prompts)
        write_json(folder.settings, self.identity)

    def run(self, item: Item, session: Session | Server) -> dict[str, Any]:
        """Complete `item` and return the scores of its checkpoint.

        Raises InUseError if another worker holds the item.
        """
        checkpoint = item.checkpoint
        with lock(item.folder.root):
            if not item.is_done():
                rendered = self._render_all(checkpoint, session.tokenizer(checkpoint))
                questions = self._questions(item, rendered)
                write_lines(item.folder.questions, questions)
                samples = self._sample(item, questions, rendered, session)
                score_benchmark(
                    item.folder, checkpoint.identity, item.template, questions, samples,
                    settings=item.identity, path=item.benchmark.path,
                )  # fmt: skip
            return combine(item.evaluation, checkpoint.step, checkpoint.model, checkpoint.identity)

    def _render_all(self, checkpoint: Checkpoint, tokenizer: Any) -> Rendered:
        """Render all benchmarks, which one engine serves, unless it is done for this kind."""
        kind = signature(checkpoint.model, tokenizer)
        if self._rendered is None or self._rendered.kind != kind:
            prompts = {b.name: self.render(b, tokenizer) for b in self.benchmarks}
            longest = max(len(prompt.ids) for part in prompts.values() for prompt in part)
            context = self._context(checkpoint, longest)
            self._rendered = Rendered(kind, prompts, context)
        return self._rendered

    def _sample(
        self,
        item: Item,
        questions: Sequence[Mapping[str, Any]],
        rendered: Rendered,
        session: Session | Server,
    ) -> Mapping[SampleKey, Sample]:
        """Generate the missing samples; return all."""
        prompts = rendered.prompts[item.benchmark.name]
        files = SampleFiles(item.folder, item.checkpoint.identity)
        made = files.load()
        every = requests(questions, prompts, item.benchmark.samples)
        if missing := [request for request in every if request.key not in made]:
            ids = [prompt.ids for prompt in prompts]
            engine = session.engine_for(item.checkpoint, rendered.kind, rendered.context, ids)
            files.generate(engine, missing)
            made = files.load()
        return made

    def _questions(self, item: Item, rendered: Rendered) -> list[dict[str, Any]]:
        """Return the lines of questions.jsonl; those of a verifier's data source have their row."""
        functions = self.verifiers[item.benchmark.name].get("functions", ())
        prompts, context = rendered.prompts[item.benchmark.name], rendered.context
        lines = []
        for question, prompt in zip(item.benchmark.questions, prompts, strict=True):
            line = {
                "uid": question.uid,
                # Distinguishes two prompts of one uid, whose questions differ in white space.
                "prompt_sha256": hashlib.sha256(prompt.rendered.text.encode()).hexdigest()[:8],
                "question": question.text,
                "gold": list(question.answers),
                "options": list(question.options),
                "prompt": prompt.rendered.text,
                "prompt_tokens": len(prompt.ids),
                "level": question.level,
                "template": item.template.name,
                "asked": len(prompt.ids) < context,
            }
            if question.source in functions:
                line["row"] = verifier_row(to_row(question))
            lines.append(line)
        unasked = sum(not line["asked"] for line in lines)
        if unasked == len(lines):
            raise EvaluationError(
                f"no question of {item.benchmark.name} fits into the context of {context} tokens: "
                "raise max_model_len or use a model with a longer context"
            )
        if unasked:
            print(
                f"warning: {unasked} of {len(lines)} questions of {item.benchmark.name} do not fit "
                f"into the context of {context} tokens and count as wrong ({TOO_LONG})"
            )
        return lines

    def _context(self, checkpoint: Checkpoint, longest: int) -> int:
        """Return max_model_len, or the longest prompt of all benchmarks plus max_tokens.

        The model's own context length is the upper limit.
        """
        limit, length = _positions(checkpoint), self.settings.max_model_len
        if length is None:
            needed = longest + self.settings.max_tokens
            return min(needed, limit or needed)
        if limit is not None and length > limit:
            raise EvaluationError(
                f"max_model_len {length} is more than the {limit} positions of {checkpoint.model}"
            )
        return length


def requests(
    questions: Sequence[Mapping[str, Any]], prompts: Sequence[Prompt], samples: int
) -> list[Request]:
    """Return the requests of the first `samples` samples of each asked question, each once."""
    unique: dict[SampleKey, Request] = {}
    for index, (line, prompt) in enumerate(zip(questions, prompts, strict=True)):
        for sample in range(samples if line["asked"] else 0):
            request = Request(
                question=index,
                key=question_key(line, sample),
                prompt_token_ids=prompt.ids,
                stop=tuple(prompt.rendered.stop),
            )
            unique.setdefault(request.key, request)  # a question may be repeated
    return list(unique.values())


def _positions(checkpoint: Checkpoint) -> int | None:
    """Return the model's context, as the endpoint or the model's configuration states it."""
    if "endpoint" in checkpoint.identity:
        return checkpoint.positions
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(checkpoint.model, trust_remote_code=False).get_text_config()
    return getattr(config, "max_position_embeddings", None)


if __name__ == "__main__":
    sys.exit("eval.evaluate is not a command. Run python -m eval.sweep --help")
