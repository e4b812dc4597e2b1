"""Evaluates every exported checkpoint of a run, or one model: generate, grade, score.

One engine per checkpoint, none where nothing is left to generate. Killed anywhere and started
again, it continues with the samples that are missing.
"""

import argparse
import dataclasses
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eval import settings as settings_module
from eval.benchmarks import load, parse_request, suite_requests
from eval.checkpoints import Checkpoint, find, from_model
from eval.engine import prepare_environment
from eval.errors import EvaluationError
from eval.evaluate import CHUNK, evaluate, plan
from eval.settings import Settings, shared_identity
from prompt_aug.errors import UserError
from recipe.run.folder import RunFolder


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m eval.sweep", description=__doc__)
    add = parser.add_argument
    add("run", nargs="?", type=Path, help="run folder; its config.yaml has the defaults")
    add("--model", help="evaluate this Hugging Face folder (or hub id) instead of a run")
    add("--out", type=Path, help="where results go (with --model: needed; a run: RUN/eval)")
    add("--benchmark", action="append", default=[], metavar="NAME[=PATH[:SAMPLES]]")
    add("--suite", type=Path, help="folder of the five published benchmarks (Arrow folders)")
    add("--steps", type=int, nargs="+", help="these steps only (default: every exported one)")
    add("--template", help="the template that every question is asked with")
    add("--bank", help="template bank file (default: the run's own, or the project's)")
    add("--style", choices=settings_module.STYLES, help="default: the run's own, or auto")
    add("--temperature", type=float, help="0 is greedy")
    add("--top-p", type=float)
    add("--max-tokens", type=int, help="limit of a response")
    add("--max-model-len", type=int, help="limit of prompt and response together")
    add("--max-questions", type=int, help="only the first N questions of each benchmark")
    add("--seed", type=int)
    add("--dtype", choices=settings_module.DTYPES)
    add("--gpu-memory-utilization", type=float)
    add("--tensor-parallel", type=int, help="GPUs of one engine")
    add("--chunk", type=int, default=CHUNK, help="samples between two writes (default %(default)s)")
    add("--force", action="store_true", help="replace scores made with other settings")
    return parser


def _settings(options: argparse.Namespace) -> Settings:
    base = Settings() if options.run is None else settings_module.from_run(options.run)
    names = {field.name for field in dataclasses.fields(Settings)} - {"benchmarks"}
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    requests = [parse_request(text) for text in options.benchmark]
    if options.suite is not None:
        requests += suite_requests(options.suite)
    merged = dataclasses.replace(
        base, **given, benchmarks=tuple(requests) if requests else base.benchmarks
    )
    names_asked = [request.name for request in merged.benchmarks]
    if not names_asked:
        raise EvaluationError("no benchmark: write --benchmark NAME=PATH (or set eval.benchmarks)")
    if len(set(names_asked)) != len(names_asked):
        raise EvaluationError(f"a benchmark is named twice: {names_asked}")
    return merged


def _targets(options: argparse.Namespace) -> list[tuple[Checkpoint, Path]]:
    if options.model is not None:
        if options.out is None or options.steps is not None:
            raise EvaluationError("--model needs --out DIR, and takes no --steps")
        return [(from_model(options.model), options.out)]
    checkpoints, notes = find(options.run, options.steps)
    for note in notes:
        print(f"note: {note}")
    out = options.out or RunFolder(options.run).evaluation
    return [(checkpoint, out / checkpoint.name) for checkpoint in checkpoints]


def sweep(options: argparse.Namespace) -> None:
    """Check everything that can be checked, then evaluate one checkpoint after the other."""
    if (options.run is None) == (options.model is None):
        raise EvaluationError("give either a run folder or --model HF_FOLDER")
    settings = _settings(options)
    prompts = settings.prompts()
    template = prompts.bank[settings.template]
    targets = _targets(options)
    prepare_environment(targets[0][0].model)
    benchmarks = [
        load(request, greedy=settings.greedy, max_questions=settings.max_questions)
        for request in settings.benchmarks
    ]
    for checkpoint, folder in targets:  # a refusal comes before the first engine starts
        shared = shared_identity(settings, template, checkpoint.identity)
        plan(folder, shared, benchmarks, force=options.force)
    for number, (checkpoint, folder) in enumerate(targets, start=1):
        print(f"[{number}/{len(targets)}] {checkpoint.name}")
        scores = evaluate(
            checkpoint,
            folder,
            settings,
            prompts,
            benchmarks,
            force=options.force,
            chunk=options.chunk,
        )
        _print_scores(checkpoint, scores)


def _print_scores(checkpoint: Checkpoint, scores: Mapping[str, Any]) -> None:
    for name, entry in scores["benchmarks"].items():
        error = entry["standard_error"]
        spread = "" if error is None else f" +- {error:.4f}"
        print(
            f"  {checkpoint.name} {name}: accuracy {entry['accuracy']:.4f}{spread} "
            f"({entry['questions']} of {entry['settings']['of']} questions x "
            f"{entry['settings']['samples']}), truncated {entry['truncation_rate']:.4f}"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        sweep(options)
    except (UserError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
