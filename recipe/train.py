"""Train: ``python -m recipe.train EXAMPLE [KEY=VALUE ...]``.

EXAMPLE is the name of a folder in examples/, or the path of a folder that holds a config.yaml;
KEY=VALUE are hydra overrides, keys in full. All checks run before Ray starts. After a kill the same
command resumes from the last checkpoint of the run folder. A SIGTERM or SIGHUP (a closed terminal)
saves the step under way and ends the run; with exit code 75 the same command resumes.

    python -m recipe.train grpo --model MODEL --data DATA        # yours, on this machine
    python -m recipe.train toy                                   # two CPU cores, some minutes
    python -m recipe.train toy_methods method=cw_grpo            # any method on the same task
    python -m recipe.train cw_grpo recipe.run_dir=runs/cw_grpo   # a paper's setting, on GPUs
    python -m recipe.train --script my_run.sh method=cw_grpo     # a launch script of verl, as it is
"""

import argparse
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from omegaconf import DictConfig

from prompt_aug.base.commands import at_least, make_parser, run_command
from prompt_aug.base.progress import Progress

PREPARE = ("text_column", "answer_column", "validation")  # options of prompt_aug.prepare
STOPPED = 130  # the shell's exit code after Ctrl-C


def start(given: argparse.Namespace, report: Callable[[DictConfig], str] | None = None) -> int:
    """Compose, check, prepare and run; returns the exit code. `report`: of a script's settings.

    A dry run first prints memory and hours, whatever the checks reject.
    """
    example, overrides, dry_run = given.example, given.overrides, given.dry_run
    from prompt_aug.base.files import lock, write_text
    from recipe.config import show
    from recipe.config.compose import compose_config
    from recipe.run import ending
    from recipe.run.checkpoints import saved_steps, tracked_step
    from recipe.run.folder import record_environment, record_model
    from recipe.run.stop import Limit
    from recipe.trainer import launch

    elsewhere = bool(given.gpus or given.gpu)
    if elsewhere and not any(text.startswith("machine=") for text in overrides):
        overrides = ["machine=gpu", *overrides]
    with Progress("recipe.train: checks"):
        config = compose_config(example, overrides)
        notes = show.notes(example, overrides)
        launch.set_environment(config)
        # Imported here: transformers reads the environment.
        from recipe.start.algorithm import on_policy, uncorrected
        from recipe.start.checks import check_run, prepare
        from recipe.start.dry_run import describe, estimate, on_gpus
        from recipe.start.engine import sixteen_bits
        from recipe.start.machine import save_seconds
        from recipe.start.rules import Setup, note

        on_gpus(config, given.gpus, given.gpu)
        setup = Setup(config, here=not dry_run, gpu=given.gpu)
        if dry_run and (lines := estimate(setup, needed=elsewhere)):
            print(lines, flush=True)
        check_run(setup)
    for why in [*notes, *uncorrected(setup), *on_policy(setup), *sixteen_bits(setup)]:
        note(why)
    settings = report(config) if report else ""
    if dry_run:
        print(settings + describe(setup))
        return 0
    folder = setup.folder
    with lock(folder.root):
        anew = not saved_steps(folder.checkpoints)
        with Progress("recipe.train: data and model"):
            prepare(setup)
        if launch.finished(config):
            print(f"recipe.train: all steps of {folder.root} are done already")
            print(ending.next_commands(config))
            return 0
        if (changes := record_environment(folder.root)) and folder.begun:
            note(f"since the last start: {', '.join(changes)}")
        record_model(folder.root, anew or not tracked_step(folder.checkpoints))
        if settings:
            write_text(folder.script, settings)
        Limit.of(folder.root).expect(save_seconds(setup))
        code, message = carry_out(config)
        ending.record(folder, code, message)
    print(f"recipe.train: {message}", file=sys.stderr if code else sys.stdout)
    if not code:
        print(ending.next_commands(config))
    return code


def carry_out(config: DictConfig) -> tuple[int, str]:
    """Train; returns the exit code and a message about how the run ended."""
    from recipe.run import ending, stop
    from recipe.trainer import launch

    try:
        launch.train(config)
    except KeyboardInterrupt:
        return STOPPED, f"stopped; {ending.how_to_go_on(config)}"
    except stop.StoppedError as error:
        message = f"ended early: {ending.own_words(error)}; {ending.how_to_go_on(config)}"
        return stop.AGAIN, message
    except Exception as error:  # reported, then the exit code
        return 1, ending.explain(error, config)
    return 0, f"done, run folder {config.recipe.run_dir}"


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser(
        "python -m recipe.train",
        __doc__,
        example="python -m recipe.train toy trainer.total_training_steps=8",
    )
    parser.add_argument("example", nargs="?", help="a folder in examples/, or the path of one")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="hydra overrides")
    add = parser.add_argument_group("a launch script of verl").add_argument
    add("--script", type=Path, metavar="FILE.sh", help="its command, in place of an example")
    add("--set", action="append", default=[], metavar="NAME=VALUE", help="a variable of the script")
    add("--command", type=int, metavar="N", help="which of its commands, from 1")
    add("--drop", action="append", default=[], metavar="KEY", help="a setting to leave out")
    parser.add_argument("--model", help="a folder or hub id; with a method in place of an example")
    parser.add_argument("--data", help="a file, hub id or preset; 200 questions are held out")
    parser.add_argument("--text-column", metavar="COLUMN", help="of --data: the question")
    parser.add_argument("--answer-column", metavar="COLUMN", help="of --data: the answer")
    parser.add_argument("--validation", metavar="N", type=int, help="questions held out of --data")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--list", action="store_true", help="the examples and methods, a line each")
    only.add_argument(
        "--keys", action="store_true", help="the settings of this project, a line each"
    )
    only.add_argument("--rules", action="store_true", help="the checks of a run, a line each")
    only.add_argument("--cfg", action="store_true", help="every key and its value, a line each")
    only.add_argument(
        "--dry-run", action="store_true", help="all checks; then what the run would do and write"
    )
    parser.add_argument("--gpus", type=int, metavar="N", help="of --dry-run: as if there were N")
    parser.add_argument("--gpu", metavar="TYPE", help="of --dry-run: their type, as h200-141")
    given = parser.parse_intermixed_args(arguments)
    if given.script:  # in place of an example
        if given.model is not None or given.data is not None:
            parser.error("--script: set recipe.model_path and data.train_files, data.val_files")
        given.overrides[:0] = filter(None, [given.example])
        given.example = str(given.script)
    elif given.set or given.drop or given.command is not None:
        parser.error("--set, --command and --drop: only with --script")
    if given.example is None and not (given.list or given.keys or given.rules):
        parser.error("name an example: --list shows them")
    if (given.gpus is not None or given.gpu) and not given.dry_run:
        parser.error("--gpus and --gpu: only with --dry-run")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # SLURM's way to say: end now
    return run_command(
        "recipe.train",
        lambda: do(given),
        interrupted="stopped before the first step",
        progress=False,
    )


def do(given: argparse.Namespace, report: Callable[[DictConfig], str] | None = None) -> int:
    """Print the list or configuration asked for, or start the run; return the exit code."""
    if given.script:
        from recipe.translate import translate

        with tempfile.TemporaryDirectory() as folder:
            place = (given.script, Path(folder, given.script.stem))
            made = translate(*place, given.overrides, given.set, given.command, given.drop)
            given.script = None
            given.example, given.overrides = str(made.folder), made.overrides
            return do(given, made.report)
    from recipe.config import settings, show

    names = [name for name in PREPARE if getattr(given, name) is not None]
    options = [f"--{name.replace('_', '-')}={getattr(given, name)}" for name in names]
    if given.model is not None or given.data is not None or options:
        from recipe.shortcut import expand

        given.example, *given.overrides = expand(
            given.example, given.model, given.data, given.overrides, options
        )
    if given.list:
        print(show.examples_and_methods())
    elif given.keys:
        print(settings.page())
    elif given.rules:
        from recipe.start.checks import EVERY
        from recipe.start.rules import page

        print(page(EVERY))
    elif given.cfg:
        show.notes(given.example, given.overrides)
        print(show.every_key(given.example, given.overrides))
    else:
        at_least(1, given, "gpus")
        return start(given, report)
    return 0


if __name__ == "__main__":
    sys.exit(main())
