"""PCL's value model: verl's critic, trained on the pass rates of questions.

Prompt Curriculum Learning (arXiv 2510.01135) rates k m candidate questions with V(q), the predicted
pass rate of the policy, and generates responses for the m questions nearest to the target. Then V
is trained on the pass rates of their groups:

    loss = mean over questions of (V(q) - p_q)^2 / 2,    p_q = mean accuracy of the group

V(q) is the critic's value at the first response token, which depends on the prompt alone. A row
sent to the critic is a prompt and one filler token.
"""

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.utils.metric import reduce_metrics
from verl.utils.py_functional import rename_dict

from recipe.algorithms.rollouts import RolloutBatch
from recipe.trainer.batch import jagged, rows_of
from recipe.trainer.metrics import values_by_id


def rows(prompts: Sequence[Tensor], targets: Sequence[float], size: int) -> TensorDict:
    """Return a batch for verl's critic of `prompts`, padded to a multiple of `size` rows."""
    count = -(-len(prompts) // size) * size
    batch = rows_of(prompts, [torch.zeros(1, dtype=torch.int64)] * len(prompts), count)

    def column(values: Sequence[float], dtype: torch.dtype) -> Tensor:
        padded = [*values, *[0] * (count - len(values))]
        return jagged([torch.tensor([value], dtype=dtype) for value in padded])

    batch["response_mask"] = batch["loss_mask"] = column([1] * len(prompts), torch.int64)
    # With values = returns, verl's clipped loss is the plain squared error.
    batch["values"] = batch["returns"] = column(targets or [0.0] * len(prompts), torch.float32)
    return batch


class ValueModel:
    """V(q) with the worker group of verl's critic; `config` is the whole configuration."""

    def __init__(self, workers: Any, config: Any) -> None:
        self.workers = workers
        self.critic = config.critic
        self.temperature = float(config.actor_rollout_ref.rollout.temperature)

    @property
    def ranks(self) -> int:
        if "train" not in self.workers._dispatch_info:
            self.workers._dispatch_info["train"] = self.workers._query_dispatch_info("train")
        return int(max(self.workers._dispatch_info["train"])) + 1

    def rate(self, prompts: Sequence[Tensor]) -> list[float]:
        """Return V(q) of each prompt, from one forward pass."""
        batch = rows(prompts, [], self.ranks)
        tu.assign_non_tensor(batch, compute_loss=False, temperature=self.temperature)
        values = self.workers.infer_batch(batch).get()["values"]
        # The value before the filler token, as verl reads values.
        return [float(row[-2]) for row in values.unbind()[: len(prompts)]]

    def fit(self, rollouts: RolloutBatch) -> dict[str, Any]:
        """Train V on the pass rates of a step; return verl's metrics of the update."""
        groups = list(zip(rollouts.group_B.tolist(), rollouts.accuracy, strict=True))
        first = dict(reversed([(g, i) for i, (g, _) in enumerate(groups)]))
        rates = [sum(g) / len(g) for g in values_by_id(*zip(*groups, strict=True))]
        batch = rows([rollouts.prompts[i] for i in sorted(first.values())], rates, self.ranks)
        tu.assign_non_tensor(
            batch,
            global_batch_size=len(rates),  # without padding, whose rows depend on the ranks
            mini_batch_size=len(batch),
            epochs=self.critic.ppo_epochs,
            seed=self.critic.data_loader_seed,
            dataloader_kwargs={"shuffle": False},
            temperature=self.temperature,
        )
        metrics = rename_dict(self.workers.train_mini_batch(batch).get()["metrics"], "critic/")
        metrics["perf/mfu/critic"] = metrics.pop("critic/mfu")
        return dict(reduce_metrics(metrics))
