"""Hands the scores and samples of a run to other tools; nothing leaves this machine without --push.

For each checkpoint, or for those of --steps: samples for lm-evaluation-harness, logs for
inspect_ai's viewer, scores in the training's tensorboard or wandb run, a model card in the exported
folder.
"""

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from eval.command import add_settings, existing, path, run_command, text
from eval.publish import card, harness, inspect_log, loggers
from eval.publish.evaluated import evaluated
from prompt_aug.base.commands import add_steps, make_parser
from prompt_aug.base.errors import UsageError

LOGGERS = {"tensorboard": loggers.to_tensorboard, "wandb": loggers.to_wandb}


def check_asked(options: argparse.Namespace) -> None:
    """Refuse a command without anything to do, before anything is read."""
    if not any((options.lm_eval, options.inspect, options.log, options.card, options.push)):
        raise UsageError("nothing to do: add --lm-eval, --inspect, --log, --card or --push")


def publish(options: argparse.Namespace) -> None:
    """Do what was asked; each line says where something is."""
    check_asked(options)
    checkpoints = evaluated(options.run, options.settings, options.steps)
    if options.push and len(checkpoints) != 1:
        raise UsageError("--push uploads one checkpoint: add --steps N")
    now = datetime.now(UTC)
    for checkpoint in checkpoints:
        if options.lm_eval:
            date = now.replace(tzinfo=None).isoformat().replace(":", "-")
            print(f"lm-evaluation-harness: {harness.write(checkpoint, options.lm_eval, date)}")
        if options.inspect:
            date = now.isoformat(timespec="seconds")
            for file in inspect_log.write(checkpoint, options.inspect, date):
                print(f"inspect_ai: {file}")
        if options.card and not options.push and (checkpoint.step or options.steps):
            print(f"card: {card.write(checkpoint)}")
        if options.push:
            print(f"pushed: {card.push(checkpoint, options.push, public=options.public)}")
    for name in dict.fromkeys(options.log):
        print(f"{name}: {LOGGERS[name](options.run, checkpoints)}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = make_parser(
        "python -m eval.publish",
        __doc__,
        example="python -m eval.publish runs/grpo --steps 20 --card --inspect logs",
    )
    add = parser.add_argument
    add("run", type=existing, help="run folder")
    add_steps(parser)
    add_settings(parser)
    add("--lm-eval", type=path, metavar="DIR", help="samples as lm-evaluation-harness logs them")
    add("--inspect", type=path, metavar="DIR", help=".eval logs for `inspect view`")
    add("--log", nargs="+", choices=sorted(LOGGERS), default=[], help="into the training's run")
    add("--card", action="store_true", help="model card README.md, in RUN/hf/step_N")
    add("--push", type=text, metavar="REPOSITORY", help="upload RUN/hf/step_N, private")
    add("--public", action="store_true", help="with --push: for everyone to see")
    return run_command(parser, arguments, publish, "what was written stays")


if __name__ == "__main__":
    sys.exit(main())
