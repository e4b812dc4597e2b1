"""The questions of an evaluation as a model gets them: prompts, stored lines, requests, context."""

import hashlib
import json
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from eval.ask.benchmarks import LoadedBenchmark
from eval.ask.checkpoints import Checkpoint
from eval.ask.engine import Request, SampleKey
from eval.ask.settings import Settings
from prompt_aug.base.errors import UserError
from prompt_aug.base.files import read_json
from prompt_aug.prompts import Prompt
from prompt_aug.questions import to_row
from prompt_aug.templates import Template
from prompt_aug.turns import end_of_turn
from prompt_aug.verifiers import verifier_row

# A prompt that leaves no room for a response is not asked. Its samples count as wrong, so the
# denominator does not change.
TOO_LONG = "prompt_too_long"
Lines = list[dict[str, Any]]
VOLATILE = ("_name_or_path", "transformers_version", "torch_dtype", "dtype")  # no engine reads them


class Questions:
    """The benchmarks of an evaluation as one kind of model is asked, after `fit`.

    `context` limits prompt and response of its engine.
    """

    def __init__(self, settings: Settings, benchmarks: Sequence[LoadedBenchmark]) -> None:
        self._settings, self._benchmarks, self.prompts = settings, benchmarks, settings.prompts()
        self.rendered: dict[str, list[Prompt]] = {}
        self.kind, self.context = "", 0

    def template(self, benchmark: LoadedBenchmark) -> Template:
        return self.prompts.bank[benchmark.template or self._settings.template]

    def render(self, benchmark: LoadedBenchmark, tokenizer: Any) -> list[Prompt]:
        """Return the prompts of a benchmark in question order."""
        template = self.template(benchmark).name
        return [
            self.prompts.render(template, question.text, tokenizer, question.earlier)
            for question in benchmark.questions
        ]

    def fit(self, checkpoint: Checkpoint, tokenizer: Any) -> None:
        """Render all benchmarks, which one engine serves, unless it is done for this kind.

        The context is max_model_len, or the longest prompt plus max_tokens up to the model's limit.
        """
        if self.kind == (kind := signature(checkpoint.model, tokenizer)):
            return
        self.rendered = {b.name: self.render(b, tokenizer) for b in self._benchmarks}
        longest = max(len(prompt.ids) for prompts in self.rendered.values() for prompt in prompts)
        length, limit = self._settings.max_model_len, _positions(checkpoint)
        if length and limit and length > limit:
            raise UserError(
                f"max_model_len {length} is more than the {limit} positions of {checkpoint.model}"
            )
        needed = longest + self._settings.max_tokens
        self.kind, self.context = kind, length or min(needed, limit or needed)

    def lines(self, benchmark: LoadedBenchmark, verified: Collection[str]) -> Lines:
        """Return the lines of questions.jsonl; those of the sources `verified` have their row."""
        template, lines = self.template(benchmark).name, []
        for question, prompt in zip(
            benchmark.questions, self.rendered[benchmark.name], strict=True
        ):
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
                "template": template,
                "asked": len(prompt.ids) < self.context,
            }
            if question.source in verified:
                line["row"] = verifier_row(to_row(question))
            lines.append(line)
        room = f"the context of {self.context} tokens"
        unasked = sum(not line["asked"] for line in lines)
        if unasked == len(lines):
            raise UserError(
                f"no question of {benchmark.name} fits into {room}: raise max_model_len or use a "
                "model with a longer context"
            )
        if unasked:
            print(
                f"warning: {unasked} of {len(lines)} questions of {benchmark.name} do not fit into "
                f"{room} and count as wrong ({TOO_LONG})"
            )
        return lines

    def requests(self, benchmark: LoadedBenchmark, lines: Lines) -> list[Request]:
        """Return the requests of the samples of each asked question, each once."""
        unique: dict[SampleKey, Request] = {}  # a question may be repeated
        for index, (line, prompt) in enumerate(
            zip(lines, self.rendered[benchmark.name], strict=True)
        ):
            for sample in range(benchmark.samples if line["asked"] else 0):
                key = line["uid"], line["prompt_sha256"], sample
                stop = tuple(prompt.rendered.stop)
                request = Request(question=index, key=key, prompt_token_ids=prompt.ids, stop=stop)
                unique.setdefault(key, request)
        return list(unique.values())


def signature(model: str, tokenizer: Any) -> str:
    """Return the same text for two models whose weights fit into the same engine.

    It covers configuration, generation configuration (stop tokens), tokenizer and chat template,
    so their prompts are equal, too. A hub id is its
    own signature, because no file of it can be compared.
    """
    if not (Path(model) / "config.json").is_file():
        return model
    parts: list[Any] = []
    for path in (Path(model) / "config.json", Path(model) / "generation_config.json"):
        content = read_json(path) if path.is_file() else {}
        parts.append({k: v for k, v in content.items() if k not in VOLATILE})
    backend = getattr(tokenizer, "backend_tokenizer", None)
    parts.append(backend.to_str() if backend is not None else sorted(tokenizer.get_vocab().items()))
    parts += [getattr(tokenizer, "chat_template", None), sorted(end_of_turn(tokenizer).ids)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _positions(checkpoint: Checkpoint) -> int | None:
    """Return the model's context, as the endpoint or the model's configuration states it.

    With YaRN it is a multiple of what the model was trained on, as for vLLM.
    """
    if "endpoint" in checkpoint.identity:
        return checkpoint.positions
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(checkpoint.model, trust_remote_code=False).get_text_config()
    rope, most = getattr(config, "rope_parameters", None) or {}, "max_position_embeddings"
    if rope.get("rope_type") == "yarn":
        return int(rope[f"original_{most}"] * rope["factor"])
    return getattr(config, most, None)
