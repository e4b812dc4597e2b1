"""PCL's value model: what verl's critic is sent, and what is read from it."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from rollout_batches import synthetic
from tensordict import TensorDict
from verl.utils import tensordict_utils as tu
from verl.workers.utils.losses import value_loss
from verl.workers.utils.padding import no_padding_2_padding

from recipe.trainer.critic import ValueModel, rows

pytestmark = pytest.mark.config  # imports verl
PROMPTS = [torch.tensor([5, 6, 7]), torch.tensor([8, 9])]
CONFIG = OmegaConf.create(
    {
        "critic": {"ppo_epochs": 1, "data_loader_seed": 1},
        "actor_rollout_ref": {"rollout": {"temperature": 1.0}},
    }
)


class Workers:
    """A critic on two ranks whose value of a token is its id / 10; records what it trains on."""

    def __init__(self) -> None:
        self._dispatch_info = {"train": [0, 1]}
        self.trained: Any = None

    def infer_batch(self, batch: TensorDict) -> Any:
        values = [row.float() / 10 for row in batch["input_ids"].unbind()]
        result = {"values": torch.nested.as_nested_tensor(values, layout=torch.jagged)}
        return SimpleNamespace(get=lambda: result)

    def train_mini_batch(self, batch: TensorDict) -> Any:
        self.trained = batch
        metrics = {"vf_loss": [0.25], "mfu": [0.0]}
        return SimpleNamespace(get=lambda: {"metrics": metrics})


def test_v_is_the_value_at_the_last_token_of_the_prompt() -> None:
    assert ValueModel(Workers(), CONFIG).rate([*PROMPTS, PROMPTS[0]]) == pytest.approx(
        [0.7, 0.9, 0.7]
    )


def test_v_is_trained_on_the_pass_rates_of_the_groups() -> None:
    workers = Workers()
    step = synthetic([1, 0, 1, 1, 0, 0], -torch.ones(6, 2), torch.ones(6, 2), [0, 0, 1, 1, 2, 2])
    prompts = [torch.tensor([group, 4]) for group in (1, 1, 2, 2, 3, 3)]
    object.__setattr__(step, "prompts", prompts)
    assert ValueModel(workers, CONFIG).fit(step)["critic/vf_loss"] == 0.25
    sent = workers.trained
    assert [row.tolist() for row in sent["input_ids"].unbind()[:3]] == [
        [i, 4, 0] for i in (1, 2, 3)
    ]
    assert [row.item() for row in sent["returns"].unbind()] == [0.5, 1.0, 0.0, 0.0]
    assert [row.item() for row in sent["response_mask"].unbind()] == [1, 1, 1, 0]  # two ranks
    # Three questions, so that a mean over rows has no part of the padding.
    assert (tu.get(sent, "global_batch_size"), tu.get(sent, "mini_batch_size")) == (3, 4)


def test_verls_loss_of_these_rows_is_half_of_the_squared_error() -> None:
    batch = rows(PROMPTS, [0.75, 0.5], 1)
    for name, value in (("dp_size", 1), ("batch_num_tokens", 2), ("global_batch_size", 2)):
        batch.set_non_tensor(name, value)
    values = torch.nested.as_nested_tensor(
        [torch.tensor([9.0, 9.0, 0.25, 9.0]), torch.tensor([9.0, 2.0, 9.0])], layout=torch.jagged
    )
    critic = OmegaConf.create(
        {"cliprange_value": 0.5, "loss_agg_mode": "token-mean", "loss_scale_factor": None}
    )
    loss, _ = value_loss(critic, {"values": values}, batch)
    assert no_padding_2_padding(values, batch).flatten().tolist() == [0.25, 2.0]
    assert loss.item() == pytest.approx((0.5**2 + 1.5**2) / 2 / 2)
