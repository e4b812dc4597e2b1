"""Group ids, state and columns of the trainer; test_saving.py and the e2e tests cover the rest."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf
from verl.trainer.ppo.core_algos import AdaptiveKLController
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from recipe.rollout.agent_loop import EPOCH
from recipe.run.folder import RunFolder
from recipe.trainer import records
from recipe.trainer import trainer as trainers
from recipe.trainer.batch import ACTOR_FIELDS
from recipe.trainer.question_stats import QuestionStats
from recipe.trainer.trainer import RecipeTrainer

OFF = {"enable": False, "candidates": 1, "target": 0.5}
RECIPE = OmegaConf.create({"history": OFF, "curriculum": OFF})


def bare(config: Any = None, **attributes: Any) -> Any:
    """A trainer without verl's __init__, which starts half a cluster."""
    trainer: Any = object.__new__(RecipeTrainer)
    counts = {"batches_fetched": 0, "optimizer_steps": 0, "earlier_seconds": 0.0, "started": 0.0}
    for name, value in {**counts, "question_stats": QuestionStats(RECIPE), **attributes}.items():
        setattr(trainer, name, value)
    trainer.config = OmegaConf.create(config)
    return trainer


def fetched(
    batches: int, start: int = 0, recipe: Any = RECIPE
) -> list[tuple[list[str], list[int]]]:
    """The group ids and epochs of each batch, after `start` batches fetched before."""
    questions = [["a", "b"], ["c", "a"]]
    rates = {"a": 0.0, "b": 0.5, "c": 0.5}
    rows: list[dict[str, Any]] = [
        {"raw_prompt": q, "extra_info": [{"uid": uid, "pass_rate": rates[uid]} for uid in q]}
        for q in questions
    ]
    trainer = bare(
        train_dataloader=rows,
        train_dataloader_it=iter(rows[start % 2 :]) if start else None,
        batches_fetched=start,
        question_stats=QuestionStats(recipe),
        value_model=None,
    )
    made = [trainer._fetch_one_gen_batch() for _ in range(batches)]
    return [(list(batch["uid"]), batch[EPOCH].tolist()) for batch in made]


def test_a_group_id_is_its_position_in_the_data_order() -> None:
    """Also after a resume; verl's own ids are random."""
    made = fetched(3)
    rows = ["000000000-a 000000001-b", "000000002-c 000000003-a", "000000004-a 000000005-b"]
    assert [names for names, _ in made] == [row.split() for row in rows]
    assert [epochs for _, epochs in made] == [[0, 0], [0, 0], [1, 1]]  # of two batches
    assert fetched(2, start=1) == made[1:]


def test_a_curriculum_takes_the_candidates_nearest_to_the_target() -> None:
    """Of a, b, c, a with pass rates 0, 0.5, 0.5, 0."""
    recipe = OmegaConf.merge(RECIPE, {"curriculum": {"enable": True, "candidates": 2}})
    assert fetched(1, recipe=recipe) == [(["000000001-b", "000000002-c"], [0, 0])]


def test_counts_rates_and_an_adaptive_coefficient_are_resumed() -> None:
    """A batch of 8 with a KL of 0.5 gives 0.1 (1 + clip(0.5 / 0.1 - 1, -0.2, 0.2) 8 / 16)."""
    first, second, third = (
        bare(kl_ctrl_in_reward=AdaptiveKLController(0.1, 0.1, 16)) for _ in range(3)
    )
    first.kl_ctrl_in_reward.update(current_kl=0.5, n_steps=8)
    assert abs(first.kl_ctrl_in_reward.value - 0.11) < 1e-12
    first.batches_fetched, first.optimizer_steps = 3, 12
    first.question_stats.load({"pass_rates": {"q": 0.25}})
    second.load_own_state(first.own_state())
    assert second.kl_ctrl_in_reward.value == first.kl_ctrl_in_reward.value
    assert (second.batches_fetched, second.optimizer_steps) == (3, 12)
    assert second.question_stats.rates == {"q": 0.25}
    old = {key: value for key, value in first.own_state().items() if key != "kl_in_reward"}
    third.load_own_state(old)  # a checkpoint of an older version
    assert third.kl_ctrl_in_reward.value == 0.1


@pytest.mark.parametrize(
    "name", ["_compute_old_log_prob", "_compute_ref_log_prob", "_update_actor"]
)
def test_the_actor_is_sent_only_what_it_reads(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    sent: list[Any] = []
    monkeypatch.setattr(PPOTrainer, name, lambda self, batch, metrics: sent.append(batch.fields))
    actor = {"ppo_mini_batch_size": 1, "ppo_epochs": 3}
    trainer = bare({"actor_rollout_ref": {"actor": actor, "rollout": {"n": 1, "temperature": 1.0}}})
    trainer.watchdog, trainer.temperature = SimpleNamespace(begin=lambda: None), 1.0

    class Batch(list[str]):
        fields: list[str] | None = None

    batch = Batch(["a", "b"])
    getattr(trainer, name)(batch, {})
    assert sent == [list(ACTOR_FIELDS)] and batch.fields is None
    assert trainer.optimizer_steps == (6 if name == "_update_actor" else 0)  # 3 x 2 / 1


@pytest.mark.parametrize(("gradient", "wanted"), [("through", 1.0), ("detached", 0.7)])
@pytest.mark.parametrize(
    "name", ["_compute_old_log_prob", "_compute_ref_log_prob", "_update_actor"]
)
def test_a_gradient_through_the_weights_has_its_own_temperature(
    monkeypatch: pytest.MonkeyPatch, name: str, gradient: str, wanted: float
) -> None:
    """Log-probabilities, KL and update at 1 as the authors', samples at 0.7."""
    seen: list[float] = []

    def passed(self: Any, batch: Any, metrics: dict) -> None:
        seen.append(self.config.actor_rollout_ref.rollout.temperature)

    monkeypatch.setattr(PPOTrainer, name, passed)
    section = {"preset": "official_code", "gradient": gradient}
    weights = {"name": "gaussian_covariance", "gaussian_covariance": section}
    parts = {"actor": {"ppo_mini_batch_size": 1, "ppo_epochs": 1}, "rollout": {"n": 1}}
    parts["rollout"]["temperature"] = 0.7  # type: ignore[assignment]
    trainer = bare({"recipe": {"weights": weights}, "actor_rollout_ref": parts})
    trainer.watchdog = SimpleNamespace(begin=lambda: None)

    class Batch(list[str]):
        fields: list[str] | None = None

    getattr(trainer, name)(Batch(["a"]), {})
    assert seen == [wanted]
    assert trainer.config.actor_rollout_ref.rollout.temperature == 0.7


def test_lengths_compared_with_the_longest_row_are_not_logged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kinds = ("response_length", "response_length_non_aborted", "prompt_length")
    verls = {f"{kind}/{name}": 0.25 for kind in kinds for name in ("clip_ratio", "mean")}
    verls["actor/pg_clipfrac"] = 0.1
    compute = lambda self, batch, metrics: metrics.update(verls)  # noqa: E731
    monkeypatch.setattr(PPOTrainer, "_compute_metrics", compute)
    trainer = bare(use_critic=False, value_model=None, train_dataloader=[1], end_step=list)
    metrics: dict[str, float] = {}
    trainer._compute_metrics(None, metrics)
    left = {key for key in metrics if not key.startswith("tr")}
    assert left == {key for key in verls if "clip_ratio" not in key}


class PassedError(Exception):
    """Stops after a pass of the actor."""


def test_the_pass_of_token_weights_has_the_adapter_that_the_reference_has_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With LoRA verl's reference is the actor without its adapter, by a mark that it leaves."""
    seen: list[tuple[bool, float]] = []

    def compute_log_prob(batch: Any) -> None:
        seen.append((batch.extra_info["no_lora_adapter"], batch.extra_info["temperature"]))
        raise PassedError

    weights = {"name": "gaussian_covariance", "gaussian_covariance": {"logprob_temperature": 0.7}}
    rollout = {"rollout": {"temperature": 1.0}}
    settings = {"recipe": {"weights": weights, "overlong_filter": False}}
    settings |= {"actor_rollout_ref": rollout, "algorithm": {"use_kl_in_reward": False}}
    trainer = bare(settings)
    trainer.ref_in_actor = True
    trainer.actor_rollout_wg = SimpleNamespace(compute_log_prob=compute_log_prob)
    batch = SimpleNamespace(extra_info={}, fields=None)
    for compute in (
        lambda: trainer._compute_ref_log_prob(batch, {}),
        lambda: trainer._fetch(batch),
    ):
        with pytest.raises(PassedError):
            compute()
    assert seen == [(True, 1.0), (False, 0.7)]
    monkeypatch.setattr(trainers.batches, "fetch", lambda batch, _: batch)
    weights["gaussian_covariance"] = {"logprob_temperature": 1.0}
    trainer.config.recipe.weights = weights
    assert trainer._fetch(batch) == (batch, None)  # the temperature of the rollout: no pass


def test_rollouts_are_saved_every_second_step_before_its_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(records, "lines", lambda *_, step, **__: [{"step": step}])
    monkeypatch.setattr(RecipeTrainer, "_fetch", lambda *_: (None, None))
    monkeypatch.setattr(trainers, "signal_of", lambda *_, **__: (None, None, {}))
    monkeypatch.setattr(trainers.batches, "write", lambda *_: None)
    config = {"recipe": {"save_rollouts_every": 2, "advantage": {"name": "grpo"}}}
    buffer = SimpleNamespace(filled_groups=())
    trainer = bare(config, replay_buffer=buffer, run_dir=tmp_path, tokenizer=None)
    for step in range(1, 6):
        trainer.global_steps = step
        trainer._compute_advantage(None, {})
    assert list(RunFolder(tmp_path).rollout_steps()) == [2, 4]
