"""From rewards to token advantages: groups, weights, what is left out, what is remembered."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from recipe.algorithms.compute import Responses, compute_advantages
from recipe.trainer import batch as batches
from recipe.trainer.batch import Rows
from recipe.trainer.question_stats import QuestionStats

# One visit of one question: two responses to q^0 (both right), two to q^1 (one right).
REWARDS = [1.0, 1.0, 1.0, 0.0]
GAUSSIAN = {
    **dict.fromkeys(("centre", "advantage_centre", "sigma", "normaliser")),
    "preset": "paper",
}


def responses(mask: Any = None) -> Responses:
    return Responses(
        rewards_B=torch.tensor(REWARDS, dtype=torch.float64),
        question_B=torch.tensor([0, 0, 0, 0]),
        text_B=torch.tensor([0, 0, 1, 1]),
        logprobs_BT=torch.tensor([[-1.0, -2.0], [-0.5, -0.1], [-3.0, 0.0], [-1.0, -4.0]]).double(),
        mask_BT=torch.tensor(mask or [[1, 1], [1, 1], [1, 0], [1, 1]]).double(),
        key_B=torch.arange(4),
    )


def settings(name: str = "grpo", group: str | None = None, weights: str = "none") -> tuple:
    return (
        OmegaConf.create({"name": name, "group": group}),
        OmegaConf.create(
            {
                "name": weights,
                "gaussian_covariance": GAUSSIAN,
                "clip_cov": {"ratio": 1.0, "lower": 0.5, "upper": 9.0},
            }
        ),
    )


def test_joint_and_per_text_normalisation_by_hand() -> None:
    joint, _ = compute_advantages(responses(), *settings("ta_grpo"))
    # mean 3/4, unbiased std sqrt((3/16 + 9/16) / 3) = 1/2: A = 1/2, 1/2, 1/2, -3/2
    expected = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.5, 0.0], [-1.5, -1.5]]).double()
    torch.testing.assert_close(joint, expected, atol=1e-5, rtol=0)
    star, _ = compute_advantages(responses(), *settings("ta_grpo_star"))
    # q^0's group has no signal; q^1's: mean 1/2, std sqrt(1/2): A = +-1/sqrt(2)
    half = 0.5**0.5
    expected = torch.tensor([[0, 0], [0, 0], [half, 0], [-half, -half]]).double()
    torch.testing.assert_close(star, expected, atol=1e-5, rtol=0)
    corner, _ = compute_advantages(responses(), *settings("grpo", "text"))
    torch.testing.assert_close(corner, star)
    assert not torch.allclose(joint, star)  # the two groupings do differ


def test_weights_multiply_the_advantages_and_are_logged() -> None:
    plain, without = compute_advantages(responses(), *settings())
    weighted, metrics = compute_advantages(responses(), *settings(weights="gaussian_covariance"))
    real = responses().mask_BT.bool()
    ratio = (weighted / plain)[real]
    assert ratio.mean().item() == pytest.approx(1.0)  # the weights of a group have mean 1
    assert ratio.min().item() == pytest.approx(metrics["weights/min"])
    assert metrics["weights/effective_tokens"] == pytest.approx(
        (ratio.sum() ** 2 / (7 * (ratio**2).sum())).item()
    )
    assert weighted[~real].tolist() == [0.0]
    assert "weights/min" not in without
    assert without["covariance/std"] == metrics["covariance/std"] > 0


def test_clipped_tokens_lose_their_advantage_and_a_seed_draws_the_same() -> None:
    plain, _ = compute_advantages(responses(), *settings())
    clipped, metrics = compute_advantages(responses(), *settings(weights="clip_cov"), seed=3)
    again, _ = compute_advantages(responses(), *settings(weights="clip_cov"), seed=3)
    assert metrics["weights/zero"] > 0
    assert torch.equal(clipped, again)
    assert torch.equal(clipped[clipped != 0], plain[clipped != 0])


def row(session: int, right: bool, tokens: int, visit: str = "v") -> dict[str, Any]:
    return {
        "uid": visit,
        "session_id": session,
        "extra_info": {"uid": "q", "answers": ["1"]},
        "extra_fields": {
            "neighbour": session // 2,
            "truncated": tokens >= 4,
            "reward_extra_info": {"acc": float(right)},
        },
        "rm_scores": torch.tensor([0.0] * (tokens - 1) + [float(right)]),
        "responses": torch.arange(tokens),
        "response_mask": torch.ones(tokens, dtype=torch.int64),
        "loss_mask": torch.ones(tokens, dtype=torch.int64),
        "old_log_probs": -torch.arange(tokens).float(),
    }


def rows(*listed: dict[str, Any]) -> Rows:
    columns = {name: [r[name] for r in listed] for name in listed[0]}
    return Rows(keys=[f"k{i}" for i in range(len(listed))], partition="train", columns=columns)


def test_rows_become_groups_and_cut_responses_leave_the_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = rows(row(0, True, 2), row(1, False, 4), row(2, True, 3), row(0, True, 1, "w"))
    left_out = batch.truncated()
    assert left_out == [False, True, False, False]
    made = batches.responses(batch, batch.rewards(), left_out)
    assert made.question_B.tolist() == [0, 0, 0, 1]
    assert made.text_B.tolist() == [0, 0, 1, 2]
    assert made.rewards_B.tolist() == [1, 0, 1, 1]  # a cut response still counts in its group
    assert made.mask_BT.sum(1).tolist() == [2, 0, 3, 1]
    written: dict[str, Any] = {}
    monkeypatch.setattr(batches.tq, "kv_batch_put", lambda **given: written.update(given))
    advantages_BT, _ = compute_advantages(made, *settings())
    filled = batches.without_visits(batch, torch.ones(4, 2), {"w"})
    assert filled.tolist() == [[1, 1], [1, 1], [1, 1], [0, 0]]
    batches.write_advantages(batch, advantages_BT, left_out, by_token=False)
    assert written["keys"] == batch.keys
    assert masks(written) == [[1, 1], [0, 0, 0, 0], [1, 1, 1], [1]]
    batches.write_advantages(batch, advantages_BT, left_out, by_token=True)
    # its first token stays in the masks, so that no mini-batch has zero tokens; advantage 0
    assert masks(written) == [[1, 1], [1, 0, 0, 0], [1, 1, 1], [1]]
    batches.write_advantages(batch, advantages_BT, [True] * 4, by_token=False)
    assert [sum(m) for m in masks(written)] == [1, 1, 1, 1]
    advantages = [a.tolist() for a in written["fields"]["advantages"].unbind()]
    assert [len(a) for a in advantages] == [2, 4, 3, 1]
    assert advantages[1] == [0, 0, 0, 0]
    assert advantages[0] == pytest.approx([0.57735] * 2, abs=1e-4)
    batches.write_advantages(batch, advantages_BT, [False] * 4, by_token=True)
    assert list(written["fields"].keys()) == ["advantages"]


def test_kl_in_the_reward_is_part_of_it() -> None:
    batch = rows({**row(0, True, 3), "token_level_rewards": torch.tensor([-0.25, -0.5, 1.0])})
    assert batch.rewards() == [0.25]
    del batch.columns["token_level_rewards"]
    assert batch.rewards() == [1.0]


def masks(written: dict[str, Any]) -> list[list[int]]:
    pairs = (written["fields"][name].unbind() for name in ("response_mask", "loss_mask"))
    response, loss = ([m.tolist() for m in field] for field in pairs)
    assert response == loss
    return response


def test_padding_rows_are_left_out_and_the_order_of_arrival_does_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """verl appends copies of the first row, marked by a tag, to fill the last mini-batch."""
    arrived = {
        "v_2_0": row(2, True, 3),
        "w_0_0": row(0, True, 1, "w"),
        "pad_0_0": row(2, True, 3, "pad"),
        "v_0_0": row(0, True, 2),
    }
    keys = list(arrived)

    def get(keys: list[str], select_fields: list[str], **_: Any) -> dict[str, list]:
        return {
            name: [arrived[key][name] for key in keys]
            for name in select_fields
            if name in arrived["v_2_0"]
        }

    monkeypatch.setattr(batches.tq, "kv_batch_get", get)
    tags = [{"is_padding": key.startswith("pad")} for key in keys]
    meta = SimpleNamespace(keys=keys, tags=tags, partition_id="train")
    read = batches.read(meta)
    assert read.keys == ["v_0_0", "v_2_0", "w_0_0"]
    assert read.lengths() == [2, 3, 1]
    assert read.rewards() == [1.0, 1.0, 1.0]
    assert "entropy" not in read.columns  # not there in bypass mode
    row_keys = batches.row_keys(read)
    assert len(set(row_keys)) == 3
    meta = SimpleNamespace(keys=keys[::-1], tags=tags[::-1], partition_id="train")
    assert batches.row_keys(batches.read(meta)) == row_keys


def memory(**changes: Any) -> QuestionStats:
    sections = {
        "history": {"enable": True, "weight": 0.5, "floor": -0.7},
        "curriculum": {"enable": True, "candidates": 4, "target": 0.5, "decay": 0.5},
    }
    for key, value in changes.items():
        sections[key]["enable"] = value
    return QuestionStats(OmegaConf.create(sections))


def test_a_step_never_sees_itself_and_the_next_one_sees_it() -> None:
    remembered = memory()
    remembered.fetch(["v"], ["q"])
    first = rows(row(0, True, 2), row(1, False, 4))
    assert remembered.shape(first) == ([1.0, 0.0], {"history/reward": 0.0, "history/known": 0.0})
    metrics = remembered.see_step(first)
    assert metrics == {"curriculum/questions_seen": 1.0, "curriculum/pass_rate": 0.5}
    rewards, metrics = remembered.shape(rows(row(0, True, 1), row(1, True, 4), row(2, False, 1)))
    # h = 2: l = 1 right: cos(pi/4) / 2; l = 4 right: the floor -0.7 / 2; wrong and short: 0
    assert rewards == pytest.approx([1 + 0.5 * 0.5**0.5, 1 - 0.35, 0.0])
    assert metrics["history/known"] == 1.0


def test_what_is_remembered_survives_a_checkpoint() -> None:
    before, after = memory(), memory()
    before.fetch(["v"], ["q"])
    before.see_step(rows(row(0, True, 2), row(1, False, 4)))
    before.fetch(["w"], ["other"])
    before.see_visit("w", 1.0)
    before.see_visit("w", 0.0)  # evicted first, then filled in: one visit counts once
    after.load(before.state())
    assert (
        after.state()
        == before.state()
        == {
            "shortest": {"q": 2},
            "pass_rates": {"q": 0.5, "other": 1.0},
        }
    )
    assert after.choose(["other", "q"], 1) == [1]
    after.load({})  # a checkpoint from before this existed
    assert after.state() == {"shortest": {}, "pass_rates": {}}


def test_what_is_off_changes_nothing() -> None:
    off = memory(history=False, curriculum=False)
    off.fetch(["v"], ["q"])
    assert off.shape(rows(row(0, True, 2))) == ([1.0], {})
    off.see_visit("v", 1.0)
    assert off.see_step(rows(row(0, True, 2))) == {}
    assert off.state() == {"shortest": {}, "pass_rates": {}}
    assert off.candidates == 1


def test_saved_tensors_read_back_without_pickle(tmp_path: Any) -> None:
    listed = [row(0, True, 2), row(1, False, 3)]
    for r in listed:
        r["prompts"] = torch.tensor([7, 8])
        r["extra_fields"] |= {"template": "t", "generated_under": None}
    listed[1]["extra_fields"]["generated_under"] = [9]
    path = tmp_path / "tensors" / "step_1.npz"
    batches.save_tensors(path, rows(*listed), [1.0, 0.5], torch.zeros(2, 3))
    read = np.load(path, allow_pickle=False)
    assert read["responses"].tolist() == [[0, 1, -1], [0, 1, 2]]
    assert read["generated_under"].tolist() == [[7, 8], [9, -1]]
    assert read["prompts"].tolist() == [[7, 8], [7, 8]]
    assert read["lengths"].tolist() == [2, 3]
    assert read["rewards"].tolist() == [1.0, 0.5]
    assert [p.name for p in path.parent.iterdir()] == ["step_1.npz"]
