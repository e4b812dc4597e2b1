"""The driver of a simulated training: the steps of `recipe.trainer.trainer` in one process."""

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from omegaconf import DictConfig
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence
from verl.trainer.ppo.core_algos import get_kl_controller
from verl.trainer.ppo.utils import need_reference_policy

from prompt_aug.base.files import write_json
from recipe.algorithms.compute import logprob_temperature
from recipe.errors import ConfigError
from recipe.lab.actor import Actor
from recipe.lab.decoder import Decoder
from recipe.lab.experiment import Measure
from recipe.lab.measure import asked_in, measured
from recipe.lab.rollouts import PolicySampler, Rollout, RolloutSource
from recipe.run.folder import RunFolder
from recipe.trainer.batch import Fetched
from recipe.trainer.order import training_order
from recipe.trainer.training_signal import signal_of


class Simulator:
    """A training run; `step` computes one step and returns its metrics.

    `config` must be checked and its data prepared, as `simulate` does.
    """

    def __init__(self, config: DictConfig) -> None:
        _require_simulated(config)
        self.actor = Actor(config)
        self.source = RolloutSource(config, self.actor.policy)
        self.config, self.steps = config, 0
        self.sampler = PolicySampler(
            self.actor.policy,
            self.source.tokenizer,
            max_tokens=int(config.data.max_response_length),
            seed=int(config.recipe.seed),
        )
        self.kl_controller: Any = None
        if config.algorithm.use_kl_in_reward:
            self.kl_controller = get_kl_controller(config.algorithm.kl_ctrl)

    # ---------------------------------------------------------------- a step

    def step(self) -> dict[str, Any]:
        """Compute a step and return its metrics, under the keys of metrics.jsonl."""
        began = time.monotonic()
        self.steps += 1
        metrics: dict[str, Any] = {}
        rollouts, filled = self.source.step(metrics)
        order = training_order(  # of the trainer's mini-batches
            [r.key for r in rollouts],
            [False] * len(rollouts),
            seed=int(self.config.recipe.seed),
            step=self.steps,
        )
        fetched, weight_logprobs = self._fetched([rollouts[i] for i in order])
        _, _, columns = signal_of(
            fetched,
            self.config,
            step=self.steps,
            stats=self.source.stats,
            filled_groups=filled,
            kl_controller=self.kl_controller,
            weight_logprobs=weight_logprobs,
            metrics=metrics,
        )
        metrics |= self.actor.update(fetched, columns)
        metrics["train/optimizer_steps"] = self.actor.steps
        metrics["training/epoch"] = self.source.fetched / self.source.epoch_batches
        metrics["timing_s/step"] = time.monotonic() - began
        return metrics

    def _fetched(self, rollouts: Sequence[Rollout]) -> tuple[Fetched, Tensor | None]:
        """Return the trainer's columns, and log-probs at the weights' temperature if it differs."""
        temperature = float(self.config.actor_rollout_ref.rollout.temperature)
        per_token = {
            "response_mask": [torch.ones(len(r.response)) for r in rollouts],
            "rm_scores": [
                pad(torch.tensor([r.reward]), (len(r.response) - 1, 0)) for r in rollouts
            ],
            "rollout_log_probs": [r.logprobs for r in rollouts],
            "old_log_probs": [r.logprobs for r in rollouts],
            "entropy": [r.entropy for r in rollouts],
        }
        if self.config.recipe.toy.sampler_noise or any(r.anchored for r in rollouts):
            again = _values(self.actor.policy, rollouts, temperature, entropy=True)
            per_token |= {"old_log_probs": again["log_probs"], "entropy": again["entropy"]}
        if need_reference_policy(self.config):
            start = _values(self.actor.reference, rollouts, temperature)
            per_token["ref_log_prob"] = start["log_probs"]
        wanted, weight_logprobs = logprob_temperature(self.config.recipe.weights), None
        if wanted not in (None, temperature):
            at_wanted = _values(self.actor.policy, rollouts, float(wanted))["log_probs"]
            weight_logprobs = pad_sequence(at_wanted, batch_first=True)
        padded = {name: pad_sequence(v, batch_first=True) for name, v in per_token.items()}
        padded["loss_mask"] = padded["response_mask"]
        if not self.config.actor_rollout_ref.rollout.calculate_log_probs:
            del padded["rollout_log_probs"]
        fetched = Fetched(
            batch=SimpleNamespace(keys=[r.key for r in rollouts], tags=[{}] * len(rollouts)),
            data=None,
            rows={
                "session_id": [r.row["session_id"] for r in rollouts],
                "prompts": [torch.tensor(r.prompt) for r in rollouts],
                "responses": [r.response for r in rollouts],
                "extra_info": [r.row["extra_info"] for r in rollouts],
                "extra_fields": [r.extra_fields for r in rollouts],
            },
            padded=padded,
            lengths=[len(r.response) for r in rollouts],
        )
        return fetched, weight_logprobs

    # ---------------------------------------------------------------- checkpoints

    def measure(self, settings: Measure) -> dict[str, dict[str, float]]:
        """Measure the current policy like `recipe.lab.measure` measures an export."""
        bank = self.source.prompts.bank
        return measured(self.sampler, asked_in(self.config, bank, settings), bank, settings)

    def export(self) -> None:
        """Write the weights as `recipe.export` does, for evaluation."""
        run_folder = RunFolder(Path(self.config.recipe.run_dir))
        folder = run_folder.exported(self.steps)
        shutil.copytree(self.config.actor_rollout_ref.model.path, folder, dirs_exist_ok=True)
        weights = {name: w.detach() for name, w in self.actor.policy.weights.items()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        write_json(run_folder.manifest(self.steps), {"step": self.steps, "source": "simulator"})


@torch.no_grad()
def _values(
    model: Decoder, rollouts: Sequence[Rollout], temperature: float, *, entropy: bool = False
) -> dict[str, list[Tensor]]:
    """Return log-probs, and on request entropies, of the responses under the trained prompts."""
    rows = [[*r.prompt, *r.response.tolist()] for r in rollouts]
    found = model.logprobs(rows, temperature, entropy=entropy)
    return {
        name: [
            part[len(r.prompt) - 1 : -1]
            for r, part in zip(rollouts, values.split([len(row) for row in rows]), strict=True)
        ]
        for name, values in found.items()
    }


def _require_simulated(config: DictConfig) -> None:
    """Reject settings that the simulator does not support. Raises ConfigError."""
    correction = config.algorithm.get("rollout_correction") or {}
    rollout = config.actor_rollout_ref.rollout
    refused = {
        "algorithm.rollout_correction.bypass_mode": bool(correction.get("bypass_mode")),
        "critic.enable": bool(config.critic.enable),
        "actor_rollout_ref.actor.shuffle": bool(config.actor_rollout_ref.actor.shuffle),
        "recipe.rollout.joint_limit": bool(config.recipe.rollout.joint_limit),
        "actor_rollout_ref.rollout.top_p": float(rollout.top_p) != 1.0,
        "actor_rollout_ref.rollout.top_k": int(rollout.top_k) not in (-1, 0),
        "recipe.reward.verifiers": bool(config.recipe.reward.verifiers),
        "recipe.guard.action": config.recipe.guard.action != "off",
        "algorithm.filter_groups.metric": config.algorithm.filter_groups.metric not in ("acc", None)
        and bool(config.algorithm.filter_groups.enable),
        "actor_rollout_ref.model.lora_rank": bool(config.actor_rollout_ref.model.lora_rank),
        "trainer.n_gpus_per_node": config.trainer.n_gpus_per_node * config.trainer.nnodes != 1,
        "trainer.device": config.trainer.device != "cpu",
    }
    for key, wrong in refused.items():
        if wrong:
            raise ConfigError(
                f"{key}: the simulator does not support this setting. Leave it at the value of "
                "machine=cpu, or use recipe.train."
            )
