"""One read and one write instead of verl's two: the same columns and metrics as verl's method."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from rollout_batches import Queue, row
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from recipe.trainer import batch as batches
from recipe.trainer.question_stats import QuestionStats
from recipe.trainer.trainer import RecipeTrainer

OFF = {"enable": False}
RECIPE = {
    "seed": 0,
    "advantage": {"name": "grpo", "group": None},
    "weights": {"name": "none"},
    "history": OFF,
    "curriculum": {**OFF, "target": 0.5, "decay": 0.5},
    "overlong_filter": False,
    "save_tensors_every": 0,
    "save_rollouts_every": 0,
}
CORRECTION = {
    "bypass_mode": False,
    "rollout_is": "token",
    "rollout_is_threshold": 2.0,
    "rollout_rs": "token_k1",
    "rollout_rs_threshold": "0.5_1.5",
}


def rows(*, log_probs: bool, padding: bool) -> dict[str, dict]:
    """Two groups; one has three tokens whose engine log-probabilities are far off."""
    random = torch.Generator().manual_seed(3)
    made = {}
    for group, rights in (("g1", [1, 0, 1]), ("g0", [0, 0, 1])):
        for session, right in enumerate(rights):
            key = f"{group}_{session}_0"
            made[key] = row(bool(right), 2 + session, question=group, session=session, uid=group)
            old = made[key]["old_log_probs"]
            made[key]["ref_log_prob"] = old + 0.3 * torch.randn(len(old), generator=random)
            if log_probs:
                noise = torch.randn(len(old), generator=random)
                made[key]["rollout_log_probs"] = old + noise
    if padding:
        masks = dict.fromkeys(("response_mask", "loss_mask"), torch.zeros(1, dtype=torch.int64))
        numbers = ("rm_scores", *(["rollout_log_probs"] if log_probs else []))
        zeros = {**masks, **dict.fromkeys(numbers, torch.zeros(1))}
        ref = {"ref_log_prob": torch.tensor([-0.3])}
        made["pad_0_0"] = row(False, 1, session=0, uid="pad", **zeros, **ref)
    return made


def step(owner: Any, queue: Queue, monkeypatch: Any, **algorithm: Any) -> dict[str, float]:
    """`_compute_advantage` of verl's trainer or of ours; returns its metrics."""
    for module in (trainer_base, batches):
        monkeypatch.setattr(module, "tq", queue)
    trainer: Any = object.__new__(RecipeTrainer)
    trainer.global_steps, trainer.run_dir = 1, Path("unused")
    base = {"adv_estimator": "grpo", "gamma": 1.0, "lam": 1.0, "norm_adv_by_std_in_grpo": True}
    base |= {"use_kl_in_reward": False, "kl_penalty": "kl", "rollout_correction": None}
    trainer.config = OmegaConf.create(
        {
            "algorithm": {**base, **algorithm},
            "recipe": RECIPE,
            "actor_rollout_ref": {
                "actor": {"loss_agg_mode": "token-mean"},
                "rollout": {"n": 3, "temperature": 1.0},
            },
        }
    )
    trainer.kl_ctrl_in_reward = core_algos.FixedKLController(0.25)
    trainer.replay_buffer = type("Buffer", (), {"filled_groups": set()})
    trainer.question_stats = QuestionStats(trainer.config.recipe)
    metrics: dict[str, float] = {}
    batch = queue.batch(list(queue.rows)[::-1])
    assert owner._compute_advantage(trainer, batch, metrics).keys == batch.keys
    return metrics


@pytest.mark.parametrize("padding", [False, True])
@pytest.mark.parametrize(
    ("log_probs", "algorithm"),
    [
        (False, {}),
        (False, {"use_kl_in_reward": True}),
        (True, {"rollout_correction": CORRECTION}),
        (True, {"rollout_correction": CORRECTION, "use_kl_in_reward": True}),
        (True, {"rollout_correction": {**CORRECTION, "rollout_is": None, "rollout_rs": None}}),
        (True, {"rollout_correction": {**CORRECTION, "bypass_mode": True}}),
    ],
)
def test_the_columns_and_metrics_are_verls(
    monkeypatch: pytest.MonkeyPatch, log_probs: bool, algorithm: dict, padding: bool
) -> None:
    theirs = Queue(rows(log_probs=log_probs, padding=padding))
    ours = copy.deepcopy(theirs)
    wanted = step(PPOTrainerSync, theirs, monkeypatch, **algorithm)
    result = step(RecipeTrainer, ours, monkeypatch, **algorithm)
    assert {key: result[key] for key in wanted} == pytest.approx(wanted)
    assert len(ours.reads) == len(ours.writes) == 1
    assert set(ours.writes[0]) == set(theirs.writes[0])
    for name in ours.writes[0]:
        a, b = theirs.column(name), ours.column(name)
        assert a.keys() == b.keys()
        for key in a:
            # verl's GRPO is in float32
            assert b[key] == pytest.approx(a[key], abs=1e-5), (name, key)
    assert max(max(map(abs, v)) for v in ours.column("advantages").values()) > 0.5
    if "rollout_is_weights" in ours.writes[0]:
        masks = ours.column("response_mask")
        assert any(0 in mask for key, mask in masks.items() if not key.startswith("pad"))


def test_a_rejected_token_is_excluded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves the mask before any statistics: negative control of the test above."""
    queue = Queue(rows(log_probs=True, padding=False))
    metrics = step(RecipeTrainer, queue, monkeypatch, rollout_correction=CORRECTION)
    kept = queue.column("response_mask")
    total = sum(len(mask) * sum(mask) for mask in kept.values())  # its entropy is its length
    assert metrics["train/entropy"] == pytest.approx(total / sum(map(sum, kept.values())))
    assert sum(map(sum, kept.values())) < sum(map(len, kept.values()))
    for key, advantages in queue.column("advantages").items():
        assert [a for a, m in zip(advantages, kept[key], strict=True) if not m and a] == []


def test_a_rejected_response_still_counts_in_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """recipe/STACK.md says so; verl's trainer has the same advantages (first test)."""
    made = rows(log_probs=True, padding=False)
    for key, columns in made.items():
        columns["rollout_log_probs"] = columns["old_log_probs"] + (3.0 if key == "g1_0_0" else 0.0)
    rejecting = {**CORRECTION, "rollout_is": None, "rollout_rs": "seq_mean_k1"}
    plain, cut = (Queue(copy.deepcopy(made)) for _ in range(2))
    step(RecipeTrainer, plain, monkeypatch)
    step(RecipeTrainer, cut, monkeypatch, rollout_correction=rejecting)
    rejected = [key for key, mask in cut.column("response_mask").items() if not any(mask)]
    assert rejected == ["g1_0_0"]
    wanted, result = plain.column("advantages"), cut.column("advantages")
    assert all(result[key] == wanted[key] for key in result if key not in rejected)
    assert set(result["g1_0_0"]) == {0.0} and any(wanted["g1_0_0"])
