"""Trainings of the methods on the toy task for end-to-end tests, two at a time if memory allows."""

import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from recipe.config.compose import group_names
from recipe.run import folder as run_folder

ROOT = Path(__file__).resolve().parents[2]
METHODS = group_names("method")
NEEDED = {"one_shot": ["recipe.one_question=5"]}  # a sum with a carry under the seeds 0, 1 and 2
# These change the agent loop or the sampling, so they cannot share a run. test_pipeline_e2e.py has
# prompt_aug, test_together_e2e.py the sampling of dapo and grpo_ds, unit tests have ta_grpo_star.
RUN_ALONE = {"ta_grpo": "anchored"}
SEEN_ELSEWHERE = ("prompt_aug", "ta_grpo_star", "grpo_ds", "dapo")
LOSSES_RUN = ("clip_cov", "kl_cov", "gspo", "cispo", "sapo", "gmpo", "vespo", "fipo")  # or vanilla
NAMED_LOSSES = {"luspo": "gspo", "sdpo": "cispo"}  # methods with a loss of another name
# grpo first: it has no token weights, which test_failed_rollouts_are_retried relies on.
PLACED = ("grpo", *RUN_ALONE, *SEEN_ELSEWHERE)
SHARING = ["grpo", *(name for name in METHODS if name not in PLACED)]
TWO_STEPS = ("grpo", "hapo", "pcl", "ppo")  # the second step depends on the first
VERLS_LOSSES = ("dppo_tv", "dppo_kl")  # no method sets them: see shared_run.py
STEPS = [*SHARING, *VERLS_LOSSES]
SHARED_STEPS = [name for name in STEPS for _ in range(2 if name in TWO_STEPS else 1)]
ACTOR = "actor_rollout_ref.actor"


def toy_command(method: str) -> list[str]:
    """What `recipe.train` is called with for a method on the toy task."""
    return ["toy_methods", f"method={method}", *NEEDED.get(method, [])]


SMALL = [
    *("data.train_max_samples=80", "data.val_max_samples=20", "eval.max_questions=20"),
    *("trainer.save_freq=-1", "trainer.test_freq=-1"),
]
ONE_UPDATE = [f"{ACTOR}.ppo_mini_batch_size=4", "recipe.save_tensors_every=1"]

# All compatible settings at once; see also the tests of the checks of algorithms.
TOGETHER = [
    *("recipe.augment.mode=per_rollout", "recipe.augment.templates=null"),
    *("recipe.reward.format_weight=1.0", "recipe.overlong_filter=true"),
    *("recipe.weights.name=gaussian_covariance", "recipe.weights.arguments.sigma=batch"),
    *("recipe.curriculum.enable=true", "actor_rollout_ref.actor.loss_agg_mode=token-mean"),
    *("algorithm.filter_groups.enable=true", "recipe.dynamic_sampling.max_gen_batches=3"),
    *("algorithm.use_kl_in_reward=true", f"{ACTOR}.use_kl_loss=true"),
    *(f"{ACTOR}.entropy_coeff=0.001", f"{ACTOR}.policy_loss.loss_mode=gspo"),
]
MODEL = "actor_rollout_ref.model"
LORA = [f"{MODEL}.lora_rank=8", f"{MODEL}.lora.merge=true", f"{ACTOR}.optim.lr=1e-3"]
CORRECTION = "algorithm.rollout_correction"
FLOAT32 = "fsdp_config.mixed_precision.param_dtype=float32"
CORRECTED = [  # the engine computes in bfloat16, the actor in float32
    *(f"{ACTOR}.{FLOAT32}", f"actor_rollout_ref.ref.{FLOAT32}"),
    *("actor_rollout_ref.rollout.dtype=bfloat16", "recipe.advantage.name=rloo"),
    *(f"{CORRECTION}.rollout_is=token", f"{CORRECTION}.rollout_is_threshold=1.01"),
    f"{CORRECTION}.rollout_rs='token_k2,seq_mean_k3'",
    f"{CORRECTION}.rollout_rs_threshold='1e-3,4.5e-4'",
    *("recipe.history.enable=true", "recipe.save_tensors_every=1"),
    *(f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.kl_loss_type=k3"),
    *("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef=10"),
    "recipe.overlong_filter=true",
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
    def shared(self) -> list[str]:
        """The overrides of the run that methods share."""
        return [
            *(*SMALL, f"recipe.run_dir={self.base / 'shared'}"),
            *("data.train_max_samples=4", "recipe.save_tensors_every=1"),
        ]

    def start(
        self, name: str, method: str, *overrides: str, steps: int = 2, after: str = ""
    ) -> None:
        """Queue a run, with `after` one that starts after the named run has ended.

        Names with the same part before a comma share a folder.
        """
        folder = self.base / name.partition(",")[0]
        command = [sys.executable, "-m", "recipe.train", *toy_command(method), *SMALL]
        command += [f"recipe.run_dir={folder}", f"trainer.total_training_steps={steps}"]
        earlier = self.futures.get(after)
        self.futures[name] = self.pool.submit(self._call, [*command, *overrides], earlier)

    def start_shared(self) -> None:
        """`SHARED_STEPS` in one run, with the same four questions in every step."""
        script = ROOT / "tests" / "recipe" / "shared_run.py"
        command = [sys.executable, str(script), *SHARED_STEPS, "--", *self.shared]
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
    """Queue all runs of test_methods_e2e.py: three starts of the trainer."""
    replay = ["recipe.weights.name=gaussian_covariance", *ONE_UPDATE, *published("ta_grpo")]
    replay += [f"skip.rollout_tq.dump_dir={runner.base / 'dump'}", "skip.rollout_tq.steps=[1,2]"]
    replay += ["skip.rollout_tq.enable=true", "trainer.experiment_name=replayed"]
    runner.start("anchored", "ta_grpo", *replay, "trainer.save_freq=1")
    ranks = ["trainer.n_gpus_per_node=2", "ray_kwargs.ray_init.num_gpus=2"]
    ranks += [f"{ACTOR}.ppo_micro_batch_size_per_gpu=8"]
    ranks += ["actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4"]
    # From the first step of "anchored", so that a checkpoint of one rank is divided over two.
    first = runner.base / "anchored" / "checkpoints" / "global_step_1"
    ranks += ["trainer.resume_mode=resume_path", f"trainer.resume_from_path={first}"]
    runner.start_shared()
    runner.start("ranks", "ta_grpo", *replay, *ranks, after="anchored")


def published(layer: str, longest: int = 60) -> list[str]:
    """A published layer with sizes of the toy task: it sets those of the paper.

    The start model was not taught its template. The reward for short responses gives variance.
    """
    together = 300 + longest - (20 if layer == "cw_grpo" else 0)  # which has a joint limit
    return [
        *(f"published={layer}", "data.max_prompt_length=300"),
        *(f"data.max_response_length={longest}", f"recipe.reward.overlong.buffer={longest}"),
        f"actor_rollout_ref.rollout.max_model_len={together}",
        "recipe.reward.overlong.enable=true",
    ]
