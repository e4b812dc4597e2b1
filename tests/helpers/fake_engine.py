"""Evaluations without a model: an engine that answers by a function, and verdicts by hand.

As a process a worker of test_sweep.py: fake_engine.py STARTED [OPTION of eval.sweep] ...
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.ask.benchmarks import LoadedBenchmark
from eval.ask.checkpoints import Checkpoint
from eval.ask.engine import Request
from eval.ask.samples import SampleFiles
from eval.ask.session import Session
from eval.ask.settings import Settings
from eval.evaluate import Evaluation
from eval.scores.score import combine, join, order_of, score
from prompt_aug.base.files import read_json, write_json, write_lines
from prompt_aug.grading import VERSION
from prompt_aug.prompts import Prompts
from recipe.run.folder import EvaluationFolder

Answer = Callable[[Request], str]


class FakeEngine:
    """Completes the requests last first; `die_after` that many it is stopped as by Ctrl-C."""

    def __init__(self, answer: Answer, die_after: int | None = None) -> None:
        self.answer, self.die_after = answer, die_after
        self.starts = self.stops = 0
        self.requests: list[Request] = []
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
            if self.die_after is not None and len(self.requests) >= self.die_after:
                raise KeyboardInterrupt
            self.requests.append(request)
            self.models.append(self.served)
            text = self.answer(request)
            yield request, {"response": text, "tokens": len(text), "finish_reason": "stop"}

    def log_probabilities(self, prompts: Sequence[tuple[int, ...]]) -> list[list[float]]:
        return reference(self.served, prompts, "float32")

    def load(self, model: str) -> None:
        self.served = model

    def facts(self) -> dict[str, Any]:
        device = os.environ.get("CUDA_VISIBLE_DEVICES", "none")
        return {"vllm": "fake", "dtype": "float32", "device": device}


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
        self.items = evaluation.items([self.checkpoint])
        with session(engine, settings) as held:
            assert all(item.complete(held) for item in self.items)
        return read_json(self.items[0].above.scores)

    def only(self, pattern: str) -> Path:
        (path,) = self.root.glob(pattern)
        return path

    def contents(self, pattern: str = "*") -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.root.rglob(pattern) if path.is_file()}


SETTINGS = {"template": "qwen-math", "temperature": 0.0}
MODEL = {"files": "x"}


def write_checkpoint(
    settings_folder: Path,
    step: int,
    outcomes: Mapping[str, Sequence[Sequence[int]]],
    response: str = "a response",
    gold: str = "1",
    settings: Mapping[str, Any] = SETTINGS,
) -> EvaluationFolder:
    """A row of 0/1 verdicts per question of each benchmark; a wrong one is "no_answer", cut off."""
    folder = EvaluationFolder(settings_folder / f"step_{step}")
    write_json(folder.settings, dict(settings))
    Prompts.from_section({"validation_template": settings["template"]}).write(folder.prompts)
    for name, rows in outcomes.items():
        files = folder.benchmark(name)
        questions, samples, grades = [], [], []
        for q, row in enumerate(rows):
            key = {"uid": f"{name}-{q}", "prompt_sha256": "0"}
            shown = {"question": f"question {q}", "level": q % 2, "prompt": f"question {q}\n"}
            same = {"gold": [gold], "template": "qwen-math", "prompt_tokens": 3, "asked": True}
            questions.append({**key, **same, **shown})
            for number, correct in enumerate(row):
                end, status = ("stop", "correct") if correct else ("length", "no_answer")
                place = {**key, "sample": number}
                samples.append({**place, "response": response, "tokens": 10, "finish_reason": end})
                grade = {"correct": bool(correct), "extracted": gold, "status": status}
                grades.append({**place, **grade})
        write_lines(files.questions, questions)
        SampleFiles(files, MODEL).append(samples, {"vllm": "none"})
        write_lines(files.grades, [{"grader": VERSION, "model": MODEL}, *grades])
        count, size = len(rows[0]), len(rows)
        identity = {"sha256": name, "questions": size, "of": size, "samples": count}
        entry = {"settings": identity, "path": "p", "grader": VERSION, "model": MODEL}
        entry["order"] = order_of(questions)
        table = join(questions, SampleFiles(files, MODEL).load(), grades, count)
        write_json(files.scores, {**entry, **score(table)})
    combine(folder, step, "m", MODEL)
    return folder


@contextlib.contextmanager
def changing(path: Path) -> Iterator[Any]:
    """Read a JSON file, and write it with the changes of the block."""
    value = read_json(path)
    yield value
    write_json(path, value)


class Worker(FakeEngine):
    """Waits until two workers have an item. MODE: then on GPU 5 it kills itself, or each sleeps."""

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[Request, dict[str, Any]]]:
        mode, started = os.environ["MODE"], Path(sys.argv[1])
        (started / str(os.getpid())).touch()
        while len(list(started.iterdir())) < 2:
            time.sleep(0.02)
        if mode == "die" and self.facts()["device"] == "5":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(600 if mode == "hang" else 0)
        return super().stream(requests)


if __name__ == "__main__":
    from eval import sweep, workers

    fake = Worker(lambda request: rf"\boxed{{{request.question + 1}}}")
    workers.COMMAND = (sys.executable, *sys.argv[:2])
    workers.gpus_here = lambda: 2
    sweep.Session = lambda settings: session(fake, settings)  # type: ignore
    sys.exit(sweep.main(sys.argv[2:]))
