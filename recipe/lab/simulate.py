"""Simulate a training in this process: ``python -m recipe.lab.simulate EXAMPLE [KEY=VALUE ...]``.

Takes the configuration of `recipe.train` and computes the same steps without Ray, FSDP and vLLM.
Data order, rewards, advantages and mini-batches use the trainer's functions, loss and optimizer
verl's. With ``recipe.rollout.request_seeds=true`` the sampler uses the engine's random numbers, and
a run repeats the real one token by token, except for rounding. With false it samples faster, from
the same distribution. Writes config.yaml, metrics.jsonl, tensors/ and, every ``trainer.save_freq``
steps, hf/. Not simulated: validation, resume, critics.

tests/recipe/test_methods_e2e.py compares simulated with real steps of most methods.
"""

import sys
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from prompt_aug.base.commands import make_parser, run
from prompt_aug.base.files import write_json
from recipe.config import show
from recipe.config.compose import compose_config
from recipe.errors import ConfigError
from recipe.lab.experiment import Measure, load_experiment
from recipe.run.environment import commit, set_defaults
from recipe.run.folder import RunFolder, append_metrics, record_environment


def simulate(config: DictConfig, settings: Measure | None = None) -> None:
    """Check `config`, build its world, run all steps and write the run folder.

    Exports every ``trainer.save_freq`` steps. With `settings` it measures instead, also at step 0,
    and writes measured.json at the end, as `recipe.lab.measure` does.
    """
    set_defaults(cpu=True)
    # Imported here: verl and transformers read the environment.
    from recipe.lab.simulator import Simulator
    from recipe.preflight.checks import check, prepare

    prompts = check(config, here=False, simulated=True)
    folder, every = RunFolder(Path(config.recipe.run_dir)), int(config.trainer.save_freq)
    if folder.metrics.exists():
        raise ConfigError(
            f"recipe.run_dir={folder.root}: has steps already, and the simulator does not resume. "
            "Delete the folder or choose another."
        )
    prepare(config, prompts)
    record_environment(folder.root)
    simulator = Simulator(config)
    steps: dict[str, Any] = {"0": simulator.measure(settings)} if settings else {}
    for step in range(1, int(config.trainer.total_training_steps) + 1):
        append_metrics(folder.root, step, simulator.step())
        if every > 0 and step % every == 0:
            if settings:
                steps[str(step)] = simulator.measure(settings)
            else:
                simulator.export()
    if settings:
        write_json(folder.measured, {"commit": commit(), "steps": steps})


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser(
        "python -m recipe.lab.simulate",
        __doc__,
        example="python -m recipe.lab.simulate toy_methods method=cw_grpo",
    )
    parser.add_argument("example", help="a folder in examples/, or the path of one")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="hydra overrides")
    parser.add_argument(
        "--measure", metavar="EXPERIMENT", help="write measured.json as this experiment says"
    )
    given = parser.parse_intermixed_args(arguments)

    def do() -> int:
        settings = load_experiment(given.measure).measure if given.measure else None
        config = compose_config(given.example, given.overrides)
        for why in show.notes(given.example, given.overrides):
            print(f"recipe.lab.simulate: note: {why}", file=sys.stderr)
        simulate(config, settings)
        print(f"recipe.lab.simulate: done, run folder {config.recipe.run_dir}")
        return 0

    return run("recipe.lab.simulate", do, interrupted="the run folder has the steps so far")


if __name__ == "__main__":
    sys.exit(main())
