"""Evaluate the exported checkpoints of runs, or models: sample, grade, score.

An item is a checkpoint and a benchmark. --workers N, or the command itself on any number of nodes
or as a SLURM array: each worker takes the items that no other worker holds. A killed worker resumes
with the samples that are missing.
"""

import argparse
import functools
import sys
import time
from collections.abc import Collection, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

from eval import workers
from eval.ask.benchmarks import load_benchmark, parse_request
from eval.ask.checkpoints import Checkpoint, find, from_model
from eval.ask.endpoint import Server, connect
from eval.ask.engine import prepare_environment
from eval.ask.session import Session
from eval.ask.settings import Settings, add_options, from_run, presets
from eval.evaluate import Evaluation, Item
from prompt_aug.base.commands import (
    Parser,
    add_steps,
    at_least,
    check_url,
    existing,
    make_parser,
    nonempty_path,
)
from prompt_aug.base.errors import UsageError, UserError
from prompt_aug.base.files import is_held
from prompt_aug.base.tokenizers import load_tokenizer
from prompt_aug.endpoint import Budget, named
from prompt_aug.typed import parse_yaml
from recipe.config.evaluation import SAMPLING
from recipe.run.folder import RunFolder, read_config, select

WATCH_SECONDS, EXPORT_SECONDS = 30.0, 5.0  # between two looks for new checkpoints
# A preset sets these to their defaults, whatever the run has.
PRESET_RESETS = (*SAMPLING, "stop", "system_prompt")
FAILED = {"error", "bad_result", "timeout"}  # statuses of a grader or verifier that did not answer
TRUNCATED = 0.05  # share of a benchmark's responses above which a warning is printed


def _parser() -> Parser:
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
    add("--verifier", action="append", default=[], type=_pair, metavar="SOURCE=MODULE.FUNCTION",
        help="your own function for a data source (default: the run's own)")  # fmt: skip
    add_options(parser)
    add("--dry-run", action="store_true", help="show the settings and the first prompts only")
    add("--export", action="store_true", help="export the checkpoints meanwhile")
    add("--watch", action="store_true",
        help="follow a training: export and evaluate each checkpoint as it is saved")  # fmt: skip
    add("--workers", type=int, metavar="N",
        help="engines at once, each on its own GPUs (default: 1; in SLURM: all GPUs)")  # fmt: skip
    add("--worker", type=Fraction, help=argparse.SUPPRESS)  # I/N: one of them
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
        raise UserError(f"a benchmark is named twice: {names}")
    return settings.replaced(benchmarks=tuple(requests))


def check_options(options: argparse.Namespace) -> None:
    if bool(options.runs) == bool(options.model):
        raise UsageError("give either run folders or --model HF_FOLDER")
    follows = options.watch or options.export
    if options.model and (options.out is None or options.steps or follows):
        raise UsageError("--model needs --out DIR, and takes no --steps, --export or --watch")
    if options.watch and options.steps:
        raise UsageError("--watch waits for the training's last step: leave out --steps")
    check_url(options, "endpoint")
    at_least(1, options, "concurrency", "max_requests", "max_total_tokens", "workers")
    if options.endpoint and not options.model:
        raise UsageError("--endpoint: names no model. Add --model NAME, as the server lists it.")
    if options.endpoint and options.workers:
        raise UsageError("--workers: not with --endpoint. Use --concurrency.")
    if len(options.runs) > 1 and (options.out is not None or options.watch):
        raise UsageError("--out and --watch are for one run: start the command for each")


def check_verifiers(options: argparse.Namespace, evaluations: Collection[Evaluation]) -> None:
    """Refuse a --verifier that grades nothing; note it where all of a run's do."""
    found = {q.source for x in evaluations for b in x.benchmarks for q in b.questions}
    known = {name for x in evaluations for name in x.settings.verifiers or {}}
    why = f"no question has this data_source; they have {', '.join(sorted(found))}"
    if lost := [name for name, _ in options.verifier if name not in found]:
        raise UsageError(f"--verifier {lost[0]}: {why}. Use one of them.")
    if known and not known & found:
        print(f"note: the verifiers of {', '.join(known)} grade nothing: {why}", file=sys.stderr)


def sweep(options: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Check everything that can be checked, then do the items that no other worker holds."""
    check_options(options)
    evaluations = {run: _evaluation(options, run) for run in options.runs or [None]}
    if options.max_questions is None and options.worker is None:
        check_verifiers(options, evaluations.values())
    if not (options.dry_run or options.endpoint or options.worker is not None):
        workers.start(options, arguments)
    for run, evaluation in evaluations.items():
        settings = evaluation.settings
        if options.dry_run:
            model = options.model[0] if run is None else find(run, options.steps)[0].model
            print(evaluation.plan(load_tokenizer(options.tokenizer or model)))
            continue
        if options.endpoint:
            budget = Budget(options.max_requests, options.max_total_tokens)
            server = connect(options.endpoint, options.concurrency, budget, settings)
            models = [server.checkpoint(m, options.tokenizer) for m in options.model]
            work(_items(evaluation, models), server)
            print(f"endpoint: {budget.spent}")
            continue
        print(f"evaluate: template {settings.template}, temperature {settings.temperature:g}")
        with Session(settings) as session:
            if run is None:
                models = [from_model(model) for model in options.model]
                if len(names := {model.name for model in models}) != len(models):
                    raise UserError(f"two models have the same name: {sorted(names)}")
                work(_items(evaluation, models, options.worker), session)
            elif options.watch or options.export:
                _follow(run, options, evaluation, session)
            else:
                work(_items(evaluation, find(run, options.steps), options.worker), session)
            if session.starts:
                print(f"engine: {session.starts} started, weights reloaded {session.swaps} times")


def _evaluation(options: argparse.Namespace, run: Any) -> Evaluation:
    settings = _settings(options, run)
    keys = ("greedy", "max_questions", "samples")
    how: Any = {key: getattr(settings, key) for key in keys}
    how["reading"] = settings.form.reading
    benchmarks = [load_benchmark(request, **how) for request in settings.benchmarks]
    return Evaluation(options.out or RunFolder(run).evaluation, settings, benchmarks)


def _follow(
    run: Path, options: argparse.Namespace, evaluation: Evaluation, session: Session
) -> None:
    """Evaluate a run: with --export until all is exported, with --watch until its last step."""
    last = select(read_config(run), "trainer.total_training_steps")
    if options.watch and not isinstance(last, int):
        raise UserError(f"{run}: trainer.total_training_steps={last}: not a number")
    seen, items, printed = list[Checkpoint](), list[Item](), ""
    for code in workers.exports(run, options.steps):
        new = [c for c in find(run, options.steps, partial=True) if c not in seen]
        anew = {checkpoint.step for checkpoint in new}  # exported again, some of them
        items = [item for item in items if item.checkpoint.step not in anew]
        seen, items = seen + new, items + _items(evaluation, new, options.worker)
        work(items, session, final=code is not None)
        steps = [checkpoint.step for checkpoint in seen]
        others = map(is_held, RunFolder(run).export_locks.glob("step_*"))  # exports of others
        if code is not None and (last in steps or not options.watch) and not any(others):
            break
        note = f"waiting for step {last}: evaluated: {steps}"
        if not is_held(run):
            note += "; the training does not run here. Its command continues it."
        if code is not None and note != printed:  # no limit: it may be requeued, or elsewhere
            print(note, flush=True)
            printed = note
        time.sleep(EXPORT_SECONDS if code is None else WATCH_SECONDS)
    if code:
        raise UserError(f"{run}: not all is exported, see above. Run the same command again.")


def _items(
    evaluation: Evaluation, checkpoints: Sequence[Checkpoint], worker: Fraction | None = None
) -> list[Item]:
    """Return the items; print the scores of those that are done.

    `worker` I/N begins at that part of the checkpoints, so that N workers load different weights.
    """
    first = int(len(checkpoints) * (worker or 0))
    items = evaluation.items([*checkpoints[first:], *checkpoints[:first]])
    if not all(item.entry for item in items):
        prepare_environment(checkpoints[0].model)
        evaluation.prepare()
    for item in items if worker is None else ():
        _print_scores(item)
    return items


def work(items: Sequence[Item], session: Session | Server, *, final: bool = True) -> None:
    """Complete the items, and return when other workers hold all that are left."""
    todo = [item for item in items if not item.entry]
    while todo:
        held = []
        for item in todo:
            if item.complete(session):
                _print_scores(item)
            else:
                held.append(item)
        if final and len(held) == len(todo):
            names = ", ".join(item.name for item in held[:8])
            print(f"note: {len(held)} items are with other workers: {names}")
        todo = held if len(held) < len(todo) else []


def _print_scores(item: Item) -> None:
    if (entry := item.entry) is None:
        return
    limit = item.evaluation.settings.max_tokens
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
    for status in sorted(FAILED & entry["status_rates"].keys()):
        share = entry["status_rates"][status]
        print(f"warning: {item.name}: {share:.1%} graded {status}: 0 points", file=sys.stderr)
    for status, uids in entry.get("endpoint_statuses", {}).items():
        print(f"warning: {item.name}: {named(status, uids)}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    command = functools.partial(sweep, arguments=given)
    return _parser().run(given, command, "the samples made so far are saved")


if __name__ == "__main__":
    sys.exit(main())
