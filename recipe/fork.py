"""Fork a run: a new run folder whose training begins from a checkpoint of RUN.

    python -m recipe.fork RUN --step N NEW [KEY=VALUE ...]

NEW starts with the weights, the optimizer's state, the position in the data and the counts of step
N, and with the settings of RUN's last start, overridden by KEY=VALUE. With the same settings it
trains as RUN would have continued. With recipe.rollout.request_seeds=true it draws the same random
numbers under other settings too, so two methods can be compared from one checkpoint. fork.json in
NEW and forks.jsonl in RUN record the fork. Files are hard links if both folders are on one disk.
"""

import shlex
import shutil
import sys
from pathlib import Path

from omegaconf import DictConfig, OmegaConf

from prompt_aug.base.commands import existing, make_parser, python_command, run
from prompt_aug.base.files import lock, read_json, read_lines, write_json, write_lines, write_text
from recipe.config.base import quoted
from recipe.config.compose import compose_config
from recipe.config.verl import off_switch
from recipe.errors import ConfigError
from recipe.run import checkpoints, environment
from recipe.run.folder import RunFolder, metrics_lines
from recipe.trainer import launch

# Overrides that may change the questions or the prompts.
DRAWN = ("data.", "recipe.augment.", "recipe.rephrasings.")


def command_of(source: RunFolder) -> list[str]:
    """Return the arguments of `recipe.train` at the last start of a run."""
    if not source.environment.is_file():
        raise ConfigError(f"{source.root}: not a run folder, since environment.json is missing")
    record = read_json(source.environment)
    words = shlex.split([record, *record.get("resumed", [])][-1]["command"])
    if "recipe.train" not in words:
        raise ConfigError(
            f"{source.environment}: the run was not started by `python -m recipe.train`, so its "
            "settings cannot be composed again. Start a run with trainer.resume_mode=resume_path"
        )
    return words[words.index("recipe.train") + 1 :]


def composed(arguments: list[str], more: list[str]) -> tuple[list[str], DictConfig]:
    """Return the arguments with the overrides `more`, and their checked configuration.

    Overrides of the run that nothing reads any more, since `more` switches a feature off, are left
    out.
    """
    example = next(word for word in arguments if "=" not in word)
    given = [word for word in arguments if "=" in word]
    by_key = {text.partition("=")[0].lstrip("+"): text for text in [*given, *more]}
    config = compose_config(example, list(by_key.values()), allow_unread=True)
    new = {text.partition("=")[0].lstrip("+") for text in more}
    by_key = {k: text for k, text in by_key.items() if k in new or not off_switch(config, k)}
    config = compose_config(example, list(by_key.values()))
    launch.set_environment(config)
    # Imported here: transformers reads the environment.
    from recipe.preflight.checks import check

    check(config, here=False)
    return [example, *by_key.values()], config


def fork(root: Path, step: int, new: Path, overrides: list[str]) -> list[str]:
    """Make the run folder `new`; returns the arguments of `recipe.train` that trains it.

    The folder gets its name at the end, so a killed call can be repeated.
    """
    from recipe.preflight.resume import other_mesh, take_checkpoint, unlike
    from recipe.preflight.rules import Setup

    source, new = RunFolder(root.resolve()), new.resolve()
    if new.exists():
        raise ConfigError(f"{new}: it exists already. Choose another folder")
    for text in overrides:
        if text.partition("=")[0] in ("recipe.run_dir", "trainer.default_local_dir"):
            raise ConfigError(f"{text}: the folder of the new run is {new}. Leave the key out")
    arguments = command_of(source)
    with lock(source.root):
        checkpoint = source.checkpoint(step)
        if why := checkpoints.damage(checkpoint):
            saved = ", ".join(map(str, checkpoints.saved_steps(source.checkpoints))) or "none"
            raise ConfigError(
                f"--step={step}: {checkpoint} cannot be used: {why}. Name one of the saved steps: "
                f"{saved}."
            )
        _, old = composed(arguments, [f"recipe.run_dir={quoted(source.root)}"])
        command, config = composed(arguments, [*overrides, f"recipe.run_dir={quoted(new)}"])
        if keys := [*unlike(old, config), *other_mesh(checkpoint, old, Setup(config))]:
            raise ConfigError(
                f"{', '.join(keys)}: the checkpoint was saved with another value, and its state "
                "depends on it. Leave the key out"
            )
        staged = RunFolder(new.parent / f".{new.name}.fork")
        shutil.rmtree(staged.root, ignore_errors=True)
        take_checkpoint(checkpoint, staged.checkpoints, config)
        lines = metrics_lines(source.root)
        write_lines(staged.metrics, (line for line in lines if line["step"] <= step))
        if not any(text.lstrip("+").startswith(DRAWN) for text in overrides):
            # `recipe.train` compares them with what the run's files hold by then.
            if source.data_manifest.is_file():
                report = read_json(source.data_manifest)
                write_json(staged.data_manifest, {**report, "own_functions": {}})  # may differ
            if source.prompts.is_file():
                write_text(staged.prompts, source.prompts.read_text(encoding="utf-8"))
        write_text(staged.config, OmegaConf.to_yaml(config, resolve=True))
        record = {
            "run": str(source.root),
            "step": step,
            "new": str(new),
            "overrides": overrides,
            "commit": environment.commit(),
        }
        write_json(staged.fork, record)
        before = [line for line in read_lines(source.forks) if line["new"] != str(new)]
        write_lines(source.forks, [*before, record])
        staged.root.rename(new)
    return command


def main(arguments: list[str] | None = None) -> int:
    example = "python -m recipe.fork runs/toy --step 10 runs/toy_low trainer.test_freq=1"
    parser = make_parser("python -m recipe.fork", __doc__, example=example)
    parser.add_argument("run", type=existing, help="the run folder to fork")
    parser.add_argument("new", type=Path, help="the run folder to make")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings that differ")
    parser.add_argument("--step", type=int, required=True, help="a step with a checkpoint")
    given = parser.parse_intermixed_args(arguments)

    def work() -> int:
        arguments = fork(given.run, given.step, given.new, given.overrides)
        print(f"next:\n  {python_command('recipe.train', *arguments)}")
        return 0

    return run("recipe.fork", work, interrupted="the same command makes the fork")


if __name__ == "__main__":
    sys.exit(main())
