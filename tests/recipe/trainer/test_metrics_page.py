"""The table of recipe/README.md names the metrics that a training writes, each with its unit."""

import ast
import re
from pathlib import Path

import pytest
import torch
from rollout_batches import synthetic

from recipe.algorithms.compute import shaped_rewards, weight_metrics
from recipe.algorithms.covariance import covariance_metrics
from recipe.trainer import metrics as statistics
from recipe.trainer.asynchronous import staleness

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
    found = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    return [text for text in found if isinstance(text, str)]


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
    found: dict[str, float] = {
        **statistics.entropy(rollouts),
        **statistics.group_metrics(rollouts, rewards),
        **statistics.rephrasing_metrics(rollouts, rewards),
        **statistics.source_metrics(rollouts),
        **statistics.validation_metrics(["s"], ["u"], graded, {("s", "u"): 1}),
        **covariance_metrics(ones, ones),
        **weight_metrics(ones),
        **staleness([[[0, 1]]], 1),
        **shaped_rewards(rollouts, {"enable": True, "floor": -1.0, "weight": 1.0})[1],
    }
    files = ("trainer.py", "question_stats.py", "saving.py")
    own = [text for file in files for text in texts_of(file)]
    direct = {text for text in own if re.fullmatch(r"(train|training|curriculum|guard)/\w+", text)}
    return {*found, *direct, *counted()}


def test_the_page_names_what_a_training_writes() -> None:
    assert {"train/wall_seconds", "curriculum/pass_rate", "history/known"} <= written()
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
