"""Trainings of the methods on the toy task for end-to-end tests, two at a time if memory allows."""

import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from load_script import load_script

from recipe.run import folder as run_folder

ROOT = Path(__file__).resolve().parents[2]
compare_methods = load_script("compare_methods")
METHODS = compare_methods.methods()
# These change the agent loop or the sampling, so they cannot share a run. test_pipeline_e2e.py and
# unit tests cover prompt_aug and ta_grpo_star; grpo_ds has the sampling of dapo.
RUN_ALONE = {"ta_grpo": "anchored", "dapo": "dapo", "ppo": "ppo", "pcl": "pcl"}
SEEN_ELSEWHERE = ("prompt_aug", "ta_grpo_star", "grpo_ds")
LOSSES_RUN = ("clip_cov", "kl_cov", "gspo", "cispo", "sapo", "gmpo")  # the rest: vanilla
# Last, since later steps cannot be compared with the simulator's: on the policy that sampled, its
# gradient has the sign of a rounding error, that of log pi - log pi_old at the chosen tokens.
LAST = "kl_cov"
# grpo first: it has no token weights, which test_failed_rollouts_are_retried relies on.
PLACED = ("grpo", *RUN_ALONE, *SEEN_ELSEWHERE, LAST)
SHARING = ["grpo", *(name for name in METHODS if name not in PLACED), LAST]
ACTOR = "actor_rollout_ref.actor"
ONE_UPDATE = [f"{ACTOR}.ppo_mini_batch_size=4", "recipe.save_tensors_every=1"]

# All compatible settings at once; see also the tests of the checks of algorithms.
TOGETHER = [
    *("recipe.augment.mode=per_rollout", "recipe.augment.templates=null"),
    *("recipe.reward.format_weight=1.0", "recipe.overlong_filter=true"),
    *("recipe.weights.name=gaussian_covariance", "recipe.weights.gaussian_covariance.sigma=batch"),
    *("recipe.curriculum.enable=true", "actor_rollout_ref.actor.loss_agg_mode=token-mean"),
    *("algorithm.filter_groups.enable=true", "recipe.dynamic_sampling.max_gen_batches=3"),
    *("algorithm.use_kl_in_reward=true", f"{ACTOR}.use_kl_loss=true"),
    *(f"{ACTOR}.entropy_coeff=0.001", f"{ACTOR}.policy_loss.loss_mode=gspo"),
]
MODEL = "actor_rollout_ref.model"
LORA = [f"{MODEL}.lora_rank=8", f"{MODEL}.lora.merge=true", f"{ACTOR}.optim.lr=1e-3"]
CORRECTION = "algorithm.rollout_correction"
CORRECTED = [  # the engine computes in bfloat16, the actor in float32
    *("actor_rollout_ref.rollout.dtype=bfloat16", "recipe.advantage.name=rloo"),
    *(f"{CORRECTION}.rollout_is=token", f"{CORRECTION}.rollout_is_threshold=1.01"),
    f"{CORRECTION}.rollout_rs='token_k2,seq_mean_k3'",
    f"{CORRECTION}.rollout_rs_threshold='1e-4,3e-5'",
    *("recipe.history.enable=true", "recipe.save_tensors_every=1"),
    *(f"{ACTOR}.optim.optimizer_impl=recipe.actor.muon", f"{ACTOR}.optim.optimizer=MuonAdamW"),
    *(f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.kl_loss_type=k3"),
    *("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef=10"),
    *("recipe.overlong_filter=true", "data.max_response_length=20"),
    "recipe.reward.overlong.buffer=20",
]


def finite(metrics: list[dict[str, Any]]) -> bool:
    keys = ("actor/loss", "actor/grad_norm", "actor/entropy", "train/accuracy")
    return all(np.isfinite(line[key]) for line in metrics for key in keys)


def logprobs(model: Any, prompts: np.ndarray, arrays: Any) -> Any:
    """Sum over the tokens of log pi(response | prompt) for every row, one row at a time."""
    import torch

    sums = []
    for prompt, response, length in zip(
        prompts, arrays["responses"], arrays["lengths"], strict=True
    ):
        ids = torch.tensor([*prompt[prompt >= 0], *response[:length]])[None]
        with torch.no_grad():
            scores = model(ids).logits[0, -length - 1 : -1].log_softmax(-1)
        sums.append(scores.gather(1, ids[0, -length:, None]).sum())
    return torch.stack(sums).double()


class Runner:
    """Starts runs in a pool; `finish` waits for the result of a run."""

    def __init__(self, base: Path) -> None:
        room = psutil.virtual_memory().available > 16 * 2**30  # a run takes up to 7 GiB
        alone = "PYTEST_XDIST_WORKER" not in os.environ  # otherwise another file's run too
        self.base, self.pool = base, ThreadPoolExecutor(2 if room and alone else 1)
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
        """A toy world that is built in seconds."""
        return [
            *(*self.small, "recipe.toy.updates=60"),
            # Such a model is never right: the reward for short responses gives variance.
            *("recipe.reward.overlong.enable=true", "recipe.reward.overlong.buffer=80"),
        ]

    @property
    def taught(self) -> list[str]:
        """Built in a minute; its model is right in one of three, so most groups have variance."""
        return [*self.small, "recipe.toy.updates=450"]

    @property
    def shared(self) -> list[str]:
        """The overrides of the run that methods share."""
        return [
            *(*self.taught, f"recipe.run_dir={self.base / 'shared'}"),
            *("data.train_max_samples=4", "recipe.save_tensors_every=1"),
        ]

    def start(
        self,
        name: str,
        method: str,
        *overrides: str,
        steps: int = 2,
        after: str = "",
        taught: bool = False,
    ) -> None:
        """Queue a run, with `after` one that starts after the named run has ended.

        Names with the same part before a comma share a folder.
        """
        folder = self.base / name.partition(",")[0]
        world = self.taught if taught else self.young
        command = [sys.executable, "-m", "recipe.train", *compare_methods.arguments(method), *world]
        command += [f"recipe.run_dir={folder}", f"trainer.total_training_steps={steps}"]
        earlier = self.futures.get(after)
        self.futures[name] = self.pool.submit(self._call, [*command, *overrides], earlier)

    def start_shared(self, methods: list[str]) -> None:
        """All methods in one run, with the same four questions in every step."""
        script = ROOT / "tests" / "recipe" / "shared_run.py"
        command = [sys.executable, str(script), *methods, "--", *self.shared]
        self.futures["shared"] = self.pool.submit(self._call, command)

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
        """The metrics of a run that ended with `code`, at its end."""
        done, metrics = self.futures[name].result()
        assert done.returncode == code, done.stdout[-3000:] + done.stderr[-6000:]
        return metrics

    def arrays(self, name: str, step: int = 1) -> Any:
        return np.load(self.base / name / "tensors" / f"step_{step}.npz")


def start_all(runner: Runner) -> None:
    """Queue all runs of test_methods_e2e.py: four starts of the trainer."""
    replay = ["recipe.weights.name=gaussian_covariance", *ONE_UPDATE]
    replay += [f"skip.rollout_tq.dump_dir={runner.base / 'dump'}", "skip.rollout_tq.steps=[1]"]
    replay += ["skip.rollout_tq.enable=true", "trainer.experiment_name=replayed"]
    # These two build the toy worlds, which the others read from the cache.
    runner.start("anchored", "ta_grpo", *replay)
    runner.start("dapo", "dapo", "recipe.save_tensors_every=1", taught=True)
    for name in ("anchored", "dapo"):
        runner.futures[name].result()
    runner.start("ppo", "ppo")
    runner.start("pcl", "pcl")
    runner.start_shared(SHARING)
    ranks = ["trainer.n_gpus_per_node=2", "ray_kwargs.ray_init.num_gpus=2"]
    ranks += [f"{ACTOR}.ppo_micro_batch_size_per_gpu=8"]
    ranks += ["actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4"]
    runner.start("ranks", "ta_grpo", *replay, *ranks, steps=1)
