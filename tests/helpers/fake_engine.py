"""An engine without a model: answers by a function of the request, and counts what it does."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.benchmarks import LoadedBenchmark
from eval.checkpoints import Checkpoint
from eval.engine import Request
from eval.evaluate import Evaluation
from eval.session import Session
from eval.settings import Settings

Answer = Callable[[Request], str]


class FakeEngine:
    """Completes the requests last first; `die_after` that many it is stopped as by Ctrl-C."""

    def __init__(self, answer: Answer, die_after: int | None = None) -> None:
        self.answer, self.die_after = answer, die_after
        self.starts = self.stops = 0
        self.asked: list[Request] = []
        self.models: list[str] = []
        self.context = 0
        self.served = ""  # the model whose weights it answers with

    def open(self, model: str, settings: Settings, max_model_len: int) -> "FakeEngine":
        self.context, self.served = max_model_len, model
        return self

    def __enter__(self) -> "FakeEngine":
        self.starts += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.stops += 1

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[Request, dict[str, Any]]]:
        for request in reversed(requests):
            if self.die_after is not None and len(self.asked) >= self.die_after:
                raise KeyboardInterrupt
            self.asked.append(request)
            self.models.append(self.served)
            text = self.answer(request)
            yield request, {"response": text, "tokens": len(text), "finish_reason": "stop"}

    def log_probabilities(self, prompts: Sequence[tuple[int, ...]]) -> list[list[float]]:
        return reference(self.served, prompts, "float32")

    def load(self, model: str) -> None:
        self.served = model

    def facts(self) -> dict[str, Any]:
        return {"vllm": "fake", "dtype": "float32", "device": "none"}


def reference(model: str, prompts: Sequence[tuple[int, ...]], dtype: str) -> list[list[float]]:
    """Log-probabilities that are a function of the model's name and the tokens."""
    shift = sum(map(ord, model)) / 1000
    return [[-shift - token / 1000 for token in ids[1:]] for ids in prompts]


def session(engine: FakeEngine, settings: Settings) -> Session:
    return Session(settings, engine.open, reference)


@dataclass
class Runner:
    """Evaluates `checkpoint` into `root` and returns its scores; keeps the `items` of a call."""

    root: Path
    checkpoint: Checkpoint
    settings = Settings(max_tokens=64, dtype="float32", temperature=1.0)

    def __call__(
        self, engine: FakeEngine, *benchmarks: LoadedBenchmark, **changes: Any
    ) -> dict[str, Any]:
        settings = self.settings.replaced(**changes)
        evaluation = Evaluation(self.root, settings, benchmarks)
        evaluation.prepare()
        self.items, scores = evaluation.items(self.checkpoint), {}
        with session(engine, settings) as held:
            for item in self.items:
                scores = evaluation.run(item, held)
        return scores

    def only(self, pattern: str) -> Path:
        (path,) = self.root.glob(pattern)
        return path

    def contents(self, pattern: str = "*") -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.root.rglob(pattern) if path.is_file()}
