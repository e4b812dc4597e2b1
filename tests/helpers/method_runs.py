"""Trainings of the methods on the toy task for end-to-end tests, two at a time if memory allows."""

import dataclasses
import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml
from load_script import load_script

from prompt_aug.questions import read_parquet, write_parquet
from recipe.run import folder as run_folder

ROOT = Path(__file__).resolve().parents[2]
compare_methods = load_script("compare_methods")
METHODS = compare_methods.methods()
# These change the agent loop, the rewards or the sampling, and have a run each; the rest share one.
RUN_ALONE = {
    **{"ta_grpo": "anchored", "grpo_ds": "exhausted, on", "hapo": "hapo, on"},
    **{name: name for name in ("ta_grpo_star", "dapo", "prompt_aug", "one_shot")},
}
LOSSES_RUN = ("clip_cov", "kl_cov", "gspo", "cispo", "sapo", "gmpo")  # the rest: vanilla
ON_TOUR = [name for name in METHODS if name not in RUN_ALONE]
ACTOR = "actor_rollout_ref.actor"
ONE_UPDATE = [f"{ACTOR}.ppo_mini_batch_size=4", "recipe.save_tensors_every=1"]

# Everything at once that may go together: see also test_preflight_algorithm.py.
TOGETHER = [
    *("recipe.augment.mode=per_rollout", "recipe.augment.templates=null"),
    *("recipe.reward.format_weight=1.0", "recipe.overlong_filter=true"),
    *("recipe.weights.name=gaussian_covariance", "recipe.weights.gaussian_covariance.sigma=batch"),
    *("recipe.curriculum.enable=true", "actor_rollout_ref.actor.loss_agg_mode=token-mean"),
    *("algorithm.filter_groups.enable=true", "recipe.dynamic_sampling.max_gen_batches=3"),
    *("algorithm.use_kl_in_reward=true", f"{ACTOR}.use_kl_loss=true"),
    *(f"{ACTOR}.entropy_coeff=0.001", f"{ACTOR}.policy_loss.loss_mode=gspo"),
]
CORRECTED = [  # engine and actor agree to 1e-6 here, so these bounds reject a part of the tokens
    *("algorithm.rollout_correction.rollout_is=token", "recipe.advantage.name=rloo"),
    *("algorithm.rollout_correction.rollout_rs=token_k2", "recipe.history.enable=true"),
    *("algorithm.rollout_correction.rollout_rs_threshold=1e-14", "recipe.save_tensors_every=1"),
    *("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef=10"),
    *("recipe.overlong_filter=true", "data.max_response_length=20"),
    "recipe.reward.overlong.buffer=20",
]
NO_SIGNAL = [  # a punishment that is off is 0 for all: no group ever has a signal
    *("algorithm.filter_groups.enable=true", "algorithm.filter_groups.metric=overlong"),
    *("recipe.reward.overlong.enable=false", "recipe.dynamic_sampling.max_gen_batches=2"),
]


class Runner:
    """Starts runs in a pool; the first wait for a run is the wait for its result."""

    def __init__(self, base: Path) -> None:
        room = psutil.virtual_memory().available > 16 * 2**30  # a run takes up to 7 GiB
        self.base, self.pool = base, ThreadPoolExecutor(2 if room else 1)
        self.futures: dict[str, Future[tuple[Any, list[dict[str, Any]]]]] = {}

    @property
    def small(self) -> list[str]:
        return [
            *("recipe.toy.train_questions=80", "recipe.toy.templates=[qwen-math]"),
            *("recipe.toy.validation_questions=20", "recipe.toy.test_questions=20"),
            f"recipe.toy.cache={self.base / 'cache'}",
        ]

    @property
    def young(self) -> list[str]:
        """A toy world that is made in seconds."""
        return [
            *(*self.small, "recipe.toy.updates=60"),
            # So young a model is never right: it is paid for being short, so there is a signal.
            *("recipe.reward.overlong.enable=true", "recipe.reward.overlong.buffer=80"),
        ]

    @property
    def taught(self) -> list[str]:
        """A minute: its model is right in one of three, so that most groups have a signal."""
        return [*self.small, "recipe.toy.updates=450"]

    def start(
        self,
        name: str,
        method: str,
        *overrides: str,
        steps: int = 2,
        after: str = "",
        taught: bool = False,
    ) -> None:
        """Queue a run, or with `after` the same folder once more when that one has ended."""
        folder = self.base / name.partition(",")[0]
        world = self.taught if taught else self.young
        command = [sys.executable, "-m", "recipe.train", *compare_methods.arguments(method), *world]
        command += [f"recipe.run_dir={folder}", f"trainer.total_training_steps={steps}"]
        earlier = self.futures.get(after)
        self.futures[name] = self.pool.submit(self._call, [*command, *overrides], earlier)

    def start_tour(self, methods: list[str]) -> None:
        script = ROOT / "tests" / "recipe" / "touring_trainer.py"
        command = [sys.executable, str(script), *methods, "--", *self.taught]
        command += [f"recipe.run_dir={self.base / 'tour'}"]
        command += ["recipe.save_tensors_every=1"]
        self.futures["tour"] = self.pool.submit(self._call, command)

    def _call(self, command: list[str], earlier: Any = None) -> tuple[Any, list[dict[str, Any]]]:
        if earlier is not None:
            earlier.result()
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=1200, check=False, env=environment
        )
        folder = next(Path(a.partition("=")[2]) for a in command if a.startswith("recipe.run_dir"))
        return done, run_folder.read_metrics(folder)

    def finish(self, name: str, code: int = 0) -> list[dict[str, Any]]:
        """The metrics of a run that ended with `code`, as they were then."""
        done, metrics = self.futures[name].result()
        assert done.returncode == code, done.stdout[-3000:] + done.stderr[-6000:]
        return metrics

    def text(self, name: str) -> str:
        done, _ = self.futures[name].result()
        return done.stdout + done.stderr

    def arrays(self, name: str, step: int = 1) -> Any:
        return np.load(self.base / name / "tensors" / f"step_{step}.npz")


def start_all(runner: Runner) -> None:
    """Queue all runs of test_methods_e2e.py."""
    # These two build the toy worlds that the others find in the cache.
    runner.start("anchored", "ta_grpo", *ONE_UPDATE)
    once_more = ("data.train_max_samples=4", "trainer.save_freq=1")  # the same four questions
    runner.start("hapo", "hapo", *once_more, steps=1, taught=True)
    for name in ("anchored", "hapo"):
        runner.futures[name].result()
    runner.start_tour(ON_TOUR)
    replay = [f"skip.rollout_tq.dump_dir={runner.base / 'dump'}", "skip.rollout_tq.steps=[1]"]
    replay += ["skip.rollout_tq.enable=true", "trainer.experiment_name=replayed", *ONE_UPDATE]
    runner.start("whole", "cw_grpo", *replay, steps=1)
    runner.futures["whole"].result()
    runner.start(
        "split",
        "cw_grpo",
        *replay,
        f"{ACTOR}.ppo_micro_batch_size_per_gpu=8",
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
        steps=1,
    )
    ranks = ["trainer.n_gpus_per_node=2", "ray_kwargs.ray_init.num_gpus=2"]
    ranks += ["actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16"]
    runner.start("ranks", "cw_grpo", *replay, *ranks, steps=1)
    saved = "trainer.save_freq=1"
    runner.start("together", "ta_grpo", *TOGETHER, saved, steps=1)
    runner.start("exhausted", "grpo_ds", *NO_SIGNAL, saved, steps=1)
    runner.start("together, on", "ta_grpo", *TOGETHER, saved, after="together")
    stop = "recipe.dynamic_sampling.on_exhausted=stop"
    runner.start("exhausted, stop", "grpo_ds", *NO_SIGNAL, saved, stop, after="exhausted")
    runner.start("corrected", "cw_grpo", *CORRECTED)
    runner.start("hapo, on", "hapo", *once_more, taught=True, after="hapo")
    runner.start("dapo", "dapo", "recipe.save_tensors_every=1", taught=True)
    runner.start("ta_grpo_star", "ta_grpo_star", "recipe.save_tensors_every=1", fewer(runner))
    runner.start("exhausted, on", "grpo_ds", *NO_SIGNAL, saved, after="exhausted, stop")
    for method, name in RUN_ALONE.items():
        if method == name and name not in runner.futures:
            runner.start(method, method)


def fewer(runner: Runner) -> str:
    """The override of the training data: the young world's, question i with i % 4 neighbours."""
    config = yaml.safe_load((runner.base / "anchored" / "config.yaml").read_text())
    made = Path(config["recipe"]["model_path"]).parent / "train.parquet"
    questions = [
        dataclasses.replace(q, neighbours=q.neighbours[: i % 4])
        for i, q in enumerate(read_parquet(made))
    ]
    write_parquet(questions, runner.base / "fewer.parquet")
    return f"data.train_files=[{runner.base / 'fewer.parquet'}]"
