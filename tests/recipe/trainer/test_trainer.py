"""Group ids, state and columns of the trainer; test_saving.py and the e2e tests cover the rest."""

from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf
from verl.trainer.ppo.core_algos import AdaptiveKLController
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from recipe.rollout import server
from recipe.trainer import task_runner
from recipe.trainer.batch import ACTOR_FIELDS
from recipe.trainer.question_stats import QuestionStats
from recipe.trainer.trainer import RecipeTrainer

OFF = {"enable": False, "candidates": 1, "target": 0.5, "decay": 0.5}
RECIPE = OmegaConf.create({"history": OFF, "curriculum": OFF})


def fetched(batches: int, start: int = 0) -> list[list[str]]:
    """The group ids of each batch, after `start` batches fetched before."""
    questions = [["a", "b"], ["c", "a"]]
    rows = [{"raw_prompt": q, "extra_info": [{"uid": uid} for uid in q]} for q in questions]
    trainer: Any = object.__new__(RecipeTrainer)
    trainer.train_dataloader, trainer.train_dataloader_it = rows, None
    trainer.batches_fetched = start
    trainer.question_stats = QuestionStats(RECIPE)
    if start:
        trainer.train_dataloader_it = iter(rows[start % 2 :])
    return [list(trainer._fetch_one_gen_batch()["uid"]) for _ in range(batches)]


def test_a_group_id_is_its_position_in_the_data_order() -> None:
    """Also after a resume; verl's own ids are random."""
    names = fetched(3)
    rows = ["000000000-a 000000001-b", "000000002-c 000000003-a", "000000004-a 000000005-b"]
    assert names == [row.split() for row in rows]
    assert fetched(2, start=1) == names[1:]


def test_an_adaptive_coefficient_is_resumed() -> None:
    """After a batch of 8 with a KL of 0.5: 0.1 (1 + clip(0.5 / 0.1 - 1, -0.2, 0.2) 8 / 16)."""

    def trainer() -> Any:
        made: Any = object.__new__(RecipeTrainer)
        made.kl_ctrl_in_reward = AdaptiveKLController(0.1, 0.1, 16)
        made.batches_fetched = made.optimizer_steps = 0
        made.earlier_seconds, made.started = 0.0, 0.0
        made.question_stats = QuestionStats(RECIPE)
        return made

    first, second = trainer(), trainer()
    first.kl_ctrl_in_reward.update(current_kl=0.5, n_steps=8)
    assert abs(first.kl_ctrl_in_reward.value - 0.11) < 1e-12
    second.load_own_state(first.own_state())
    assert second.kl_ctrl_in_reward.value == first.kl_ctrl_in_reward.value
    old = {key: value for key, value in first.own_state().items() if key != "kl_in_reward"}
    third = trainer()
    third.load_own_state(old)  # a checkpoint of an older version
    assert third.kl_ctrl_in_reward.value == 0.1


@pytest.mark.parametrize(
    "name", ["_compute_old_log_prob", "_compute_ref_log_prob", "_update_actor"]
)
def test_the_actor_is_sent_only_what_it_reads(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(PPOTrainer, name, lambda self, batch, metrics: sent.append(batch.fields))
    trainer: Any = object.__new__(RecipeTrainer)
    actor = {"ppo_mini_batch_size": 1, "ppo_epochs": 1}
    trainer.config = OmegaConf.create({"actor_rollout_ref": {"actor": actor, "rollout": {"n": 1}}})
    trainer.watchdog, trainer.optimizer_steps = SimpleNamespace(begin=lambda: None), 0

    class Batch(list[str]):
        fields: list[str] | None = None

    batch = Batch(["a"])
    getattr(trainer, name)(batch, {})
    assert sent == [list(ACTOR_FIELDS)] and batch.fields is None


class PassedError(Exception):
    """Stops after a pass of the actor."""


def test_the_pass_of_token_weights_has_the_adapter_that_the_reference_has_not() -> None:
    """With LoRA verl's reference is the actor without its adapter, by a mark that it leaves."""
    seen: list[tuple[bool, float]] = []

    def compute_log_prob(batch: Any) -> None:
        seen.append((batch.extra_info["no_lora_adapter"], batch.extra_info["temperature"]))
        raise PassedError

    trainer: Any = object.__new__(RecipeTrainer)
    trainer.ref_in_actor = True
    trainer.actor_rollout_wg = SimpleNamespace(compute_log_prob=compute_log_prob)
    weights = {"name": "gaussian_covariance", "gaussian_covariance": {"logprob_temperature": 0.7}}
    rollout = {"rollout": {"temperature": 1.0}}
    trainer.config = OmegaConf.create(
        {"recipe": {"weights": weights}, "actor_rollout_ref": rollout}
    )
    batch = SimpleNamespace(extra_info={}, fields=None)
    for compute in (
        lambda: trainer._compute_ref_log_prob(batch, {}),
        lambda: trainer._fetch(batch),
    ):
        with pytest.raises(PassedError):
            compute()
    assert seen == [(True, 1.0), (False, 0.7)]


def test_the_rollout_server_is_registered_before_verl_looks_it_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    order: list[str] = []
    monkeypatch.setattr(task_runner.progress, "reached", lambda *_: None)
    monkeypatch.setattr(task_runner, "refuse_shared_queue", lambda: None)
    monkeypatch.setattr(server, "register", lambda: order.append("register"))
    monkeypatch.setattr(task_runner._Runner, "run", lambda self, config: order.append("verl"))
    runner: Any = object.__new__(task_runner.RecipeTaskRunner)
    runner.run(OmegaConf.create({"recipe": {"run_dir": "r"}}))
    assert order == ["register", "verl"]
