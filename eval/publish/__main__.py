"""Export the scores and samples of a run to other tools. Nothing is uploaded without --push.

For each scored checkpoint, or those of --steps: scores in the training's tensorboard or wandb run,
a model card in the exported folder.
"""

import argparse
import sys
from collections.abc import Sequence

from eval import EvaluationError
from eval.command import add_settings, run_command, text
from eval.publish import card, loggers
from eval.report.data import scored_steps
from prompt_aug.base.commands import add_steps, existing, make_parser
from prompt_aug.base.errors import UsageError


def check_asked(options: argparse.Namespace) -> None:
    if not any((options.log, options.card, options.push)):
        raise UsageError("nothing to do: add --log, --card or --push")


def publish(options: argparse.Namespace) -> None:
    check_asked(options)
    run, steps = options.run, options.steps
    scored = scored_steps(run, options.settings)
    if missing := sorted(set(steps or ()) - set(scored)):
        raise EvaluationError(f"{run} has no scores of the steps {missing}: {sorted(scored)}")
    checkpoints = [
        card.Evaluated(one.folder, one.record, run, step)
        for step, one in scored.items()
        if steps is None or step in steps
    ]
    if options.push and len(checkpoints) != 1:
        raise UsageError("--push uploads one checkpoint: add --steps N")
    for checkpoint in checkpoints:
        if options.card and not options.push and (checkpoint.step or steps):
            print(f"card: {card.write(checkpoint)}")
        if options.push:
            print(f"pushed: {card.push(checkpoint, options.push, public=options.public)}")
    for name in dict.fromkeys(options.log):
        print(f"{name}: {loggers.LOGGERS[name](run, checkpoints)}")


def main(arguments: Sequence[str] | None = None) -> int:
    example = "python -m eval.publish runs/grpo --steps 20 --card --log tensorboard"
    parser = make_parser("python -m eval.publish", __doc__, example=example)
    add = parser.add_argument
    add("run", type=existing, help="run folder")
    add_steps(parser)
    add_settings(parser)
    add("--log", nargs="+", choices=loggers.LOGGERS, default=[], help="add to the training's run")
    add("--card", action="store_true", help="write the model card README.md in RUN/hf/step_N")
    add("--push", type=text, metavar="REPOSITORY", help="upload RUN/hf/step_N, private")
    add("--public", action="store_true", help="with --push: visible to everyone")
    return run_command(parser, arguments, publish, "what was written stays")


if __name__ == "__main__":
    sys.exit(main())
