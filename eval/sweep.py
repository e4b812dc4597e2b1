"""Evaluate the exported checkpoints of runs, or models: sample, grade, score.

A work item is a checkpoint and a benchmark. Start the command once per GPU, on any number of nodes
or as a SLURM array: each worker takes the items that no other worker holds. A killed worker resumes
with the samples that are missing.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from eval import EvaluationError
from eval.benchmarks import load, parse_request
from eval.checkpoints import LARGE, Checkpoint, find, from_model, verify
from eval.command import run_command
from eval.endpoint import Server, connect
from eval.engine import check_hardware, prepare_environment
from eval.evaluate import Evaluation, Item
from eval.samples import head_of
from eval.session import Session
from eval.settings import Settings, differences, from_run, presets
from prompt_aug.base.commands import (
    add_steps,
    at_least,
    check_url,
    existing,
    make_parser,
    nonempty_path,
)
from prompt_aug.base.errors import UsageError
from prompt_aug.base.files import InUseError, is_held, read_json
from prompt_aug.base.tokenizers import load_tokenizer
from prompt_aug.endpoint import Budget, named
from prompt_aug.extraction import EXTRACTIONS
from prompt_aug.templates.rendering import Style
from prompt_aug.typed import parse_yaml
from recipe.run.evaluation import DType
from recipe.run.folder import RunFolder, read_config, select

WATCH_SECONDS = 30.0
# A preset sets these to their defaults, whatever the run has.
PRESET_RESETS = ("top_k", "min_p", "repetition_penalty", "stop", "system_prompt")
TRUNCATED = 0.05  # share of a benchmark's responses above which a warning is printed


def _parser() -> argparse.ArgumentParser:
    example = "python -m eval.sweep runs/toy --benchmark aime24 --temperature 1"
    parser = make_parser("python -m eval.sweep", __doc__, example=example)
    add = parser.add_argument
    add("runs", nargs="*", type=existing, metavar="RUN", help="run folders; each with its settings")
    add("--model", action="append", default=[], help="a model folder or hub id instead")
    add("--endpoint", metavar="URL", help="OpenAI-compatible server of --model, as"
        " http://localhost:8000/v1, instead of an engine")  # fmt: skip
    add("--tokenizer", help="with --endpoint: a model (default: --model)")
    add("--concurrency", type=int, default=64, help="with --endpoint: requests at once")
    add("--max-requests", type=int, help="with --endpoint: stop after that many")
    add("--max-total-tokens", type=int, help="with --endpoint: stop before more are used")
    add(
        "--out", type=nonempty_path, help="output folder (required with --model; default: RUN/eval)"
    )
    add("--benchmark", action="append", default=[], metavar="NAME[=PATH[:SAMPLES]]",
        help="a known name, or a file; may be repeated")  # fmt: skip
    add_steps(parser)
    add("--preset", choices=list(presets()), help="the settings of a paper's evaluation")
    add("--samples", type=int, help="per question (default: the benchmark's; greedy: 1)")
    add("--template", help="template of every question (default: the run's)")
    add("--bank", help="template bank file (default: the run's own, or the project's)")
    add("--style", choices=get_args(Style), help="default: the run's own, or auto")
    add("--chat", metavar="{KEY: VALUE}",
        help="arguments of the chat template, as '{enable_thinking: false}'")  # fmt: skip
    add("--extraction", choices=EXTRACTIONS, help="which text counts as the answer")
    add("--verifier", action="append", default=[], type=_pair, metavar="SOURCE=MODULE.FUNCTION",
        help="your own function for a data source (default: the run's own)")  # fmt: skip
    add("--temperature", type=float, help="0 is greedy (default: the run's, or 0)")
    add("--top-p", type=float, help="default: the run's, or 1")
    add("--top-k", type=int, help="sample from the k likeliest tokens (default: all)")
    add("--min-p", type=float, help="least share of the likeliest token's probability (default: 0)")
    add("--repetition-penalty", type=float, help="above 1: fewer repeated tokens (default: 1)")
    add("--stop", action="append", type=str, help="a stop string beside the template's; may be"
        " repeated; it stays in the response")  # fmt: skip
    add("--system-prompt", help="replaces that of the template and of the questions")
    add("--max-tokens", type=int, help="limit of a response (default: the run's, or 3000)")
    add("--max-model-len", type=int, help="limit of prompt and response together")
    add("--max-questions", type=int, help="only the first N questions of each benchmark")
    add("--seed", type=int, help="default: the run's, or 0")
    add("--dtype", choices=get_args(DType), help="default: the run's, or auto")
    add("--gpu-memory-utilization", type=float, help="share of a GPU's memory (default: 0.8)")
    add("--tensor-parallel", type=int, help="GPUs of one engine (default: 1)")
    add("--no-reload", dest="reload_weights", action="store_false", default=None,
        help="start an engine for every checkpoint instead of reloading weights")  # fmt: skip
    add("--dry-run", action="store_true", help="show the settings and the first prompts only")
    add("--watch", action="store_true",
        help="follow a training: export and evaluate each checkpoint as it is saved")  # fmt: skip
    return parser


def _pair(value: str) -> tuple[str, str]:
    name, _, content = value.partition("=")
    if not name or not content:
        raise argparse.ArgumentTypeError(f"{value!r}: write NAME=VALUE")
    return name, content


def _settings(options: argparse.Namespace, run: Path | None) -> Settings:
    """Return the settings: those of the run, then the preset, then the options."""
    settings = Settings() if run is None else from_run(run)
    requests = list(settings.benchmarks)
    if options.preset is not None:
        plain = {key: getattr(Settings(), key) for key in PRESET_RESETS}
        settings = settings.replaced(**plain | presets()[options.preset])
    given = {k: v for k, v in vars(options).items() if k in Settings.model_fields and v is not None}
    if options.chat is not None:
        given["chat"] = parse_yaml(options.chat, "--chat")
    own = {**(settings.verifiers or {}), **dict(options.verifier)} or None
    settings = settings.replaced(**given, verifiers=own)
    if settings.samples is not None:  # overrides the samples of the run's own benchmarks
        requests = [request.model_copy(update={"samples": None}) for request in requests]
    if options.benchmark:
        requests = [parse_request(request) for request in options.benchmark]
    asked = [options.samples, *(r.samples for r in requests if options.benchmark)]
    if settings.greedy and (most := max(filter(None, asked), default=1)) > 1:
        raise UsageError(
            f"{most} samples per question: at temperature 0 all would be the same. Add "
            "--temperature 1, or ask for one."
        )
    names = [request.name for request in requests]
    if not names:
        raise UsageError("no benchmark: add --benchmark math500, another known name, or NAME=PATH")
    if len(set(names)) != len(names):
        raise EvaluationError(f"a benchmark is named twice: {names}")
    return settings.replaced(benchmarks=tuple(requests))


def check_options(options: argparse.Namespace) -> None:
    if bool(options.runs) == bool(options.model):
        raise UsageError("give either run folders or --model HF_FOLDER")
    if options.model and (options.out is None or options.steps or options.watch):
        raise UsageError("--model needs --out DIR, and takes no --steps and no --watch")
    if options.watch and options.steps:
        raise UsageError("--watch waits for the training's last step: leave out --steps")
    check_url(options, "endpoint")
    at_least(1, options, "concurrency", "max_requests", "max_total_tokens")
    if options.endpoint and not options.model:
        raise UsageError("--endpoint: names no model. Add --model NAME, as the server lists it.")
    if len(options.runs) > 1 and (options.out is not None or options.watch):
        raise UsageError("--out and --watch are for one run: start the command for each")


def sweep(options: argparse.Namespace) -> None:
    """Check everything that can be checked, then do the items that no other worker holds."""
    check_options(options)
    for run in options.runs or [None]:
        root = options.out or RunFolder(run).evaluation
        settings = _settings(options, run)
        keys = ("greedy", "max_questions", "samples")
        how: Any = {key: getattr(settings, key) for key in keys}
        benchmarks = [load(request, **how) for request in settings.benchmarks]
        evaluation = Evaluation(root, settings, benchmarks)
        if options.dry_run:
            model = options.model[0] if run is None else find(run, options.steps)[0].model
            print(evaluation.plan(load_tokenizer(options.tokenizer or model)))
            continue
        if options.endpoint:
            budget = Budget(options.max_requests, options.max_total_tokens)
            server = connect(options.endpoint, options.concurrency, budget, settings)
            models = [server.checkpoint(m, options.tokenizer) for m in options.model]
            work(evaluation, models, server)
            print(f"endpoint: {budget.spent}")
            continue
        check_hardware(settings)
        print(f"evaluate: template {settings.template}, temperature {settings.temperature:g}")
        with Session(settings) as session:
            if run is None:
                models = [from_model(model) for model in options.model]
                if len(names := {model.name for model in models}) != len(models):
                    raise EvaluationError(f"two models have the same name: {sorted(names)}")
                work(evaluation, models, session)
            else:
                _follow(run, options, evaluation, session)
            if session.starts:
                print(f"engine: {session.starts} started, weights reloaded {session.swaps} times")


def _follow(
    run: Path, options: argparse.Namespace, evaluation: Evaluation, session: Session
) -> None:
    """Evaluate a run; with --watch until the training's last step is evaluated."""
    last = select(read_config(run), "trainer.total_training_steps")
    if options.watch and not isinstance(last, int):
        raise EvaluationError(f"{run}: trainer.total_training_steps={last}: not a number")
    printed = ""
    while True:
        if options.watch:
            # The export has its own lock and skips what is done. It may fail while a step is saved.
            subprocess.run([sys.executable, "-m", "recipe.export", str(run)], check=False)
        try:
            checkpoints = find(run, options.steps)
        except EvaluationError:
            if not options.watch:
                raise
            checkpoints = []
        work(evaluation, checkpoints, session)
        if not options.watch or any(checkpoint.step == last for checkpoint in checkpoints):
            return
        steps = [checkpoint.step for checkpoint in checkpoints]
        note = f"waiting for step {last}: evaluated: {steps}"
        if not is_held(run):
            note += "; the training does not run here. Its command continues it."
        if note != printed:  # no limit: the training may be requeued, or be on another machine
            print(note, flush=True)
        printed = note
        time.sleep(WATCH_SECONDS)


def work(
    evaluation: Evaluation,
    checkpoints: Sequence[Checkpoint],
    session: Session | Server,
) -> None:
    """Do the items that are not done, except those that another worker holds."""
    todo = {c.name: [i for i in evaluation.items(c) if not i.is_done()] for c in checkpoints}
    for checkpoint in checkpoints:  # all checks run before the first engine starts
        _check_owner(checkpoint, evaluation)
        verify(checkpoint, most=LARGE)
    if any(todo.values()):
        prepare_environment(checkpoints[0].model)
        evaluation.prepare()
    held: list[Item] = []
    for number, checkpoint in enumerate(checkpoints, start=1):
        if todo[checkpoint.name]:
            print(f"[{number}/{len(checkpoints)}] {checkpoint.name}")
            verify(checkpoint)
        for item in todo[checkpoint.name]:
            try:
                evaluation.run(item, session)
            except InUseError:
                held.append(item)
        for item in filter(Item.is_done, evaluation.items(checkpoint)):
            _print_scores(item, evaluation.settings.max_tokens)
    if waiting := [item.name for item in held if not item.is_done()]:
        print(f"note: {len(waiting)} items are with other workers: {', '.join(waiting[:8])}")


def _print_scores(item: Item, limit: int) -> None:
    entry = read_json(item.folder.scores)
    error, settings, truncated = (
        entry[key] for key in ("standard_error", "settings", "truncation_rate")
    )
    spread = "" if error is None else f" +- {error:.4f}"
    print(
        f"  {item.name}: accuracy {entry['accuracy']:.4f}{spread} ({entry['questions']}"
        f" of {settings['of']} questions x {settings['samples']}), truncated {truncated:.4f}"
    )
    if truncated > TRUNCATED:
        print(
            f"  --max-tokens={limit}: {truncated:.0%} of the responses were truncated. Raise it "
            "if the model's context allows it."
        )
    for status, uids in entry.get("endpoint_statuses", {}).items():
        print(f"warning: {item.name}: {named(status, uids)}", file=sys.stderr)


def _check_owner(checkpoint: Checkpoint, evaluation: Evaluation) -> None:
    """Reject a folder with the samples of another model of the same name, as two runs' step_100.

    A run's own step may be exported again with other weights: its samples are then made anew.
    """
    if checkpoint.step is not None:
        return
    for item in evaluation.items(checkpoint):
        for file in item.folder.sample_files():
            head = head_of(file)
            changed = differences(head.get("model", checkpoint.identity), checkpoint.identity)
            changed = [line for line in changed if not line.startswith("endpoint:")]  # as a port
            # One name may be served with new weights; vLLM reports their folder as `root`.
            if checkpoint.root and (root := head.get("engine", {}).get("root")):
                changed += differences({"root": root}, {"root": checkpoint.root})
            if changed:
                raise EvaluationError(
                    f"{item.folder.root} has samples of another model named {checkpoint.name} "
                    f"({'; '.join(changed)}). Choose another --out for this one."
                )


def main(arguments: Sequence[str] | None = None) -> int:
    return run_command(_parser(), arguments, sweep, "the samples made so far are saved")


if __name__ == "__main__":
    sys.exit(main())
