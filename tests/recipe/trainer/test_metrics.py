"""Statistics of a step by hand, and the validation score.

Statistics of questions: a step never sees itself, a checkpoint keeps all; PCL's value model.
"""

import json
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

from recipe.algorithms.rollouts import RolloutBatch
from recipe.trainer.critic import ValueModel, rows
from recipe.trainer.metrics import (
    entropy_sums,
    group_metrics,
    mean_entropy,
    rephrasing_metrics,
    source_metrics,
    step_metrics,
    validation_metrics,
)
from recipe.trainer.question_stats import QuestionStats

REWARDS = [2.0, 2.0, 0.5, 0.0, 1.0, 0.0]
# g0: zero variance, all right; g1: all wrong, but format differs; g2: variance
GROUPS = [0, 0, 1, 1, 2, 2]


def rollouts(**more: Any) -> RolloutBatch:
    values: dict[str, Any] = {
        "accuracy": [1.0, 1.0, 0.0, 0.0, 1.0, 0.0],
        "formats": [1.0, 1.0, 0.5, 0.0, 0.0, 0.0],
        "templates": ["a", "a", "b", "b", "a", "a"],
        "lengths": [1, 1, 3, 1, 1, 1],
        "truncated": [False, False, False, True, False, False],
        "statuses": ["correct"] * 5 + ["timeout"],
        "entropy_BT": torch.tensor([[0.5, 0, 0]] * 2 + [[1, 2, 1.5]] + [[0.5, 0, 0]] * 3).double(),
    }
    mask = [[1, 0, 0]] * 2 + [[1, 1, 1]] + [[1, 0, 0]] * 3
    return synthetic(REWARDS, torch.zeros(6, 3), mask, GROUPS, **{**values, **more})


def entropy(batch: RolloutBatch) -> dict[str, float]:
    return mean_entropy("train/entropy", entropy_sums(batch))


def test_group_metrics_by_hand() -> None:
    wanted = {
        **{"train/accuracy": 3 / 6, "train/truncated": 1 / 6, "train/responses": 6},
        **{"train/groups": 3, "train/no_signal_groups": 1 / 3},
        **{"train/all_right_groups": 1 / 3, "train/all_wrong_groups": 1 / 3},
        **{"grade/timeout": 1 / 6, "grade/no_answer": 0, "template/a/accuracy": 3 / 4},
        **{"template/b/share": 2 / 6, "template/b/length": 2, "template/b/format": 0.25},
        "template/b/entropy": (1 + 2 + 1.5 + 0.5) / 4,
    }
    result = step_metrics(rollouts(), torch.tensor(REWARDS), by_rephrasing=False)
    assert {key: result[key] for key in wanted} == pytest.approx(wanted)


def test_the_entropy_is_a_mean_over_tokens() -> None:
    """(5 x 0.5 + 1 + 2 + 1.5) / 8 tokens; a mean over responses would be 2/3."""
    assert entropy(rollouts()) == {"train/entropy": pytest.approx(7 / 8)}
    # without the long response: filtered, or in a filler group
    trained = torch.tensor([True, True, False, True, True, True])
    assert entropy(rollouts(trained_B=trained)) == {"train/entropy": pytest.approx(0.5)}
    # without the token that rollout correction rejects
    mask = torch.tensor([[1, 0, 0]] * 2 + [[1, 0, 1]] + [[1, 0, 0]] * 3) != 0
    assert entropy(rollouts(mask_BT=mask)) == {"train/entropy": pytest.approx(5 / 7)}
    assert entropy(rollouts(entropy_BT=None)) == {}
    assert entropy(rollouts(trained_B=torch.zeros(6, dtype=torch.bool))) == {}


def test_the_entropy_of_the_whole_is_the_mean_of_its_parts_by_tokens() -> None:
    """Templates a and b have 4 tokens each; without row 3 b has 3. By responses it would be 2/3."""
    for left_out, (of_a, of_b) in ((None, (4, 4)), (3, (4, 3))):
        trained = torch.tensor([row != left_out for row in range(6)])
        batch = rollouts(trained_B=trained)
        parts = group_metrics(batch, torch.tensor(REWARDS), entropy_sums(batch))
        total = of_a * parts["template/a/entropy"] + of_b * parts["template/b/entropy"]
        assert entropy(batch)["train/entropy"] == pytest.approx(total / (of_a + of_b))


def test_rephrasing_metrics_by_hand() -> None:
    """Group 0: q^0 and q^1 have zero variance; group 1: only q^0 has variance.

    The gap is a mean over all tokens, also those that rollout correction rejects.
    """
    rewards = [1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0]
    rephrasings = [0, 0, 1, 1, 0, 0, 1, 2]
    theirs = torch.full((8, 2), -2.0, dtype=torch.float64)
    batch = synthetic(
        rewards,
        torch.full((8, 2), -1.5),
        [[1, 1]] * 7 + [[1, 0]],
        [0] * 4 + [1] * 4,
        rephrasings,
        lengths=[2] * 8,
        rollout_logprobs_BT=theirs,
        entropy_BT=torch.tensor([[1.0, 2.0]] * 8).double(),
    )
    metrics = step_metrics(batch, torch.tensor(rewards), by_rephrasing=True)
    assert metrics["rephrasing/0/accuracy"] == 0.75
    assert metrics["rephrasing/1/accuracy"] == pytest.approx(1 / 3)
    assert metrics["rephrasing/2/logprob_gap"] == 0.5
    assert (metrics["rephrasing/1/entropy"], metrics["rephrasing/2/entropy"]) == (1.5, 1.0)
    assert metrics["train/no_signal_original"] == 0.5
    assert metrics["train/no_signal_rephrasings"] == 1.0
    assert metrics["train/groups"] == 5
    assert metrics["train/no_signal_groups"] == pytest.approx(4 / 5)
    alone = synthetic([1.0], [[0.0]], [[1]], [0])
    assert rephrasing_metrics(alone, torch.ones(1), entropy_sums(alone)) == {}


def test_validation_counts_failed_rollouts_as_wrong() -> None:
    # two samples of u1, four of u2; three of u2 failed and are absent
    expected = {("math", "u1"): 2, ("math", "u2"): 4}
    infos = {"acc": [1.0, 1.0, 1.0], "format": [1.0, 0.5, 0.0]}
    infos["parts"] = [{"score": 1.0}, {"score": 0.5, "more": 2.0}, {}]
    metrics = validation_metrics(["math"] * 3, ["u1", "u1", "u2"], infos, expected)
    assert metrics["val/math/accuracy"] == pytest.approx((1.0 + 0.25) / 2)
    # values 1 and 0.25: s^2 = 0.28125, standard error sqrt(0.28125 / 2) = 0.375
    assert metrics["val/math/standard_error"] == pytest.approx(0.375)
    assert metrics["val/math/format"] == pytest.approx(0.5)
    assert metrics["val/math/questions"] == 2.0
    assert metrics["val/math/part/score"] == 0.75
    assert metrics["val/math/part/more"] == 2.0


def test_sources_are_told_apart_by_hand() -> None:
    ones = torch.ones(4, 1)
    changes = {"sources": ["a", "a", "a", "b"], "accuracy": [1.0, 0.0, 0.0, 1.0]}
    parts = [{"score": 1.0}, {"score": 0.5}, {}, {}]
    mixed = synthetic([0.0] * 4, -ones, ones, [0, 0, 1, 1], **changes, parts=parts)
    assert source_metrics(mixed) == {
        "source/a/share": 0.75,
        "source/a/accuracy": pytest.approx(1 / 3),
        "source/b/share": 0.25,
        "source/b/accuracy": 1.0,
        "source/a/part/score": 0.75,
    }
    alone = synthetic([0.0], -ones[:1], ones[:1], [0])
    assert source_metrics(alone) == {}


# ------------------------------------------------------------------------- questions


def stats(enable: bool = True) -> QuestionStats:
    history = {"enable": enable, "weight": 0.5}
    curriculum = {"enable": enable, "candidates": 4, "target": 0.5}
    return QuestionStats(OmegaConf.create({"history": history, "curriculum": curriculum}))


def step() -> RolloutBatch:
    """Two responses to question "q": 2 tokens and right, 4 tokens and wrong; the group is "g0"."""
    mask = [[1, 1, 0, 0], [1, 1, 1, 1]]
    return synthetic([1.0, 0.0], [[0.0] * 4] * 2, mask, [0, 0], questions=["q", "q"])


def rates_after(accuracies: list[float]) -> list[float]:
    """The pass rate of a question after each of its groups."""
    tracker, result = stats(), []
    for accuracy in accuracies:
        tracker.fetch(["g"], ["q"])
        tracker.see_group("g", accuracy)
        result.append(tracker.state()["pass_rates"]["q"])
    return result


def test_the_running_rate_by_hand() -> None:
    assert rates_after([1.0, 0.0, 0.25]) == [1.0, 0.5, 0.375]  # the first sets it
    assert rates_after([0.7] * 50)[-1] == 0.7  # exactly


def test_the_shortest_correct_response_by_hand() -> None:
    """q: 2 tokens and right, 4 and wrong; later 3 tokens, then 1; p is never right."""
    tracker = stats()
    assert tracker.shortest_of(["q", "p"]) == [None, None]
    for rewards, mask, wanted in (
        ([1.0, 0.0], [[1, 1, 0, 0], [1, 1, 1, 1]], 2),
        ([1.0, 1.0], [[1, 1, 1, 0], [1, 1, 1, 1]], 2),  # it never grows
        ([0.0, 0.0], [[1, 0, 0, 0], [1, 1, 0, 0]], 2),  # wrong responses do not count
        ([1.0, 1.0], [[1, 1, 0, 0], [1, 0, 0, 0]], 1),
    ):
        tracker.fetch(["g0"], ["q"])
        tracker.see_step(synthetic(rewards, [[0.0] * 4] * 2, mask, [0, 0], questions=["q", "q"]))
        assert tracker.shortest_of(["q", "p"]) == [wanted, None]


def test_a_checkpoint_keeps_the_statistics() -> None:
    before, after = stats(), stats()
    before.fetch(["g0", "surplus"], ["q", "p"])
    seen = {"curriculum/questions_seen": 1.0, "curriculum/pass_rate": 0.5}
    assert before.see_step(step()) == seen
    before.see_group("surplus", 1.0)  # of a step that has ended
    before.fetch(["g1"], ["other"])
    before.see_group("g1", 1.0)
    before.see_group("g1", 0.0)  # evicted, then a filler group: one group counts once
    after.load(before.state())
    wanted = {"shortest": {"q": 2}, "pass_rates": {"q": 0.5, "other": 1.0}}
    assert after.state() == before.state() == wanted == json.loads(json.dumps(wanted))
    after.fetch(["g2"], ["q"])
    after.see_group("g2", 1.0)
    assert before.state() == wanted  # nothing is shared
    after.load(before.state())
    assert after.choose(["other", "q"], 1) == [1]
    after.load({})  # a checkpoint of an older version
    assert after.state() == {"shortest": {}, "pass_rates": {}}


def test_a_measured_pass_rate_is_the_first_estimate() -> None:
    tracker = stats()
    tracker.start(["hard", "new", "half"], [0.0, None, 0.5])
    assert tracker.choose(["hard", "new", "half"], 2) == [1, 2]
    tracker.fetch(["g0"], ["hard"])
    tracker.see_group("g0", 1.0)  # (0 + 1) / 2: the estimate moves from the measured rate
    assert tracker.state()["pass_rates"]["hard"] == 0.5
    tracker.start(["hard"], [0.0])
    assert tracker.state()["pass_rates"]["hard"] == 0.5  # not measured again


def test_predictions_of_all_parts_of_a_step_are_compared() -> None:
    """verl fetches the questions of a step in parts (data.gen_batch_size)."""
    tracker = stats()
    for group, question, rate in (("g0", "q", 0.75), ("g1", "p", 0.5)):
        tracker.choose([question], 1, [rate])
        tracker.fetch([group], [question])
    assert tracker.see_step(step())["curriculum/value_error"] == 0.25
    tracker.fetch(["g0"], ["q"])
    assert "curriculum/value_error" not in tracker.see_step(step())  # no prediction in this step


def test_groups_in_flight_are_resumed_and_counted_in_their_own_step() -> None:
    """Group g1 is requested before the step of g0 ends, and trained after a resume."""
    before, after = stats(), stats()
    before.fetch(["g0", "g1"], ["q", "p"])
    before.choose(["q"], 1, [0.75])
    before.choose(["p"], 1, [0.5])
    assert before.see_step(step(), in_flight={"g1"})["curriculum/value_error"] == 0.25
    after.load(json.loads(json.dumps(before.state())))
    for tracker in (before, after):
        tracker.see_group("g1", 1.0)
        assert tracker.rates == {"q": 0.5, "p": 1.0} and tracker.predicted == {"p": 0.5}


def test_disabled_sections_record_nothing() -> None:
    off = stats(enable=False)
    off.fetch(["g0"], ["q"])
    off.see_group("g0", 1.0)
    assert off.see_step(step()) == {}
    assert off.state() == {"shortest": {}, "pass_rates": {}}
    assert off.candidates == 1


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


@pytest.mark.config
def test_v_is_the_value_at_the_last_token_of_the_prompt() -> None:
    assert ValueModel(Workers(), CONFIG).rate([*PROMPTS, PROMPTS[0]]) == pytest.approx(
        [0.7, 0.9, 0.7]
    )


@pytest.mark.config
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


@pytest.mark.config
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
