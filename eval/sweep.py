"""Evaluates the exported checkpoints of runs, or models: sample, grade, score.

Work is divided into items of a checkpoint and a benchmark. Start the command as often as there are
GPUs, on any number of nodes or as a SLURM array: each worker takes the items that no other holds.
Killed anywhere and started again, it continues with the samples that are missing.
"""

import argparse
import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import yaml

from eval import settings as settings_module
from eval.benchmarks import LoadedBenchmark, load, parse_request, suite_requests
from eval.checkpoints import (
    REMEMBERED_BYTES,
    Checkpoint,
    Digests,
    find,
    from_model,
    verify,
)
from eval.command import existing, path, run_command, text
from eval.engine import check_hardware, prepare_environment
from eval.errors import EvaluationError
from eval.evaluate import Evaluation, Item
from eval.score import require_one_grader
from eval.session import Session
from eval.settings import Settings
from prompt_aug.base.commands import add_steps, make_parser
from prompt_aug.base.errors import UsageError
from prompt_aug.base.files import InUseError, read_json
from prompt_aug.base.tokenizers import load_tokenizer
from prompt_aug.extraction import EXTRACTIONS
from prompt_aug.grading import VERSION
from prompt_aug.templates.rendering import System, Turn
from recipe.run.folder import RunFolder

WATCH_SECONDS = 30.0


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "python -m eval.sweep",
        __doc__,
        example="python -m eval.sweep runs/toy --benchmark aime24 --temperature 1",
    )
    add = parser.add_argument
    add("runs", nargs="*", type=existing, metavar="RUN", help="run folders; each with its settings")
    add("--model", action="append", default=[], type=text, help="a model folder or hub id instead")
    add("--out", type=path, help="where results go (with --model: needed; a run: RUN/eval)")
    add("--benchmark", action="append", default=[], type=text, metavar="NAME[=PATH[:SAMPLES]]",
        help="a known name, or a parquet file; may be given several times")  # fmt: skip
    add("--suite", type=existing, help="folder of the five published benchmarks (Arrow folders)")
    add_steps(parser)
    add("--preset", choices=list(settings_module.presets()), help="as a paper evaluates")
    add("--samples", type=int, help="of each question (default: the benchmark's; greedy: 1)")
    add("--template", type=text, help="what every question is asked with (default: the run's)")
    add("--template-of", action="append", default=[], type=text, metavar="BENCHMARK=TEMPLATE",
        help="what one benchmark is asked with instead")  # fmt: skip
    add("--bank", type=text, help="template bank file (default: the run's own, or the project's)")
    add("--style", choices=settings_module.STYLES, help="default: the run's own, or auto")
    add("--chat", type=_chat, metavar="{KEY: VALUE}",
        help="arguments of the chat template, as '{enable_thinking: false}'")  # fmt: skip
    add("--instruction", choices=get_args(Turn), help="turn of the template's instruction")
    add("--system", choices=get_args(System), help="whose system prompt, if a row has one")
    add("--extraction", choices=EXTRACTIONS, help="which text counts as the answer")
    add("--temperature", type=float, help="0 is greedy (default: the run's, or 0)")
    add("--top-p", type=float, help="default: the run's, or 1")
    add("--max-tokens", type=int, help="limit of a response (default: the run's, or 3000)")
    add("--max-model-len", type=int, help="limit of prompt and response together")
    add("--max-questions", type=int, help="only the first N questions of each benchmark")
    add("--seed", type=int, help="default: the run's, or 0")
    add("--dtype", choices=settings_module.DTYPES, help="default: the run's, or auto")
    _engine_options(parser)
    add("--dry-run", action="store_true", help="show what would be asked, with the first prompts")
    add("--watch", action="store_true",
        help="follow a training: export and evaluate each checkpoint as it is saved")  # fmt: skip
    return parser


def _chat(value: str) -> dict[str, Any]:
    """Arguments of a chat template, a mapping in yaml."""
    found = yaml.safe_load(value)
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"{value!r} is not a mapping such as '{{key: value}}'")
    return found


def _engine_options(parser: argparse.ArgumentParser) -> None:
    """How it runs, and not what is measured."""
    add = parser.add_argument
    add("--gpu-memory-utilization", type=float, help="share of a GPU's memory (default: 0.8)")
    add("--tensor-parallel", type=int, help="GPUs of one engine (default: 1)")
    add(
        "--no-reload",
        dest="reload_weights",
        action="store_false",
        default=None,
        help="start an engine for every checkpoint, instead of one that loads their weights",
    )


def _settings(options: argparse.Namespace, run: Path | None) -> Settings:
    base = Settings() if run is None else settings_module.from_run(run)
    if options.preset is not None:
        base = dataclasses.replace(base, **settings_module.presets()[options.preset])
        plain = tuple(dataclasses.replace(r, template=None) for r in base.benchmarks)
        base = dataclasses.replace(base, benchmarks=plain)
    names = {field.name for field in dataclasses.fields(Settings)} - {"benchmarks"}
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    requests = [parse_request(request) for request in options.benchmark]
    if options.suite is not None:
        requests += suite_requests(options.suite)
    merged = dataclasses.replace(base, **given)
    if requests:
        merged = dataclasses.replace(merged, benchmarks=tuple(requests))
    elif merged.samples is not None:  # asked for here: the run's own benchmarks do not insist
        own = tuple(dataclasses.replace(request, samples=None) for request in base.benchmarks)
        merged = dataclasses.replace(merged, benchmarks=own)
    merged = _with_templates(merged, options.template_of)
    asked = [request.name for request in merged.benchmarks]
    if not asked:
        raise UsageError("no benchmark: write --benchmark NAME=PATH (or set eval.benchmarks)")
    if len(set(asked)) != len(asked):
        raise EvaluationError(f"a benchmark is named twice: {asked}")
    return merged


def _with_templates(settings: Settings, given: Sequence[str]) -> Settings:
    """The settings with the templates that single benchmarks are to be asked with."""
    wanted = dict(item.partition("=")[::2] for item in given)
    unknown = set(wanted) - {request.name for request in settings.benchmarks}
    if unknown or not all(wanted.values()):
        names = [request.name for request in settings.benchmarks]
        raise EvaluationError(
            f"--template-of {' '.join(given)}: write BENCHMARK=TEMPLATE; asked are {names}"
        )
    requests = tuple(
        dataclasses.replace(request, template=wanted.get(request.name, request.template))
        for request in settings.benchmarks
    )
    return dataclasses.replace(settings, benchmarks=requests)


def _models(options: argparse.Namespace, digests: Digests) -> list[Checkpoint]:
    found = [from_model(model, digests) for model in options.model]
    names = [checkpoint.name for checkpoint in found]
    if len(set(names)) != len(names):
        raise EvaluationError(f"two models have the same name, so the same folder: {names}")
    return found


def _check(options: argparse.Namespace) -> None:
    if bool(options.runs) == bool(options.model):
        raise UsageError("give either run folders or --model HF_FOLDER")
    if options.model and (options.out is None or options.steps or options.watch):
        raise UsageError("--model needs --out DIR, and takes no --steps and no --watch")
    if len(options.runs) > 1 and (options.out is not None or options.watch):
        raise UsageError("--out and --watch are for one run: start the command for each")


def sweep(options: argparse.Namespace) -> None:
    """Check everything that can be checked, then do the items that no other worker does."""
    _check(options)
    for run in options.runs or [None]:
        root = options.out or RunFolder(run).evaluation
        settings = _settings(options, run)
        benchmarks = [_load(request, settings) for request in settings.benchmarks]
        if options.dry_run:
            model = options.model[0] if run is None else find(run, options.steps)[0][0].model
            print(Evaluation(root, settings, benchmarks).plan(load_tokenizer(model)))
            continue
        check_hardware(settings)
        worker = Worker(Evaluation(root, settings, benchmarks), Digests(root / ".digests.json"))
        with Session(settings) as session:
            if run is None:
                worker.work(_models(options, worker.digests), session)
            else:
                _follow(run, options, worker, session)
            if session.starts:
                print(f"engine: {session.starts} started, weights reloaded {session.swaps} times")


def _load(request: Any, settings: Settings) -> LoadedBenchmark:
    return load(
        request,
        greedy=settings.greedy,
        max_questions=settings.max_questions,
        samples=settings.samples,
    )


def _follow(run: Path, options: argparse.Namespace, worker: "Worker", session: Session) -> None:
    """Work through a run; with --watch until the training's last step is evaluated."""
    last = settings_module.last_step(run) if options.watch else 0
    while True:
        if options.watch:
            # The export has its own lock and skips what is done; it may lose a race with a save.
            subprocess.run([sys.executable, "-m", "recipe.export", str(run)], check=False)
        try:
            checkpoints, notes = find(run, options.steps)
        except EvaluationError:
            if not options.watch:
                raise
            checkpoints, notes = [], []
        for note in notes if not options.watch else ():
            print(f"note: {note}")
        worker.work(checkpoints, session)
        if not options.watch or any(checkpoint.step == last for checkpoint in checkpoints):
            return
        time.sleep(WATCH_SECONDS)


class Worker:
    """Takes items that no other worker holds, checkpoint by checkpoint."""

    def __init__(self, evaluation: Evaluation, digests: Digests) -> None:
        self.evaluation, self.digests = evaluation, digests

    def work(self, checkpoints: Sequence[Checkpoint], session: Session) -> None:
        """Do what is not done; what another worker holds is left to it."""
        todo = {
            c.name: [i for i in self.evaluation.items(c) if not i.is_done()] for c in checkpoints
        }
        for checkpoint in checkpoints:  # a refusal comes before the first engine starts
            verify(checkpoint, self.digests, most=REMEMBERED_BYTES)
            self._refuse_other_graders(checkpoint)
        if any(todo.values()):
            prepare_environment(checkpoints[0].model)
            self.evaluation.prepare()
        held: list[Item] = []
        for number, checkpoint in enumerate(_in_turn(checkpoints), start=1):
            if todo[checkpoint.name]:
                print(f"[{number}/{len(checkpoints)}] {checkpoint.name}")
                verify(checkpoint, self.digests)
            held += self._checkpoint(todo[checkpoint.name], session)
            _print_scores(self.evaluation.items(checkpoint))
        if waiting := [item.name for item in held if not item.is_done()]:
            print(f"note: {len(waiting)} items are with other workers: {', '.join(waiting[:8])}")

    def _checkpoint(self, items: Sequence[Item], session: Session) -> list[Item]:
        """Do the items; returns those that another worker holds."""
        held = []
        for item in items:
            try:
                self.evaluation.run(item, session)
            except InUseError:
                held.append(item)
        return held

    def _refuse_other_graders(self, checkpoint: Checkpoint) -> None:
        """Scores that would stand beside the new ones must be of the same grader."""
        items = self.evaluation.items(checkpoint)
        asked, folder = {item.benchmark.name for item in items}, items[0].evaluation
        others = {n: read_json(folder.benchmark(n).scores) for n in folder.benchmarks()}
        versions = {
            str(folder.benchmark(name).root): entry["grader"]
            for name, entry in others.items()
            if name not in asked and entry["model"] == checkpoint.identity
        }
        if versions:
            require_one_grader({**versions, "this grader": VERSION})


def _in_turn(checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
    """Task i of n of a SLURM array begins i/n of the way, so that they seldom meet."""
    task = int(os.environ.get("SLURM_ARRAY_TASK_ID") or 0)
    tasks = int(os.environ.get("SLURM_ARRAY_TASK_COUNT") or 1)
    start = len(checkpoints) * (task % tasks) // tasks
    return [*checkpoints[start:], *checkpoints[:start]]


def _print_scores(items: Sequence[Item]) -> None:
    for item in items:
        if item.is_done():
            print(f"  {item.name}: {_line(read_json(item.folder.scores))}")


def _line(entry: Mapping[str, Any]) -> str:
    error, asked = entry["standard_error"], entry["settings"]
    spread = "" if error is None else f" +- {error:.4f}"
    return (
        f"accuracy {entry['accuracy']:.4f}{spread} ({entry['questions']} of {asked['of']} "
        f"questions x {asked['samples']}), truncated {entry['truncation_rate']:.4f}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    return run_command(_parser(), arguments, sweep, "the samples made so far are saved")


if __name__ == "__main__":
    sys.exit(main())
