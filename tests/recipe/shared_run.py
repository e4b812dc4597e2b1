"""Many methods in one run, for test_methods_e2e.py: a step for each name, with the real trainer.

    python shared_run.py METHOD... -- OVERRIDE...

A start of Ray, actor and engine takes a minute, a step seconds. Methods that differ only in the
driver, the critic and the actor's loss share a run: before its first step each gets its section of
the configuration, and the actor its loss. (Methods that change the agent loop, the rewards or the
sampling have runs of their own.) In the second step one rollout of every question fails once and is
retried. verl loads this file in every process.
"""

import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

LOSS = 2  # the step in which rollouts fail
LOST = 3  # which of them
VERLS_LOSSES = ("dppo_tv", "dppo_kl")
SHARED = "RECIPE_SHARED_RUN"  # the file with the methods and their sections, for the trainer
# Required settings of a method; the data are those of the first method.
ACTOR = "actor_rollout_ref.actor"
NEEDED = {"one_shot": ["recipe.one_question=0"]}
# Losses of verl that no method sets; the bounds are those of a divergence.
MASKED = [f"{ACTOR}.clip_ratio_low=0.01", f"{ACTOR}.clip_ratio_high=0.01"]
LOSSES = {name: [f"{ACTOR}.policy_loss.loss_mode={name}", *MASKED] for name in VERLS_LOSSES}


def settings(method: str, overrides: list[str]) -> list[str]:
    if method in LOSSES:
        return [*LOSSES[method], *overrides]
    return [f"method={method}", *NEEDED.get(method, []), *overrides]


def register() -> None:
    from omegaconf import open_dict
    from verl.trainer.ppo.v1.trainer_base import register_trainer
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.utils.losses import ppo_loss

    from recipe.trainer.question_stats import QuestionStats
    from recipe.trainer.trainer import RecipeTrainer

    @register_trainer("shared_run")
    class SharedRunTrainer(RecipeTrainer):
        def step(self, metrics: dict, timing_raw: dict) -> Any:
            shared = json.loads(Path(os.environ[SHARED]).read_text())
            before, method = ["", *shared["methods"]][self.global_steps - 1 :][:2]
            if method != before:
                recipe, actor, self.use_critic = shared["sections"][method]
                with open_dict(self.config):
                    self.config.recipe, self.config.actor_rollout_ref.actor = recipe, actor
                self.question_stats = QuestionStats(self.config.recipe)
                self.__dict__.pop("value_model", None)  # a cached property
                actor = omega_conf_to_dataclass(self.config.actor_rollout_ref.actor)
                self.actor_rollout_wg.set_loss_fn(functools.partial(ppo_loss, config=actor))
            return super().step(metrics, timing_raw)


def name_losses() -> None:
    """Every policy loss adds its name to its metrics: actor/ran_<name>."""
    import verl.workers.utils.losses as losses

    original = losses.get_policy_loss_fn

    def named(name: str) -> Any:
        def loss(**arguments: Any) -> Any:
            value, metrics = original(name)(**arguments)
            return value, {**metrics, f"actor/ran_{name}": 1.0}

        return loss

    losses.get_policy_loss_fn = named


def lose_rollouts() -> None:
    from recipe.rollout.agent_loop import PromptAugmentationAgentLoop

    run, lost = PromptAugmentationAgentLoop.run, set()

    async def losing(self: Any, sampling_params: dict[str, Any], **row: Any) -> Any:
        if row["global_steps"] == LOSS and row["session_id"] == LOST and row["uid"] not in lost:
            lost.add(row["uid"])
            raise RuntimeError("a rollout that the test loses")
        return await run(self, sampling_params, **row)

    PromptAugmentationAgentLoop.run = losing  # type: ignore[method-assign]


def main(arguments: list[str]) -> None:
    from recipe.config.compose import compose_config
    from recipe.machine import environment
    from recipe.start.checks import check_run, prepare, validate
    from recipe.start.rules import Setup
    from recipe.trainer import launch

    split = arguments.index("--")
    methods, overrides = arguments[:split], arguments[split + 1 :]
    here = Path(__file__).resolve()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(here.parent), os.environ.get("PYTHONPATH", "")])
    os.environ["VERL_USE_EXTERNAL_MODULES"] = f"recipe.plugin,{here.stem}"
    sys.path.insert(0, str(here.parent))
    sections = {}
    for method in dict.fromkeys(methods):
        validate(setup := Setup(compose_config("toy_methods", settings(method, overrides))))
        sections[method] = (setup.get("recipe"), setup.get(ACTOR), setup.critic)
    os.environ[SHARED] = f"{setup.folder.root}.json"
    Path(os.environ[SHARED]).write_text(json.dumps({"methods": methods, "sections": sections}))
    steps = f"trainer.total_training_steps={len(methods)}"
    config = compose_config("toy_methods", settings(methods[0], [*overrides, steps]))
    launch.set_environment(config)
    setup = Setup(config)
    check_run(setup)
    prepare(setup)
    config.trainer.v1.trainer_mode = "shared_run"
    config.critic.enable = True  # its worker is started with the others
    environment.COMMON[SHARED] = os.environ[SHARED]  # the variables that Ray's actors inherit
    launch.train(config)


if __name__ == "__main__":
    main(sys.argv[1:])
elif "VERL_USE_EXTERNAL_MODULES" in os.environ:
    register()
    name_losses()
    lose_rollouts()
