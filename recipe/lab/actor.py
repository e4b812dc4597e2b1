"""The actor of a simulated training: verl's loss, clipping and optimizer on the plain model."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from omegaconf import DictConfig
from tensordict import TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config.optimizer import build_optimizer
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine
from verl.workers.utils.losses import ppo_loss

from recipe.lab.decoder import Decoder
from recipe.trainer.batch import Fetched, ragged

# With these losses a response of advantage 0 has no gradient, so its row is skipped.
SILENT_WITHOUT_ADVANTAGE = ("vanilla", "cispo", "gspo", "sapo")

ACTOR_COLUMNS = "response_mask old_log_probs advantages ref_log_prob rollout_is_weights".split()


class Actor:
    """Policy, reference model and optimizer; `update` is verl's ``update_actor`` on one rank."""

    def __init__(self, config: DictConfig) -> None:
        folder = Path(config.actor_rollout_ref.model.path)
        self.policy, self.reference = Decoder.load(folder), Decoder.load(folder)
        self.weights = list(self.policy.weights.values())
        for weight in self.weights:
            weight.requires_grad_()
        optim = omega_conf_to_dataclass(config.actor_rollout_ref.actor.optim)
        optim.total_training_steps = int(config.trainer.total_training_steps)
        self.optimizer = build_optimizer(self.weights, optim)
        engine: Any = SimpleNamespace(optimizer_config=optim, rank=1)  # rank 0 prints the steps
        self.scheduler = FSDPEngine._build_lr_scheduler(engine, self.optimizer)
        self.steps = 0
        self.configure(config)

    def configure(self, config: DictConfig) -> None:
        """Use the loss of `config` from the next step on."""
        self.config: Any = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        rollout = config.actor_rollout_ref.rollout
        self.temperature = float(rollout.temperature)
        self.mini_batch = int(self.config.ppo_mini_batch_size) * int(rollout.n)

    def update(self, fetched: Fetched, computed: dict[str, Tensor]) -> dict[str, float]:
        """Train on the mini-batches of a step; `computed` replaces columns of `fetched`."""
        columns = {**fetched.padded, **computed}
        losses, norms = [], []
        count = len(fetched.lengths)
        micro = self.mini_batch
        if not self.config.use_dynamic_bsz:
            micro = int(self.config.ppo_micro_batch_size_per_gpu)
        for _ in range(int(self.config.ppo_epochs)):
            for start in range(0, count, self.mini_batch):
                self.optimizer.zero_grad()
                end = start + self.mini_batch
                tokens = int(columns["loss_mask"][start:end].sum())
                losses.append(0.0)
                for first in range(start, end, micro):
                    losses[-1] += self._backward(
                        fetched, columns, range(first, first + micro), tokens
                    )
                norms.append(self._optimizer_step())
        self.scheduler.step()
        return {
            "actor/loss": sum(losses) / len(losses),
            "actor/grad_norm": sum(norms) / len(norms),
            "actor/lr": self.scheduler.get_last_lr()[0],
        }

    def _backward(
        self, fetched: Fetched, columns: dict[str, Tensor], chosen: Sequence[int], tokens: int
    ) -> float:
        """Add the gradient of verl's loss over the rows of a micro-batch; return the loss."""
        extra = self.config.use_kl_loss or self.config.entropy_coeff
        skip = not extra and self.config.policy_loss.loss_mode in SILENT_WITHOUT_ADVANTAGE
        rows = [i for i in chosen if not skip or columns["advantages"][i].any()]
        if not rows:
            return 0.0
        prompts = [fetched.rows["prompts"][i] for i in rows]
        responses = [fetched.rows["responses"][i] for i in rows]
        lengths = [fetched.lengths[i] for i in rows]
        names = [name for name in ACTOR_COLUMNS if name in columns]
        data = TensorDict(
            {
                "prompts": torch.nested.as_nested_tensor(prompts, layout=torch.jagged),
                "responses": torch.nested.as_nested_tensor(responses, layout=torch.jagged),
                **{n: ragged(columns[n][rows], lengths) for n in names},
            },
            batch_size=len(rows),
        )
        sizes = {"dp_size": 1, "batch_num_tokens": tokens, "global_batch_size": self.mini_batch}
        tu.assign_non_tensor(data, **sizes)
        sequences = [[*p.tolist(), *r.tolist()] for p, r in zip(prompts, responses, strict=True)]
        output = self.policy.logprobs(
            sequences,
            self.temperature,
            entropy=bool(self.config.calculate_entropy or self.config.entropy_coeff),
        )
        loss, _ = ppo_loss(self.config, output, data)
        loss.backward()
        return float(loss.detach())

    def _optimizer_step(self) -> float:
        for weight in self.weights:
            if weight.grad is None:  # all rows were skipped: Adam's momentum still moves it
                weight.grad = torch.zeros_like(weight)
        norm = torch.nn.utils.clip_grad_norm_(self.weights, float(self.config.optim.clip_grad))
        if torch.isfinite(norm):
            self.optimizer.step()
        self.steps += 1
        return float(norm)
