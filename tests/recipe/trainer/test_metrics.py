"""Statistics of a step by hand, the validation score, and their table in recipe/README.md."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from rollout_batches import synthetic

from recipe.algorithms.compute import shaped_rewards, weight_metrics
from recipe.algorithms.covariance import covariance_metrics
from recipe.algorithms.rollouts import RolloutBatch
from recipe.trainer.asynchronous import staleness
from recipe.trainer.metrics import (
    entropy,
    group_metrics,
    rephrasing_metrics,
    source_metrics,
    validation_metrics,
)

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


def test_group_metrics_by_hand() -> None:
    wanted = {
        **{"train/accuracy": 3 / 6, "train/truncated": 1 / 6, "train/responses": 6},
        **{"train/groups": 3, "train/no_signal_groups": 1 / 3},
        **{"train/all_right_groups": 1 / 3, "train/all_wrong_groups": 1 / 3},
        **{"grade/timeout": 1 / 6, "grade/no_answer": 0, "template/a/accuracy": 3 / 4},
        **{"template/b/share": 2 / 6, "template/b/length": 2, "template/b/format": 0.25},
        "template/b/entropy": (1 + 2 + 1.5 + 0.5) / 4,
    }
    result = group_metrics(rollouts(), torch.tensor(REWARDS))
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
        parts = group_metrics(batch, torch.tensor(REWARDS))
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
    )
    metrics = rephrasing_metrics(batch, torch.tensor(rewards))
    assert metrics["rephrasing/0/accuracy"] == 0.75
    assert metrics["rephrasing/1/accuracy"] == pytest.approx(1 / 3)
    assert metrics["rephrasing/2/logprob_gap"] == 0.5
    assert metrics["train/no_signal_original"] == 0.5
    assert metrics["train/no_signal_rephrasings"] == 1.0
    by_rephrasing = group_metrics(batch, torch.tensor(rewards), by_rephrasing=True)
    assert by_rephrasing["train/groups"] == 5
    assert by_rephrasing["train/no_signal_groups"] == pytest.approx(4 / 5)
    alone = synthetic([1.0], [[0.0]], [[1]], [0])
    assert rephrasing_metrics(alone, torch.ones(1)) == {}


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


ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "recipe" / "README.md").read_text("utf-8")
TRAINER = ROOT / "recipe" / "trainer"
KEY = re.compile(r"`([a-z_]+/[^`]+)`")


def table(page: str) -> dict[str, str]:
    """The unit of every key in the first column of the section's table."""
    section = page.partition("## Numbers in metrics.jsonl")[2].partition("\n## ")[0]
    block = section.partition("|---|---|---|\n")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
    return {key: row[1] for row in rows for key in KEY.findall(row[0])}


def matches(key: str, name: str) -> bool:
    """Return whether a key of the page, such as `val/<source>/format`, matches the name."""
    return re.fullmatch(re.sub(r"<\w+>", "[^/]+", key), name) is not None


def differences(page: str, names: set[str]) -> list[str]:
    """Names that the page lacks, keys that nothing writes, keys without a unit."""
    units = table(page)
    unnamed = [name for name in names if not any(matches(key, name) for key in units)]
    unwritten = [key for key in units if not any(matches(key, name) for name in names)]
    return sorted([*unnamed, *unwritten, *(key for key, unit in units.items() if not unit)])


def texts_of(file: str) -> list[str]:
    tree = ast.parse((TRAINER / file).read_text("utf-8"))
    result = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return [text for text in result if isinstance(text, str)]


def counted() -> set[str]:
    """The counts of dynamic sampling, to which the buffer adds its prefix."""
    tree = ast.parse((TRAINER / "replay_buffer.py").read_text("utf-8"))
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    (counts,) = [n.value for n in assigned if ast.unparse(n.targets[0]) == "counts"]
    keys = [ast.literal_eval(key) for key in counts.keys]  # type: ignore[attr-defined]
    evicted = [text for text in texts_of("replay_buffer.py") if re.fullmatch(r"evicted\w*", text)]
    return {f"dynamic_sampling/{name}" for name in [*keys, *evicted]}


def written() -> set[str]:
    """The keys that the functions return for two responses, and those that the trainer sets."""
    ones = torch.ones(2, 3, dtype=torch.float64)
    rollouts = synthetic(
        [1.0, 0.0],
        *(-ones, ones, [0, 0], [0, 1]),
        entropy_BT=ones,
        rollout_logprobs_BT=-ones,
        parts=[{"p": 1.0}, {}],
    )
    rewards = rollouts.reward_B
    graded: dict[str, list] = {"acc": [1], "format": [1], "parts": [{"p": 1.0}]}
    result: dict[str, float] = {
        **entropy(rollouts),
        **group_metrics(rollouts, rewards),
        **rephrasing_metrics(rollouts, rewards),
        **source_metrics(rollouts),
        **validation_metrics(["s"], ["u"], graded, {("s", "u"): 1}),
        **covariance_metrics(ones, ones),
        **weight_metrics(ones),
        **staleness([[[0, 1]]], 1),
        **shaped_rewards(rollouts, {"enable": True, "floor": -1.0, "weight": 1.0})[1],
    }
    files = ("trainer.py", "question_stats.py", "saving.py", "hints.py")
    own = [text for file in files for text in texts_of(file)]
    direct = {
        text for text in own if re.fullmatch(r"(train|training|curriculum|guard|hint)/\w+", text)
    }
    return {*result, *direct, *counted()}


def test_the_page_names_what_a_training_writes() -> None:
    assert {
        "train/wall_seconds",
        "curriculum/pass_rate",
        "history/known",
        "hint/share",
    } <= written()
    assert "dynamic_sampling/evicted_equal" in written()
    assert differences(PAGE, written()) == []


@pytest.mark.parametrize(
    ("old", "new", "seen"),
    [
        ("`train/groups`", "`train/group`", ["train/group", "train/groups"]),
        ("| `weights/zero` | share |", "| `weights/zero` | |", ["weights/zero"]),
        ("| `history/known`", "\n| `history/known`", ["history/known"]),
    ],
)
def test_missing_wrong_and_unitless_keys_are_found(old: str, new: str, seen: list[str]) -> None:
    assert old in PAGE
    assert set(seen) <= set(differences(PAGE.replace(old, new), written()))
