"""Try a method in simulated experiments: ``python -m recipe.lab.trial NAME ... --method METHOD``.

METHOD is a function in your file, ``mine.py:weight``, or a name in recipe/config/method. An
advantage takes (rewards_B, group_B), a token weight (logprobs_BT, advantages_BT, mask_BT, group_B),
as in `recipe.algorithms`. For a loss, name its class: a verl ``PolicyLossConfig`` with its own
``loss_mode`` (see `recipe.algorithms.gmpo`). Method and baseline start from the same models. Writes
OUT/EXPERIMENT-METHOD.md for each experiment, which also shows the other arms on record.
"""

import argparse
import importlib
import inspect
import os
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from prompt_aug.base.commands import make_parser, run
from prompt_aug.base.errors import UsageError
from prompt_aug.base.files import write_text
from recipe.config.compose import group_names
from recipe.errors import ConfigError
from recipe.lab import page
from recipe.lab.card import mechanism
from recipe.lab.experiment import COUNTED, FIRST_COUNTED, Arm, Experiment, load_experiment
from recipe.lab.runs import Lines, check_arm, read_record, run_all
from recipe.run.environment import commit, set_defaults

LOSS = "actor_rollout_ref.actor.policy_loss"


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """A method to try: its name on the page and its overrides."""

    name: str
    set: tuple[str, ...]
    folder: Path | None = None  # to be added to the PYTHONPATH


def method_of(given: str) -> Method:
    """Return the method that --method names. Raises UsageError."""
    path, colon, name = given.rpartition(":")
    if not colon:
        if given not in group_names("method"):
            known = ", ".join(group_names("method"))
            raise UsageError(
                f"--method {given}: no such method. Give FILE.py:FUNCTION or one of {known}."
            )
        return Method(name=given, set=(f"method={given}",))
    file = Path(path)
    if file.suffix != ".py" or not file.is_file() or not file.stem.isidentifier():
        raise UsageError(f"--method {given}: no such file. Give FILE.py:FUNCTION.")
    sys.path.insert(0, str(file.resolve().parent))
    try:
        function = getattr(importlib.import_module(file.stem), name)
    except Exception as error:  # the user's module may raise anything
        raise UsageError(
            f"--method {given}: cannot be imported ({type(error).__name__}: {error}). Correct it."
        ) from error
    return _method(given, file, name, function)


def _method(given: str, file: Path, name: str, function: Any) -> Method:
    dotted, folder = f"{file.stem}.{name}", file.resolve().parent
    # The name has a digest of the file, so that an edited file is trained again.
    shown = f"{name}_{sha256(file.read_bytes()).hexdigest()[:6]}"
    if not callable(function):
        raise UsageError(f"--method {given}: {function!r:.60} is not a function. Name another.")
    if inspect.isclass(function):
        mode = getattr(function, "loss_mode", "vanilla")
        if mode == "vanilla":  # inherited: this would be GRPO
            raise UsageError(
                f"--method {given}: the class sets no loss_mode of its own. Write loss_mode: str = "
                '"NAME" in it, as in recipe.algorithms.gmpo, and register the loss under NAME.'
            )
        loss = (f"{LOSS}._target_={dotted}", f"{LOSS}.loss_mode={mode}")
        return Method(name=shown, set=loss, folder=folder)
    parameters = inspect.signature(function).parameters.values()
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [p.name for p in parameters if p.kind in positional and p.default is p.empty]
    keys = {2: "recipe.advantage.name", 4: "recipe.weights.name"}
    if len(required) not in keys:
        raise UsageError(
            f"--method {given}: takes {', '.join(required)}. An advantage takes (rewards_B, "
            "group_B), a token weight (logprobs_BT, advantages_BT, mask_BT, group_B)."
        )
    return Method(name=shown, set=(f"{keys[len(required)]}={dotted}",), folder=folder)


def tried(
    experiment: Experiment, method: Method, arms: Iterable[str], more: Iterable[str]
) -> Experiment:
    """Return the experiment with the method as its last arm, compared with the first of `arms`.

    It has the settings of that baseline, then its own, then `more`.
    """
    chosen, more = [experiment.arm(name) for name in arms], tuple(more)
    name = "_".join([method.name, *([sha256(repr(more).encode()).hexdigest()[:6]] * bool(more))])
    name += "_tried" * (name in {arm.name for arm in experiment.arms})
    settings = (*chosen[0].set, *method.set, *more)
    own = Arm(name=name, world=chosen[0].world, set=settings, decides=True)
    others = [
        arm
        for arm in experiment.arms
        if arm not in chosen and arm.world == own.world and arm.set != own.set
    ]
    compare = tuple((arm.name, chosen[0].name) for arm in (own, *chosen[1:], *others))
    return experiment.model_copy(update={"arms": (*chosen, *others, own), "compare": compare})


def written(experiment: Experiment, lines: Lines, method: Method, command: str) -> str:
    """Return the page in Markdown."""
    seeds = len({seed for name, seed in lines if name == experiment.arms[-1].name})
    least = 2.0 ** (1 - seeds) if seeds else 1.0
    return (
        f"# {method.name} in {experiment.name}\n\n{mechanism(experiment, lines)}\n\n"
        f"{page.summary(experiment, lines)}\n\n"
        f"`{' '.join(experiment.arms[-1].set)}`, {experiment.steps} steps, simulated. Held-out "
        f"questions at temperature 1. p: exact sign-flip test; {seeds} seeds cannot reach less "
        f"than {least:.3g}.\n\n{page.other_starts(experiment, lines)}\n\n"
        f"{page.checkpoints(experiment, lines)}\n\n{page.runs(lines)}\n\n"
        f"`{command}`, commit {str(commit())[:12]}.\n"
    )


def carry_out(given: argparse.Namespace) -> int:
    """Make the missing runs of every experiment and write its page."""
    set_defaults(cpu=True)
    if not 1 <= given.seeds <= COUNTED:
        raise UsageError(f"--seeds {given.seeds}: give 1 to {COUNTED}.")
    experiments = [load_experiment(name) for name in given.experiments]
    for experiment in experiments:
        if not experiment.simulated:
            raise ConfigError(
                f"experiment {experiment.name}: not simulated. Use one whose experiment.yaml says "
                "simulated: true."
            )
    method = method_of(given.method)
    paths = [str(method.folder)] if method.folder else []
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    plans = [tried(e, method, given.arms or [e.arms[0].name], given.set) for e in experiments]
    for plan in plans:
        check_arm(plan, plan.arms[-1])
    failed = [_try(given, plan, method) for plan in plans]
    return int(any(failed))


def _try(given: argparse.Namespace, plan: Experiment, method: Method) -> list[tuple[str, int]]:
    """Make the missing runs of one experiment and write its page; return what failed."""
    record, out = given.out / plan.name / "trials.jsonl", given.out / plan.name
    known = read_record(plan.folder / "record.jsonl", plan)
    seeds = range(FIRST_COUNTED, FIRST_COUNTED + given.seeds)
    arms = (*plan.arms[: len(given.arms or [""])], plan.arms[-1])
    wanted = [(arm, seed) for seed in seeds for arm in arms]

    def made() -> Lines:
        every = {**known, **read_record(record, plan)}
        return {key: line for key, line in every.items() if key[1] in seeds}

    missing = [(arm, seed) for arm, seed in wanted if (arm.name, seed) not in known]
    failed = run_all(plan, missing, record=record, out=out, jobs=given.jobs)
    compared = plan.model_copy(update={"compare": plan.compare[:1]})
    if page.other_starts(compared, made()):
        print("the baseline on record has other start models, of another machine: it is run here")
        failed += run_all(plan, wanted, record=record, out=out, jobs=given.jobs)
    lines = made()
    if not any(name == plan.arms[-1].name for name, _ in lines):
        return failed  # the method has no run to show
    words = [plan.name, "--method", given.method, "--seeds", str(given.seeds)]
    for option in ("arms", "set"):
        if values := getattr(given, option):
            words += [f"--{option}", *values]
    command = f"python -m recipe.lab.trial {shlex.join(words)}"
    text = written(plan, lines, method, command)
    path = given.out / f"{plan.name}-{plan.arms[-1].name}.md"
    write_text(path, text)
    print(f"\n{text}\nwritten to {path}")
    return failed


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser(
        "python -m recipe.lab.trial",
        __doc__,
        example="python -m recipe.lab.trial edge chatty --method cw_grpo --seeds 3 --jobs 2",
    )
    parser.add_argument("experiments", nargs="+", help="simulated ones of examples/laboratory")
    parser.add_argument("--method", required=True, help="FILE.py:FUNCTION or a method's name")
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", help="its overrides")
    parser.add_argument("--seeds", type=int, default=3, help="number, paired with the baseline's")
    parser.add_argument("--arms", nargs="+", help="to run beside it; default: the baseline")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, one core each")
    parser.add_argument("--out", type=Path, default=Path("runs/laboratory"), help="runs and page")
    given = parser.parse_args(arguments)
    return run("recipe.lab.trial", lambda: carry_out(given), interrupted="finished runs are kept")


if __name__ == "__main__":
    sys.exit(main())
