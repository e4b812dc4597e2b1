"""The grid of a tuned arm, and its table."""

import pytest
from lab_experiment import experiment

from prompt_aug.base.errors import UsageError
from recipe.errors import ConfigError
from recipe.lab.tune import combinations, planned, written

GRID = ["optim.lr=1e-4,3e-4", "clip=0.2,0.3"]


def test_every_combination_has_its_overrides() -> None:
    assert combinations([*GRID, "a=true"])[1] == ("optim.lr=0.0001", "clip=0.3", "a=true")
    assert len(combinations(GRID)) == 4
    with pytest.raises(UsageError, match="lr: not KEY=A,B"):
        combinations(["lr"])


def test_the_best_combination_is_first() -> None:
    plan = experiment().model_copy(update={"simulated": True})
    plan = planned(plan, plan.arm("kl"), GRID)
    assert plan.arms[2].set == ("a=1", "optim.lr=0.0003", "clip=0.2")  # after its own

    def line(value: float) -> dict[str, object]:
        numbers = {"greedy": value, "pass@1": value, "entropy": 0.1}
        return {"measured": {"6": {"qwen-math": numbers}}, "curves": {}}

    lines = {(f"kl_{i}", s): line(0.1 * (i % 3) + s / 100) for i in range(4) for s in (1, 2)}
    first, second, *_ = written(plan, lines, GRID, 2).splitlines()[2:]
    assert first == "| `optim.lr=0.0003 clip=0.2` | 0.215 | 0.210, 0.220 |"
    assert "clip=0.3` | 0.115 |" in second
    with pytest.raises(ConfigError, match="not simulated"):
        planned(experiment(), experiment().arm("kl"), GRID)
