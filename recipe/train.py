"""Train: ``python -m recipe.train EXAMPLE [KEY=VALUE ...]``.

EXAMPLE is the name of a folder in examples/, or the path of a folder that holds a config.yaml;
KEY=VALUE are hydra overrides, keys in full. Everything that can be refused is refused before Ray
starts. The same command after a kill resumes from the last checkpoint of the run folder. A SIGTERM
saves the last finished step and ends the run; exit code 75 says that the same command continues.

    python -m recipe.train toy                                   # two CPU cores, some minutes
    python -m recipe.train toy_methods method=cw_grpo            # any method on the same task
    python -m recipe.train cw_grpo recipe.run_dir=runs/cw_grpo   # a paper's setting, on GPUs
"""

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from prompt_aug.base.commands import make_parser, run
from prompt_aug.base.progress import Progress
from recipe.config.wording import ONE_RUN

STOPPED = 130  # the shell's exit code after Ctrl-C


def check(config: DictConfig, *, here: bool = True) -> Any:
    """Everything that can be refused without writing a file, in the order of what it costs.

    Not `here`: the run is to be on another machine.
    """
    from recipe.checks import validate
    from recipe.checks.data import check_files, check_own
    from recipe.checks.machine import check_machine
    from recipe.checks.same_run import check_same_run
    from recipe.run.folder import RunFolder
    from recipe.toy import build as toy

    prompts = validate(config)
    run_dir = Path(config.recipe.run_dir).resolve()
    with open_dict(config):  # absolute: actors may run on another node or in another folder
        config.trainer.default_local_dir = str(Path(config.trainer.default_local_dir).resolve())
        config.recipe.run_dir = str(run_dir)
    built = toy.attach(config) if config.recipe.toy.enable else None
    check_files(config, built)
    if built is not None:
        check_own(config, built, toy.settings_of(config, prompts.bank).world.questions.train)
    check_same_run(config, RunFolder(run_dir))
    check_machine(config, here=here)
    return prompts


def prepare(config: DictConfig) -> None:
    """The toy world where there is none, the checked questions, and config.yaml."""
    from prompt_aug.base.files import write_json, write_text
    from recipe.checks.checkpoints import check_checkpoints
    from recipe.checks.data import load_tokenizer, prepare_data
    from recipe.checks.prompts import check_same_prompts
    from recipe.run.folder import RunFolder
    from recipe.toy import build as toy

    folder = RunFolder(Path(config.recipe.run_dir))
    prompts = check_same_prompts(config, folder)
    for told in check_checkpoints(config):
        print(f"recipe.train: {told}", file=sys.stderr)
    if config.recipe.toy.enable:
        toy.build(config)
    shown = OmegaConf.to_yaml(config, resolve=True)  # with the user's own data files
    report = prepare_data(config, prompts, load_tokenizer(config))
    write_json(folder.data_manifest, report)
    prompts.write(folder.prompts)
    write_text(folder.config, shown)


def start(example: str, overrides: list[str], dry_run: bool = False) -> int:
    """Compose, check, prepare, run; returns the exit code."""
    from prompt_aug.base.files import lock
    from recipe.config.compose import compose_config
    from recipe.run import ending
    from recipe.run.folder import RunFolder, record_environment
    from recipe.trainer import launch

    with Progress("recipe.train: checks"):
        config = compose_config(example, overrides)
        launch.set_environment(config)  # before `check`, which imports torch and transformers
        prompts = check(config, here=not dry_run)
    if dry_run:
        from recipe.checks.dry_run import describe

        print(describe(config, prompts))
        return 0
    folder = RunFolder(Path(config.recipe.run_dir))
    with lock(folder.root):
        with Progress("recipe.train: data and model"):
            prepare(config)
        if launch.finished(config):
            print(f"recipe.train: all steps of {folder.root} are done already")
            print(ending.next_commands(config))
            return 0
        record_environment(folder.root)
        code, told = carry_out(config)
        ending.record(folder, code, told)
    print(f"recipe.train: {told}", file=sys.stderr if code else sys.stdout)
    if not code:
        print(ending.next_commands(config))
    return code


def carry_out(config: DictConfig) -> tuple[int, str]:
    """The training; the exit code, and what there is to say about how it ended."""
    from recipe.run import ending, stop
    from recipe.trainer import launch

    try:
        launch.run(config)
    except KeyboardInterrupt:
        return STOPPED, f"stopped; {ending.how_to_go_on(config)}"
    except stop.StoppedError as error:
        return stop.AGAIN, stop.EARLY + ending.own_words(error)
    except Exception as error:  # the boundary of the command: told, then the exit code
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
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--list", action="store_true", help="the examples and methods, a line each")
    only.add_argument(
        "--cfg",
        nargs="?",
        const="all",
        choices=("all", "diff"),
        help="every key, its value, and the file that set it; diff: those that are not defaults",
    )
    only.add_argument(
        "--dry-run", action="store_true", help="all checks; then what the run would do and write"
    )
    parser.add_argument("-m", "--multirun", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_intermixed_args(arguments)
    if given.multirun:  # hydra's own option, that others of its programs have
        parser.error(f"--multirun: {ONE_RUN}")
    if given.example is None and not given.list:
        parser.error("name an example: --list shows them")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # SLURM's way to say: end now
    return run("recipe.train", lambda: do(given), interrupted="stopped before the first step")


def do(given: argparse.Namespace) -> int:
    """Show what was asked for, or start; the exit code."""
    from recipe.config import show

    if given.list:
        print(show.examples_and_methods())
    elif given.cfg:
        print(show.with_sources(given.example, given.overrides, given.cfg == "diff"))
    else:
        return start(given.example, given.overrides, given.dry_run)
    return 0


if __name__ == "__main__":
    sys.exit(main())
